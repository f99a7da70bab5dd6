"""Collectors in processes of their own, with quick timing, that may kill themselves -9 at a step.

Run as a program it reads the options of one run a line, forks a child that runs the service until
it is told to stop or dies, and says the child's process id, and its end when it comes. The parent
opens nothing and starts no thread, so that every child begins like a freshly started collector;
only the imports are saved.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, NoReturn, Self, cast

from collector.brokers.embedded import EmbeddedBroker
from collector.data_dir import DATABASE, DeviceKey, session_name
from collector.health import Heartbeat
from collector.links import Connect, Link, Links, Will
from collector.links.mqtt import PahoConnector, Subscription
from collector.service import Options as ServiceOptions
from collector.service import Service
from collector.store.sqlite import SqliteStore
from collector.timing import Clock, Timing
from protocol_spec.programs import output
from protocol_spec.programs.settings import Credentials, parse_broker
from tests.support.collector_processes.worker import run_worker
from tests.support.harness import ROOT

IN_MEMORY: Final = "batch in memory"
IN_TRANSACTION: Final = "inside the transaction"
COMMITTED: Final = "batch committed"
ACKNOWLEDGED: Final = "batch acknowledged"
SEALING: Final = "sealing"
IN_SEALING: Final = "inside sealing"
LOG_NOT_WIPED: Final = "sealed, the log not wiped"
SEALED: Final = "sealed"

STATEMENTS: Final = {
    "INSERT INTO outcome_total": IN_TRANSACTION,
    "INSERT INTO device": IN_SEALING,
    "PRAGMA wal_checkpoint": LOG_NOT_WIPED,
}
TIMING: Final = Timing(
    step_seconds=0.1,
    upkeep_every_seconds=0.1,
    receipts_every_seconds=0.2,
    receipt_bytes_per_second=1e6,
    settle_seconds=2.0,
    calm_seconds=0.2,
    probe_every_seconds=1.0,
    stuck_seconds=3.0,
    jump_seconds=math.inf,  # tests set the clock as they need it
    reconnect_seconds=0.2,
    reconnect_longest_seconds=1.0,
    storage_retry_seconds=0.2,
    flood_seconds=4.0,
)
PATIENCE_SECONDS: Final = 120.0
_PR_SET_PDEATHSIG: Final = 1


@dataclass(frozen=True, slots=True)
class Options:
    """Of one run. `clock` names a file that holds the time of day the collector believes in;
    with `embedded` it brings its own broker, whatever address is given; with `jump_seconds` it
    doubts a clock that is set ahead by more, which nothing confirms; with `store` it is one of
    several workers, that pulls from `stream` if that is given."""

    data: str
    broker: str
    namespace: str
    die_at: str | None = None
    nth: int = 1
    clock: str | None = None
    receipts: bool = True
    keepalive: int = 60
    reconnect_longest: float = 1.0
    embedded: bool = False
    jump_seconds: float | None = None
    store: str | None = None
    stream: str | None = None


class CollectorRun:
    """A collector that runs, or ran."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._told: dict[str, Future[int]] = {"pid": Future(), "code": Future()}

    def tell(self, what: str, number: int) -> None:
        """The program below says its process id, or its end."""
        self._told[what].set_result(number)

    @property
    def pid(self) -> int:
        return self._told["pid"].result(PATIENCE_SECONDS)

    @property
    def is_running(self) -> bool:
        return not self._told["code"].done()

    def wait_for_end(self) -> int:
        """0, or minus the signal that killed it."""
        return self._told["code"].result(PATIENCE_SECONDS)

    def terminate(self) -> int:
        """Ask it to stop; its exit code."""
        os.kill(self.pid, signal.SIGTERM)
        return self.wait_for_end()

    def kill(self) -> None:
        """kill -9."""
        if self.is_running:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.wait_for_end()

    def said(self, text: str) -> int:
        """How often its log has said something so far."""
        return self.log.read_text().count(text)

    def wait_for(self, text: str, *, times: int = 1) -> None:
        """Until its log has said something that often."""
        limit = time.monotonic() + PATIENCE_SECONDS
        while self.said(text) < times:
            assert time.monotonic() < limit, self.log.read_text()
            time.sleep(0.02)


class Launcher:
    """The program below, seen from a test: any number of collectors, also at once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._runs: dict[str, CollectorRun] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        with (self._directory / "launcher.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
            )
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_all()
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait(60)
        self._listener.join(60)
        self._process.stdout.close()

    def start(self, options: Options) -> CollectorRun:
        """Start a collector; whether it is connected, the broker shows."""
        with self._lock:
            run = CollectorRun(self._directory / f"{len(self._runs)}.log")
            run.log.touch()
            self._runs[str(run.log)] = run
            order = json.dumps({"log": str(run.log), "options": asdict(options)})
            print(order, file=self._process.stdin, flush=True)
        assert run.pid
        return run

    def kill_all(self) -> None:
        """Kill every collector that runs."""
        for run in list(self._runs.values()):
            run.kill()

    def _listen(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            log, what, number = json.loads(line)
            self._runs[log].tell(what, number)


# --- the program -----------------------------------------------------------------------------


def _main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        order = json.loads(line)
        if os.fork() == 0:
            _watch(order["log"], Options(**order["options"]))


def _watch(log: str, options: Options) -> NoReturn:
    """Start a collector, and tell its process id and its end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _end_with_parent()
    child = os.fork()
    if child == 0:
        _begin(options, log)
    _tell(log, "pid", child)
    _, status = os.waitpid(child, 0)
    _tell(log, "code", os.waitstatus_to_exitcode(status))
    os._exit(0)


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _tell(log: str, what: str, number: int) -> None:
    os.write(sys.stdout.fileno(), f"{json.dumps([log, what, number])}\n".encode())


def _begin(options: Options, log: str) -> NoReturn:
    code = 1
    try:
        _end_with_parent()
        os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND), sys.stderr.fileno())
        _run_service(options)
        code = 0
    finally:
        if code:
            sys.excepthook(*sys.exc_info())
        os._exit(code)


def _run_service(options: Options) -> None:
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopping.append(number))
    output.set_up_logging("info")
    data, tripwire = Path(options.data), Tripwire(options)
    if options.store is not None:
        run_worker(asdict(options), lambda: bool(stopping))
        return
    broker = EmbeddedBroker(data / "broker") if options.embedded else None
    if broker is not None:
        broker.start()
        options = replace(options, broker=str(broker.url))
    store = SqliteStore(data / DATABASE, connect=tripwire.connect)
    clock = replace(
        _clock(Path(options.clock)) if options.clock else Clock(), confirmed=lambda: False
    )
    timing = replace(
        TIMING,
        reconnect_longest_seconds=options.reconnect_longest,
        jump_seconds=options.jump_seconds or TIMING.jump_seconds,
    )
    connect = _connector(options)
    links = Links(
        lambda will: Subscription(connect(will), options.namespace, clock=clock, timing=timing),
        restart_broker=broker.restart if broker is not None else lambda: None,
    )
    service = Service(
        store,
        DeviceKey(data / "device.key"),
        links,
        ServiceOptions(
            namespace=options.namespace, clock=clock, timing=timing, trace=tripwire.pass_by
        ),
    )
    heartbeat = Heartbeat(data, every_seconds=0.2)

    def each_turn() -> None:
        if broker is not None:
            broker.supervise()
        heartbeat.beat(service.status)

    service.run(lambda: bool(stopping), each_turn)
    store.close()
    if broker is not None:
        broker.stop()


def _connector(options: Options) -> Connect:
    connect = PahoConnector(
        parse_broker(options.broker),
        Credentials(),
        client_id=session_name(Path(options.data)),
        keepalive=options.keepalive,
    )
    return connect if options.receipts else lambda will: _without_receipts(connect, will)


def _without_receipts(connect: Connect, will: Will | None) -> Link:
    return cast(Link, WithoutReceipts(connect(will)))


class WithoutReceipts:
    """A connection that swallows receipts."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def publish(self, topic: str, payload: bytes, *, retain: bool = True) -> int:
        swallowed = "/receipt/" in topic
        return 0 if swallowed else self._link.publish(topic, payload, retain=retain)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)


def _clock(file: Path) -> Clock:
    return Clock(now=lambda: float(file.read_text()))


class Tripwire:
    """Kills its own process when a step is passed for the nth time."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._passed: list[str] = []

    def connect(self, *place: Any, **how: Any) -> sqlite3.Connection:
        """Watch the statements of a connection: steps inside its transactions are among them."""
        db: sqlite3.Connection = sqlite3.connect(*place, **how)
        db.set_trace_callback(self._execute)
        return db

    def pass_by(self, step: str) -> None:
        """Note a step, or die of it."""
        self._passed.append(step)
        if step == SEALING:  # the log is also wiped when a file is opened: that is not a sealing
            self._passed = [p for p in self._passed if p != LOG_NOT_WIPED]
        counts = step != LOG_NOT_WIPED or SEALING in self._passed
        if counts and step == self._options.die_at and self._is_nth(step):
            os.kill(os.getpid(), signal.SIGKILL)

    def _is_nth(self, step: str) -> bool:
        return self._passed.count(step) == self._options.nth

    def _execute(self, statement: str) -> None:
        for beginning, step in STATEMENTS.items():
            if statement.startswith(beginning):
                self.pass_by(step)


if __name__ == "__main__":
    _main()
