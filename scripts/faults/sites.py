"""What faults happen to: a collector with broker, agents and networks, or a cluster. Both end with
their context, and offer `run` the same: open, store, faults, check, start_agents and judge."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Self

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
    """One kind of fault. Those of one target do not happen at the same time."""

    name: str
    target: str
    begin: Act
    end: Act | None = None
    weight: float = 1.0
    lasts: tuple[float, float] = LASTS_SECONDS


def lasting(
    name: str,
    choose: Callable[[], Process],
    begin: Callable[[Process], None],
    end: Callable[[Process], None],
    weight: float,
    target: str = "",
    lasts: tuple[float, float] = LASTS_SECONDS,
) -> Fault:
    """A fault of a process that is chosen when the fault begins."""
    chosen: list[Process] = []

    def begin_it() -> None:
        chosen[:] = [choose()]
        begin(chosen[0])

    def end_it() -> None:
        for process in chosen:
            end(process)

    return Fault(name, target or name.partition(":")[0], begin_it, end_it, weight, lasts)


def resume(process: Process) -> None:
    if process.is_running:
        process.resume()


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
        self._scheme = "mqtts" if tls else "mqtt"
        self._stack = ExitStack()
        self._agents_campaign: Campaign
        self._connected_before_loss = 0
        self._record_at = 0.0

    def __enter__(self) -> Self:
        data = self.work / "collector"
        data.mkdir(mode=0o700, parents=True)
        for name in ("collector", *AGENTS):
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

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def open(self, manifest: Manifest) -> Campaign:
        with closing(open_store(self.collector.data)) as store:
            return store.open_campaign(manifest, int(time.time()))

    def store(self) -> AbstractContextManager[Store]:
        return self.collector.store()

    def start_agents(self, first: int, period: int, rounds: int) -> int:
        """Start real agents besides the bulk devices; returns their number."""
        asked = agents_manifest(first, period, rounds)
        self._agents_campaign = self.open(asked)
        for clock, count in AGENTS.items():
            names = [f"{clock}-{n}" for n in range(count)]
            made = Agents(self.work / clock, self._clock(clock), asked, names, self.authority)
            made.join(self.urls[0])
            self._stack.enter_context(made.process)
            self.agents.append(made)
        self._stack.callback(self._resume_all)
        return sum(AGENTS.values())

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
            resume(process)
        self._signal_broker(signal.SIGCONT)

    # --- faults ----------------------------------------------------------------------------------

    def faults(self) -> list[Fault]:
        """The embedded broker ends with the collector: both are one target. A collector whose clock
        is ahead seals early, which is documented and not repaired: so it goes back only."""
        pause = partial(self._signal_broker, signal.SIGSTOP, must=True)
        go_on = partial(self._signal_broker, signal.SIGCONT)
        found = [
            Fault("broker: killed", "collector", self._kill_broker, None, 2.0),
            Fault("broker: paused", "collector", pause, go_on, 2.0),
            Fault("broker: state lost", "collector", self._lose_broker_state, None, 0.5),
        ]
        for name, target, process, weight in (
            ("collector", "collector", self.collector, 2.0),
            ("agents", "agents", self.agents[0].process, 1.0),
            ("agents with a wrong clock", "odd", self.agents[1].process, 0.5),
        ):
            choose = partial(_same, process)
            found += [
                Fault(f"{name}: killed", target, partial(_restart, process), None, weight),
                lasting(f"{name}: paused", choose, Process.pause, resume, weight, target),
            ]
        for name, clock, target, seconds, weight in (
            ("collector: an hour back", "collector", "clock", -HOUR, 1.0),
            ("agents: an hour ahead", "odd", "odd", HOUR, 0.5),
            ("agents: an hour back", "odd", "odd", -HOUR, 0.5),
            ("agents: ten years ahead", "odd", "odd", DECADE, 0.25),
            ("agents: ten years back", "odd", "odd", -DECADE, 0.25),
        ):
            wrong, right = (partial(self._set_clock, clock, by) for by in (seconds, 0.0))
            found.append(Fault(name, target, wrong, right, weight))
        networks = {"devices": self.devices, "collector's connection": self.link}
        for name, proxy in networks.items():
            if proxy is not None:
                slow = partial(setattr, proxy, "bytes_a_second", SLOW)
                found += [
                    Fault(f"{name}: reset", name, proxy.reset),
                    Fault(f"{name}: half-open", name, proxy.go_half_open),
                    Fault(f"{name}: stalled", name, proxy.stall, proxy.flow, 2.0),
                    Fault(f"{name}: slow", name, slow, proxy.flow),
                ]
        return found

    def _set_clock(self, clock: str, wrong_by: float) -> None:
        self._record_drawn()  # an agent in a late round forgets what it sent in early ones
        set_clock(self._clock(clock), wrong_by)

    def _kill_broker(self) -> None:
        """kill -9. mosquitto keeps its queues in memory."""
        if self.broker is None:
            self._signal_broker(signal.SIGKILL, must=True)
            return
        if self.kind == "mosquitto":
            self._note_loss()
        self.broker.kill()
        self.broker.start()

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

    def _signal_broker(self, number: int, *, must: bool = False) -> None:
        pids = []
        if self.broker is not None and self.broker.process is not None:
            pids = [self.broker.process.pid]
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
        self.losses.append(Loss(time.time()))

    def _connections(self) -> int:
        return self.collector.log_text().count("connected to ")


def _same(process: Process) -> Process:
    return process


def _restart(process: Process) -> None:
    process.kill()
    process.start()


class ClusterSite:
    """Three NATS nodes, PostgreSQL and workers. Anybody may report under any name, so that one
    program can be many devices."""

    timing = Timing(reconnect_longest_seconds=4.0)  # of many that lost theirs, some retry soon
    recover_seconds = 300.0
    agents_have_delivered = True  # there are none

    def __init__(self, work: Path) -> None:
        self.cluster = Cluster(work, prepare=_let_anybody_in)
        self.losses: list[Loss] = []
        self.urls: Sequence[str] = ()
        self.port, self.authority = self.cluster.port, ""
        self.hung = 0  # nodes that did not come up, and were killed again
        self._down: set[Process] = set()
        self._starting: dict[Node, float] = {}
        self._turn = 0

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.cluster)
            self.cluster.start_workers()
            self.authority = str(self.cluster.authority)
            self.urls = [node.url for node in self.cluster.nodes]
            stack.pop_all()
        return self

    def __exit__(self, *ended: object) -> None:
        self.cluster.__exit__(*ended)

    def open(self, manifest: Manifest) -> Campaign:
        data, address = self.cluster.workers[0].data, self.cluster.database.address()
        with closing(open_store(data, address)) as store:
            return store.open_campaign(manifest, int(time.time()))

    def store(self) -> AbstractContextManager[Store]:
        return self.cluster.workers[0].store()

    def start_agents(self, *_schedule: int) -> int:
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
        """Kills last until the process is brought back. At most one node is away at a time, so a
        majority lives."""
        found = []
        for name, choose, kills, pauses, lasts in (
            ("node", self._next_node, 3.0, 1.0, (1.0, 12.0)),
            ("worker", self._next_worker, 3.0, 1.0, FENCED_SECONDS),
            ("leader", self._leader, 3.0, 1.0, FENCED_SECONDS),
            ("database", lambda: self.cluster.database, 1.0, 0.0, LASTS_SECONDS),
        ):
            down, up = self._take_down, self._bring_back
            found.append(lasting(f"{name}: killed", choose, down, up, kills, lasts=DOWN_SECONDS))
            if pauses:
                pause = lasting(
                    f"{name}: paused", choose, Process.pause, resume, pauses, lasts=lasts
                )
                found.append(pause)
        return found

    def _next_node(self) -> Process:
        """One node after another, when the last one is back: two of three must live."""
        if self._starting:
            raise TestbedError("another node is not back yet")
        self._turn += 1
        return self.cluster.nodes[self._turn % len(self.cluster.nodes)]

    def _next_worker(self) -> Process:
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


Site = CollectorSite | ClusterSite


def _let_anybody_in(cluster: Cluster) -> None:
    for node in cluster.nodes:
        place = node.log.parent
        config, users = place / "nats.conf", place / "users.conf"
        config.write_text(config.read_text("utf-8") + "no_auth_user: Anybody\n", "utf-8")
        text = users.read_text("utf-8").replace("users: [", f"users: [\n    {ANYBODY}", 1)
        users.write_text(text, "utf-8")
