"""Lives of an agent, each in a process of its own that may kill itself -9 at a named step.

Run as a program it reads one order a line, forks a child that lives it, and answers with what the
child found at its start, what it left at its end, and what it died of. The parent opens nothing
and starts no thread, so that every child begins like a freshly started agent; only the imports are
saved.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Self, TextIO

from edge_client import EdgeClient, highwater
from edge_client import daemon as runner
from edge_client.clock import SystemClock
from edge_client.mqtt.link import Acknowledged
from protocol_spec import Manifest
from tests.support.places import ROOT

BEFORE_THE_MARK = "before the mark"


@dataclass(frozen=True, slots=True)
class Order:
    """One life: join if need be, report once, and die at the n-th passing of a point, if any."""

    state: str
    manifest: str
    broker: str
    device: str
    values: dict[str, str]
    die_at: str | None = None
    nth: int = 1
    round: int | None = None
    timeout: float = 30.0
    trust_puback: bool = False


@dataclass(slots=True)
class Memory:
    """What the state directory holds: in hex, so that it can be compared byte by byte."""

    attribute: int | None = None
    memos: dict[str, str] = field(default_factory=dict)
    charges: list[float] = field(default_factory=list)
    outbox: dict[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(slots=True)
class Life:
    """What was remembered at its birth and, unless it was killed, at its end."""

    before: Memory
    _after: Memory | None
    states: list[str]

    @property
    def after(self) -> Memory:
        assert self._after, "it was killed"
        return self._after


class Nursery:
    """The program above, seen from a test."""

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

    def live(self, order: Order) -> Life:
        """Live one life; a killed one must have been killed where it was ordered."""
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps(asdict(order)), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline() or "null")
        assert answer is not None, self._log.read_text()
        assert answer["code"] in (0, -signal.SIGKILL), self._log.read_text()
        killed = answer["code"] == -signal.SIGKILL
        assert killed == (order.die_at is not None), (answer, order)
        if killed:
            return Life(Memory(**answer["told"][0]), None, [])
        before, after, states = answer["told"]
        return Life(Memory(**before), Memory(**after), states)


def _main() -> None:
    for line in sys.stdin:
        order = Order(**json.loads(line))
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            _be_born(order, writing)
        os.close(writing)
        with os.fdopen(reading) as told:
            heard = [json.loads(word) for word in told]
        _, status = os.waitpid(child, 0)
        answer = {"code": os.waitstatus_to_exitcode(status), "told": heard}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _be_born(order: Order, writing: int) -> NoReturn:
    code = 1
    try:
        with os.fdopen(writing, "w") as tell:
            _live(order, tell)
        code = 0
    finally:
        if code:
            sys.excepthook(*sys.exc_info())
        os._exit(code)


def _live(order: Order, tell: TextIO) -> None:
    manifest = Manifest.from_bytes(bytes.fromhex(order.manifest))
    if order.trust_puback:
        _believe_pubacks()
    clock = _Clock(manifest, order.round)
    with EdgeClient(order.state, clock=clock, trace=_tripwire(order)) as client:
        print(json.dumps(asdict(_memory(client))), file=tell, flush=True)
        if not client.memberships():
            invitation = client.invitation(manifest=manifest, broker=order.broker)
            client.join(invitation, device=order.device)
        reported = client.report(order.values, timeout=order.timeout)
        print(json.dumps(asdict(_memory(client))), file=tell, flush=True)
        print(json.dumps([r.state for r in reported]), file=tell, flush=True)


def _tripwire(order: Order) -> Callable[[str], None]:
    passed: list[str] = []

    def trace(point: str) -> None:
        passed.append(point)
        if point == "report drawn" and order.die_at == BEFORE_THE_MARK:
            highwater.write = lambda *_: _die()
        if point == order.die_at and passed.count(point) == order.nth:
            _die()

    return trace


def _die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


def _memory(client: EdgeClient) -> Memory:
    memory = Memory(charges=[line.epsilon for line in client.store.ledger()])
    for membership in client.memberships():
        memory.attribute = membership.attribute_index
        for value, memo in client.store.memos(membership.name).items():
            memory.memos[str(value)] = memo.body.hex()
        for row in client.store.outbox(membership.name):
            memory.outbox[str(row.round)] = (row.payload.hex(), row.fate)
    return memory


def _believe_pubacks() -> None:
    """The agent as it must not be: what the broker acknowledged counts as delivered."""
    keep = runner.Runner._acknowledged

    def acknowledged(self: Any, connection: runner.Connection, event: Acknowledged) -> None:
        delivery = connection.in_flight.get(event.mid)
        keep(self, connection, event)
        if delivery:
            self._fates.setdefault(delivery.row.campaign, {})[delivery.row.round] = "counted"

    runner.Runner._acknowledged = acknowledged  # type: ignore[method-assign]


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
