"""One run with bulk devices: let everything fail, let it recover, and compare every count."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import ClassVar, Final, Generic, TypeVar

from collector.errors import CollectorError
from collector.records import Campaign
from collector.store import Store
from faults.bulk import BulkDevices, Receipts
from faults.course import C, Course, Say
from faults.kinds import Fault
from faults.oracle import Verdict, judge_bulk, judge_results
from faults.plan import plan
from faults.site import Loss
from testbed.collector import is_sealed

AFTER_SECONDS: Final = 2.0  # faults go on so long after the last deadline

T = TypeVar("T")


class BulkRun(ABC, Generic[C]):
    """A site, its campaigns and its devices."""

    recover_seconds: ClassVar[float]

    def __init__(self, site: C, seed: int, say: Say) -> None:
        self.course = Course(site, say, self._progress)
        self.site = site
        self.say = say
        self.bulk: list[tuple[Campaign, BulkDevices]] = []
        self._seed = seed

    def judge(self, receipts: Receipts, urls: Sequence[str], kinds: Sequence[Fault[C]]) -> Verdict:
        """Everything, from the first report to the verdict."""
        with receipts:
            self.open(receipts)
            for number, (_, bulk) in enumerate(self.bulk):
                bulk.start(urls[number % len(urls)])
            self._fail(kinds)
            self.say("no more faults; waiting until every round is sealed")
            self.course.recover(lambda: self._asked(self.is_done, False), self.recover_seconds)
            for _, bulk in self.bulk:
                bulk.stop()
        return self.compare()

    @abstractmethod
    def open(self, receipts: Receipts) -> None:
        """Open campaigns, and make their devices."""

    @abstractmethod
    def store(self) -> AbstractContextManager[Store]:
        """What was counted."""

    def is_done(self, store: Store) -> bool:
        """Whether every round is sealed."""
        last = [(campaign, campaign.manifest.rounds.count - 1) for campaign, _ in self.bulk]
        return all(is_sealed(store, campaign, number) for campaign, number in last)

    @property
    def losses(self) -> Sequence[Loss]:
        """When a broker forgot what it had taken."""
        return ()

    def compare(self) -> Verdict:
        """Every count and every result of bulk devices."""
        found, losses = Verdict(), self.losses
        with self.store() as store:
            for campaign, bulk in self.bulk:
                found.add(judge_bulk(store, campaign, bulk, losses))
                found.faults += judge_results(store, campaign, bulk, losses)
        return found

    def _fail(self, kinds: Sequence[Fault[C]]) -> None:
        schedule, now = self.bulk[0][0].manifest.rounds, time.time()
        deadlines = [schedule.deadline(number) - now for number in range(schedule.count)]
        seconds = schedule.end + AFTER_SECONDS - now
        self.course.fail(plan(self._seed, kinds, seconds, deadlines))

    def _progress(self) -> str:
        received = self._asked(lambda store: f"{store.received():,}", "unknown")
        sealed = self._asked(self._sealed, "unknown")
        sent = sum(bulk.sent for _, bulk in self.bulk)
        return f"{sent:,} sent, {received} received, {sealed} rounds of all campaigns sealed"

    def _sealed(self, store: Store) -> str:
        last = [store.last_sealed(campaign.id) for campaign, _ in self.bulk]
        return str(sum(0 if number is None else number + 1 for number in last))

    def _asked(self, ask: Callable[[Store], T], otherwise: T) -> T:
        """What the database says, if it is there."""
        try:
            with self.store() as store:
                return ask(store)
        except CollectorError:
            return otherwise
