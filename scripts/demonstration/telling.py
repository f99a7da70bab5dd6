"""What every demonstration does, with one collector or a cluster: say, open, and show."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path

import click

from collector.data_dir import open_store
from collector.records import Campaign
from collector.store_address import StoreAddress
from demonstration.checks import Check, counted_once, intervals_hold, truth
from demonstration.population import manifest
from demonstration.results import show_histograms, show_owners_view
from testbed.agents import AgentProcesses
from testbed.collector import CollectorProcess
from testbed.processes import free_port


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a round takes, how long reports may come after it, and when the first begins."""

    period_seconds: int
    grace_seconds: int
    lead_seconds: int

    @classmethod
    def for_machine(cls, slowness: float, devices: int, period_seconds: int | None) -> Pace:
        """A small or busy machine takes longer for everything, so it gets longer rounds; how
        many times longer than an idle one, the start of the programs shows."""
        slow = min(4.0, max(1.0, slowness))
        period = period_seconds or round(slow * min(5 + devices // 50, 8 + devices // 200))
        lead = slow * min(5 + devices // 30, 6 + devices // 80)
        return cls(period, max(10, period + 4), round(lead))


class Telling(ABC):
    """The programs of one demonstration, and what is said of them. They end with the context."""

    def __init__(self, work: Path) -> None:
        work.mkdir(parents=True, exist_ok=True)
        self.work = work
        self.page = f"127.0.0.1:{free_port()}"
        self.stack = ExitStack()
        self._began = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    @property
    @abstractmethod
    def collector(self) -> CollectorProcess:
        """The one with the page."""

    def say(self, text: str) -> None:
        """Progress, with the seconds since the start."""
        click.echo(f"[{time.monotonic() - self._began:5.1f} s] {text}")

    def slowness(self, quick_seconds: float) -> float:
        """The programs run now: how many times as long that took as on an idle machine."""
        return (time.monotonic() - self._began) / quick_seconds

    def open(
        self, devices: int, rounds: int, pace: Pace, address: StoreAddress | None = None
    ) -> Campaign:
        """Open a campaign."""
        self.say(f"rounds of {pace.period_seconds} s, the first in {pace.lead_seconds} s")
        made = manifest(
            devices,
            rounds,
            period_seconds=pace.period_seconds,
            grace_seconds=pace.grace_seconds,
            lead_seconds=pace.lead_seconds,
        )
        with closing(open_store(self.collector.data, address)) as store:
            return store.open_campaign(made, int(time.time()))

    def finish(self, campaign: Campaign, agents: AgentProcesses, who: str) -> list[Check]:
        """Show the results, and check them."""
        self.say(f"what the {who} estimated (bar), its 95 % interval [ ], and the truth (●)")
        with self.collector.store() as store:
            show_histograms(store, campaign, truth(campaign, agents.drawn))
            show_owners_view(agents.state_dir(0))
            once = counted_once(store, campaign, agents.drawn)
            return once + intervals_hold(store, campaign, agents.drawn)

    def wait_for_interrupt(self) -> None:
        """The programs and the page go on until Ctrl-C."""
        click.echo(f"\nThe page stays on http://{self.page}/ until you press Ctrl-C.")
        with suppress(KeyboardInterrupt):
            while True:
                self.collector.check_running()
                time.sleep(1)
