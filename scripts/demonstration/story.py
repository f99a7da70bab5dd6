"""The order of events: a collector and its broker, a campaign, real agents, rounds, results."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import click

from collector.data_dir import open_store
from collector.records import Campaign
from collector.show.truth import write_truth
from demonstration.checks import Check, counted_once, intervals_hold, truth
from demonstration.population import manifest, readings
from demonstration.results import show_histograms, show_owners_view
from demonstration.rounds import watch
from stage.agents import AgentProcesses
from stage.collector import CollectorProcess
from stage.programs import free_port

QUICK_START_SECONDS = 1.0  # in which a collector runs on an idle desktop machine
MOST_PROCESSES = 8  # of agents, which spend their time waiting for the disk
AGENTS_A_PROCESS = 250  # at least, before there is another


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a round takes, how long reports may come after it, and when the first begins."""

    period_seconds: int
    grace_seconds: int
    lead_seconds: int

    @classmethod
    def for_machine(cls, start_seconds: float, devices: int, period_seconds: int | None) -> Pace:
        """A small or busy machine takes longer for everything, so it gets longer rounds; how
        small or busy, the start of the collector shows."""
        slow = min(4.0, max(1.0, start_seconds / QUICK_START_SECONDS))
        period = period_seconds or round(slow * min(5 + devices // 50, 8 + devices // 200))
        lead = slow * min(5 + devices // 30, 6 + devices // 80)
        return cls(period, max(10, period + 4), round(lead))


class Demonstration:
    """The programs of one demonstration, and what is said of them. They end with the context."""

    def __init__(self, work: Path, broker: str | None) -> None:
        self.work = work
        self._page = f"127.0.0.1:{free_port()}"
        self.collector = CollectorProcess(
            work / "collector", "--listen", self._page, broker=broker, log=work / "collector.log"
        )
        self._stack = ExitStack()
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        self.collector.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._stack.enter_context(self.collector)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def say(self, text: str) -> None:
        """Progress, with the seconds since the start."""
        click.echo(f"[{time.monotonic() - self._began:5.1f} s] {text}")

    def run(self, devices: int, rounds: int, period_seconds: int | None) -> list[Check]:
        """Everything up to the results; returns what was checked."""
        self._wait_for_collector()
        pace = Pace.for_machine(time.monotonic() - self._began, devices, period_seconds)
        self.say(f"rounds of {pace.period_seconds} s, the first in {pace.lead_seconds} s")
        campaign = self._open(devices, rounds, pace)
        with self._agents(campaign, devices) as agents:
            self._keep_truth(campaign, agents.drawn)
            watch(self.collector, campaign, devices, self.say, self._kill_and_restart)
            usage = agents.stop()
        memory, cpu = f"{usage.memory_mib:.0f} MiB of memory", f"{usage.cpu_seconds:.1f} s of CPU"
        self.say(f"all rounds are sealed; the agents used {memory} and {cpu} time")
        return self._finish(campaign, agents)

    def wait_for_interrupt(self) -> None:
        """The collector and its page go on until Ctrl-C."""
        click.echo(f"\nThe page stays on http://{self._page}/ until you press Ctrl-C.")
        with suppress(KeyboardInterrupt):
            while True:
                self.collector.check_running()
                time.sleep(1)

    def _wait_for_collector(self) -> None:
        self.collector.wait_until_connected()
        broker = self.collector.broker or "the embedded broker"
        self.say(f"collector running (process {self.collector.pid}) with {broker}")
        self.say(f"watch it live: http://{self._page}/")

    def _kill_and_restart(self) -> None:
        died = "the collector dies" + ("" if self.collector.broker else ", and its broker with it")
        self.say(f"kill -9 {self.collector.pid}: {died}")
        self.collector.kill()
        self.collector.start()
        self._wait_for_collector()

    def _open(self, devices: int, rounds: int, pace: Pace) -> Campaign:
        made = manifest(
            devices,
            rounds,
            period_seconds=pace.period_seconds,
            grace_seconds=pace.grace_seconds,
            lead_seconds=pace.lead_seconds,
        )
        with closing(open_store(self.collector.data)) as store:
            campaign = store.open_campaign(made, int(time.time()))
        chosen = ", ".join(
            f"{a.name}: {c.protocol} for {c.k} values"
            for a, c in zip(made.attributes, made.calibrations)
        )
        self.say(f"opened {campaign.name} ({chosen})")
        return campaign

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

    def _finish(self, campaign: Campaign, agents: AgentProcesses) -> list[Check]:
        self.say("what the collector estimated (bar), its 95 % interval [ ], and the truth (●)")
        with self.collector.store() as store:
            show_histograms(store, campaign, truth(campaign, agents.drawn))
            show_owners_view(agents.state_dir(0))
            once = counted_once(store, campaign, agents.drawn)
            return once + intervals_hold(store, campaign, agents.drawn)
