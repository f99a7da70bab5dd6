"""Sealing: when a round becomes final, and what of it is released.

A round is sealed after its deadline, once the broker has been shown to hold nothing more of it: a
collector that was away or slow does not shut out reports that were sent in time. The manifest says
how long that may take at most (`rounds.drain`). Sealing is one transaction, happens once, and the
same counts always give the same bytes (I10).

No difference of two results is about too few devices. Claim: whatever is published of an attribute
is a sum of parts that have no round in common, each with the reports of at least `min_reports`
effective devices; so is every sum or difference of published counts. A part is a round that was
released by itself, or several rounds of which none could be; those are kept added up, are in no
result until they are enough, and are deleted if they never are. Of latest reports, a part is what
changed from one release to the next.

What becomes of a round depends on the mechanism (`Analysis.combined`):

    pooled   a round with enough devices is a part. Others are set aside together.
    window   rounds are set aside one after the other, and released as one window
    latest   all devices heard so far, each by its latest report, are released when enough of them
             have sent another report since the last release; a round by itself never is
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import reduce
from operator import add, sub
from typing import NamedTuple

from collector.records import NO_COUNTS, POOLED, Campaign, Participation, RoundSum, Tally
from collector.rounds.results import (
    Evidence,
    pooled_result,
    round_result,
    round_results,
    window_result,
)
from collector.store import Sealing, Store, Worker
from collector.timing import Clock, Timing
from protocol_spec import Result
from protocol_spec.estimation import effective_devices

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
        before = store.heard(campaign.id)
        results = release(store, campaign, number, sealing)
        pooled = dict(pooled_results(store, campaign))
        if campaign.manifest.mechanisms[0].analysis.combined != "window":
            after = store.heard(campaign.id)
            for made in (results, pooled):
                for place, result in made.items():
                    made[place] = _with_response(result, place, sealing, before, after)
        sealing.write(results, number)
        sealing.write(pooled, POOLED)
        if number == campaign.manifest.rounds.count - 1:
            sealing.drop_unreleased()
    indexes = range(len(campaign.manifest.attributes))
    return [made[index] for made in (results, pooled) for index in indexes if index in made]


def _with_response(
    result: Result,
    place: int,
    sealing: Sealing,
    before: Mapping[int, int],
    after: Mapping[int, int],
) -> Result:
    """With the devices heard before the round, and how many of them reported in it."""
    n, cells = sealing.tally(place).n, sealing.campaign.cells(place)
    heard = sum(before.get(cell, 0) for cell in cells)
    returned = n - (sum(after.get(cell, 0) for cell in cells) - heard)
    return replace(result, heard=heard, returned=max(0, min(returned, heard, result.devices)))


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


def release(store: Store, campaign: Campaign, number: int, sealing: Sealing) -> dict[int, Result]:
    """Decide on every attribute, once and for ever; the results of the round, by attribute and by
    the cells of groups that are released."""
    indexes = range(len(campaign.manifest.attributes))
    combined = campaign.manifest.mechanisms[0].analysis.combined
    if combined == "latest":
        sealing.keep_latest()
        made = (_latest(store, campaign, number, index, sealing) for index in indexes)
        return {place: result for of_one in made for place, result in of_one.items()}
    outcomes, totals = sealing.outcomes, {index: sealing.tally(index) for index in indexes}
    results = dict(enumerate(round_results(campaign, number, totals, outcomes)))
    heard = {index for index, result in results.items() if result.n}
    released = {i for i in heard if combined != "window" and not results[i].withheld}
    sent = {cell: _one_each(tally) for cell, tally in sealing.tallies.items()}
    grouped = {cell for index in released for cell in _large_enough(campaign, index, sent)}
    sealing.end_reports(released, heard - released, grouped)
    for index in heard - released:
        sealing.set_aside(index, by_group=combined == "window")
        rounds = store.unreleased(campaign.id, index)
        if combined != "window" and rounds is not None:
            who = store.participation(campaign.id, index, released=False)
            evidence = Evidence(campaign.manifest.mechanisms[index], rounds.tally, who)
            if evidence.n_eff >= campaign.manifest.min_reports:
                sealing.release(index)
    if combined == "window":
        made = (_window(store, campaign, number, index, sealing) for index in indexes)
        return {place: result for of_one in made for place, result in of_one.items()}
    for cell in grouped:
        results[cell] = round_result(campaign, number, cell, sealing.tallies[cell], outcomes)
    return results


def _large_enough(campaign: Campaign, index: int, sent: Mapping[int, Participation]) -> set[int]:
    """Groups to release by themselves: each is large enough, and so are the others together, or
    there are none. Otherwise subtracting these from all would show a few devices."""
    cells, least = campaign.cells(index), campaign.manifest.min_reports
    effective = {c: effective_devices(*sent[c]) for c in cells if c in sent and sent[c][0]}
    chosen = {cell for cell, n_eff in effective.items() if n_eff >= least and cell != index}
    for cell in sorted(chosen, key=lambda cell: (effective[cell], cell)):
        others = [pair for cell in effective.keys() - chosen for pair in zip(*sent[cell])]
        if not others or effective_devices(*zip(*others)) >= least:
            break
        chosen.remove(cell)
    return chosen


def _window(
    store: Store, campaign: Campaign, number: int, index: int, sealing: Sealing
) -> dict[int, Result]:
    """All rounds since the last window, released if they are enough; where there are groups, enough
    for every group in it, or twice as many as that takes."""

    def since(place: int, needed: int | None = None) -> Result:
        known = store.unreleased(campaign.id, place) or RoundSum(number, number, 0, _NOTHING)
        rounds = RoundSum(known.first, number, known.rounds, known.tally)
        who = store.participation(campaign.id, place, released=False)
        return window_result(campaign, place, rounds, who, sealing.outcomes, needed)

    cells = campaign.cells(index)
    sent = {c: store.participation(campaign.id, c, released=False) for c in cells}
    sent = {cell: who for cell, who in sent.items() if who[0]}
    grouped, needed = _large_enough(campaign, index, sent), campaign.manifest.min_reports
    if campaign.manifest.groups is not None and grouped != sent.keys():
        needed *= 2 * len(cells)
    found = {index: since(index, needed)}
    if not found[index].withheld:
        found |= {cell: since(cell) for cell in sorted(grouped)}
        sealing.release(index, grouped)
    return found


def _latest(
    store: Store, campaign: Campaign, number: int, index: int, sealing: Sealing
) -> dict[int, Result]:
    """All devices heard so far, as of the last release; before the first one, how many they are."""
    released = _release_latest(store, campaign, index, sealing)
    found = {}
    for place in (index, *sorted(released)):
        known = store.released(campaign.id, place) or store.unreleased(campaign.id, place)
        if known is None or not known.tally.n:
            known = RoundSum(number, number, 0, _NOTHING)
        rounds = RoundSum(known.first, number, known.rounds, known.tally)
        who = _one_each(known.tally)
        found[place] = window_result(campaign, place, rounds, who, sealing.outcomes)
    return found


def _release_latest(store: Store, campaign: Campaign, index: int, sealing: Sealing) -> set[int]:
    """Release what changed enough, and return the groups that are released by themselves.

    Groups are at first only released together, as the rest. When the rest is released, those of
    which enough changed leave it for good, if enough of what remains changed, too. From then on
    such a group is released whenever enough of it changed. All devices are the sum of what was
    released last. So of each state that anybody can know, enough devices are in no earlier one:
    in any combination of states these stay, of the last one that is in it.
    """
    cells, least = campaign.cells(index), campaign.manifest.min_reports
    changed = {c: sum(store.participation(campaign.id, c, released=False)[1]) for c in cells}
    before = {c: store.released(campaign.id, c) for c in cells if c != index}
    alone = {cell: known.tally for cell, known in before.items() if known is not None}
    rest, all_before = set(cells) - alone.keys(), store.released(campaign.id, index)
    parts = [] if all_before is None else [reduce(sub, alone.values(), all_before.tally)]
    due = {cell for cell in alone if changed[cell] >= least}
    now = {c: known for c in cells if (known := store.unreleased(campaign.id, c)) is not None}
    if sum(changed[cell] for cell in rest) >= least:
        there = {cell: ([1], [changed[cell]]) for cell in rest if cell in now and now[cell].tally.n}
        leaving = _large_enough(campaign, index, there)
        parts = [now[cell].tally for cell in rest - leaving if cell in now]
        for cell in rest:
            sealing.release_devices(cell)
        due |= leaving
    elif not due:
        return set(alone)
    for cell in due:
        alone[cell] = now[cell].tally
        sealing.release_latest(cell, now[cell])
        sealing.release_devices(cell)
    known = store.unreleased(campaign.id, index)
    if known is not None:
        sealing.release_latest(index, replace(known, tally=reduce(add, [*parts, *alone.values()])))
    return set(alone)


def _one_each(tally: Tally) -> Participation:
    """Every device has one report in these counts."""
    return ([1], [tally.n]) if tally.n else ([], [])


def pooled_results(store: Store, campaign: Campaign) -> Iterator[tuple[int, Result]]:
    """All that was released of each attribute; before that, how much there is so far. And all that
    was released of groups by themselves."""
    for index, mechanism in enumerate(campaign.manifest.mechanisms):
        groups = campaign.cells(index) if campaign.manifest.groups else []
        needed = campaign.manifest.min_reports * (2 * len(groups) or 1)
        for place in (index, *groups):
            released = store.released(campaign.id, place)
            rounds = released or (store.unreleased(campaign.id, place) if place == index else None)
            if rounds is None or not rounds.tally.n:
                continue
            who = _one_each(rounds.tally)
            if mechanism.analysis.combined != "latest":
                who = store.participation(campaign.id, place, released=released is not None)
            yield (
                place,
                pooled_result(
                    campaign,
                    place,
                    rounds.rounds,
                    rounds.tally,
                    who,
                    store.outcomes(campaign.id),
                    first=rounds.first,
                    last=rounds.last,
                    needed=needed if released is None else None,
                ),
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
