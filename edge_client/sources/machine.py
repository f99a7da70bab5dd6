"""Facts a machine knows about itself."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from edge_client.errors import SourceFailure
from protocol_spec.programs.output import quoted


def _model() -> str:
    for path in ("/proc/device-tree/model", "/sys/devices/virtual/dmi/id/product_name"):
        try:
            return Path(path).read_text(encoding="utf-8").strip(" \n\0")
        except OSError:
            continue
    raise OSError("no model is known")


def _os() -> str:
    return platform.freedesktop_os_release()["ID"]


def _os_version() -> str:
    return platform.freedesktop_os_release().get("VERSION_ID", "")


def _memory() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def _temperature() -> float:
    zone = Path("/sys/class/thermal/thermal_zone0/temp")
    return int(zone.read_text(encoding="ascii")) / 1000


def _uptime() -> float:
    return float(Path("/proc/uptime").read_text(encoding="ascii").split()[0]) / 86_400


Facts = Mapping[str, tuple[Callable[[], str | float], str]]

FACTS: Facts = {
    "model": (_model, "the machine's model name"),
    "os": (_os, "the distribution's id, such as debian"),
    "os_version": (_os_version, "the distribution's version"),
    "architecture": (platform.machine, "the processor's architecture, such as aarch64"),
    "cpu_count": (lambda: os.cpu_count() or 1, "number of processors"),
    "memory_gib": (_memory, "memory in GiB (bin it)"),
    "cpu_temperature": (_temperature, "processor temperature in °C (bin it)"),
    "load": (lambda: os.getloadavg()[2], "load average of 15 minutes (bin it)"),
    "uptime_days": (_uptime, "days since boot (bin it)"),
}


@dataclass(frozen=True, slots=True)
class MachineSource:
    """`fact = "cpu_temperature"`, one of FACTS."""

    fact: str

    def __post_init__(self) -> None:
        if self.fact not in FACTS:
            raise ValueError(
                f"fact = {quoted(self.fact)}: choose one of {', '.join(sorted(FACTS))}"
            )

    def read(self) -> object:
        """The fact as it is now."""
        return read_fact(self.fact)


def read_fact(fact: str, facts: Facts = FACTS) -> str | float:
    """Ask the machine, or raise `SourceFailure` if it does not know."""
    try:
        return facts[fact][0]()
    except (OSError, ValueError, KeyError):
        raise SourceFailure(
            f"this machine does not report its {fact}; nothing was drawn or sent"
        ) from None
