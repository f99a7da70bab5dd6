"""Many real agents in a few processes: the same code, state and wire as on a device.

Each device has its own state directory and connection. This module is also the program that such a
process runs. It prints two lines of JSON: when all have joined, the attribute that each device
drew; at the end, its memory and processor time.
"""

from __future__ import annotations

import json
import logging
import resource
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple, Self

from edge_client import EdgeClient, Policy
from protocol_spec import Manifest
from protocol_spec.programs.invitation import read_invitation
from testbed.processes import Process, peak_memory_mib

TURN_SECONDS: Final = 0.5  # between two turns of an agent, if the machine keeps up

Readings = Mapping[str, str | float]  # of one device: by attribute, what its source reads


class Usage(NamedTuple):
    """Of the agents, all processes together."""

    memory_mib: float
    cpu_seconds: float


class AgentProcesses:
    """Agents of one campaign, distributed in turn over processes that end with the context.

    `credentials` has an invitation for each device, as `enrol` writes them.
    """

    def __init__(
        self,
        directory: Path,
        manifest: Manifest,
        broker: str | Sequence[str],
        readings: Mapping[int, Readings],
        processes: int,
        *,
        credentials: Path | None = None,
    ) -> None:
        self.directory = directory
        self.drawn: dict[int, str] = {}
        self._manifest = manifest
        self._stack = ExitStack()
        brokers = [broker] if isinstance(broker, str) else broker
        shares = [list(readings)[number::processes] for number in range(processes)]
        self._shares = [{d: readings[d] for d in share} for share in shares if share]
        self._processes = []
        for number in range(len(self._shares)):
            words: list[str | Path] = [directory, directory / f"readings-{number}.json"]
            words += [brokers[number % len(brokers)], *([credentials] if credentials else [])]
            command = [sys.executable, "-m", "testbed.agents", *map(str, words)]
            log = directory / f"agents-{number}.log"
            self._processes.append(Process("a process of agents", command, log, piped=True))

    def __enter__(self) -> Self:
        """Start all, then wait until every device has joined and drawn its attribute."""
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "manifest").write_bytes(self._manifest.to_bytes())
        with ExitStack() as stack:
            for number, (process, share) in enumerate(zip(self._processes, self._shares)):
                text = json.dumps(share, ensure_ascii=False)
                (self.directory / f"readings-{number}.json").write_text(text, encoding="utf-8")
                stack.enter_context(process)
            for process in self._processes:
                line = process.read_line()
                if not line:
                    raise process.error("a process of agents ended before its agents had joined")
                self.drawn.update({int(device): name for device, name in json.loads(line).items()})
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def stop(self) -> Usage:
        """End them all and return what they used."""
        used = [json.loads(process.read_rest().splitlines()[-1]) for process in self._processes]
        return Usage(*map(sum, zip(*used)))

    def state_dir(self, device: int) -> Path:
        return self.directory / f"device-{device}"


def join(
    root: Path, manifest: Manifest, broker: str, device: int, secrets: Path | None
) -> EdgeClient:
    """One device: its own state directory, its own draw of an attribute, its own connection; and
    its own credential, if it was enrolled."""
    name = f"device-{device}"
    most = manifest.lifetime_epsilon
    policy = Policy(
        max_eps_inf=manifest.eps_inf,
        lifetime_budget=most,
        max_values=manifest.max_values,
        min_period=1,
        total_budget=most,
        mechanisms=(manifest.reporting,),
    )
    known = None
    if secrets is not None:
        known = read_invitation(secrets / f"{name}.invitation").store(root / f"{name}-credential")
    client = EdgeClient(root / name, policy=policy, credentials=known)
    invitation = client.invitation(manifest=manifest, broker=broker)
    client.join(invitation, device=None if secrets is None else name)
    return client


def main(root: Path, readings_file: Path, broker: str, secrets: Path | None = None) -> None:
    """Run the devices of the readings file until SIGTERM."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    logging.getLogger("allomfree").addHandler(logging.NullHandler())
    logging.getLogger("allomfree").propagate = False
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopping.append(number))
    manifest = Manifest.from_bytes((root / "manifest").read_bytes())
    readings: dict[str, dict[str, object]] = json.loads(readings_file.read_text(encoding="utf-8"))
    clients = {d: join(root, manifest, broker, int(d), secrets) for d in readings}
    drawn = {d: client.memberships()[0].attribute.name for d, client in clients.items()}
    runners = [client.runner(readings[d].__getitem__) for d, client in clients.items()]
    print(json.dumps(drawn), flush=True)
    while not stopping:
        began = time.monotonic()
        for runner in runners:
            runner.tick(wait=0.0)
        time.sleep(max(0.0, TURN_SECONDS - (time.monotonic() - began)))
    for runner, client in zip(runners, clients.values()):
        runner.close()
        client.close()
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps(Usage(peak_memory_mib(), used.ru_utime + used.ru_stime)))


if __name__ == "__main__":
    place, file, where, *secret = sys.argv[1:]
    main(Path(place), Path(file), where, *map(Path, secret))
