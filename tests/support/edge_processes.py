"""The agent as its owner runs it: a command, its configuration and its log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Self

from edge_client import EdgeClient
from edge_client.cli.report import serve
from edge_client.clock import SystemClock
from edge_client.records import Queued, Timing
from edge_client.settings import resolve
from protocol_spec import Manifest
from protocol_spec.programs.output import set_up_logging
from tests.support.campaigns import manifest
from tests.support.edge import ROOMY
from tests.support.harness import ROOT
from tests.support.warm_starts import WarmProcess, is_warm

EDGE = (sys.executable, "-m", "edge_client")


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without what would configure an agent."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ALLOMFREE_", "NOTIFY_"))}
    return {**kept, "PYTHONPATH": str(ROOT), **(extra or {})}


def edge(
    *words: str | Path,
    timeout: float = 60.0,
    extra_environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run one command of the agent to its end."""
    return run_command([*EDGE, *map(str, words)], timeout, extra_environment)


def run_command(
    command: list[str], timeout: float, extra: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command of ours to its end, forked from one that has its imports where it can be."""
    if not is_warm(command, extra):
        return subprocess.run(
            command, env=environment(extra), text=True, capture_output=True,
            timeout=timeout, check=False,
        )  # fmt: skip
    with TemporaryFile("w+b") as out, TemporaryFile("w+b") as err:
        process = WarmProcess(command, environment(extra), stdout=out.fileno(), stderr=err.fileno())
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        out.seek(0)
        err.seek(0)
        output = out.read().decode(), err.read().decode()
    return subprocess.CompletedProcess(command, code, *output)


def joined(
    state: Path, manifest: Manifest, broker: str, *, device: str = "device", value: str = "wood"
) -> Path:
    """Join a campaign without asking the broker; returns a configuration file for the agent."""
    with EdgeClient(state, policy=ROOMY) as client:
        client.join(client.invitation(manifest=manifest, broker=broker), device=device)
    config = state.with_suffix(".toml")
    sources = "".join(f'[sources.{a.name}]\nvalue = "{value}"\n' for a in manifest.attributes)
    config.write_text(f'state_dir = "{state}"\n{sources}')
    return config


def draw_now(state: Path, value: str = "wood") -> bytes:
    """Draw this round's report without sending it: what an agent cut off from its broker has."""
    with EdgeClient(state) as client:
        drawn = client.agent.draw(client.find(), lambda _: value)
    assert isinstance(drawn, Queued)
    return drawn.payload


class AgentProcess:
    """`allomfree-edge run`, its log collected line by line. Ended by its own process id.

    With a `timing` it is the same code, started by the program below.
    """

    process: subprocess.Popen[bytes] | WarmProcess

    def __init__(
        self,
        config: Path,
        *flags: str,
        extra_environment: Mapping[str, str] | None = None,
        timing: Timing | None = None,
    ) -> None:
        self.command = [*EDGE, "run", "--config", str(config), *flags]
        if timing is not None:
            program = (sys.executable, "-m", "tests.support.edge_processes")
            self.command = [*program, str(config), json.dumps(asdict(timing))]
        self._extra = extra_environment
        self.lines: list[dict[str, Any]] = []
        self._logged = threading.Condition()

    def __enter__(self) -> Self:
        known, pipe = environment(self._extra), subprocess.PIPE
        if is_warm(self.command, self._extra):
            self.process = WarmProcess(self.command, known, stderr=pipe)
        else:
            null = subprocess.DEVNULL
            self.process = subprocess.Popen(self.command, env=known, stderr=pipe, stdin=null)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(20)
        self._reader.join(20)
        assert self.process.stderr
        self.process.stderr.close()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def terminate(self) -> int:
        """SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)

    def wait_for(self, text: str, *, times: int = 1, timeout: float = 40.0) -> None:
        """Until the text has been logged that often."""
        with self._logged:
            if not self._logged.wait_for(lambda: self.said(text) >= times, timeout):
                raise AssertionError(f"{text!r} is not in the log: {self.lines}")

    def said(self, text: str) -> int:
        """How many lines have the text so far."""
        return sum(text in line["message"] for line in list(self.lines))

    def _read(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            try:
                fields = json.loads(line)
            except ValueError:  # not of the log: a traceback
                fields = {"message": line.decode(errors="replace")}
            with self._logged:
                self.lines.append(fields)
                self._logged.notify_all()


def wait_until(done: Callable[[], bool], timeout: float = 30.0) -> None:
    """Poll for what gives no notification when it happens."""
    limit = time.monotonic() + timeout
    while not done():
        assert time.monotonic() < limit
        time.sleep(0.01)


def fresh_manifest(**options: object) -> Manifest:
    """A campaign that no other test has, for brokers that several tests use."""
    return manifest(slug=f"t-{os.urandom(4).hex()}", **options)


class RoundClock(SystemClock):
    """Stands at the first instant of the round that a test sets."""

    def __init__(self, asked: Manifest) -> None:
        self._rounds = asked.rounds
        self.round = 0

    def wall(self) -> float:
        return float(self._rounds.opens(self.round))

    def boot(self) -> str:
        return f"boot {self.round}"


def main(config: str, timing: str) -> None:
    """`allomfree-edge run` with other pauses."""
    settings = resolve({}, config=Path(config))
    set_up_logging(settings.log_level)
    serve(settings, Timing(**json.loads(timing)))


if __name__ == "__main__":
    main(*sys.argv[1:])
