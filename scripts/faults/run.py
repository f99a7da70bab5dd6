"""One run, from the first report to the verdict. Which fault happens when follows from a seed."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from collector.errors import CollectorError
from collector.records import Campaign
from faults.devices import BulkDevices, Receipts, bulk_manifest
from faults.oracle import Verdict, judge_bulk
from faults.sites import Fault, Site
from testbed.collector import is_sealed
from testbed.processes import TestbedError

LEAD_SECONDS: Final = 8
AFTER_SECONDS: Final = 2.0  # faults go on this long after the last deadline
GAP_SECONDS: Final = (0.5, 5.0)
BEFORE_DEADLINE_SECONDS: Final = (1.5, 3.0)
MOST_AHEAD: Final = 3
APART_SECONDS: Final = 4.0  # between two faults of one target, which has to come back
PAUSE_SECONDS: Final = 0.2
RECOVERING_SECONDS: Final = 1.0
CLUSTER_ROUNDS: Final = 3
CAMPAIGNS: Final = 17  # of a cluster


@dataclass(frozen=True, slots=True)
class Size:
    """Campaigns with their number of bulk devices; how many rounds, and how long one is."""

    campaigns: Mapping[str, int]
    rounds: int
    period_seconds: int

    @property
    def deadlines(self) -> list[float]:
        """In seconds after the first round begins."""
        return [float((number + 2) * self.period_seconds) for number in range(self.rounds)]


def collector_size(minutes: float, devices: int, period_seconds: int = 12) -> Size:
    """The last deadline is at the end."""
    rounds = max(2, round(minutes * 60 / period_seconds) - 1)
    return Size({"many": devices, "few": max(10, devices // 10)}, rounds, period_seconds)


def cluster_size(minutes: float, devices: int) -> Size:
    period = max(6, round(minutes * 60 / (CLUSTER_ROUNDS + 1)))
    return Size({f"many-{n}": devices for n in range(CAMPAIGNS)}, CLUSTER_ROUNDS, period)


class Event(NamedTuple):
    """A fault, the seconds after the first round's beginning when it begins, and how long it is."""

    at: float
    lasts: float
    fault: Fault


def plan(seed: int, faults: Sequence[Fault], deadlines: Sequence[float]) -> list[Event]:
    """The same faults for the same seed. Just before every deadline one of those that hurt there
    begins, and in between all others, overlapping where their targets differ; each kind in turn,
    so that a run of minutes has every one."""
    draw = random.Random(seed)  # noqa: S311 - the same faults for the same seed
    found: list[Event] = []

    def fits(at: float, fault: Fault) -> bool:
        """Note it, if its target is free."""
        lasts = draw.uniform(*fault.lasts) if fault.end is not None else 0.0
        begin, end = at - APART_SECONDS, at + lasts + APART_SECONDS
        others = (event for event in found if event.fault.target == fault.target)
        free = not any(begin < event.at + event.lasts and event.at < end for event in others)
        if free:
            found.append(Event(at, lasts, fault))
        return free

    def in_turn(kinds: Sequence[Fault], moments: Iterable[float]) -> None:
        """The rarest so far that fits, and none much more often than the others."""
        times = Counter[str]()
        for at in moments:
            least = min(times[kind.name] for kind in kinds)
            rarest = sorted(draw.sample(kinds, len(kinds)), key=lambda kind: times[kind.name])
            usual = (
                kind
                for kind in rarest
                if times[kind.name] < least + MOST_AHEAD
                and not (kind.forgets and at > deadlines[-1] / 2)
            )
            times.update(kind.name for kind in islice(filter(partial(fits, at), usual), 1))

    def moments() -> Iterator[float]:
        now = 0.0
        while (now := now + draw.uniform(*GAP_SECONDS)) < deadlines[-1] + AFTER_SECONDS:
            yield now

    across = [fault for fault in faults if fault.across]
    in_turn(across, (at - draw.uniform(*BEFORE_DEADLINE_SECONDS) for at in deadlines))
    in_turn(faults, moments())
    return sorted(found, key=lambda event: event.at)


def run(
    site: Site, size: Size, seed: int, report: Callable[[str], None]
) -> tuple[Counter[str], Verdict]:
    """Start the site, let faults happen, wait until it has recovered, and compare every count.
    Returns how often each fault happened, and the verdict."""
    with site, Receipts(site.port, site.authority) as receipts:
        first = int(time.time()) + LEAD_SECONDS
        bulk = []
        for slug, devices in size.campaigns.items():
            made = bulk_manifest(slug, devices, first, size.period_seconds, size.rounds)
            bulk.append((site.open(made), BulkDevices(made, devices, receipts, site.timing)))
        site.start_agents(first, size.period_seconds, size.rounds)
        for number, (_, devices_of_one) in enumerate(bulk):
            devices_of_one.start(site.urls[number % len(site.urls)])
        report(f"{size.rounds} rounds of {size.period_seconds} s")
        happened = let_fail(site, first, plan(seed, site.faults(), size.deadlines), report)
        report("no more faults; waiting until every round is sealed")
        recover(site, [campaign for campaign, _ in bulk])
        report("recovered")
        found = site.judge()
        for campaign, devices_of_one in bulk:
            devices_of_one.stop()
            with site.store() as store:
                judge_bulk(found, store, campaign, devices_of_one, site.losses)
        return happened, found


def let_fail(
    site: Site, first: int, events: Sequence[Event], report: Callable[[str], None]
) -> Counter[str]:
    """Every fault at its time; at the end, everything that lasts is ended."""
    happened: Counter[str] = Counter()
    lasting: list[tuple[float, Fault]] = []  # until when

    def end_due(now: float, target: str = "") -> None:
        """End what is over, and whatever else still happens to a target."""
        for each in list(lasting):
            until, fault = each
            if until <= now or fault.target == target:
                lasting.remove(each)
                (fault.end or (lambda: None))()

    for event in events:
        fault = event.fault
        while time.time() < first + event.at:
            end_due(time.time())
            site.check()
            time.sleep(PAUSE_SECONDS)
        end_due(time.time(), fault.target)
        report(fault.name + (f" for {event.lasts:.1f} s" if fault.end is not None else ""))
        try:
            fault.begin()
        except TestbedError as error:
            report(f"{fault.name}: not possible now: {error}")
            continue
        happened[fault.name] += 1
        lasting.append((time.time() + event.lasts, fault))
    while lasting:
        end_due(time.time())
        site.check()
        time.sleep(PAUSE_SECONDS)
    return happened


def recover(site: Site, campaigns: Sequence[Campaign]) -> None:
    """Wait until every round is sealed and agents have their receipts."""
    limit = time.monotonic() + site.recover_seconds

    def is_done() -> bool:
        with suppress(CollectorError), site.store() as store:
            last = ((campaign, campaign.manifest.rounds.count - 1) for campaign in campaigns)
            sealed = all(is_sealed(store, campaign, number) for campaign, number in last)
            return sealed and site.agents_have_delivered
        return False  # the database does not answer

    while not is_done():
        site.check()
        if time.monotonic() > limit:
            raise TestbedError(f"not recovered after {site.recover_seconds:.0f} s")
        time.sleep(RECOVERING_SECONDS)
