"""One run, from the first report to the verdict. Which fault happens when follows from a seed."""

from __future__ import annotations

import heapq
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from collector.errors import CollectorError
from collector.records import Campaign
from collector.store import Store
from faults.devices import BulkDevices, Receipts, bulk_manifest
from faults.oracle import Verdict, judge_bulk, judge_results
from faults.sites import LASTS_SECONDS, Fault, Site
from testbed.collector import is_sealed
from testbed.processes import TestbedError

LEAD_SECONDS: Final = 8
AFTER_SECONDS: Final = 2.0  # faults go on this long after the last deadline
GAP_SECONDS: Final = (0.5, 5.0)
BEFORE_DEADLINE_SECONDS: Final = (0.2, 3.0)
ACROSS: Final = 0.6  # the probability that the next fault begins just before a deadline
PAUSE_SECONDS: Final = 0.2
PROGRESS_SECONDS: Final = 10.0
RECOVERING_SECONDS: Final = 1.0
CLUSTER_ROUNDS: Final = 3

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Size:
    """Campaigns with their number of bulk devices; how many rounds, and how long one is."""

    campaigns: Mapping[str, int]
    rounds: int
    period_seconds: int


def collector_size(minutes: float, devices: int, period_seconds: int = 12) -> Size:
    """The last deadline is at the end."""
    rounds = max(2, round(minutes * 60 / period_seconds) - 1)
    return Size({"many": devices, "few": max(10, devices // 10)}, rounds, period_seconds)


def cluster_size(minutes: float, devices: int, campaigns: int) -> Size:
    period = max(6, round(minutes * 60 / (CLUSTER_ROUNDS + 1)))
    return Size({f"many-{n}": devices for n in range(campaigns)}, CLUSTER_ROUNDS, period)


class Event(NamedTuple):
    """A fault, the seconds after the start at which it begins, and how long it lasts."""

    at: float
    fault: Fault
    lasts: float


def plan(
    seed: int, faults: Sequence[Fault], seconds: float, deadlines: Sequence[float] = ()
) -> Iterator[Event]:
    """Faults one after another, overlapping where their targets differ. Many begin just before a
    deadline, where they hurt most."""
    draw = random.Random(seed)  # noqa: S311 - the same faults for the same seed
    free: dict[str, float] = {}
    now = draw.uniform(*GAP_SECONDS)
    while now < seconds:
        fault = draw.choices(faults, [fault.weight for fault in faults])[0]
        lasts = draw.uniform(*fault.lasts) if fault.end is not None else 0.0
        if free.get(fault.target, 0.0) <= now:
            free[fault.target] = now + lasts
            yield Event(now, fault, lasts)
        now += draw.uniform(*GAP_SECONDS)
        critical = [d - draw.uniform(*BEFORE_DEADLINE_SECONDS) for d in deadlines]
        ahead = [moment for moment in critical if now <= moment < now + LASTS_SECONDS[1]]
        if ahead and draw.random() < ACROSS:
            now = ahead[0]


def run(
    site: Site, size: Size, seed: int, report: Callable[[str], None]
) -> tuple[Counter[str], Verdict]:
    """Start the site, let faults happen, wait until it has recovered, and compare every count.
    Returns how often each fault happened, and the verdict."""
    with site, Receipts(site.port, site.authority or None) as receipts:
        made = _Run(site, report)
        made.open(size, receipts)
        made.let_fail(seed)
        report("no more faults; waiting until every round is sealed")
        made.recover()
        return made.happened, made.judge()


class _Run:
    """Campaigns and devices of a site, and the faults that happen to it."""

    def __init__(self, site: Site, report: Callable[[str], None]) -> None:
        self.happened: Counter[str] = Counter()
        self._site = site
        self._report = report
        self._bulk: list[tuple[Campaign, BulkDevices]] = []
        self._ends: list[tuple[float, int, Fault]] = []
        self._next_progress = 0.0

    def open(self, size: Size, receipts: Receipts) -> None:
        site, first = self._site, int(time.time()) + LEAD_SECONDS
        for slug, devices in size.campaigns.items():
            made = bulk_manifest(slug, devices, first, size.period_seconds, size.rounds)
            bulk = BulkDevices(made, devices, receipts, site.timing)
            self._bulk.append((site.open(made), bulk))
        agents = site.start_agents(first, size.period_seconds, size.rounds)
        for number, (_, bulk) in enumerate(self._bulk):
            bulk.start(site.urls[number % len(site.urls)])
        total = f"{len(self._bulk)} campaigns of {sum(size.campaigns.values()):,} devices"
        self._report(f"{total}, {agents} agents, {size.rounds} rounds")

    def let_fail(self, seed: int) -> None:
        """Every fault at its time; at the end, everything that lasts is ended."""
        schedule, begin = self._bulk[0][0].manifest.rounds, time.time()
        deadlines = [schedule.deadline(number) - begin for number in range(schedule.count)]
        seconds = schedule.end + AFTER_SECONDS - begin
        for event in plan(seed, self._site.faults(), seconds, deadlines):
            while time.time() < begin + event.at:
                self._end_due(time.time())
                self._site.check()
                self._show_progress()
                time.sleep(PAUSE_SECONDS)
            if not any(fault.target == event.fault.target for _, _, fault in self._ends):
                self._begin(event)
        self._end_due(float("inf"))

    def _begin(self, event: Event) -> None:
        fault = event.fault
        try:
            fault.begin()
        except TestbedError as error:
            self._report(f"{fault.name}: not possible now: {error}")
            return
        self.happened[fault.name] += 1
        self._report(fault.name + (f" for {event.lasts:.1f} s" if fault.end is not None else ""))
        heapq.heappush(self._ends, (time.time() + event.lasts, self.happened.total(), fault))

    def _end_due(self, now: float) -> None:
        while self._ends and self._ends[0][0] <= now:
            fault = heapq.heappop(self._ends)[2]
            if fault.end is not None:
                fault.end()

    def recover(self) -> None:
        """Wait until every round is sealed and agents have their receipts."""
        limit = time.monotonic() + self._site.recover_seconds
        while not self._ask(self._is_done, False):
            self._site.check()
            if time.monotonic() > limit:
                seconds = self._site.recover_seconds
                raise TestbedError(f"not recovered after {seconds:.0f} s: {self._progress()}")
            self._show_progress()
            time.sleep(RECOVERING_SECONDS)
        self._report(f"recovered: {self._progress()}")
        for _, bulk in self._bulk:
            bulk.stop()

    def judge(self) -> Verdict:
        found, losses = self._site.judge(), self._site.losses
        with self._site.store() as store:
            for campaign, bulk in self._bulk:
                found.add(judge_bulk(store, campaign, bulk, losses))
                found.faults += judge_results(store, campaign, bulk, losses)
        return found

    def _is_done(self, store: Store) -> bool:
        last = [(campaign, campaign.manifest.rounds.count - 1) for campaign, _ in self._bulk]
        sealed = all(is_sealed(store, campaign, number) for campaign, number in last)
        return sealed and self._site.agents_have_delivered

    def _show_progress(self) -> None:
        if time.monotonic() > self._next_progress:
            self._next_progress = time.monotonic() + PROGRESS_SECONDS
            self._report(self._progress())

    def _progress(self) -> str:
        def known(store: Store) -> str:
            last = [store.last_sealed(campaign.id) for campaign, _ in self._bulk]
            sealed = sum(0 if number is None else number + 1 for number in last)
            return f"{store.received():,} received, {sealed} rounds of all campaigns sealed"

        sent = sum(bulk.sent for _, bulk in self._bulk)
        return f"{sent:,} sent, {self._ask(known, 'the database does not answer')}"

    def _ask(self, ask: Callable[[Store], T], otherwise: T) -> T:
        """What the database answers, if it can be reached."""
        try:
            with self._site.store() as store:
                return ask(store)
        except CollectorError:
            return otherwise
