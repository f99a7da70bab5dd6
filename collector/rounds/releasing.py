"""What of a sealed round is released: no difference of two results is about too few devices.

Claim: whatever is published of an attribute is a sum of parts that have no round in common, each
with the reports of at least `min_reports` effective devices; so is every sum or difference of
published counts. A part is a round that was released by itself, or several rounds of which none
could be; those are kept added up, are in no result until they are enough, and are deleted if they
never are.

    memoized, hashed   a round with enough devices is a part. Others are set aside together.
    once               rounds are set aside one after the other, and released as one window
    nested             a round with enough devices is released; others are erased, because rounds
                       of the same devices must not be added up
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from collector.records import NO_COUNTS, Campaign, RoundSum, Tally
from collector.rounds.estimates import Evidence
from collector.rounds.results import pooled_result, round_results, window_result
from collector.store import Sealing, Store
from protocol_spec import Result


def release(store: Store, campaign: Campaign, number: int, sealing: Sealing) -> list[Result]:
    """Decide on every attribute, once and for ever; the results of the round."""
    results = round_results(campaign, number, sealing.tallies, sealing.outcomes)
    heard = {index for index, result in enumerate(results) if result.n}
    reporting = campaign.manifest.reporting
    released = {i for i in heard if reporting != "once" and not results[i].withheld}
    others = heard - released
    sealing.end_reports(released, set() if reporting == "nested" else others)
    for index in others:
        if reporting == "nested":
            sealing.erase(index)
            continue
        sealing.set_aside(index)
        if reporting != "once" and _are_enough(store, campaign, index):
            sealing.release(index)
    if reporting == "once":
        return [_window(store, campaign, number, i, sealing) for i in range(len(results))]
    return results


def _are_enough(store: Store, campaign: Campaign, index: int) -> bool:
    """Whether what was set aside can be released."""
    rounds = store.unreleased(campaign.id, index)
    if rounds is None:
        return False
    who = store.participation(campaign.id, index, released=False)
    evidence = Evidence(campaign.manifest.ways[index], rounds.tally, who)
    return evidence.n_eff >= campaign.manifest.min_reports


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
        if campaign.manifest.reporting == "nested":
            yield from _latest(store, campaign, number, index, tallies.get(index))
            continue
        released = store.released(campaign.id, index)
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


def _latest(
    store: Store, campaign: Campaign, number: int, index: int, tally: Tally | None
) -> Iterator[Result]:
    """The latest report of a device says all that the ones before said: a round stands for all."""
    if tally is None or tally.n == 0:
        return
    who, outcomes = ([1], [tally.n]), store.outcomes(campaign.id)
    made = pooled_result(campaign, index, 1, tally, who, outcomes, first=number)
    if not made.withheld or store.released(campaign.id, index) is None:
        yield made


_NOTHING = Tally(0, NO_COUNTS)
