"""Lives of a collector, each in a process of its own that may kill itself -9 at a named step.

Run as a program it reads one order a line, forks a child that runs the service until it is told to
stop or dies, and says the child's process id and then its end. The parent opens nothing and starts
no thread, so that every child begins like a freshly started collector; only the imports are saved.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NoReturn, Self

from collector import service
from collector.device_key import DeviceKey
from collector.health import Heartbeat
from collector.ingest.receipts import ReceiptBook
from collector.records import Campaign
from collector.service import Service
from collector.store.sqlite import SqliteStore
from protocol_spec import Outcome, Result
from protocol_spec.programs import logs
from protocol_spec.programs.address import parse_broker
from tests.support.places import ROOT

IN_MEMORY: Final = "batch in memory"
IN_TRANSACTION: Final = "inside the transaction"
COMMITTED: Final = "batch committed"
ACKNOWLEDGED: Final = "batch acknowledged"
SEALING: Final = "sealing"
IN_SEALING: Final = "inside sealing"
LOG_NOT_WIPED: Final = "sealed, the log not wiped"
SEALED: Final = "sealed"

PATIENCE: Final = 60.0
PAUSES: Final = {"QUIET": 0.3, "SETTLE": 2.0, "RECEIPTS_EVERY": 0.2, "RECONNECT": 0.2}
_PR_SET_PDEATHSIG: Final = 1


@dataclass(frozen=True, slots=True)
class Order:
    """One life. `clock` names a file that holds the time of day the collector believes in."""

    data: str
    broker: str
    die_at: str | None = None
    nth: int = 1
    clock: str | None = None
    receipts: bool = True
    keepalive: int = 60


class Life:
    """A collector that runs, or ran."""

    def __init__(self, pid: int, read: Callable[[], Any]) -> None:
        self.pid = pid
        self._read = read
        self._code: int | None = None

    def end(self) -> int:
        """Wait for its end: 0, or minus the signal that killed it."""
        if self._code is None:
            self._code = int(self._read())
        return self._code

    def terminate(self) -> None:
        """Ask it to stop, and see that it does so in order."""
        os.kill(self.pid, signal.SIGTERM)
        assert self.end() == 0

    def kill(self) -> None:
        """kill -9."""
        if self._code is None:
            os.kill(self.pid, signal.SIGKILL)
            assert self.end() == -signal.SIGKILL


class Nursery:
    """The program above, seen from a test. One collector at a time."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._life: Life | None = None

    def __enter__(self) -> Self:
        with self.log.open("ab") as log:
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
        if self._life is not None:
            self._life.kill()
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()

    def start(self, order: Order) -> Life:
        """Start a collector; whether it is connected, the broker shows."""
        if self._life is not None:
            self._life.kill()
        assert self._process.stdin
        print(json.dumps(asdict(order)), file=self._process.stdin, flush=True)
        self._life = Life(int(self._answer()), self._answer)
        return self._life

    def _answer(self) -> Any:
        assert self._process.stdout
        ready, _, _ = select.select([self._process.stdout], [], [], PATIENCE)
        assert ready, self.log.read_text()
        answer = json.loads(self._process.stdout.readline() or "null")
        assert answer is not None, self.log.read_text()
        return answer


# --- the program -----------------------------------------------------------------------------


class TracedStore(SqliteStore):
    """The store, with steps inside its transactions at which to die."""

    trace: Callable[[str], None] = staticmethod(lambda _: None)

    def _add_outcomes(self, counted: Mapping[tuple[int, int, Outcome], int]) -> None:
        super()._add_outcomes(counted)
        self.trace(IN_TRANSACTION)

    def _store_results(self, campaign: Campaign, results: Sequence[Result], number: int) -> None:
        super()._store_results(campaign, results, number)
        self.trace(IN_SEALING)

    def wipe_log(self) -> None:
        self.trace(LOG_NOT_WIPED)
        super().wipe_log()


def _main() -> None:
    for line in sys.stdin:
        order = Order(**json.loads(line))
        child = os.fork()
        if child == 0:
            _be_born(order)
        _tell(child)
        _, status = os.waitpid(child, 0)
        _tell(os.waitstatus_to_exitcode(status))


def _tell(number: int) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


def _be_born(order: Order) -> NoReturn:
    code = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        _live(order)
        code = 0
    finally:
        if code:
            sys.excepthook(*sys.exc_info())
        os._exit(code)


def _live(order: Order) -> None:
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopping.append(number))
    logs.set_up("info")
    for pause, seconds in PAUSES.items():
        setattr(service, pause, seconds)
    if not order.receipts:
        ReceiptBook.take = lambda *_: iter(())  # type: ignore[method-assign]
    data, trace = Path(order.data), _tripwire(order)
    store = TracedStore(data / "collector.db")
    store.trace = trace
    options: dict[str, Any] = {"clock": _clock(Path(order.clock))} if order.clock else {}
    running = Service(
        store,
        DeviceKey(data / "device.key"),
        parse_broker(order.broker),
        keepalive=order.keepalive,
        trace=trace,
        **options,
    )
    heartbeat = Heartbeat(data)
    running.run(lambda: bool(stopping), lambda: heartbeat.beat(running.status))
    store.close()


def _clock(file: Path) -> Callable[[], float]:
    return lambda: float(file.read_text())


def _tripwire(order: Order) -> Callable[[str], None]:
    passed: list[str] = []

    def trace(point: str) -> None:
        passed.append(point)
        if point == SEALING:  # the store is also wiped when it is opened: that is no sealing
            passed[:] = [p for p in passed if p != LOG_NOT_WIPED]
        late = point != LOG_NOT_WIPED or SEALING in passed
        if late and point == order.die_at and passed.count(point) == order.nth:
            os.kill(os.getpid(), signal.SIGKILL)

    return trace


if __name__ == "__main__":
    _main()
