"""Broker, collector, agents and the networks between them: what faults happen to."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from collector.data_dir import open_store
from collector.records import Campaign
from faults.agents import Agents
from faults.brokers import EMBEDDED, make_authority, make_broker
from faults.clock import set_clock
from faults.proxy import Proxy
from protocol_spec import Manifest
from testbed.collector import NO_PAGE, CollectorProcess
from testbed.processes import TestbedError

KEEPALIVE_SECONDS: Final = "10"
LOOK_SECONDS: Final = 30.0  # much less than a device's memory of its rounds
SUBSCRIBING_SECONDS: Final = 1.0  # from the collector's word that it is connected


@dataclass(slots=True)
class Loss:
    """The broker forgot everything; what it took before, and until the collector had subscribed
    again, it may not have kept."""

    at: float
    until: float | None = None


class Site:
    """Everything that runs. It ends with the context."""

    def __init__(self, work: Path, kind: str, *, tls: bool) -> None:
        work.mkdir(parents=True, exist_ok=True)
        self.work = work
        self.kind = kind
        self.losses: list[Loss] = []
        self.agents: list[Agents] = []
        self.clocks = {name: work / f"{name}.clock" for name in ("collector", "agents", "odd")}
        self._stack = ExitStack()
        self._heard = 0
        self._look_at = 0.0
        self.authority = make_authority(work) if tls else ""
        self.broker = None if kind == EMBEDDED else make_broker(kind, work, secure=tls)
        self.link: Proxy | None = None  # the collector's connection, unless the broker is its own
        self.devices: Proxy
        self.collector: CollectorProcess
        self._scheme = "mqtts" if tls else "mqtt"

    def __enter__(self) -> Self:
        for file in self.clocks.values():
            set_clock(file, 0.0)
        with ExitStack() as stack:
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Nobody may be left paused: who is cannot end."""
        for process in (self.collector, *(agents.process for agents in self.agents)):
            process.resume()
        self.resume_broker()
        self._stack.close()

    def open(self, manifest: Manifest) -> Campaign:
        """Open a campaign."""
        with closing(open_store(self.collector.data)) as store:
            return store.open_campaign(manifest, int(time.time()))

    def add_agents(self, clock: str, manifest: Manifest, names: Sequence[str]) -> None:
        """Join devices, and start them in a process of their own."""
        agents = Agents(self.work / clock, self.clocks[clock], manifest, names, self.authority)
        agents.join(self.devices_url)
        self._stack.enter_context(agents.process)
        self.agents.append(agents)

    @property
    def devices_url(self) -> str:
        """Where devices reach the broker: through their network."""
        return f"{self._scheme}://localhost:{self.devices.port}"

    @property
    def broker_port(self) -> int:
        """Where the broker is reached past all networks."""
        if self.broker is not None:
            return self.broker.port
        return int(self.collector.broker_url.rpartition(":")[2])

    # --- what faults do ------------------------------------------------------------------------

    def kill_broker(self) -> None:
        """kill -9. mosquitto keeps its queues in memory."""
        if self.broker is None:
            os.kill(self._embedded_pid(), signal.SIGKILL)
            return
        if self.kind == "mosquitto":
            self._forgotten()
        self.broker.kill()
        self.broker.start()

    def pause_broker(self) -> None:
        os.kill(self._broker_pid(), signal.SIGSTOP)

    def resume_broker(self) -> None:
        with suppress(TestbedError, ProcessLookupError):
            os.kill(self._broker_pid(), signal.SIGCONT)

    def lose_broker_state(self) -> None:
        """The broker's disk is replaced by an empty one."""
        self._forgotten()
        if self.broker is None:
            self.collector.kill()
            shutil.rmtree(self.collector.data / "broker" / "jetstream", ignore_errors=True)
            self.collector.start()
            return
        self.broker.kill()
        shutil.rmtree(self.broker.directory / "js", ignore_errors=True)
        self.broker.start()

    def set_clock(self, name: str, seconds: float) -> None:
        """An agent that believes to be in a late round forgets what it sent in early ones."""
        self._look()
        set_clock(self.clocks[name], seconds)

    def check(self) -> None:
        """Nothing may have ended by itself; and notice when the collector is back after a loss."""
        self.collector.check_running()
        for agents in self.agents:
            agents.process.check_running()
        if time.monotonic() >= self._look_at:
            self._look()
        if self.losses and self.losses[-1].until is None and self._connections() > self._heard:
            self.losses[-1].until = time.time() + SUBSCRIBING_SECONDS

    def _look(self) -> None:
        self._look_at = time.monotonic() + LOOK_SECONDS
        for agents in self.agents:
            agents.look()

    # --- parts -----------------------------------------------------------------------------------

    def _start(self, stack: ExitStack) -> None:
        data = self.work / "collector"
        data.mkdir(mode=0o700)
        where = None
        if self.broker is not None:
            stack.enter_context(self.broker)
            self.link = stack.enter_context(Proxy(self.broker.port))
            where = f"{self._scheme}://localhost:{self.link.port}"
        trust = ("--ca-file", self.authority) if self.authority else ()
        flags = (*NO_PAGE, "--keepalive", KEEPALIVE_SECONDS, *trust)
        self.collector = CollectorProcess(data, *flags, broker=where, log=self.work / "log")
        clock = self.work / "collector.clock"
        under_clock = [sys.executable, "-m", "faults.clock", str(clock)]
        self.collector.command = under_clock + self.collector.command
        stack.enter_context(self.collector)
        self.collector.wait_until_connected()
        self.devices = stack.enter_context(Proxy(self.broker_port))

    def _broker_pid(self) -> int:
        if self.broker is None:
            return self._embedded_pid()
        if self.broker.process is None:
            raise TestbedError("the broker does not run")
        return self.broker.process.pid

    def _embedded_pid(self) -> int:
        """The collector's child that is the broker, when there is one."""
        children = Path(f"/proc/{self.collector.pid}/task/{self.collector.pid}/children")
        with suppress(OSError):
            for pid in children.read_text(encoding="ascii").split():
                if Path(f"/proc/{pid}/comm").read_text(encoding="ascii").strip() == "nats-server":
                    return int(pid)
        raise TestbedError("the embedded broker does not run")

    def _forgotten(self) -> None:
        self._heard = self._connections()
        self.losses.append(Loss(time.time()))

    def _connections(self) -> int:
        return self.collector.log.read_text(encoding="utf-8").count("connected to ")
