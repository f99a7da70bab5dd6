"""The steps of the demonstration: start the programs, open a campaign, let real agents report, kill
what may fail, show the results and check them."""

from __future__ import annotations

import subprocess
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from random import Random
from typing import Final, Self

import click
import numpy as np

from collector.data_dir import open_store
from collector.records import Campaign
from collector.results.facts import write_truth
from collector.store import Store
from protocol_spec import Manifest, Outcome, as_drawn
from protocol_spec.estimation import Array, estimate
from testbed.agents import AgentProcesses, Work, measure_pace
from testbed.collector import Cluster, CollectorProcess, Kill, WorkerProcess, watch
from testbed.processes import TestbedError, command_of, environment, free_port, make_manifest

# Two attributes of different size, so that both L-GRR and L-OSUE are chosen: weights of values.
HOLD: Final = {
    "heating": {"gas": 41, "heat pump": 24, "wood": 18, "oil": 12, "district": 5},
    "quiet-hour": {
        f"{hour:02d}:00": 9 if hour in (2, 3) else 4 if hour < 6 else 1 for hour in range(24)
    },
}
QUESTIONS: Final = {
    "heating": "What heats your home?",
    "quiet-hour": "In which hour is your home at its quietest?",
}
# A correct run must not fail by chance: one in a million for all bars of a histogram together.
CERTAIN: Final = 1.0 - 1e-6
SPARE: Final = 2.0  # times what agents need in a round
MOST_PROCESSES: Final = 8  # of agents, which spend their time waiting for the disk
AGENTS_A_PROCESS: Final = 250  # at least, before there is another
DOWN_SECONDS: Final = 3.0  # for which a killed node or database stays away
RECOVER_SECONDS: Final = 120.0
FIRST_KILL, NEXT_KILL = 0.15, 0.25  # in periods of a round

Check = tuple[bool, str]


def value(device: int, attribute: str) -> str:
    """What a device holds; the same at every call."""
    weights = HOLD[attribute]
    draw = Random(f"{device} {attribute}")  # noqa: S311 - whose values are made up
    return draw.choices(list(weights), list(weights.values()))[0]


def truth(drawn: dict[int, str]) -> dict[str, Array]:
    """True frequencies of each attribute among the devices that drew it."""
    found = {}
    for attribute, values in HOLD.items():
        held = Counter(value(d, attribute) for d, name in drawn.items() if name == attribute)
        found[attribute] = np.array([held[name] / max(1, held.total()) for name in values])
    return found


def show_owners_view(state_dir: Path) -> None:
    """What `allomfree-edge show` prints on a device."""
    command = command_of("allomfree-edge", "show", "--state-dir", state_dir)
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment())
    click.echo("\nWhat the owner of device 0 sees (allomfree-edge show):\n")
    click.echo("\n".join("    " + line for line in done.stdout.splitlines()) + "\n")


def counted_once(store: Store, campaign: Campaign, work: Work) -> Iterator[Check]:
    """Every report that an agent drew is counted exactly once, also across the kills."""
    for number in range(campaign.manifest.rounds.count):
        counts = {i: t.n for i, t in store.tallies(campaign.id, number).items()}
        drawn = {i: work.drawn[f"{number} {name}"] for i, name in enumerate(HOLD)}
        right = all(counts.get(i, 0) == n for i, n in drawn.items())
        counted = f"{sum(counts.values())} of {sum(drawn.values())} reports"
        yield right, f"round {number}: {counted} counted, each once"
    total = sum(store.outcomes().values())
    again = f"{store.outcomes().get(Outcome.DUPLICATE, 0)} duplicates, not counted again"
    yield total == store.received(), f"{total} messages received, one outcome each ({again})"


def intervals_hold(store: Store, campaign: Campaign, drawn: dict[int, str]) -> Iterator[Check]:
    """Every true frequency inside its simultaneous interval, in every round; where agents missed
    the round, those that did not are a sample of all."""
    holders = Counter(drawn.values())
    for index, (name, true) in enumerate(truth(drawn).items()):
        calibration = as_drawn(campaign.manifest.calibrations[index])
        inside = True
        for number in range(campaign.manifest.rounds.count):
            tally = store.tallies(campaign.id, number).get(index)
            if tally is None or tally.n == 0:
                inside = False
                continue
            made = estimate(tally.counts, tally.n, calibration)
            missed = tally.n < holders[name]
            low, high = made.interval(CERTAIN, simultaneous=True, sampling=missed)
            inside &= bool(((low - 1e-12 <= true) & (true <= high + 1e-12)).all())
        yield inside, f"{name}: every true frequency lies in its 99.9999 % interval"


class Demo(ABC):
    """The programs of one demonstration, which end with the context."""

    least_processes = 1  # of agents
    quick_start_seconds: float  # until the programs run on an idle desktop machine
    collector: CollectorProcess  # the one with the page

    def __init__(self, work: Path) -> None:
        work.mkdir(parents=True, exist_ok=True)
        self.work = work
        self.page = f"127.0.0.1:{free_port()}"
        self.stack = ExitStack()
        self.began = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    @abstractmethod
    def start(self, devices: int) -> None:
        """Return when the programs run and devices can connect."""

    @abstractmethod
    def agents(self, campaign: Campaign, devices: int) -> AgentProcesses: ...

    @abstractmethod
    def kills(self, campaign: Campaign) -> list[Kill]: ...

    def processes(self, devices: int) -> int:
        """How many processes run that many agents."""
        return max(self.least_processes, min(MOST_PROCESSES, -(-devices // AGENTS_A_PROCESS)))

    def check_running(self) -> None:
        self.collector.check_running()

    def run(self, devices: int, rounds: int, period_seconds: int | None) -> list[Check]:
        """Everything up to the results; returns what was checked."""
        self.start(devices)
        campaign = self._open(devices, rounds, period_seconds)
        with self.agents(campaign, devices) as agents:
            drawn = agents.drawn
            shares = Counter(drawn.values())
            each = " and ".join(f"{shares[name]} drew {name}" for name in HOLD)
            self.print(f"every agent drew one attribute for life: {each}")
            shown = {name: shares.tolist() for name, shares in truth(drawn).items()}
            write_truth(self.collector.data, campaign.name, shown)  # for the page
            watch(
                campaign, rounds - 1, devices, self.collector.store, self.print,
                self.check_running, self.kills(campaign),
            )  # fmt: skip
            work = agents.stop()
        memory, cpu = f"{work.memory_mib:.0f} MiB of memory", f"{work.cpu_seconds:.1f} s of CPU"
        self.print(f"all rounds are sealed; the agents used {memory} and {cpu} time")
        if late := devices * rounds - work.drawn.total():
            self.print(f"{late} reports were not drawn: this machine was too busy in their rounds")
        click.echo(f"\n{self.collector.run('estimate', campaign.name, '--plot')}")
        with self.collector.store() as store:
            show_owners_view(agents.state_dir(0))
            once = counted_once(store, campaign, work)
            return [*once, *intervals_hold(store, campaign, drawn)]

    def print(self, text: str) -> None:
        """With the seconds since the start."""
        click.echo(f"[{time.monotonic() - self.began:5.1f} s] {text}")

    def wait_for_interrupt(self) -> None:
        click.echo(f"\nThe page stays on http://{self.page}/ until you press Ctrl-C.")
        with suppress(KeyboardInterrupt):
            while True:
                self.collector.check_running()
                time.sleep(1)

    def _open(self, devices: int, rounds: int, period_seconds: int | None) -> Campaign:
        """A small or busy machine takes longer for everything, so it gets longer rounds: the start
        of the programs and a few agents show how much longer."""
        slow = min(4.0, max(1.0, (time.monotonic() - self.began) / self.quick_start_seconds))
        processes = self.processes(devices)
        open_now = self._manifest(devices, int(time.time()) - 1, 3_600, 1)
        pace, each = measure_pace(open_now, processes), devices / processes
        usual = slow * min(5 + devices // 50, 8 + devices // 200)
        period = period_seconds or round(max(usual, SPARE * each * pace.report))
        lead = round(max(slow * min(5 + devices // 30, 6 + devices // 80), each * pace.join))
        took = f"an agent takes {1000 * pace.report:.0f} ms for a report here"
        self.print(f"{took}: rounds of {period} s, the first in {lead} s")
        made = self._manifest(devices, int(time.time()) + lead, period, rounds)
        with closing(open_store(self.collector.data, self.collector.address)) as store:
            campaign = store.open_campaign(made, int(time.time()))
        pairs = zip(made.attributes, made.calibrations)
        chosen = ", ".join(f"{a.name}: {c.protocol} for {c.k} values" for a, c in pairs)
        self.print(f"opened {campaign.name} ({chosen})")
        return campaign

    def _manifest(self, devices: int, first: int, period: int, rounds: int) -> Manifest:
        return make_manifest(
            {name: list(values) for name, values in HOLD.items()},
            {"first": first, "period": period, "count": rounds, "grace": max(10, period + 4)},
            asked=QUESTIONS,
            slug="demo",
            title="How homes are heated, and when they rest",
            purpose="Show the whole system at work with a simulated fleet",
            owner="The demonstration",
            eps_inf=4.0,
            eps_1=1.5,
            min_reports=min(20, max(1, devices // 10)),
            receipt_pages=max(1, devices // 200),
        )

    def _agents(
        self,
        campaign: Campaign,
        devices: int,
        brokers: str | Sequence[str],
        credentials: Path | None = None,
    ) -> AgentProcesses:
        readings = {d: {name: value(d, name) for name in HOLD} for d in range(devices)}
        processes = self.processes(devices)
        place, asked = self.work / "devices", campaign.manifest
        return AgentProcesses(place, asked, brokers, readings, processes, credentials=credentials)


class CollectorDemo(Demo):
    """A collector with its broker, and agents."""

    quick_start_seconds = 1.0

    def __init__(self, work: Path) -> None:
        super().__init__(work)
        data, log = work / "collector", work / "collector.log"
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.collector = CollectorProcess(data, "--listen", self.page, log=log)

    def __enter__(self) -> Self:
        self.stack.enter_context(self.collector)
        return self

    def start(self, devices: int) -> None:  # noqa: ARG002
        self.collector.wait_until_connected()
        self.print(f"collector running (process {self.collector.pid}) with the embedded broker")
        self.print(f"watch it live: http://{self.page}/")

    def agents(self, campaign: Campaign, devices: int) -> AgentProcesses:
        self.print(f"starting {devices} agents, each with its own state and connection")
        return self._agents(campaign, devices, self.collector.broker_url)

    def kills(self, campaign: Campaign) -> list[Kill]:
        """With two rounds or more the collector is killed in the second: what agents had sent and
        it had not counted is sent again."""
        rounds = campaign.manifest.rounds
        if rounds.count < 2:
            return []
        return [(rounds.opens(1) + rounds.period / 2, self._kill_and_restart)]

    def _kill_and_restart(self) -> None:
        self.print(f"kill -9 {self.collector.pid}: the collector dies, and its broker with it")
        self.collector.kill_and_restart()


class ClusterDemo(Demo):
    """Three nodes, a database, three workers, and agents: everything that may fail is killed."""

    least_processes = 3  # one for each node
    quick_start_seconds = 6.0

    def __init__(self, work: Path) -> None:
        super().__init__(work)
        work.chmod(0o711)  # the database's user, if another, has to enter
        self._cluster = Cluster(work / "cluster", page=self.page)

    def __enter__(self) -> Self:
        self.stack.enter_context(self._cluster)
        return self

    def check_running(self) -> None:
        for process in self._cluster.everything:
            process.check_running()

    def start(self, devices: int) -> None:
        nodes = ", ".join(node.address for node in self._cluster.nodes)
        self.print(f"three broker nodes run, with TLS ({nodes}), and PostgreSQL")
        self._cluster.start_workers()
        self.collector = self._cluster.workers[0]
        self.print("three workers count; one of them leads")
        self.print(f"watch it live: http://{self.page}/")
        self._cluster.enrol([f"device-{number}" for number in range(devices)])
        self.print(f"enrolled {devices} devices, each with a password of its own")

    def agents(self, campaign: Campaign, devices: int) -> AgentProcesses:
        self.print(f"starting {devices} agents, a third of them at each node")
        urls = [node.url for node in self._cluster.nodes]
        return self._agents(campaign, devices, urls, self._cluster.broker.path / "invitations")

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
        self.print(f"kill -9 {node.pid}: broker node {node.address} dies; two of three are left")
        began = time.monotonic()
        node.kill()
        time.sleep(DOWN_SECONDS)
        node.start()
        self._recovered(began, f"node {node.address} is back")

    def _kill_worker(self) -> None:
        """One that does not lead: what it had not committed is delivered to others."""
        leader = self._leader()
        worker = next(worker for worker in self._cluster.workers if worker is not leader)
        self.print(f"kill -9 {worker.pid}: a worker dies; what it had not committed goes to others")
        began = time.monotonic()
        worker.kill_and_restart()
        self._recovered(began, "it counts again")

    def _kill_leader(self) -> None:
        """Another worker leads when its lease has expired."""
        leader = self._leader()
        self.print(f"kill -9 {leader.pid}: the leader dies")
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
        self.print(f"kill -9 {database.pid}: the database dies")
        began = time.monotonic()
        before = {worker: worker.pid for worker in self._cluster.workers}
        database.kill()
        time.sleep(DOWN_SECONDS)

        def starts() -> bool:
            """Children of a killed server may hold its memory for a moment."""
            with suppress(TestbedError):
                database.start()
                return True
            return False

        _wait_for("the database to start again", starts)
        self._recovered(began, "the database is back")
        self._leader()
        self._recovered(began, "all workers use it again, and one leads")
        if any(worker.pid != pid for worker, pid in before.items()):
            raise TestbedError("a worker ended with the database")

    def _leader(self) -> WorkerProcess:
        found: list[WorkerProcess | None] = [None]

        def one_leads() -> bool:
            found[0] = self._cluster.leader()
            return found[0] is not None

        _wait_for("a leader", one_leads)
        if found[0] is None:
            raise TestbedError("no worker leads")
        return found[0]

    def _recovered(self, began: float, what: str) -> None:
        self.print(f"    {what} after {time.monotonic() - began:.1f} s")


def _wait_for(what: str, ready: Callable[[], bool]) -> None:
    limit = time.monotonic() + RECOVER_SECONDS
    while not ready():
        if time.monotonic() > limit:
            raise TestbedError(f"timed out after {RECOVER_SECONDS:.0f} s waiting for {what}")
        time.sleep(0.1)
