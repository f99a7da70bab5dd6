"""Whether the collector is well, from a file, so that neither a port nor curl is needed.

The service writes its status to the heartbeat file every few seconds; `examine` reads it, and
compares the configuration that the service's broker uses with the one on disk. Nothing here knows
the broker or the store, so the page's process can use it.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from shutil import disk_usage
from typing import Any, Final, TypedDict

from protocol_spec.programs.cli import Finding, warned
from protocol_spec.programs.system import overwrite

HEARTBEAT_FILE: Final = "heartbeat"
EVERY_SECONDS: Final = 2.0
STALE_SECONDS: Final = 30.0
LEAST_FREE: Final = 1 << 30  # bytes; a smaller disk is nearly full with a twentieth of it left
LEAST_DAYS: Final = 30
RENEW: Final = (
    "Renew it: run `allomfree-collector broker-config` again, with --server-cert if needed"
)
SHOWN: Final = 8  # campaigns that wait, in the heartbeat
OUTDATED: Final = (
    "the broker's configuration was changed, and the running collector does not use it yet. It "
    "switches within seconds, and nothing is lost; if this persists, restart the collector"
)
# What a running broker or collector cannot take over by reloading: where the broker listens and
# with what, and how the collector connects to it. Brokers do reload users, passwords and access.
_CONFIGURATION: Final = ("nats.conf", "mosquitto.conf", "credentials/Collector/collector.toml")


class Waiting(TypedDict):
    """A round past its deadline that is not sealed: until when at most, and why."""

    round: int
    until: float | None
    why: str


@dataclass(slots=True)
class Status:
    """What the running service reports, for `status`, `health` and the metrics."""

    connected: bool = False
    trouble: str = "starting"
    received: int = 0
    accepted: int = 0
    batches: int = 0
    largest_batch: int = 0
    last_commit: float = 0.0
    storage_failures: int = 0
    suspended: int = 0  # devices that flood
    suspended_names: list[str] = field(default_factory=list)  # of some of them
    early: int = 0
    late: int = 0
    clock: str = ""  # why this machine's clock may be wrong
    waiting: dict[str, Waiting] = field(default_factory=dict)  # by the campaign's name
    since: float = field(default_factory=time.time)
    broker_dir: str = ""  # where the broker in use was configured; empty if not here
    broker_config: str = ""  # the fingerprint of its configuration
    plaintext: str = ""  # the broker's address, if others can read what is sent to it
    certificate: float = 0.0  # when the broker's expires; 0 if that is not known
    page: str = ""  # why the page is not at its usual address
    unproven: dict[str, int] = field(default_factory=dict)  # by campaign: its last such round
    worker: int = 0  # its number, if several share a store
    leads: bool = False  # whether it is the one that seals and publishes


@dataclass(frozen=True, slots=True)
class Beat:
    """One heartbeat: which process wrote it, when, its memory in bytes, and its status."""

    pid: int
    at: float
    memory: int
    status: Status


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the collector is well, why or why not, and its last heartbeat if it is running."""

    well: bool
    finding: str
    beat: Beat | None = None

    @property
    def running(self) -> bool:
        """Whether there is a collector process, well or not."""
        return self.beat is not None

    @property
    def outdated(self) -> bool:
        """Whether the broker's configuration was changed since the service chose it."""
        return self.beat is not None and _is_outdated(self.beat.status)

    def facts(self) -> dict[str, Any]:
        """What `health --json` prints."""
        known = {} if self.beat is None else asdict(self.beat)
        status = known.pop("status", {})
        return {"healthy": self.well, "finding": self.finding, **known, **status}


class Heartbeat:
    """Writes the service's status every few seconds and whenever its trouble changes, in place."""

    def __init__(self, directory: Path, every_seconds: float = EVERY_SECONDS) -> None:
        self._path = directory / HEARTBEAT_FILE
        self._every_seconds = every_seconds
        self._next = 0.0
        self._trouble: str | None = None

    @property
    def due(self) -> bool:
        return time.monotonic() >= self._next

    def beat(self, status: Status) -> None:
        """Write, if it is time or the trouble changed."""
        if not self.due and status.trouble == self._trouble:
            return
        self._trouble = status.trouble
        self._next = time.monotonic() + self._every_seconds
        process = {"pid": os.getpid(), "at": time.time(), "memory": resident_memory()}
        record = process | asdict(status) | {"trouble": str(status.trouble)[:1000]}
        with suppress(OSError):  # a full disk must not end the service; a silent one looks stuck
            overwrite(self._path, json.dumps(record).encode().ljust(4096))


def examine(directory: Path, clock: Callable[[], float] = time.time) -> Health:
    """Read the heartbeat of the collector on a data directory."""
    try:
        record: dict[str, Any] = json.loads((directory / HEARTBEAT_FILE).read_bytes())
        status = Status(**{f.name: record[f.name] for f in fields(Status) if f.name in record})
        status.trouble = str(status.trouble)
        beat = Beat(int(record["pid"]), float(record["at"]), int(record["memory"]), status)
        os.kill(beat.pid, 0)
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return Health(False, f"no collector is running on {directory}")
    age = clock() - beat.at
    if age > STALE_SECONDS:
        beat.status.connected = False  # not known: it would have to report it again
        return Health(
            False, f"the collector (process {beat.pid}) is stuck: silent for {age:.0f} s", beat
        )
    if _is_outdated(beat.status):
        return Health(False, OUTDATED, beat)
    if beat.status.trouble:
        return Health(False, beat.status.trouble, beat)
    return Health(True, "connected and counting", beat)


def findings(
    directory: Path, health: Health, free: Callable[[Path], tuple[int, int, int]] = disk_usage
) -> list[Finding]:
    """The service, and what is no fault of it yet but will be."""
    step = "" if health.well else "See: allomfree-collector doctor"
    if not health.running:
        step = "Start it: allomfree-collector run"
    found = [Finding("service", health.well, health.finding, step)]
    if health.beat is not None:
        found += _warnings(health.beat.status)
    with suppress(OSError):
        size, _, left = free(directory)
        if left < min(LEAST_FREE, size // 20):
            text = f"the data directory's disk has {left / 1e6:,.0f} MB left of {size / 1e6:,.0f}"
            found.append(warned("disk", text, "Free some space, or move the data directory"))
    return found


def _warnings(status: Status) -> Iterator[Finding]:
    if status.waiting:
        names = ", ".join(list(status.waiting)[:SHOWN])
        text = f"a round past its deadline waits for the broker: {names}"
        yield warned("sealing", text, "After rounds.drain at most it is sealed anyway")
    for name, number in status.unproven.items():
        text = f"round {number} of {name} was sealed without proof that the broker held no more"
        yield warned("sealing", text, "What was counted stands. See: allomfree-collector doctor")
    if status.clock:
        step = "Compare it with another clock, or set up NTP"
        yield warned("clock", status.clock, step)
    if status.page:
        yield warned("page", status.page, "Choose its address with --listen, or free the port")
    if status.plaintext:
        text = f"what is sent to {status.plaintext} is not encrypted, and it is not this machine"
        yield warned("broker", text, "Use mqtts://. See: allomfree-collector broker-config")
    if status.certificate and (days := (status.certificate - time.time()) / 86_400) < LEAST_DAYS:
        text = f"the broker's is valid for {days:.0f} more days" if days > 0 else "it has expired"
        yield warned("certificate", text, RENEW)


def fingerprint(directory: Path) -> str:
    """Identifies the configuration in a broker's directory; empty if it cannot be read."""
    digest = hashlib.sha256()
    try:
        if not directory.is_dir():
            return ""
        for name in _CONFIGURATION:
            file = directory / name
            digest.update(f"{name}\0".encode())
            if file.exists():
                digest.update(file.read_bytes() + b"\0")
    except OSError:
        return ""
    return digest.hexdigest()[:16]


def _is_outdated(status: Status) -> bool:
    current = fingerprint(Path(status.broker_dir)) if status.broker_config else ""
    return current not in ("", status.broker_config)


def resident_memory() -> int:
    """Memory of this process in bytes; 0 if the system does not report it."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()
    except OSError:
        return 0
    return int(pages[1]) * os.sysconf("SC_PAGE_SIZE")
