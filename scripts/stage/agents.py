"""Many real agents in a few processes: each device has its own state directory and connection."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from protocol_spec import Manifest
from stage.processes import DEFAULT_TIMING, Process, Timing

Readings = Mapping[str, str | float]  # of one device: by attribute, what its source reads


@dataclass(frozen=True, slots=True)
class Usage:
    """What the agents took of the machine, all processes together."""

    memory_mib: float
    cpu_seconds: float


class AgentProcesses:
    """Agents of one campaign, in turn distributed over processes that end with the context."""

    def __init__(
        self,
        directory: Path,
        manifest: Manifest,
        broker: str | Sequence[str],
        readings: Mapping[int, Readings],
        processes: int,
        *,
        credentials: Path | None = None,
        timing: Timing = DEFAULT_TIMING,
    ) -> None:
        self.directory = directory
        self.drawn: dict[int, str] = {}
        self._manifest = manifest
        self._readings = readings
        self._brokers = [broker] if isinstance(broker, str) else list(broker)
        self._credentials = credentials  # a directory for each device, as `enrol` writes them
        self._stack = ExitStack()
        shares = [list(readings)[number::processes] for number in range(processes)]
        self._shares = [share for share in shares if share]
        self._processes = [
            Process(
                "a process of agents", self._command(number), self._log(number),
                piped=True, timing=timing,
            )
            for number in range(len(self._shares))
        ]  # fmt: skip

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def stop(self) -> Usage:
        """End them all and say what they took."""
        told = [json.loads(process.read_rest().splitlines()[-1]) for process in self._processes]
        return Usage(sum(t["memory_mib"] for t in told), sum(t["cpu_seconds"] for t in told))

    def state_dir(self, device: int) -> Path:
        """Where a device keeps its state."""
        return self.directory / f"device-{device}"

    def _start(self) -> None:
        """Start all, then wait until every device has joined and drawn its attribute."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._manifest_file.write_bytes(self._manifest.to_bytes())
        for number, (process, share) in enumerate(zip(self._processes, self._shares)):
            text = json.dumps({d: self._readings[d] for d in share}, ensure_ascii=False)
            self._readings_file(number).write_text(text, encoding="utf-8")
            self._stack.enter_context(process)
        for process in self._processes:
            line = process.read_line()
            if not line:
                raise process.error("a process of agents ended before its agents had joined")
            self.drawn.update({int(device): name for device, name in json.loads(line).items()})

    def _command(self, number: int) -> list[str]:
        places = [self.directory, self._manifest_file, self._readings_file(number)]
        broker = self._brokers[number % len(self._brokers)]
        secrets = [str(self._credentials)] if self._credentials else []
        return [sys.executable, "-m", "stage.agent_process", *map(str, places), broker, *secrets]

    @property
    def _manifest_file(self) -> Path:
        return self.directory / "manifest"

    def _readings_file(self, number: int) -> Path:
        return self.directory / f"readings-{number}.json"

    def _log(self, number: int) -> Path:
        return self.directory / f"agents-{number}.log"
