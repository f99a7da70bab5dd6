"""What faults happen to: a collector with broker, agents and networks, or a cluster. Both end with
their context, and offer `run` the same: open, store, faults, check, start_agents and judge."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import Final, Self

from collector.data_dir import open_store
from collector.records import Campaign
from collector.store import Store
from edge_client.records import Timing
from faults.devices import AGENT_TIMING, Agents, agents_manifest
from faults.oracle import Loss, Verdict, judge_agents
from faults.program import COUNTING, LINGER_SECONDS, SEALING, Control
from faults.proxy import Proxy
from protocol_spec import Manifest
from testbed.brokers import Broker, Mosquitto, Nats, with_tls
from testbed.collector import NO_PAGE, Cluster, CollectorProcess, Node
from testbed.processes import Process, TestbedError, child_pids

EMBEDDED: Final = "embedded"
HOUR: Final = 3_600.0
DECADE: Final = 10 * 365 * 86_400.0
SLOW: Final = 2_000.0  # bytes a second
LASTS_SECONDS: Final = (0.5, 12.0)
DOWN_SECONDS: Final = (0.5, 8.0)
DYING_SECONDS: Final = (5.0, 8.0)  # for a batch or a sealing to come
FENCED_SECONDS: Final = (16.0, 25.0)  # longer than a worker may be silent
STARTING_SECONDS: Final = 120.0  # with many reports waiting, NATS takes long
RECORD_SECONDS: Final = 30.0  # much less than a device remembers its rounds
SUBSCRIBING_SECONDS: Final = 1.0  # after the collector reported that it is connected
AGENTS: Final = {"agents": 6, "odd": 3}  # the odd ones have a wrong clock
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
    """One kind of fault. Those of one target do not happen at the same time; those that hurt
    `across` a deadline happen there, too; where the broker `forgets`, what is missing until then
    has an excuse, so they happen in the first half of a run only."""

    name: str
    target: str
    begin: Act
    end: Act | None = None
    lasts: tuple[float, float] = LASTS_SECONDS
    across: bool = False
    forgets: bool = False


class Mortal:
    """A collector that can be told at which point to die, and is started again when it has."""

    def __init__(self, process: Process, control: Control) -> None:
        self.process = process
        self.control = control
        self._until = 0.0  # when it is no longer expected to die

    def arm(self, point: str) -> None:
        """Die there; nowhere if it is empty, unless it is about to."""
        self._until = inf if point else time.monotonic() + 2 * LINGER_SECONDS
        self.control.tell(die_at=point)

    def revive(self) -> None:
        if not self.process.is_running and time.monotonic() < self._until:
            self.arm("")
            self.process.start()


def killed_at(
    points: Iterable[str], name: str, target: str, mortals: Sequence[Mortal]
) -> Iterator[Fault]:
    """kill -9 between two steps, for whichever gets there."""

    def arm(point: str) -> None:
        for mortal in mortals:
            mortal.arm(point)

    for point in points:
        begin, end, across = partial(arm, point), partial(arm, ""), point in COUNTING[:2]
        called = f"{name}: killed at '{point}'"
        yield Fault(called, target, begin, end, DYING_SECONDS, across)


def restart(process: Process) -> None:
    process.kill()
    process.start()


class CollectorSite:
    """One collector, one broker, agents of which some have a wrong clock, and networks between."""

    timing = AGENT_TIMING  # of bulk devices
    recover_seconds = 240.0  # until every agent has its receipts, too

    def __init__(self, work: Path, kind: str, *, tls: bool) -> None:
        self.work = work
        self.kind = kind
        self.losses: list[Loss] = []
        self.agents: list[Agents] = []
        self.broker: Broker | None = None
        if kind != EMBEDDED:
            self.broker = (with_tls(BROKERS[kind]) if tls else BROKERS[kind])(work / "broker")
        self.authority = ""  # the file that everybody trusts; empty without TLS
        self.urls: Sequence[str] = ()  # where bulk devices report, in turn
        self.port = 0  # where receipts are read, past all faults
        self.link: Proxy | None = None  # the collector's connection, unless the broker is its own
        self.devices: Proxy
        self.collector: CollectorProcess
        self._mortal: Mortal
        self._scheme = "mqtts" if tls else "mqtt"
        self._stack = ExitStack()
        self._agents_campaign: Campaign
        self._connected_before_loss = 0
        self._record_at = 0.0

    def __enter__(self) -> Self:
        data = self.work / "collector"
        data.mkdir(mode=0o700, parents=True)
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
            self._mortal = Mortal(self.collector, Control(self.work / "control"))
            self.collector.command = self._mortal.control.prefix + self.collector.command
            stack.enter_context(self.collector)
            self.collector.wait_until_connected()
            url = self.broker.url if self.broker else self.collector.broker_url
            self.port = int(url.rpartition(":")[2])
            self.devices = stack.enter_context(Proxy(self.port))
            self.urls = [f"{self._scheme}://localhost:{self.devices.port}"]
            stack.callback(self._resume_all)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def open(self, manifest: Manifest) -> Campaign:
        with closing(open_store(self.collector.data)) as store:
            return store.open_campaign(manifest, int(time.time()))

    def store(self) -> AbstractContextManager[Store]:
        return self.collector.store()

    def start_agents(self, first: int, period: int, rounds: int) -> None:
        """Start real agents besides the bulk devices."""
        asked = agents_manifest(first, period, rounds)
        self._agents_campaign = self.open(asked)
        for kind, count in AGENTS.items():
            names = [f"{kind}-{n}" for n in range(count)]
            made = Agents(self.work / kind, asked, self.urls[0], names, self.authority)
            self._stack.enter_context(made.process)
            self.agents.append(made)
        self._stack.callback(self._resume_all)
        for made in self.agents:
            made.wait_until_joined()

    @property
    def agents_have_delivered(self) -> bool:
        return self.agents[0].have_delivered

    def judge(self) -> Verdict:
        """What agents drew, byte for byte."""
        data, agents = self.collector.data, self.agents
        return judge_agents(data, self._agents_campaign, agents[:1], agents[1:])

    def check(self) -> None:
        """Nothing may have ended by itself. Also notices when the collector is connected again
        after a loss."""
        self._mortal.revive()
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

    def _resume_all(self) -> None:
        """A paused process could not end."""
        for process in (self.collector, *(agents.process for agents in self.agents)):
            process.resume()
        self._signal_broker(signal.SIGCONT)

    # --- faults ----------------------------------------------------------------------------------

    def faults(self) -> list[Fault]:
        """The embedded broker ends with the collector: both are one target. A collector whose clock
        is ahead seals early, which is documented and not repaired: so it goes back only."""
        agents, odd = self.agents
        memory_only = self.kind == "mosquitto"
        pause = partial(self._signal_broker, signal.SIGSTOP, must=True)
        go_on = partial(self._signal_broker, signal.SIGCONT)
        found = [
            Fault("broker: killed", "collector", self._kill_broker, forgets=memory_only),
            Fault("broker: paused", "collector", pause, go_on, across=True),
            *killed_at(COUNTING + SEALING, "collector", "collector", [self._mortal]),
        ]
        if not memory_only:
            lose = self._lose_broker_state
            found.append(Fault("broker: state lost", "collector", lose, forgets=True))
        for name, target, process in (
            ("collector", "collector", self.collector),
            ("agents", "agents", agents.process),
            ("agents with a wrong clock", "odd", odd.process),
        ):
            stop, go_on = (partial(act, process) for act in (Process.pause, Process.resume))
            across = target == "collector"
            found += [
                Fault(f"{name}: killed", target, partial(restart, process)),
                Fault(f"{name}: paused", target, stop, go_on, across=across),
            ]
        for name, control, seconds in (
            ("collector: an hour back", self._mortal.control, -HOUR),
            ("agents: an hour ahead", odd.control, HOUR),
            ("agents: an hour back", odd.control, -HOUR),
            ("agents: ten years ahead", odd.control, DECADE),
            ("agents: ten years back", odd.control, -DECADE),
        ):
            wrong, right = (partial(self._set_clock, control, by) for by in (seconds, 0.0))
            target = "odd" if control is odd.control else "collector's clock"
            found.append(Fault(name, target, wrong, right))
        networks = {"devices": self.devices, "collector's connection": self.link}
        for name, proxy in networks.items():
            if proxy is not None:
                slow = partial(setattr, proxy, "bytes_a_second", SLOW)
                across = proxy is self.link
                found += [
                    Fault(f"{name}: reset", name, proxy.reset),
                    Fault(f"{name}: half-open", name, proxy.go_half_open),
                    Fault(f"{name}: stalled", name, proxy.stall, proxy.flow, across=across),
                    Fault(f"{name}: slow", name, slow, proxy.flow),
                ]
        return found

    def _set_clock(self, control: Control, wrong_by: float) -> None:
        self._record_drawn()  # an agent in a late round forgets what it sent in early ones
        control.tell(clock=wrong_by)

    def _kill_broker(self) -> None:
        if self.kind == "mosquitto":
            self._note_loss()
        if self.broker is None:
            self._signal_broker(signal.SIGKILL, must=True)
        else:
            restart(self.broker)

    def _lose_broker_state(self) -> None:
        """The broker's disk is replaced by an empty one."""
        self._note_loss()
        broker: Process = self.broker or self.collector
        data = self.broker.directory if self.broker else self.collector.data / "broker"
        broker.kill()
        shutil.rmtree(data / ("js" if self.broker else "jetstream"), ignore_errors=True)
        broker.start()

    def _signal_broker(self, number: int, *, must: bool = False) -> None:
        pids = []
        if self.broker is not None and self.broker.is_running:
            pids = [self.broker.pid]
        else:
            with suppress(OSError):  # the embedded one is a child of the collector
                names = {p: Path(f"/proc/{p}/comm") for p in child_pids(self.collector.pid)}
                pids = [p for p, file in names.items() if file.read_text().strip() == "nats-server"]
        if must and not pids:
            raise TestbedError("the broker does not run")
        for pid in pids[:1]:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _note_loss(self) -> None:
        self._connected_before_loss = self._connections()
        with self.store() as store:
            last = {c.id: store.last_sealed(c.id) for c in store.campaigns()}
        self.losses.append(Loss({c: number for c, number in last.items() if number is not None}))

    def _connections(self) -> int:
        return self.collector.log_text().count("connected to ")


class ClusterSite:
    """Three NATS nodes, PostgreSQL and workers. Anybody may report under any name, so that one
    program can be many devices."""

    timing = Timing(reconnect_longest_seconds=4.0)  # of many that lost theirs, some retry soon
    recover_seconds = 300.0
    agents_have_delivered = True  # there are none

    def __init__(self, work: Path) -> None:
        self.cluster = Cluster(work, prepare=_let_anybody_in, under=self._under_control)
        self.losses: list[Loss] = []
        self.urls: Sequence[str] = ()
        self.port, self.authority = self.cluster.port, ""
        self._controls: list[Control] = []
        self._mortals: list[Mortal] = []
        self._down: set[Process] = set()
        self._starting: dict[Node, float] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.cluster)
            self.cluster.start_workers()
            self._mortals = list(map(Mortal, self.cluster.workers, self._controls))
            self.authority = str(self.cluster.authority)
            self.urls = [node.url for node in self.cluster.nodes]
            stack.pop_all()
        return self

    def __exit__(self, *ended: object) -> None:
        self.cluster.__exit__(*ended)

    def _under_control(self, data: Path) -> Sequence[str]:
        self._controls.append(Control(data.with_suffix(".control")))
        return self._controls[-1].prefix

    def open(self, manifest: Manifest) -> Campaign:
        data, address = self.cluster.workers[0].data, self.cluster.database.address()
        with closing(open_store(data, address)) as store:
            return store.open_campaign(manifest, int(time.time()))

    def store(self) -> AbstractContextManager[Store]:
        return self.cluster.workers[0].store()

    def start_agents(self, *_schedule: int) -> None:
        pass

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
        for mortal in self._mortals:
            if mortal.process not in self._down:
                mortal.revive()
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
                self._take_down(node)
                self._bring_back(node)

    # --- faults ----------------------------------------------------------------------------------

    def faults(self) -> list[Fault]:
        """Kills last until the process is brought back. At most one node is away at a time, so a
        majority lives; and one worker."""
        down, up, database = self._take_down, self._bring_back, self.cluster.database
        off, leader = (partial(down, database), partial(up, database)), self._leader_paused()
        found = [
            Fault("database: killed", "database", *off, lasts=DOWN_SECONDS),
            Fault("leader: paused", "worker", *leader, FENCED_SECONDS),
            *killed_at(SEALING, "leader", "worker", self._mortals),
        ]
        for mortal in self._mortals:
            found += killed_at(COUNTING, mortal.process.name, "worker", [mortal])
        for kind, processes, lasts in (
            ("worker", self.cluster.workers, FENCED_SECONDS),
            ("node", self.cluster.nodes, LASTS_SECONDS),
        ):
            for process in processes:
                kill, start = partial(down, process), partial(up, process)
                stop, go_on = (partial(act, process) for act in (Process.pause, Process.resume))
                found += [
                    Fault(f"{process.name}: killed", kind, kill, start, DOWN_SECONDS),
                    Fault(f"{process.name}: paused", kind, stop, go_on, lasts),
                ]
        return found

    def _leader_paused(self) -> tuple[Act, Act]:
        """Begin and end; whoever leads when it begins."""
        chosen: list[Process] = []

        def begin() -> None:
            chosen[:] = filter(None, [self.cluster.leader()])
            if not chosen:
                raise TestbedError("no worker leads now")
            chosen[0].pause()

        def end() -> None:
            chosen[0].resume()

        return begin, end

    def _take_down(self, process: Process) -> None:
        if isinstance(process, Node) and self._starting.keys() - {process}:
            raise TestbedError("another node is not back yet")
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


Site = CollectorSite | ClusterSite


def _let_anybody_in(cluster: Cluster) -> None:
    for node in cluster.nodes:
        place = node.log.parent
        config, users = place / "nats.conf", place / "users.conf"
        config.write_text(config.read_text("utf-8") + "no_auth_user: Anybody\n", "utf-8")
        text = users.read_text("utf-8").replace("users: [", f"users: [\n    {ANYBODY}", 1)
        users.write_text(text, "utf-8")
