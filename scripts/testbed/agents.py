"""Many real agents in a few processes: the same code, state and wire as on a device.

Each device has its own state directory and connection. This module is also the program that such a
process runs, with a JSON file of `Share`. It prints two lines of JSON: when all have joined, the
attribute that each device drew; at the end, `Work`.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple, Self

from edge_client import EdgeClient, Policy
from edge_client.clock import SystemClock
from edge_client.records import Timing
from protocol_spec import Manifest
from protocol_spec.programs.invitation import ENDING, read_invitation
from protocol_spec.programs.settings import Credentials
from protocol_spec.schedule import Schedule
from testbed.processes import Process, peak_memory_mib

TURN_SECONDS: Final = 0.5  # between two turns of an agent, if the machine keeps up
TRIED: Final = 20  # agents of a machine's test

Readings = Mapping[str, str | float]  # of one device: by attribute, what its source reads


@dataclass(frozen=True, slots=True)
class Share:
    """What one process runs. `readings` is by device; `credentials` is the
    directory of their invitations, as `enrol` writes them, or none."""

    root: str
    broker: str
    readings: Mapping[str, Readings]
    credentials: str = ""
    ca_file: str = ""
    keepalive: int = 60
    turn_seconds: float = TURN_SECONDS
    timing: dict[str, float] = field(default_factory=dict)

    @property
    def manifest(self) -> Manifest:
        return Manifest.from_bytes((Path(self.root) / "manifest").read_bytes())

    def command(self, file: Path) -> list[str]:
        """Write it to a file; the words after `python` that run it."""
        file.write_text(json.dumps(asdict(self), ensure_ascii=False), encoding="utf-8")
        return ["-m", "testbed.agents", str(file)]


@dataclass
class Work:
    """What agents did: reports drawn and counted (`round attribute`), the seconds from drawing a
    report to its receipt, and what that took of the machine."""

    memory_mib: float = 0.0
    cpu_seconds: float = 0.0
    drawn: Counter[str] = field(default_factory=Counter)
    counted: Counter[str] = field(default_factory=Counter)
    waits: list[float] = field(default_factory=list)

    def add(self, other: Mapping[str, Any]) -> None:
        self.memory_mib += other["memory_mib"]
        self.cpu_seconds += other["cpu_seconds"]
        self.drawn.update(other["drawn"])
        self.counted.update(other["counted"])
        self.waits += other["waits"]


class AgentProcesses:
    """Agents of one campaign, distributed in turn over processes that end with the context."""

    def __init__(
        self,
        directory: Path,
        manifest: Manifest,
        broker: str | Sequence[str],
        readings: Mapping[int, Readings],
        processes: int,
        *,
        credentials: Path | None = None,
        prefix: str = "device",
        turn_seconds: float = TURN_SECONDS,
    ) -> None:
        self.directory = directory
        self.drawn: dict[int, str] = {}
        self._manifest = manifest
        self._prefix = prefix
        self._stack = ExitStack()
        brokers = [broker] if isinstance(broker, str) else broker
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "manifest").write_bytes(manifest.to_bytes())
        self._processes = []
        for number in range(min(processes, len(readings))):
            mine = {f"{prefix}-{d}": readings[d] for d in list(readings)[number::processes]}
            broker_of = brokers[number % len(brokers)]
            share = Share(str(directory), broker_of, mine, str(credentials or ""))
            share = replace(share, turn_seconds=turn_seconds)
            words = share.command(directory / f"agents-{number}.json")
            log = directory / f"agents-{number}.log"
            command = [sys.executable, *words]
            self._processes.append(Process("a process of agents", command, log, piped=True))

    def __enter__(self) -> Self:
        """Start all, then wait until every device has joined and drawn its attribute."""
        with ExitStack() as stack:
            for process in self._processes:
                stack.enter_context(process)
            for process in self._processes:
                line = process.read_line()
                if not line:
                    raise process.error("a process of agents ended before its agents had joined")
                for device, name in json.loads(line).items():
                    self.drawn[int(device.rpartition("-")[2])] = name
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def check_running(self) -> None:
        for process in self._processes:
            process.check_running()

    def stop(self) -> Work:
        """End them all and return what they did."""
        found = Work()
        for process in self._processes:  # all at once: closing many databases takes long
            process.ask_to_end()
        for process in self._processes:
            found.add(json.loads(process.read_rest().splitlines()[-1]))
        return found

    def state_dir(self, device: int) -> Path:
        return self.directory / f"{self._prefix}-{device}"


class Device:
    """One agent: joined, with what it drew and when its receipts came."""

    def __init__(self, share: Share, manifest: Manifest, name: str) -> None:
        self.waits: list[float] = []
        self._since = 0.0
        known = Credentials(ca_file=share.ca_file or None)
        if share.credentials:
            invitation = read_invitation(Path(share.credentials) / f"{name}{ENDING}")
            known = invitation.store(Path(share.root) / f"{name}-credential")
        self.client = EdgeClient(
            Path(share.root) / name,
            policy=policy_for(manifest),
            credentials=known,
            keepalive=share.keepalive,
            trace=self._note,
            timing=Timing(**share.timing),
        )
        if not self.client.memberships():
            invited = self.client.invitation(manifest=manifest, broker=share.broker)
            self.client.join(invited, device=name)
        self.runner = self.client.runner(share.readings[name].__getitem__)

    def _note(self, point: str) -> None:
        if point == "report committed":
            self._since = time.monotonic()
        elif point == "receipt seen" and self._since:
            self.waits.append(time.monotonic() - self._since)

    @property
    def attribute(self) -> str:
        return self.client.find().attribute.name


class RoundClock(SystemClock):
    """A second into the round that `round` names."""

    def __init__(self, schedule: Schedule, number: int = 0) -> None:
        self._schedule = schedule
        self.round = number

    def wall(self) -> float:
        return self._schedule.opens(self.round) + 1.0

    def boot(self) -> str:
        return f"boot {self.round}"


def policy_for(manifest: Manifest) -> Policy:
    """An owner who allows what this campaign asks."""
    most = manifest.lifetime_epsilon
    return Policy(
        max_eps_inf=manifest.eps_inf,
        lifetime_budget=most,
        max_values=manifest.max_values,
        min_period=1,
        total_budget=most,
        mechanisms=(manifest.reporting,),
    )


class Pace(NamedTuple):
    """Seconds that an agent's joining and one report of it take on this machine, as it is now."""

    join: float
    report: float


def measure_pace(manifest: Manifest, processes: int) -> Pace:
    """Try a few agents, of a campaign whose round is open: the disk takes as long for all
    processes at once as for this one, and the processors are shared."""
    shared = max(1.0, processes / (os.cpu_count() or 1))
    marks: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        read = {p.name: p.values[0] for attribute in manifest.attributes for p in attribute.parts}
        share = Share(place, "mqtt://127.0.0.1:1", {f"device-{n}": read for n in range(TRIED)})
        for name in share.readings:
            marks.append(_now())
            device = Device(share, manifest, name)
            stack.callback(device.client.close)
            marks.append(_now())
            device.client.agent.draw(device.client.find(), read.__getitem__)
            marks.append(_now())
    took = [(b[0] - a[0]) + (b[1] - a[1]) * (shared - 1) for a, b in pairwise(marks)]
    return Pace(median(took[3::3]), median(took[4::3]))  # the first agent also loads modules


def _now() -> tuple[float, float]:
    return time.monotonic(), time.process_time()


def main(file: Path) -> None:
    """Run the devices of a share until SIGTERM."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    logging.getLogger("allomfree").addHandler(logging.NullHandler())
    logging.getLogger("allomfree").propagate = False
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopping.append(number))
    share = Share(**json.loads(file.read_text(encoding="utf-8")))
    manifest = share.manifest
    devices = {name: Device(share, manifest, name) for name in share.readings}
    print(json.dumps({name: device.attribute for name, device in devices.items()}), flush=True)
    while not stopping:
        began = time.monotonic()
        for device in devices.values():
            device.runner.tick(wait=0.0)
        time.sleep(max(0.0, share.turn_seconds - (time.monotonic() - began)))
    print(json.dumps(vars(_ended(list(devices.values())))))


def _ended(devices: Sequence[Device]) -> Work:
    used = resource.getrusage(resource.RUSAGE_SELF)
    work = Work(peak_memory_mib(), used.ru_utime + used.ru_stime)
    for device in devices:
        member = device.client.find()
        for row in device.client.store.reports(member.name):
            work.drawn[f"{row.round} {member.attribute.name}"] += 1
            work.counted[f"{row.round} {member.attribute.name}"] += row.fate == "counted"
        work.waits += device.waits
        device.runner.close()
        device.client.close()
    return work


if __name__ == "__main__":
    main(Path(sys.argv[1]))
