"""Agents in processes that kill themselves at a named point, and an agent that is wrong on purpose.

The wrong one takes the broker's acknowledgement for delivery: a negative control, for which the
checks for lost reports must fail.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NoReturn, Self, TextIO

from edge_client import EdgeClient
from edge_client.clock import SystemClock
from edge_client.link import MakeLink, PahoLink
from edge_client.records import Timing
from protocol_spec import Manifest, Rejected, decode_report, parse_from_device
from protocol_spec.programs.packets import Message
from tests.support.edge import ROOMY, receipt
from tests.support.harness import ROOT


def trusting_link(manifest: Manifest) -> MakeLink:
    """The `make_link` of an agent that trusts acknowledgements of this campaign's reports."""

    class TrustingLink(PahoLink):
        """Passes every acknowledgement off as a receipt of the collector."""

        def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> int:
            number = super().publish(topic, payload, retain=retain)
            origin, report = parse_from_device(topic), decode_report(payload)
            assert origin is not None
            assert not isinstance(report, Rejected)
            receipts[number] = Message(*receipt(manifest, origin.device, report.round))
            return number

        def step(self, timeout_seconds: float) -> list[Message]:
            arrived = super().step(timeout_seconds)
            return arrived + [receipts[n] for n in self._answered if n in receipts]

    receipts: dict[int, Message] = {}
    return TrustingLink


# --- Runs of an agent, each in a process of its own that may kill itself -9 at a named point.


@dataclass(frozen=True, slots=True)
class Run:
    """Join if need be, report once, and die when a point is passed, if one is named."""

    state: str
    manifest: str
    broker: str
    device: str
    values: dict[str, str]
    die_at: str | None = None
    round: int | None = None
    timeout: float = 30.0
    trust_puback: bool = False


@dataclass(slots=True)
class Memory:
    """What the state directory holds: in hex, so that it can be compared byte by byte."""

    attribute: int | None = None
    rounds: list[int] | None = None
    memos: dict[str, str] = field(default_factory=dict)
    charges: list[float] = field(default_factory=list)
    outbox: dict[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(slots=True)
class Ended:
    """What was stored at the start of a run and, unless it was killed, at its end."""

    before: Memory
    _after: Memory | None
    states: list[str]

    @property
    def after(self) -> Memory:
        assert self._after, "it was killed"
        return self._after


class KillableAgents:
    """The program below, which forks a process for each run."""

    def __init__(self, log: Path) -> None:
        self._log = log

    def __enter__(self) -> Self:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
            )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()

    def run(self, run: Run) -> Ended:
        """Run an agent to its end; a killed one must have been killed where it was to be."""
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps(asdict(run)), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline() or "null")
        assert answer is not None, self._log.read_text()
        assert answer["code"] in (0, -signal.SIGKILL), self._log.read_text()
        killed = answer["code"] == -signal.SIGKILL
        assert killed == (run.die_at is not None), (answer, run)
        if killed:
            return Ended(Memory(**answer["lines"][0]), None, [])
        before, after, states = answer["lines"]
        return Ended(Memory(**before), Memory(**after), states)


def _main() -> None:
    for line in sys.stdin:
        run = Run(**json.loads(line))
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            _run_and_exit(run, writing)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            lines = [json.loads(line) for line in pipe]
        _, status = os.waitpid(child, 0)
        answer = {"code": os.waitstatus_to_exitcode(status), "lines": lines}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _run_and_exit(run: Run, writing: int) -> NoReturn:
    code = 1
    try:
        with os.fdopen(writing, "w") as pipe:
            _run(run, pipe)
        code = 0
    finally:
        if code:
            sys.excepthook(*sys.exc_info())
        os._exit(code)


def _run(run: Run, pipe: TextIO) -> None:
    manifest = Manifest.from_bytes(bytes.fromhex(run.manifest))
    with EdgeClient(
        run.state,
        policy=ROOMY,
        clock=_Clock(manifest, run.round),
        trace=lambda point: _die() if point == run.die_at else None,
        timing=Timing(step_seconds=0.1),
        make_link=trusting_link(manifest) if run.trust_puback else PahoLink,
    ) as client:
        print(json.dumps(asdict(_memory(client))), file=pipe, flush=True)
        if not client.memberships():
            invitation = client.invitation(manifest=manifest, broker=run.broker)
            client.join(invitation, device=run.device)
        reported = client.report(run.values, timeout=run.timeout)
        print(json.dumps(asdict(_memory(client))), file=pipe, flush=True)
        print(json.dumps([r.text for r in reported]), file=pipe, flush=True)


def _die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


def _memory(client: EdgeClient) -> Memory:
    memory = Memory(charges=[line.epsilon for line in client.store.ledger()])
    for membership in client.memberships():
        memory.attribute = membership.attribute_index
        if membership.drawn_rounds is not None:
            memory.rounds = list(membership.drawn_rounds)
        for value, memo in client.store.memos(membership.name).items():
            memory.memos[str(value)] = memo.body.hex()
        for row in client.store.reports(membership.name):
            memory.outbox[str(row.round)] = (row.payload.hex(), row.fate)
    return memory


class _Clock(SystemClock):
    """The machine's clock, or one that stands at the beginning of an ordered round."""

    def __init__(self, manifest: Manifest, number: int | None) -> None:
        self._wall = None if number is None else manifest.rounds.opens(number) + 1.0

    def wall(self) -> float:
        return super().wall() if self._wall is None else self._wall

    def boot(self) -> str:
        return super().boot() if self._wall is None else f"for {self._wall}"


if __name__ == "__main__":
    _main()
