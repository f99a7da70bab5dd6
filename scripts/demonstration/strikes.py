"""kill -9 of a node, a worker, the leader and the database, and how long each took to recover."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from collector.errors import CollectorError
from testbed.collector import Cluster, WorkerProcess
from testbed.processes import TestbedError

DOWN_SECONDS: Final = 3.0  # that a machine is gone
RECOVER_SECONDS: Final = 120.0
POLL_SECONDS: Final = 0.1
FIRST, APART = 0.15, 0.25  # in periods of a round: when they begin, and how far apart they are

T = TypeVar("T")
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Strike:
    """When something is killed, and what is done then."""

    at: float
    do: Callable[[], None]


class Strikes:
    """What is killed in one cluster."""

    def __init__(self, cluster: Cluster, say: Say) -> None:
        self._cluster = cluster
        self._say = say
        self.done = 0

    def plan(self, opens: float, period: float) -> list[Strike]:
        """All four in the course of one round."""
        acts = (self.node, self.worker, self.leader, self.database)
        return [Strike(opens + period * (FIRST + APART * n), act) for n, act in enumerate(acts)]

    def node(self) -> None:
        """One of three: the others go on, and it catches up."""
        struck = self._cluster.nodes[1]
        self._say(f"kill -9 {struck.pid}: broker node {struck.address} dies; two of three are left")
        began = time.monotonic()
        struck.kill()
        time.sleep(DOWN_SECONDS)
        struck.start()
        self._recovered(began, f"node {struck.address} is back")

    def worker(self) -> None:
        """One that does not lead: what it held is delivered to others."""
        leader = self._leader()
        struck = next(worker for worker in self._cluster.workers if worker is not leader)
        self._say(f"kill -9 {struck.pid}: a worker dies; what it had not committed goes to others")
        self._kill_and_restart(struck, "it counts again")

    def leader(self) -> None:
        """Another one leads when its lease is over."""
        struck = self._leader()
        self._say(f"kill -9 {struck.pid}: the leader dies")
        began = time.monotonic()
        struck.kill()
        self._wait("another worker to lead", lambda: self._cluster.leader() is not None)
        self._recovered(began, "another worker leads")
        self._kill_and_restart(struck, "the old leader counts as one of three", began)

    def database(self) -> None:
        """Workers hold what they have not committed until it is back."""
        struck = self._cluster.database
        self._say(f"kill -9 {struck.pid}: the database dies")
        began = time.monotonic()
        before = {worker: worker.pid for worker in self._cluster.workers}
        struck.kill()
        time.sleep(DOWN_SECONDS)
        self._wait("the database to start again", self._started)
        self._recovered(began, "the database is back")
        self._wait("a leader", lambda: self._cluster.leader() is not None)
        self._recovered(began, "all workers use it again, and one leads")
        for worker, pid in before.items():
            if worker.pid != pid:  # pragma: no cover - it never ends for its database
                raise TestbedError("a worker ended with the database")

    def _started(self) -> bool:
        """Children of a killed server may hold its memory for a moment."""
        try:
            self._cluster.database.start()
        except TestbedError:
            return False
        return True

    def _leader(self) -> WorkerProcess:
        found: list[WorkerProcess] = []

        def leads() -> bool:
            found[:] = [leader for leader in [self._cluster.leader()] if leader is not None]
            return bool(found)

        self._wait("a leader", leads)
        return found[0]

    def _kill_and_restart(
        self, struck: WorkerProcess, then: str, began: float | None = None
    ) -> None:
        began = time.monotonic() if began is None else began
        if struck.is_running:
            struck.kill()
        struck.start()
        struck.wait_until_connected()
        self._recovered(began, then)

    def _recovered(self, began: float, what: str) -> None:
        self.done += 1
        self._say(f"    {what} after {time.monotonic() - began:.1f} s")

    def _wait(self, what: str, ready: Callable[[], bool]) -> None:
        limit = time.monotonic() + RECOVER_SECONDS
        while not ready():
            if time.monotonic() > limit:
                raise TestbedError(f"{what} was not there after {RECOVER_SECONDS:.0f} s")
            time.sleep(POLL_SECONDS)


def unless_down(ask: Callable[[], T]) -> Iterator[T]:
    """What the database answers, or nothing while it is down."""
    try:
        yield ask()
    except CollectorError:
        return
