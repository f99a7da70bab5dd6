"""Sealing: the moment a round becomes final.

A round is sealed after its deadline, once the broker has delivered what it had kept of it; a
collector that was away does not shut out reports that were sent in time. Sealing is one
transaction, happens once, and the same counts always give the same bytes (I10).
"""

from __future__ import annotations

from collections.abc import Iterator

from collector.records import Campaign
from collector.rounds.results import pooled_result, round_results
from collector.store import Store
from protocol_spec import Result


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
    return store.seal(
        campaign,
        number,
        at,
        lambda tallies, outcomes: round_results(campaign, number, tallies, outcomes),
        lambda: list(_pooled(store, campaign)),
    )


def _pooled(store: Store, campaign: Campaign) -> Iterator[Result]:
    for index in range(len(campaign.manifest.attributes)):
        rounds, total = store.sealed_total(campaign.id, index)
        if total is not None:
            yield pooled_result(
                campaign,
                index,
                rounds,
                total,
                store.participation(campaign.id, index),
                store.outcomes(campaign.id),
            )
