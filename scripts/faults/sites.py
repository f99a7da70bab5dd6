"""What faults happen to: a collector with broker, agents and networks, or a cluster."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, Self

from collector.data_dir import open_store
from collector.records import Campaign
from collector.store import Store
from edge_client.records import Timing
from faults.clock import set_clock
from faults.devices import AGENT_TIMING, Agents, agents_manifest
from faults.oracle import Loss, Verdict, judge_agents
from faults.proxy import Proxy
from protocol_spec import Manifest
from testbed.brokers import Broker, Mosquitto, Nats, with_tls
from testbed.collector import NO_PAGE, Cluster, CollectorProcess, Node, WorkerProcess
from testbed.processes import Process, TestbedError, child_pids

EMBEDDED: Final = "embedded"
HOUR: Final = 3_600.0
DECADE: Final = 10 * 365 * 86_400.0
SLOW: Final = 2_000.0  # bytes a second
LASTS_SECONDS: Final = (0.5, 12.0)
DOWN_SECONDS: Final = (0.5, 8.0)
FENCED_SECONDS: Final = (16.0, 25.0)  # longer than a worker may be silent
STARTING_SECONDS: Final = 120.0  # with many reports waiting, NATS takes long
RECORD_SECONDS: Final = 30.0  # much less than a device remembers its rounds
SUBSCRIBING_SECONDS: Final = 1.0  # after the collector reported that it is connected
AGENTS: Final = 6
ODD_AGENTS: Final = 3
NO_DATABASE: Final = "error: postgresql:"
LAST_CHARACTERS: Final = 500
ANYBODY: Final = '{ user: "Anybody", password: "not used" }'

Act = Callable[[], None]


class UnboundedMosquitto(Mosquitto):
    """It must keep whatever it acknowledges."""

    extra = "allow_anonymous true\nmax_queued_messages 0\nmax_inflight_messages 1000\n"


BROKERS: Final[dict[str, type[Broker]]] = {"nats": Nats, "mosquitto": UnboundedMosquitto}


@dataclass(frozen=True)
class Fault:
    """One kind of fault. Those of one target do not happen at the same time."""

    name: str
    target: str
    begin: Act
    end: Act | None = None
    weight: float = 1.0
    lasts: tuple[float, float] = LASTS_SECONDS


def paused(
    name: str,
    choose: Callable[[], Process],
    weight: float,
    *,
    target: str = "",
    lasts: tuple[float, float] = LASTS_SECONDS,
) -> Fault:
    """SIGSTOP for a process that is chosen when the fault begins."""
    chosen: list[Process] = []

    def begin() -> None:
        chosen.clear()
        chosen.append(choose())
        chosen[0].pause()

    def end() -> None:
        for process in chosen:
            if process.is_running:
                process.resume()

    return Fault(f"{name}: paused", target or name, begin, end, weight, lasts)


class Site(ABC):
    """Everything that runs. It ends with the context."""

    timing: ClassVar[Timing]  # of bulk devices
    recover_seconds: ClassVar[float]
    port: int  # where receipts are read, past all faults
    authority: str = ""  # the file that everybody trusts; empty without TLS
    urls: Sequence[str]  # where bulk devices report, in turn

    def __init__(self) -> None:
        self.losses: list[Loss] = []
        self._stack = ExitStack()

    @abstractmethod
    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @abstractmethod
    def faults(self) -> list[Fault]: ...

    @abstractmethod
    def open(self, manifest: Manifest) -> Campaign: ...

    @abstractmethod
    def store(self) -> AbstractContextManager[Store]: ...

    @abstractmethod
    def check(self) -> None:
        """Nothing may have ended by itself."""

    @abstractmethod
    def start_agents(self, first: int, period: int, rounds: int) -> int:
        """Start real agents besides the bulk devices, if the site has any; returns their number."""

    @property
    def agents_have_delivered(self) -> bool:
        return True

    @abstractmethod
    def judge(self) -> Verdict:
        """What the oracle does not know of."""


class CollectorSite(Site):
    """One collector, one broker, agents of which some have a wrong clock, and networks between."""

    timing = AGENT_TIMING
    recover_seconds = 240.0  # until every agent has its receipts, too

    def __init__(self, work: Path, kind: str, *, tls: bool) -> None:
        super().__init__()
        self.work = work
        self.kind = kind
        self.agents: list[Agents] = []
        self.broker: Broker | None = None
        if kind != EMBEDDED:
            self.broker = (with_tls(BROKERS[kind]) if tls else BROKERS[kind])(work / "broker")
        self.link: Proxy | None = None  # the collector's connection, unless the broker is its own
        self.devices: Proxy
        self.collector: CollectorProcess
        self._scheme = "mqtts" if tls else "mqtt"
        self._agents_campaign: Campaign
        self._connected_before_loss = 0
        self._record_at = 0.0

    def __enter__(self) -> Self:
        data = self.work / "collector"
        data.mkdir(mode=0o700, parents=True)
        for name in ("collector", "agents", "odd"):
            set_clock(self._clock(name), 0.0)
        with ExitStack() as stack:
            where = None
            if self.broker is not None:
                stack.enter_context(self.broker)
                self.authority = str(self.broker.ca_file or "")
                self.link = stack.enter_context(Proxy(self.broker.port))
                where = f"{self._scheme}://localhost:{self.link.port}"
            trust = ("--ca-file", self.authority) if self.authority else ()
            flags = (*NO_PAGE, "--keepalive", "10", *trust)
            self.collector = CollectorProcess(data, *flags, broker=where, log=self.work / "log")
            under_clock = [sys.executable, "-m", "faults.clock", str(self._clock("collector"))]
            self.collector.command = under_clock + self.collector.command
            stack.enter_context(self.collector)
            self.collector.wait_until_connected()
            url = self.broker.url if self.broker else self.collector.broker_url
            self.port = int(url.rpartition(":")[2])
            self.devices = stack.enter_context(Proxy(self.port))
            self.urls = [f"{self._scheme}://localhost:{self.devices.port}"]
            stack.callback(self._resume_all)
            self._stack = stack.pop_all()
        return self

    def open(self, manifest: Manifest) -> Campaign:
        with closing(open_store(self.collector.data)) as store:
            return store.open_campaign(manifest, int(time.time()))

    def store(self) -> AbstractContextManager[Store]:
        return self.collector.store()

    def start_agents(self, first: int, period: int, rounds: int) -> int:
        asked = agents_manifest(first, period, rounds)
        self._agents_campaign = self.open(asked)
        for clock, count in (("agents", AGENTS), ("odd", ODD_AGENTS)):
            names = [f"{clock}-{n}" for n in range(count)]
            made = Agents(self.work / clock, self._clock(clock), asked, names, self.authority)
            made.join(self.urls[0])
            self._stack.enter_context(made.process)
            self.agents.append(made)
        self._stack.callback(self._resume_all)
        return AGENTS + ODD_AGENTS

    @property
    def agents_have_delivered(self) -> bool:
        return self.agents[0].have_delivered

    def judge(self) -> Verdict:
        """What agents drew, byte for byte."""
        data, agents = self.collector.data, self.agents
        return judge_agents(data, self._agents_campaign, agents[:1], agents[1:])

    def check(self) -> None:
        """Also notices when the collector is connected again after a loss."""
        self.collector.check_running()
        for agents in self.agents:
            agents.process.check_running()
        if time.monotonic() >= self._record_at:
            self._record_drawn()
        unfinished = self.losses and self.losses[-1].until is None
        if unfinished and self._connections() > self._connected_before_loss:
            self.losses[-1].until = time.time() + SUBSCRIBING_SECONDS

    def _record_drawn(self) -> None:
        self._record_at = time.monotonic() + RECORD_SECONDS
        for agents in self.agents:
            agents.record_drawn()

    def _clock(self, name: str) -> Path:
        return self.work / f"{name}.clock"

    def _resume_all(self) -> None:
        """A paused process could not end."""
        for process in (self.collector, *(agents.process for agents in self.agents)):
            if process.is_running:
                process.resume()
        self._resume_broker()

    # --- faults ----------------------------------------------------------------------------------

    def faults(self) -> list[Fault]:
        """The embedded broker ends with the collector: both are one target. A collector whose clock
        is ahead seals early, which is documented and not repaired: so it goes back only."""
        found = [
            *self._process("collector", "collector", lambda: self.collector, 2.0),
            Fault("broker: killed", "collector", self._kill_broker, None, 2.0),
            Fault("broker: paused", "collector", self._pause_broker, self._resume_broker, 2.0),
            Fault("broker: state lost", "collector", self._lose_broker_state, None, 0.5),
            *self._process("agents", "agents", lambda: self.agents[0].process, 1.0),
            *self._process("agents with a wrong clock", "odd", lambda: self.agents[1].process, 0.5),
            self._clock_fault("collector: an hour back", "collector", -HOUR, 1.0),
            self._clock_fault("agents: an hour ahead", "odd", HOUR, 0.5),
            self._clock_fault("agents: an hour back", "odd", -HOUR, 0.5),
            self._clock_fault("agents: ten years ahead", "odd", DECADE, 0.25),
            self._clock_fault("agents: ten years back", "odd", -DECADE, 0.25),
            *self._network("devices", self.devices),
        ]
        return found + (self._network("collector's connection", self.link) if self.link else [])

    def _process(
        self, name: str, target: str, of: Callable[[], Process], weight: float
    ) -> list[Fault]:
        def restart() -> None:
            of().kill()
            of().start()

        kill = Fault(f"{name}: killed", target, restart, None, weight)
        return [kill, paused(name, of, weight, target=target)]

    def _network(self, target: str, proxy: Proxy) -> list[Fault]:
        def slow() -> None:
            proxy.bytes_a_second = SLOW

        return [
            Fault(f"{target}: reset", target, proxy.reset),
            Fault(f"{target}: half-open", target, proxy.go_half_open),
            Fault(f"{target}: stalled", target, proxy.stall, proxy.flow, 2.0),
            Fault(f"{target}: slow", target, slow, proxy.flow),
        ]

    def _clock_fault(self, name: str, clock: str, seconds: float, weight: float) -> Fault:
        def set_to(wrong: float) -> Act:
            def act() -> None:
                self._record_drawn()  # an agent in a late round forgets what it sent in early ones
                set_clock(self._clock(clock), wrong)

            return act

        target = "clock" if clock == "collector" else clock
        return Fault(name, target, set_to(seconds), set_to(0.0), weight)

    def _kill_broker(self) -> None:
        """kill -9. mosquitto keeps its queues in memory."""
        if self.broker is None:
            os.kill(self._broker_pid(), signal.SIGKILL)
            return
        if self.kind == "mosquitto":
            self._note_loss()
        self.broker.kill()
        self.broker.start()

    def _pause_broker(self) -> None:
        os.kill(self._broker_pid(), signal.SIGSTOP)

    def _resume_broker(self) -> None:
        with suppress(TestbedError, ProcessLookupError):
            os.kill(self._broker_pid(), signal.SIGCONT)

    def _lose_broker_state(self) -> None:
        """The broker's disk is replaced by an empty one."""
        self._note_loss()
        if self.broker is None:
            self.collector.kill()
            shutil.rmtree(self.collector.data / "broker" / "jetstream", ignore_errors=True)
            self.collector.start()
            return
        self.broker.kill()
        shutil.rmtree(self.broker.directory / "js", ignore_errors=True)
        self.broker.start()

    def _broker_pid(self) -> int:
        if self.broker is not None and self.broker.process is not None:
            return self.broker.process.pid
        with suppress(OSError):  # the embedded one is a child of the collector
            for pid in child_pids(self.collector.pid):
                if Path(f"/proc/{pid}/comm").read_text(encoding="ascii").strip() == "nats-server":
                    return pid
        raise TestbedError("the broker does not run")

    def _note_loss(self) -> None:
        self._connected_before_loss = self._connections()
        self.losses.append(Loss(time.time()))

    def _connections(self) -> int:
        return self.collector.log_text().count("connected to ")


class ClusterSite(Site):
    """Three NATS nodes, PostgreSQL and workers. Anybody may report under any name, so that one
    program can be many devices."""

    timing = Timing(reconnect_longest=4.0)  # of many that lost their connection, some retry soon
    recover_seconds = 300.0

    def __init__(self, work: Path) -> None:
        super().__init__()
        self.cluster = Cluster(work, prepare=_let_anybody_in)
        self.hung = 0  # nodes that did not come up, and were killed again
        self._down: set[Process] = set()
        self._starting: dict[Node, float] = {}
        self._turn = 0

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.cluster)
            self.cluster.start_workers()
            self.port, self.authority = self.cluster.port, str(self.cluster.authority)
            self.urls = [node.url for node in self.cluster.nodes]
            self._stack = stack.pop_all()
        return self

    def open(self, manifest: Manifest) -> Campaign:
        data, address = self.cluster.workers[0].data, self.cluster.database.address()
        with closing(open_store(data, address)) as store:
            return store.open_campaign(manifest, int(time.time()))

    def store(self) -> AbstractContextManager[Store]:
        return self.cluster.workers[0].store()

    def start_agents(self, first: int, period: int, rounds: int) -> int:  # noqa: ARG002
        return 0

    def judge(self) -> Verdict:
        """Every message has an outcome."""
        with self.store() as store:
            total, received = sum(store.outcomes().values()), store.received()
        if total == received:
            return Verdict()
        return Verdict(faults=[f"{received} messages received, and {total} outcomes"])

    def check(self) -> None:
        """A worker that found no database when it started reports that and ends; a service manager
        would start it again, as is done here. A node that does not come up is killed again."""
        for process in self.cluster.everything:
            if process in self._down:
                continue
            if not process.is_running and NO_DATABASE in process.log_text()[-LAST_CHARACTERS:]:
                process.start()
            process.check_running()
        for node, limit in list(self._starting.items()):
            if node.listens() or node in self._down:
                del self._starting[node]
            elif time.monotonic() > limit:
                self.hung += 1
                self._take_down(node)
                self._bring_back(node)

    # --- faults ----------------------------------------------------------------------------------

    def faults(self) -> list[Fault]:
        """At most one node is away at a time, so a majority lives."""
        return [
            self._killed("node", self._next_node, 3.0),
            paused("node", self._next_node, 1.0, lasts=(1.0, 12.0)),
            self._killed("worker", self._next_worker, 3.0),
            paused("worker", self._next_worker, 1.0, lasts=FENCED_SECONDS),
            self._killed("leader", self._leader, 3.0),
            paused("leader", self._leader, 1.0, lasts=FENCED_SECONDS),
            self._killed("database", lambda: self.cluster.database, 1.0),
        ]

    def _killed(self, target: str, choose: Callable[[], Process], weight: float) -> Fault:
        """kill -9, and it stays away for a while."""
        chosen: list[Process] = []

        def begin() -> None:
            chosen.clear()
            chosen.append(choose())
            self._take_down(chosen[0])

        def end() -> None:
            for process in chosen:
                self._bring_back(process)

        return Fault(f"{target}: killed", target, begin, end, weight, DOWN_SECONDS)

    def _next_node(self) -> Node:
        """One node after another, when the last one is back: two of three must live."""
        if self._starting:
            raise TestbedError("another node is not back yet")
        self._turn += 1
        return self.cluster.nodes[self._turn % len(self.cluster.nodes)]

    def _next_worker(self) -> WorkerProcess:
        """One after another of those that do not lead."""
        self._turn += 1
        leader = self.cluster.leader()
        others = [worker for worker in self.cluster.workers if worker is not leader]
        return others[self._turn % len(others)]

    def _leader(self) -> WorkerProcess:
        found = self.cluster.leader()
        if found is None:
            raise TestbedError("no worker leads now")
        return found

    def _take_down(self, process: Process) -> None:
        self._down.add(process)
        process.kill()

    def _bring_back(self, process: Process) -> None:
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
        config.write_text(config.read_text("utf-8") + "no_auth_user: Anybody\n", "utf-8")
        text = users.read_text("utf-8").replace("users: [", f"users: [\n    {ANYBODY}", 1)
        users.write_text(text, "utf-8")
