"""`pytest --workers N`: tests are collected once, and N copies of this process run them.

A fork has everything that was collected and imported; workers that start anew would each do that
again, which took a twelfth of the whole run. `tests/support/schedule.py` says in which portions
tests are handed out. This process runs no test: it hands out, reports, and replaces a worker that
did not survive a test. Without `--workers` pytest runs all tests itself, as ever.

A worker asks for a portion, says which test it begins, sends that test's reports, and asks again.
Fixtures of a session live as long as their worker. A warning that is no error is not passed on;
here every warning is one.
"""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Final, cast

import pytest
from _pytest.runner import pytest_sessionfinish as tear_down_session
from _pytest.runner import runtestprotocol

from tests.support.schedule import Portions

FORK: Final = multiprocessing.get_context("fork")


class Said(Enum):
    """What a worker tells; the second half of each message is in brackets."""

    ASKS = auto()  # for a portion
    BEGINS = auto()  # a test [its place in the portion]
    RAN = auto()  # a test [its reports]
    ENDED = auto()  # with everything torn down [a traceback, or empty]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--workers",
        type=int,
        default=0,
        metavar="N",
        help="run the tests in N processes, forked when they are collected",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    workers = session.config.getoption("workers")
    if workers < 1 or session.testsfailed or session.config.option.collectonly:
        return None
    Dispatcher(session, workers).run()
    return True


class AnyTest:
    """The test after the last of a portion, not known yet: only the session has to live on."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session

    def listchain(self) -> list[pytest.Session]:
        return [self._session]


class Worker:
    """In the forked process: runs portions until there are no more, or nobody wants them."""

    def __init__(self, session: pytest.Session, number: int, connection: Connection) -> None:
        self._session, self._number, self._connection = session, number, connection
        self._failed = 0

    def run(self) -> None:
        failure = ""
        try:
            self._settle()
            self._run_portions()
        except BaseException:  # noqa: BLE001 - told to the dispatcher, which fails the run
            failure = traceback.format_exc()
        try:
            tear_down_session(self._session)
        except BaseException:  # noqa: BLE001
            failure += traceback.format_exc()
        with suppress(OSError):  # the dispatcher was killed
            self._connection.send((Said.ENDED, failure))

    def _settle(self) -> None:
        """What a process must not share with the one it was forked from."""
        config = self._session.config
        config.pluginmanager.register(self)
        capture = config.pluginmanager.getplugin("capturemanager")
        capture.stop_global_capturing()
        capture.start_global_capturing()
        capture.suspend_global_capture()
        places = config._tmp_path_factory  # type: ignore[attr-defined]
        places._basetemp = places.mktemp(f"worker-{self._number}", numbered=False)

    def _run_portions(self) -> None:
        for items in iter(self._ask, None):
            following = [*items[1:], cast(pytest.Item, AnyTest(self._session))]
            for place, (item, after) in enumerate(zip(items, following)):
                if self._has_to_stop:
                    return
                self._connection.send((Said.BEGINS, place))
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)

    @property
    def _has_to_stop(self) -> bool:
        """After as many failures as are wanted, or when the dispatcher says so, unasked."""
        wanted = self._session.config.getoption("maxfail")
        return bool(wanted and self._failed >= wanted) or self._connection.poll()

    def _ask(self) -> list[pytest.Item] | None:
        self._connection.send((Said.ASKS, None))
        places = self._connection.recv()
        return None if places is None else [self._session.items[i] for i in places]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """As pytest's own, but its reports are sent and not shown here."""
        hook, config = item.ihook, item.config
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        self._failed += any(report.failed for report in reports)
        told = [hook.pytest_report_to_serializable(config=config, report=r) for r in reports]
        self._connection.send((Said.RAN, told))
        return True


@dataclass(eq=False)
class Running:
    """What the dispatcher knows of a worker."""

    number: int
    process: BaseProcess
    connection: Connection
    ended: int  # a file descriptor that becomes readable when the process ends
    portion: list[int] = field(default_factory=list)
    begun: int = -1  # the place of the running test, or of the last that ran
    is_in_a_test: bool = False
    is_done: bool = False


class Dispatcher:
    """Hands out portions, reports what became of them."""

    def __init__(self, session: pytest.Session, workers: int) -> None:
        self._session, self._config = session, session.config
        self._portions = Portions([item.nodeid for item in session.items], workers)
        self._workers = workers
        self._running: dict[int, Running] = {}

    def run(self) -> None:
        try:
            for number in range(self._workers):
                self._start(number)
            while self._running:
                self._listen()
        finally:
            self._stop()
        if self._session.shouldfail:
            raise self._session.Failed(self._session.shouldfail)
        if self._session.shouldstop:
            raise self._session.Interrupted(self._session.shouldstop)

    def _start(self, number: int) -> None:
        ours, theirs = FORK.Pipe()
        worker = Worker(self._session, number, theirs)
        process = FORK.Process(target=worker.run, name=f"tests {number}")
        process.start()
        theirs.close()
        assert process.pid is not None
        ended = os.pidfd_open(process.pid)
        self._running[number] = Running(number, process, ours, ended)

    def _listen(self) -> None:
        """Until a worker says something, or ends without a word."""
        running = list(self._running.values())
        ready = wait([end for worker in running for end in (worker.connection, worker.ended)])
        for worker in running:
            if worker.connection in ready or worker.ended in ready:
                self._hear(worker)

    def _hear(self, worker: Running) -> None:
        for said, what in _messages(worker.connection):
            self._take(worker, said, what)
        if worker.is_done or not worker.process.is_alive():
            self._leave(worker)

    def _take(self, worker: Running, said: Said, what: Any) -> None:
        if said is Said.ASKS:
            worker.portion, worker.begun = [], -1
            if not self._is_over:
                worker.portion = self._portions.take(worker.number)
            with suppress(OSError):  # it ended meanwhile, as the next call finds out
                worker.connection.send(worker.portion or None)
        elif said is Said.BEGINS:
            worker.begun, worker.is_in_a_test = what, True
        elif said is Said.RAN:
            worker.is_in_a_test = False
            self._report(self._item(worker), what)
        else:
            worker.is_done = True
            if what:
                self._fail(f"worker {worker.number}", what)

    def _leave(self, worker: Running) -> None:
        """Its end: nothing is left, or a test killed it. Then the rest of its portion goes on."""
        worker.process.join()
        os.close(worker.ended)
        worker.connection.close()
        del self._running[worker.number]
        if worker.is_done:
            return
        died_of = self._item(worker).nodeid if worker.is_in_a_test else f"worker {worker.number}"
        self._fail(died_of, f"its process ended (exit code {worker.process.exitcode})")
        self._portions.give_back(worker.portion[worker.begun + 1 :])
        if worker.is_in_a_test and not self._is_over:  # else the next might die of the same
            self._start(worker.number)

    @property
    def _is_over(self) -> bool:
        """Whether somebody wants the run to stop, as after a first failure with -x."""
        return bool(self._session.shouldfail or self._session.shouldstop)

    def _item(self, worker: Running) -> pytest.Item:
        return self._session.items[worker.portion[worker.begun]]

    def _report(self, item: pytest.Item, told: list[dict[str, Any]]) -> None:
        hook, config = self._config.hook, self._config
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for data in told:
            report = hook.pytest_report_from_serializable(config=config, data=data)
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        if self._is_over:
            self._tell_to_stop()

    def _fail(self, nodeid: str, why: str) -> None:
        """A failure that no test could report itself."""
        location = (nodeid.partition("::")[0], None, nodeid)
        report = pytest.TestReport(nodeid, location, {}, "failed", why, "call")
        self._config.hook.pytest_runtest_logreport(report=report)

    def _tell_to_stop(self) -> None:
        for worker in self._running.values():
            with suppress(OSError):
                worker.connection.send(None)

    def _stop(self) -> None:
        """After Ctrl-C or a fault here: workers tear down what they started, and end."""
        self._tell_to_stop()
        for worker in self._running.values():
            worker.process.join()


def _messages(connection: Connection) -> Iterator[tuple[Said, Any]]:
    """All that is there to be read."""
    with suppress(EOFError, OSError):
        while connection.poll():
            yield connection.recv()
