"""A cluster and what fails there: nodes, workers, the leader and the database."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final, Self

from collector.data_dir import open_store
from collector.records import Campaign
from faults.kinds import Fault
from protocol_spec import Manifest
from testbed.collector import Cluster, Node, WorkerProcess
from testbed.processes import Process, TestbedError

DOWN_SECONDS: Final = (0.5, 8.0)
FENCED_SECONDS: Final = (16.0, 25.0)  # longer than a worker may be silent
NO_DATABASE: Final = "error: postgresql:"
LAST_WORDS: Final = 500
STARTING_SECONDS: Final = 120.0  # with many reports waiting, NATS takes long
ANYBODY: Final = '{ user: "Stage", password: "not used" }'


class ManySite:
    """A cluster in which anybody may report under any name, so that one program can be many."""

    def __init__(self, work: Path) -> None:
        self.cluster = Cluster(work, prepare=_let_anybody_in)
        self._down: set[Process] = set()
        self._turn = 0
        self._starting: dict[Node, float] = {}
        self.hung = 0  # nodes that did not come up, and were killed again

    def __enter__(self) -> Self:
        self.cluster.__enter__()
        try:
            self.cluster.start_workers()
        except BaseException:
            self.cluster.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.__exit__()

    def open(self, manifest: Manifest) -> Campaign:
        """Open a campaign."""
        data, address = self.cluster.workers[0].data, self.cluster.database.address()
        with closing(open_store(data, address)) as store:
            return store.open_campaign(manifest, int(time.time()))

    def check(self) -> None:
        """Nothing may have ended by itself, but a worker that found no database when it started: it
        says so and ends, and a service manager starts it again, as is done here."""
        for process in self.cluster.everything:
            if process in self._down:
                continue
            if not process.is_running and NO_DATABASE in process.log_text()[-LAST_WORDS:]:
                process.start()
            process.check_running()
        for node, limit in list(self._starting.items()):
            if node.listens() or node in self._down:
                del self._starting[node]
            elif time.monotonic() > limit:
                self.hung += 1
                self.take_down(node)
                self.bring_back(node)

    # --- what faults do ------------------------------------------------------------------------

    def next_node(self) -> Node:
        """One node after another, when the last one is back: two of three must live."""
        if self._starting:
            raise TestbedError("another node is not back yet")
        self._turn += 1
        return self.cluster.nodes[self._turn % len(self.cluster.nodes)]

    def next_worker(self) -> WorkerProcess:
        """One after another of those that do not lead."""
        self._turn += 1
        leader = self.cluster.leader()
        others = [worker for worker in self.cluster.workers if worker is not leader]
        return others[self._turn % len(others)]

    def leader(self) -> WorkerProcess:
        """The one that leads now."""
        found = self.cluster.leader()
        if found is None:
            raise TestbedError("nobody leads now")
        return found

    def take_down(self, process: Process) -> None:
        """kill -9, and it stays away for a while."""
        self._down.add(process)
        process.kill()

    def bring_back(self, process: Process) -> None:
        """Start what was taken down."""
        if process not in self._down:
            return
        if isinstance(process, Node):
            process.begin()
            self._starting[process] = time.monotonic() + STARTING_SECONDS
        else:
            process.start()
        self._down.discard(process)


def _let_anybody_in(cluster: Cluster) -> None:
    for node in cluster.nodes:
        place = node.log.parent
        config, users = place / "nats.conf", place / "users.conf"
        config.write_text(config.read_text("utf-8") + "no_auth_user: Stage\n", "utf-8")
        text = users.read_text("utf-8").replace("users: [", f"users: [\n    {ANYBODY}", 1)
        users.write_text(text, "utf-8")


class _Struck:
    """What is down or paused between the beginning and the end of one kind of fault."""

    def __init__(self) -> None:
        self.process: Process | None = None


def faults_of_many() -> list[Fault[ManySite]]:
    """Everything that happens to a cluster. One node at most is away, so a majority lives."""
    return [
        _killed("node", ManySite.next_node, 3.0),
        _paused("node", ManySite.next_node, 1.0, (1.0, 12.0)),
        _killed("worker", ManySite.next_worker, 3.0),
        _paused("worker", ManySite.next_worker, 1.0, FENCED_SECONDS),
        _killed("leader", ManySite.leader, 3.0),
        _paused("leader", ManySite.leader, 1.0, FENCED_SECONDS),
        _killed("database", lambda site: site.cluster.database, 1.0),
    ]


def _killed(target: str, of: Callable[[ManySite], Process], weight: float) -> Fault[ManySite]:
    struck = _Struck()

    def begin(site: ManySite) -> None:
        struck.process = None
        struck.process = of(site)
        site.take_down(struck.process)

    def end(site: ManySite) -> None:
        if struck.process is not None:
            site.bring_back(struck.process)

    return Fault(f"{target}: killed", target, begin, end, weight, DOWN_SECONDS)


def _paused(
    target: str, of: Callable[[ManySite], Process], weight: float, lasts: tuple[float, float]
) -> Fault[ManySite]:
    struck = _Struck()

    def begin(site: ManySite) -> None:
        struck.process = None
        struck.process = of(site)
        struck.process.pause()

    def end(_site: ManySite) -> None:
        if struck.process is not None and struck.process.is_running:
            struck.process.resume()

    return Fault(f"{target}: paused", target, begin, end, weight, lasts)
