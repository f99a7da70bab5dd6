"""The agent as its owner runs it: a command, its configuration and its log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Self

from edge_client import EdgeClient
from edge_client.cli.report import serve
from edge_client.clock import SystemClock
from edge_client.daemon import Runner
from edge_client.link import MakeLink, PahoLink
from edge_client.records import Draw, Membership, Memo, Queued, Timing
from edge_client.settings import resolve
from edge_client.store import Store
from protocol_spec import Manifest, Randomiser, make_report
from protocol_spec.programs.output import set_up_logging
from tests.support.campaigns import manifest
from tests.support.edge import QUICK, ROOMY
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
        said = out.read().decode(), err.read().decode()
    return subprocess.CompletedProcess(command, code, *said)


def joined(
    state: Path, manifest: Manifest, broker: str, *, device: str = "device", value: str = "wood"
) -> Path:
    """Join a campaign without asking the broker; returns a configuration file for the agent."""
    with EdgeClient(state, policy=ROOMY) as client:
        client.join(
            client.invitation(manifest=manifest, broker=broker),
            device=device,
        )
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

    With a `timing` of its own it is the same code, started by the program below.
    """

    def __init__(
        self,
        config: Path,
        *flags: str,
        extra_environment: Mapping[str, str] | None = None,
        timing: Timing | None = None,
    ) -> None:
        self.command = [*EDGE, "run", "--config", str(config), *flags]
        if timing is not None:
            quick = (sys.executable, "-m", "tests.support.edge_processes")
            self.command = [*quick, str(config), json.dumps(asdict(timing))]
        self._extra = extra_environment
        self.lines: list[dict[str, Any]] = []
        self._said = threading.Condition()

    def __enter__(self) -> Self:
        self.process = self._started()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(20)
        self._reader.join(20)
        assert self.process.stderr
        self.process.stderr.close()

    def _started(self) -> subprocess.Popen[bytes] | WarmProcess:
        known = environment(self._extra)
        if is_warm(self.command, self._extra):
            return WarmProcess(self.command, known, stderr=subprocess.PIPE)
        return subprocess.Popen(
            self.command, env=known, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
        )

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
        """Until the log has said something that often."""
        with self._said:
            if not self._said.wait_for(lambda: self.said(text) >= times, timeout):
                raise AssertionError(f"{text!r} is not in the log: {self.lines}")

    def said(self, text: str) -> int:
        """How often the log has said something so far."""
        return sum(text in line["message"] for line in list(self.lines))

    def _read(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            with self._said:
                self.lines.append(_parsed(line))
                self._said.notify_all()


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except ValueError:
        fields = None
    return fields if isinstance(fields, dict) else {"message": line.decode(errors="replace")}


def wait_until(done: Callable[[], bool], timeout: float = 30.0) -> None:
    """For what gives no sign when it happens."""
    limit = time.monotonic() + timeout
    while not done():
        assert time.monotonic() < limit
        time.sleep(0.01)


# --- The agent's loop in the test's own process and thread, one turn at a time.


def fresh_manifest(**options: object) -> Manifest:
    """A campaign that no other test has, for brokers that several tests use."""
    return manifest(slug=f"t-{os.urandom(4).hex()}", **options)


@contextmanager
def one_queued(
    state: Path,
    url: str,
    asked: Manifest | None = None,
    *,
    timing: Timing = QUICK,
    make_link: MakeLink = PahoLink,
) -> Iterator[tuple[Runner, bytes]]:
    """An agent with this round's report drawn and not yet sent."""
    with EdgeClient(state, policy=ROOMY, timing=timing, make_link=make_link) as client:
        invitation = client.invitation(manifest=asked or manifest(), broker=url)
        drawn = client.agent.draw(
            client.join(invitation, device="device"),
            lambda _: "wood",
        )
        assert isinstance(drawn, Queued)
        with closing(client.runner(lambda _: "wood")) as carrier:
            yield carrier, drawn.payload


@contextmanager
def many_queued(
    state: Path, count: int, url: str, *, keepalive: int = 60
) -> Iterator[tuple[Runner, Manifest, list[bytes], Path]]:
    """Rounds of an hour that are over, each with its report queued and not yet too late."""
    asked = manifest(first=int(time.time()) - count * 3600 - 5, grace=count * 7200)
    config = joined(state, asked, url)
    with EdgeClient(state, keepalive=keepalive, timing=QUICK) as client:
        payloads = fill_outbox(client.store, client.find(), range(count))
        with closing(client.runner(lambda _: "wood")) as carrier:
            yield carrier, asked, payloads, config


def outbox(carrier: Runner) -> list[Queued]:
    (membership,) = carrier.agent.store.memberships()
    return carrier.agent.store.reports(membership.name)


def queued(carrier: Runner) -> list[bytes]:
    return [row.payload for row in outbox(carrier) if row.fate == "queued"]


class RoundClock(SystemClock):
    """Stands at the first instant of the round it is told."""

    def __init__(self, asked: Manifest) -> None:
        self._rounds = asked.rounds
        self.round = 0

    def wall(self) -> float:
        return float(self._rounds.opens(self.round))

    def boot(self) -> str:
        return f"boot {self.round}"


def fill_outbox(store: Store, membership: Membership, rounds: Iterable[int]) -> list[bytes]:
    """Queue a report for each of these rounds, as if drawn when they were open."""
    payloads: list[bytes] = []
    randomiser, schedule = Randomiser(membership.mechanism.calibration), membership.manifest.rounds
    memo = randomiser.memoize(0)
    for number in rounds:
        body = randomiser.report(memo)
        report = make_report(membership.manifest, number, membership.attribute_index, body)
        payloads.append(report.encode())
        at, deadline = schedule.opens(number), schedule.deadline(number)
        queued = Queued(membership.name, number, payloads[-1], deadline, at, "queued")
        is_new = len(payloads) == 1
        store.record(membership, Draw(queued, Memo(0, memo, 0), is_new, "an earlier boot", 0.0))
    return payloads


def main(config: str, timing: str) -> None:
    """`allomfree-edge run` with other pauses."""
    settings = resolve({}, config=Path(config))
    set_up_logging(settings.log_level)
    serve(settings, Timing(**json.loads(timing)))


if __name__ == "__main__":
    main(*sys.argv[1:])
