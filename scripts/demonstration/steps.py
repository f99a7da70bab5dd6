"""The steps of the demonstration: start the programs, open a campaign, let real agents report, kill
what may fail, and show the results."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Final, Self, TypeVar

import click

from collector.data_dir import open_store
from collector.errors import CollectorError
from collector.records import Campaign
from collector.results.facts import write_truth
from collector.settings import StoreAddress
from collector.store import Store
from demonstration.checks import (
    Check,
    counted_once,
    intervals_hold,
    manifest,
    readings,
    show_histograms,
    show_owners_view,
    truth,
)
from testbed.agents import AgentProcesses
from testbed.collector import Cluster, CollectorProcess, WorkerProcess, is_sealed
from testbed.processes import TestbedError, free_port

MOST_PROCESSES: Final = 8  # of agents, which spend their time waiting for the disk
AGENTS_A_PROCESS: Final = 250  # at least, before there is another
LINE_SECONDS: Final = 3.0  # between two lines of progress
POLL_SECONDS: Final = 0.5
LONGEST_SECONDS: Final = 300.0  # from the last deadline until everything is sealed
DOWN_SECONDS: Final = 3.0  # for which a killed node or database stays away
RECOVER_SECONDS: Final = 120.0
FIRST_KILL, NEXT_KILL = 0.15, 0.25  # in periods of a round

T = TypeVar("T")
Kill = tuple[float, Callable[[], None]]  # when, and what is done then


class Demo(ABC):
    """The programs of one demonstration. They end with the context."""

    quick_start_seconds: float  # until the programs run on an idle desktop machine
    address: StoreAddress | None = None

    def __init__(self, work: Path) -> None:
        work.mkdir(parents=True, exist_ok=True)
        self.work = work
        self.page = f"127.0.0.1:{free_port()}"
        self.stack = ExitStack()
        self.began = time.monotonic()

    @abstractmethod
    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    @property
    @abstractmethod
    def collector(self) -> CollectorProcess:
        """The one with the page."""

    @abstractmethod
    def start(self, devices: int) -> None:
        """Return when the programs run and devices can connect."""

    @abstractmethod
    def agents(self, campaign: Campaign, devices: int) -> AgentProcesses: ...

    @abstractmethod
    def kills(self, campaign: Campaign) -> list[Kill]: ...

    @abstractmethod
    def check_running(self) -> None: ...

    def run(self, devices: int, rounds: int, period_seconds: int | None) -> list[Check]:
        """Everything up to the results; returns what was checked."""
        self.start(devices)
        campaign = self._open(devices, rounds, period_seconds)
        with self.agents(campaign, devices) as agents:
            self._write_truth(campaign, agents.drawn)
            self._watch(campaign, devices, self.kills(campaign))
            usage = agents.stop()
        memory, cpu = f"{usage.memory_mib:.0f} MiB of memory", f"{usage.cpu_seconds:.1f} s of CPU"
        self.say(f"all rounds are sealed; the agents used {memory} and {cpu} time")
        self.say("estimates (bar) with their 95 % intervals [ ], and the truth (●)")
        with self.collector.store() as store:
            show_histograms(store, campaign, truth(campaign, agents.drawn))
            show_owners_view(agents.state_dir(0))
            once = counted_once(store, campaign, agents.drawn)
            return once + intervals_hold(store, campaign, agents.drawn)

    def say(self, text: str) -> None:
        """Print progress, with the seconds since the start."""
        click.echo(f"[{time.monotonic() - self.began:5.1f} s] {text}")

    def wait_for_interrupt(self) -> None:
        click.echo(f"\nThe page stays on http://{self.page}/ until you press Ctrl-C.")
        with suppress(KeyboardInterrupt):
            while True:
                self.collector.check_running()
                time.sleep(1)

    def _open(self, devices: int, rounds: int, period_seconds: int | None) -> Campaign:
        """A small or busy machine takes longer for everything, so it gets longer rounds; how many
        times longer than an idle one, the start of the programs shows."""
        slow = min(4.0, max(1.0, (time.monotonic() - self.began) / self.quick_start_seconds))
        period = period_seconds or round(slow * min(5 + devices // 50, 8 + devices // 200))
        lead = round(slow * min(5 + devices // 30, 6 + devices // 80))
        self.say(f"rounds of {period} s, the first in {lead} s")
        made = manifest(
            devices,
            rounds,
            period_seconds=period,
            grace_seconds=max(10, period + 4),
            lead_seconds=lead,
        )
        with closing(open_store(self.collector.data, self.address)) as store:
            campaign = store.open_campaign(made, int(time.time()))
        pairs = zip(made.attributes, made.calibrations)
        chosen = ", ".join(f"{a.name}: {c.protocol} for {c.k} values" for a, c in pairs)
        self.say(f"opened {campaign.name} ({chosen})")
        return campaign

    def _write_truth(self, campaign: Campaign, drawn: dict[int, str]) -> None:
        """For the collector's page, which draws it next to the estimates."""
        shares = Counter(drawn.values())
        names = [attribute.name for attribute in campaign.manifest.attributes]
        shown = " and ".join(f"{shares[name]} drew {name}" for name in names)
        self.say(f"every agent drew one attribute for life: {shown}")
        frequencies = {name: f.tolist() for name, f in zip(names, truth(campaign, drawn))}
        write_truth(self.collector.data, campaign.name, frequencies)

    def _watch(self, campaign: Campaign, devices: int, kills: list[Kill]) -> None:
        """Show progress, and kill what is due, until every round is sealed."""
        schedule = campaign.manifest.rounds
        shown, next_line = "", 0.0
        while kills or not self._ask(lambda s: is_sealed(s, campaign, schedule.count - 1), False):
            line = self._ask(lambda s: _progress(s, campaign, devices), shown)
            if line != shown and time.monotonic() >= next_line:
                shown, next_line = line, time.monotonic() + LINE_SECONDS
                self.say(line)
            if kills and time.time() > kills[0][0]:
                kills.pop(0)[1]()
            if time.time() > schedule.end + LONGEST_SECONDS:
                seconds = f"{LONGEST_SECONDS:.0f} s"
                raise TestbedError(f"not all rounds are sealed {seconds} after the end")
            self.check_running()
            time.sleep(POLL_SECONDS)

    def _ask(self, ask: Callable[[Store], T], otherwise: T) -> T:
        """What the database answers, unless it is down."""
        try:
            with self.collector.store() as store:
                return ask(store)
        except CollectorError:
            return otherwise

    def _agent_processes(
        self,
        campaign: Campaign,
        devices: int,
        brokers: str | Sequence[str],
        least: int,
        credentials: Path | None = None,
    ) -> AgentProcesses:
        return AgentProcesses(
            self.work / "devices",
            campaign.manifest,
            brokers,
            readings(campaign.manifest, devices),
            max(least, min(MOST_PROCESSES, -(-devices // AGENTS_A_PROCESS))),
            credentials=credentials,
        )


def _progress(store: Store, campaign: Campaign, devices: int) -> str:
    filling = [
        f"round {number}: {sum(t.n for t in store.tallies(campaign.id, number).values())}"
        for number in store.open_rounds(campaign.id)
    ]
    last = store.last_sealed(campaign.id)
    sealed = f"{0 if last is None else last + 1} of {campaign.manifest.rounds.count} rounds sealed"
    if not filling:
        return f"{sealed}; waiting for reports"
    return f"{sealed}; {', '.join(filling)} of {devices} devices counted"


class CollectorDemo(Demo):
    """A collector with its broker, and agents."""

    quick_start_seconds = 1.0

    def __init__(self, work: Path, broker: str | None) -> None:
        super().__init__(work)
        self._collector = CollectorProcess(
            work / "collector", "--listen", self.page, broker=broker, log=work / "collector.log"
        )

    def __enter__(self) -> Self:
        self.collector.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.stack.enter_context(self.collector)
        return self

    @property
    def collector(self) -> CollectorProcess:
        return self._collector

    def check_running(self) -> None:
        self.collector.check_running()

    def start(self, devices: int) -> None:  # noqa: ARG002
        self.collector.wait_until_connected()
        broker = self.collector.broker or "the embedded broker"
        self.say(f"collector running (process {self.collector.pid}) with {broker}")
        self.say(f"watch it live: http://{self.page}/")

    def agents(self, campaign: Campaign, devices: int) -> AgentProcesses:
        self.say(f"starting {devices} agents, each with its own state and connection")
        return self._agent_processes(campaign, devices, self.collector.broker_url, 1)

    def kills(self, campaign: Campaign) -> list[Kill]:
        """With two rounds or more the collector is killed in the second: what agents had sent and
        it had not counted is sent again."""
        rounds = campaign.manifest.rounds
        if rounds.count < 2:
            return []
        return [(rounds.opens(1) + rounds.period / 2, self._kill_and_restart)]

    def _kill_and_restart(self) -> None:
        what = "the collector dies" + ("" if self.collector.broker else ", and its broker with it")
        self.say(f"kill -9 {self.collector.pid}: {what}")
        self.collector.kill()
        self.collector.start()
        self.start(0)


class ClusterDemo(Demo):
    """Three nodes, a database, three workers, and agents: everything that may fail is killed."""

    quick_start_seconds = 6.0

    def __init__(self, work: Path) -> None:
        super().__init__(work)
        work.chmod(0o711)  # the database's user, if another, has to enter
        self._cluster = Cluster(work / "cluster", page=self.page)

    def __enter__(self) -> Self:
        self.stack.enter_context(self._cluster)
        return self

    @property
    def collector(self) -> CollectorProcess:
        return self._cluster.workers[0]

    def check_running(self) -> None:
        for process in self._cluster.everything:
            process.check_running()

    def start(self, devices: int) -> None:
        nodes = ", ".join(node.address for node in self._cluster.nodes)
        self.say(f"three broker nodes run, with TLS ({nodes}), and PostgreSQL")
        self._cluster.start_workers()
        self.address = self._cluster.database.address()
        self.say("three workers count; one of them leads")
        self.say(f"watch it live: http://{self.page}/")
        self._cluster.enrol([f"device-{number}" for number in range(devices)])
        self.say(f"enrolled {devices} devices, each with a password of its own")

    def agents(self, campaign: Campaign, devices: int) -> AgentProcesses:
        self.say(f"starting {devices} agents, a third of them at each node")
        urls = [node.url for node in self._cluster.nodes]
        secrets = self._cluster.broker.path / "credentials"
        return self._agent_processes(campaign, devices, urls, 3, secrets)

    def kills(self, campaign: Campaign) -> list[Kill]:
        """All four during one round."""
        rounds = campaign.manifest.rounds
        opens = rounds.opens(min(1, rounds.count - 1))
        acts = (self._kill_node, self._kill_worker, self._kill_leader, self._kill_database)
        times = (opens + rounds.period * (FIRST_KILL + NEXT_KILL * n) for n in range(len(acts)))
        return list(zip(times, acts))

    def _kill_node(self) -> None:
        """One of three: the others go on, and it catches up."""
        node = self._cluster.nodes[1]
        self.say(f"kill -9 {node.pid}: broker node {node.address} dies; two of three are left")
        began = time.monotonic()
        node.kill()
        time.sleep(DOWN_SECONDS)
        node.start()
        self._recovered(began, f"node {node.address} is back")

    def _kill_worker(self) -> None:
        """One that does not lead: what it had not committed is delivered to others."""
        leader = self._leader()
        worker = next(worker for worker in self._cluster.workers if worker is not leader)
        self.say(f"kill -9 {worker.pid}: a worker dies; what it had not committed goes to others")
        began = time.monotonic()
        worker.kill_and_restart()
        self._recovered(began, "it counts again")

    def _kill_leader(self) -> None:
        """Another worker leads when its lease has expired."""
        leader = self._leader()
        self.say(f"kill -9 {leader.pid}: the leader dies")
        began = time.monotonic()
        leader.kill()
        self._leader()
        self._recovered(began, "another worker leads")
        leader.start()
        leader.wait_until_connected()
        self._recovered(began, "the old leader counts as one of three")

    def _kill_database(self) -> None:
        """Workers keep what they have not committed until it is back."""
        database = self._cluster.database
        self.say(f"kill -9 {database.pid}: the database dies")
        began = time.monotonic()
        before = {worker: worker.pid for worker in self._cluster.workers}
        database.kill()
        time.sleep(DOWN_SECONDS)
        self._wait_for("the database to start again", self._database_starts)
        self._recovered(began, "the database is back")
        self._leader()
        self._recovered(began, "all workers use it again, and one leads")
        if any(worker.pid != pid for worker, pid in before.items()):
            raise TestbedError("a worker ended with the database")

    def _database_starts(self) -> bool:
        """Children of a killed server may hold its memory for a moment."""
        try:
            self._cluster.database.start()
        except TestbedError:
            return False
        return True

    def _leader(self) -> WorkerProcess:
        self._wait_for("a leader", lambda: self._cluster.leader() is not None)
        found = self._cluster.leader()
        return found if found is not None else self._leader()

    def _recovered(self, began: float, what: str) -> None:
        self.say(f"    {what} after {time.monotonic() - began:.1f} s")

    def _wait_for(self, what: str, ready: Callable[[], bool]) -> None:
        limit = time.monotonic() + RECOVER_SECONDS
        while not ready():
            if time.monotonic() > limit:
                raise TestbedError(f"timed out after {RECOVER_SECONDS:.0f} s waiting for {what}")
            time.sleep(0.1)
