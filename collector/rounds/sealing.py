"""Sealing: when a round becomes final, and what of it is released.

A round is sealed after its deadline, once the broker has been shown to hold nothing more of it: a
collector that was away or slow does not shut out reports that were sent in time. The manifest says
how long that may take at most (`rounds.drain`). Sealing is one transaction, happens once, and the
same counts always give the same bytes (I10).

No difference of two results is about too few devices. Claim: whatever is published of an attribute
is a sum of parts that have no round in common, each with the reports of at least `min_reports`
effective devices; so is every sum or difference of published counts. A part is a round that was
released by itself, or several rounds of which none could be; those are kept added up, are in no
result until they are enough, and are deleted if they never are.

What becomes of a round depends on the mechanism (`Analysis.combined`):

    pooled   a round with enough devices is a part. Others are set aside together.
    window   rounds are set aside one after the other, and released as one window
    latest   a round with enough devices is released; others are erased, because rounds of the same
             devices must not be added up
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from collector.records import NO_COUNTS, POOLED, Campaign, RoundSum, Tally
from collector.rounds.results import Evidence, pooled_result, round_results, window_result
from collector.store import Sealing, Store, Worker
from collector.timing import Clock, Timing
from protocol_spec import Result

log = logging.getLogger("allomfree.collector")

Round = tuple[int, int]  # campaign, number
_NOTHING = Tally(0, NO_COUNTS)


def due(store: Store, campaign: Campaign, now: float) -> Iterator[int]:
    """Rounds past their deadline, or begun when the campaign was closed, and not sealed yet."""
    rounds = campaign.manifest.rounds
    last = store.last_sealed(campaign.id)
    for number in range(0 if last is None else last + 1, rounds.count):
        if campaign.closed is None and rounds.deadline(number) > now:
            return
        if campaign.closed is not None and rounds.opens(number) > campaign.closed:
            return
        yield number


def seal(store: Store, campaign: Campaign, number: int, at: int) -> list[Result]:
    """Seal one round; its results and the new pooled ones, or nothing if it was sealed before."""
    with store.sealing(campaign, number, at) as sealing:
        if sealing is None:
            return []
        results = release(store, campaign, number, sealing)
        sealing.write(results, number)
        pooled = list(pooled_results(store, campaign, number, sealing.tallies))
        sealing.write(pooled, POOLED)
        if number == campaign.manifest.rounds.count - 1:
            sealing.drop_unreleased()
    return results + pooled


# --- is the broker drained? ---------------------------------------------------------------------


class _Expected(NamedTuple):
    """When a round was first due: on the scale of all workers, and in time spent leading."""

    moment: float
    at: float


class Drain:
    """Have all workers committed what the broker took before a round was due? (F1, W6)

    Each worker says with its beat up to which moment its source is drained. With subscriptions that
    is its own queue, so that all workers have to be that far; with a stream it is the whole stream,
    so that one is enough. Workers that were fenced or retired are not waited for.

    How long a round is waited for is measured in time spent leading, connected and reading: it
    stands still without a connection, while the storage refuses, and when the whole process does,
    so that none of these can use up the bound. No device can change it (A3).
    """

    def __init__(
        self, moment: Callable[[], float], clock: Clock, timing: Timing, *, drained_is_global: bool
    ) -> None:
        self.counts_time = False
        self._moment = moment
        self._clock = clock
        self._timing = timing
        self._drained_is_global = drained_is_global  # what one worker says holds for all
        self._drained = 0.0
        self._behind = ""
        self._expected: dict[Round, _Expected] = {}
        self._now = self._begun_at = 0.0
        self._last_tick = clock.monotonic()

    def begin(self) -> None:
        """A new lease, or, for a worker alone, a new connection: wait again for what is due."""
        self._expected.clear()
        self._begun_at = self._now

    def tick(self) -> None:
        """Once in a turn: time passes, if it counts."""
        now = self._clock.monotonic()
        if self.counts_time:
            self._now += min(max(0.0, now - self._last_tick), self._timing.longest_tick_seconds)
        self._last_tick = now

    def update(self, workers: Iterable[Worker]) -> None:
        """What all workers said of themselves."""
        live = [worker for worker in workers if not worker.fenced]
        drained = [worker.drained for worker in live]
        self._drained = (max if self._drained_is_global else min)(drained, default=0.0)
        self._behind = ", ".join(str(w.number) for w in live if w.drained <= self._drained)

    def expect(self, rounds: Iterable[Round]) -> None:
        """These rounds are due: each is drained when all workers are, up to the moment when it was
        first seen to be."""
        known, now = self._expected, _Expected(self._moment(), self._now)
        self._expected = {each: known.get(each, now) for each in rounds}

    @property
    def waits(self) -> bool:
        return any(each.moment > self._drained for each in self._expected.values())

    def is_drained(self, of: Round) -> bool:
        """Whether all that the broker took before the round was due is committed."""
        return self._drained >= self._expected[of].moment

    def seconds_left(self, of: Round, longest: float) -> float:
        """Until the round is sealed without proof."""
        return max(0.0, max(self._expected[of].at, self._begun_at) + longest - self._now)

    def why(self, *, alone: bool) -> str:
        """Why sealing is blocked, for `status`."""
        if self._drained_is_global:
            return "the stream may hold reports that were sent in time"
        whose = "" if alone else f", for worker {self._behind}"
        return f"the broker may hold reports that were sent in time{whose}"


# --- what is released ---------------------------------------------------------------------------


def release(store: Store, campaign: Campaign, number: int, sealing: Sealing) -> list[Result]:
    """Decide on every attribute, once and for ever; the results of the round."""
    results = round_results(campaign, number, sealing.tallies, sealing.outcomes)
    heard = {index for index, result in enumerate(results) if result.n}
    combined = campaign.manifest.mechanisms[0].analysis.combined
    released = {i for i in heard if combined != "window" and not results[i].withheld}
    others = heard - released
    sealing.end_reports(released, set() if combined == "latest" else others)
    for index in others:
        if combined == "latest":
            sealing.erase(index)
            continue
        sealing.set_aside(index)
        rounds = store.unreleased(campaign.id, index)
        if combined != "window" and rounds is not None:
            who = store.participation(campaign.id, index, released=False)
            evidence = Evidence(campaign.manifest.mechanisms[index], rounds.tally, who)
            if evidence.n_eff >= campaign.manifest.min_reports:
                sealing.release(index)
    if combined == "window":
        return [_window(store, campaign, number, i, sealing) for i in range(len(results))]
    return results


def _window(store: Store, campaign: Campaign, number: int, index: int, sealing: Sealing) -> Result:
    """All rounds since the last window, released if they are enough."""
    known = store.unreleased(campaign.id, index) or RoundSum(number, number, 0, _NOTHING)
    rounds = RoundSum(known.first, number, known.rounds, known.tally)
    who = store.participation(campaign.id, index, released=False)
    result = window_result(campaign, index, rounds, who, sealing.outcomes)
    if not result.withheld:
        sealing.release(index)
    return result


def pooled_results(
    store: Store, campaign: Campaign, number: int, tallies: Mapping[int, Tally]
) -> Iterator[Result]:
    """All that was released of each attribute; before that, how much there is so far."""
    for index in range(len(campaign.manifest.attributes)):
        released, tally = store.released(campaign.id, index), tallies.get(index)
        if campaign.manifest.mechanisms[index].analysis.combined == "latest":
            # The latest report of a device says all that the earlier ones said: one round is all.
            if tally is not None and tally.n:
                who, outcomes = ([1], [tally.n]), store.outcomes(campaign.id)
                made = pooled_result(campaign, index, 1, tally, who, outcomes, first=number)
                if not made.withheld or released is None:
                    yield made
            continue
        rounds = released or store.unreleased(campaign.id, index)
        if rounds is not None:
            yield pooled_result(
                campaign,
                index,
                rounds.rounds,
                rounds.tally,
                store.participation(campaign.id, index, released=released is not None),
                store.outcomes(campaign.id),
                first=rounds.first,
                last=rounds.last,
            )


# --- what is deleted in the end -----------------------------------------------------------------


def delete_expired(store: Store, campaigns: Iterable[Campaign], now: float) -> None:
    """Delete the unreleased counts of campaigns that are over, to which no round can be added, and
    the devices of those whose retention is over.

    Not of campaigns with a round that is due but not sealed: its pooled result still needs to know
    how many devices took part in how many rounds.
    """
    for campaign in campaigns:
        manifest = campaign.manifest
        over = campaign.closed is not None or now >= manifest.rounds.end
        if over and store.drop_unreleased(campaign.id):
            log.info("%s: over; counts of too few devices deleted", campaign.name)
        if now >= manifest.expires + manifest.retention and store.drop_devices(campaign.id):
            log.info("%s: retention is over, devices forgotten", campaign.name)
