"""The order of events: a collector and its broker, a campaign, real agents, rounds, results."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Self

from collector.records import Campaign
from collector.results.facts import write_truth
from demonstration.checks import Check, truth
from demonstration.population import readings
from demonstration.rounds import watch
from demonstration.telling import Pace, Telling
from testbed.agents import AgentProcesses
from testbed.collector import CollectorProcess

QUICK_START_SECONDS = 1.0  # in which a collector runs on an idle desktop machine
MOST_PROCESSES = 8  # of agents, which spend their time waiting for the disk
AGENTS_A_PROCESS = 250  # at least, before there is another


class Demonstration(Telling):
    """A collector with its broker, and agents."""

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
        """There is one."""
        return self._collector

    def run(self, devices: int, rounds: int, period_seconds: int | None) -> list[Check]:
        """Everything up to the results; returns what was checked."""
        self._wait_for_collector()
        pace = Pace.for_machine(self.slowness(QUICK_START_SECONDS), devices, period_seconds)
        campaign = self.open(devices, rounds, pace)
        self._say_how_it_asks(campaign)
        with self._agents(campaign, devices) as agents:
            self._keep_truth(campaign, agents.drawn)
            watch(self.collector, campaign, devices, self.say, self._kill_and_restart)
            usage = agents.stop()
        memory, cpu = f"{usage.memory_mib:.0f} MiB of memory", f"{usage.cpu_seconds:.1f} s of CPU"
        self.say(f"all rounds are sealed; the agents used {memory} and {cpu} time")
        return self.finish(campaign, agents, "collector")

    def _wait_for_collector(self) -> None:
        self.collector.wait_until_connected()
        broker = self.collector.broker or "the embedded broker"
        self.say(f"collector running (process {self.collector.pid}) with {broker}")
        self.say(f"watch it live: http://{self.page}/")

    def _kill_and_restart(self) -> None:
        died = "the collector dies" + ("" if self.collector.broker else ", and its broker with it")
        self.say(f"kill -9 {self.collector.pid}: {died}")
        self.collector.kill()
        self.collector.start()
        self._wait_for_collector()

    def _say_how_it_asks(self, campaign: Campaign) -> None:
        made = campaign.manifest
        chosen = ", ".join(
            f"{a.name}: {c.protocol} for {c.k} values"
            for a, c in zip(made.attributes, made.calibrations)
        )
        self.say(f"opened {campaign.name} ({chosen})")

    def _agents(self, campaign: Campaign, devices: int) -> AgentProcesses:
        self.say(f"starting {devices} agents, each with its own state and connection")
        return AgentProcesses(
            self.work / "devices",
            campaign.manifest,
            self.collector.broker_url,
            readings(campaign.manifest, devices),
            min(MOST_PROCESSES, -(-devices // AGENTS_A_PROCESS)),
        )

    def _keep_truth(self, campaign: Campaign, drawn: dict[int, str]) -> None:
        """For the collector's page, which draws it beside the estimates."""
        shares = Counter(drawn.values())
        names = [attribute.name for attribute in campaign.manifest.attributes]
        told = " and ".join(f"{shares[name]} drew {name}" for name in names)
        self.say(f"every agent drew one attribute for life: {told}")
        frequencies = truth(campaign, drawn)
        kept = {name: f.tolist() for name, f in zip(names, frequencies)}
        write_truth(self.collector.data, campaign.name, kept)
