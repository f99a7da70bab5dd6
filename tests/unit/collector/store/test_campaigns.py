"""Campaigns, sealing and what waits for the broker, over every engine."""

from __future__ import annotations

import random
from contextlib import closing
from typing import NoReturn

import pytest

from collector.errors import UnknownCampaign
from collector.records import POOLED, Campaign, Candidate, Refusal
from collector.store import Store
from protocol_spec import Outcome, Result
from tests.support.collector import (
    COLOUR,
    FIRST,
    FUEL,
    TOWN,
    candidate,
    counts_of,
    seal,
    three_questions,
)
from tests.support.databases import Engine, snapshot

ACCEPTED, DUPLICATE, CONFLICT = Outcome.ACCEPTED, Outcome.DUPLICATE, Outcome.CONFLICT
LATE, CHANGED = Outcome.LATE, Outcome.ATTRIBUTE_CHANGED


# --- campaigns ----------------------------------------------------------------------------------


def test_opening_a_campaign_again_changes_nothing(store: Store, campaign: Campaign) -> None:
    again = store.open_campaign(campaign.manifest, FIRST + 99)
    assert (again, store.campaigns()) == (campaign, [campaign])
    assert (again.opened, again.closed) == (FIRST, None)


def test_a_campaign_is_found_by_its_beginning(store: Store, campaign: Campaign) -> None:
    assert store.campaign(None) == store.campaign("te") == store.campaign(campaign.name) == campaign
    other = store.open_campaign(three_questions(slug="tent"), FIRST)
    assert store.campaign("ten") == other
    for name in (None, "te", "nosuch"):
        with pytest.raises(UnknownCampaign, match="tent-"):
            store.campaign(name)


def test_closing_twice_keeps_the_first_time(store: Store, campaign: Campaign) -> None:
    store.close_campaign(campaign, FIRST + 5)
    store.close_campaign(campaign, FIRST + 9)
    assert store.campaign(None).closed == FIRST + 5


def test_a_change_from_elsewhere_is_noticed(
    store: Store, campaign: Campaign, engine: Engine
) -> None:
    seen = store.changed_elsewhere()
    store.commit([candidate(campaign, 1)], [])
    assert store.changed_elsewhere() == seen
    with closing(engine.open()) as other:
        other.close_campaign(campaign, FIRST + 5)
        other.revoke("stolen-1", FIRST)
    assert store.changed_elsewhere() != seen
    assert store.campaign(None).closed == FIRST + 5
    assert store.revoked() == {"stolen-1"}
    store.reinstate("stolen-1")
    assert store.revoked() == frozenset()


# --- as a whole or not at all -------------------------------------------------------------------


class Interrupted(Exception):
    """Something went wrong on the way."""


def test_a_batch_that_cannot_be_counted_changes_nothing(store: Store, campaign: Campaign) -> None:
    store.commit([candidate(campaign, 1)], [])
    before = snapshot(store)
    stray = Candidate(campaign.id + 7, 0, 9, FUEL, 0, 9, b"\0")
    with pytest.raises(KeyError):
        store.commit([candidate(campaign, 2), stray], [Refusal(campaign.id, 0, Outcome.EARLY)])
    assert snapshot(store) == before
    assert list(store.commit([candidate(campaign, 2)], [])) == [ACCEPTED]


@pytest.mark.parametrize("step", range(7))
def test_a_sealing_that_is_cut_short_changes_nothing(
    store: Store, campaign: Campaign, engine: Engine, step: int
) -> None:
    """Whatever was done inside the block, others never see any of it."""
    store.commit([candidate(campaign, d, body=d) for d in range(5)], [])
    (made, *_) = seal_elsewhere(engine, campaign)
    before = snapshot(store)
    with pytest.raises(Interrupted):
        seal_partly(store, campaign, made, step)
    assert snapshot(store) == before
    assert list(store.commit([candidate(campaign, 9)], [])) == [ACCEPTED]
    assert len(seal(store, campaign, 0)) == 4


def seal_partly(store: Store, campaign: Campaign, made: Result, steps: int) -> NoReturn:
    with store.sealing(campaign, 0, FIRST) as sealing:
        assert sealing is not None
        if steps > 0:
            sealing.write([made], 0)
        if steps > 1:
            sealing.end_reports(set(), {FUEL})
        if steps > 2:
            sealing.set_aside(FUEL)
        if steps > 3:
            sealing.release(FUEL)
        if steps > 4:
            sealing.write([made], POOLED)
        if steps > 5:
            sealing.drop_unreleased()
        raise Interrupted


def seal_elsewhere(engine: Engine, campaign: Campaign) -> list[Result]:
    """Results of the same campaign at another collector."""
    with closing(engine.open("elsewhere")) as other:
        twin = other.open_campaign(campaign.manifest, FIRST)
        other.commit([candidate(twin, 1)], [])
        seal(other, twin, 0)
        return other.results(twin.id, FUEL)


def test_a_round_is_sealed_once(store: Store, campaign: Campaign, engine: Engine) -> None:
    store.commit([candidate(campaign, 1)], [])
    assert seal(store, campaign, 0)
    before = snapshot(store)
    with closing(engine.open()) as other:
        for opened in (store, other):
            with opened.sealing(campaign, 0, FIRST) as sealing:
                assert sealing is None
    assert snapshot(store) == before


# --- at the broker ------------------------------------------------------------------------------


def test_a_result_is_unpublished_until_it_is_marked(store: Store, campaign: Campaign) -> None:
    store.commit([candidate(campaign, 1)], [])
    seal(store, campaign, 0)
    waiting = store.unpublished()
    places = [(r.round, r.attribute) for r in waiting]
    assert places == [(POOLED, FUEL), (0, FUEL), (0, TOWN), (0, COLOUR)]
    assert store.unpublished(2) == waiting[:2]
    for result in waiting[1:]:
        store.mark_published(result)
    assert store.unpublished() == waiting[:1]
    store.publish_again()
    assert store.unpublished() == waiting


def test_a_newer_pooled_result_is_not_marked_with_an_older_one(
    store: Store, campaign: Campaign
) -> None:
    store.commit([candidate(campaign, 1, number) for number in range(2)], [])
    seal(store, campaign, 0)
    (old,) = [r for r in store.unpublished() if r.round == POOLED]
    seal(store, campaign, 1)
    store.mark_published(old)
    assert [r.round for r in store.unpublished()].count(POOLED) == 1


def test_receipts_of_sealed_rounds_can_be_cleared(store: Store, campaign: Campaign) -> None:
    store.commit([candidate(campaign, 1, number) for number in range(3)], [])
    assert store.clearable_receipts(campaign.id) == []
    for number in range(2):
        seal(store, campaign, number)
    assert store.clearable_receipts(campaign.id) == [0, 1]
    store.mark_receipts_cleared(campaign.id, 0)
    assert store.clearable_receipts(campaign.id) == [1]
    assert sorted(store.receipt_tags(campaign.id, 2)) == [(1, 1)]


def test_devices_are_dropped_by_campaign(store: Store, campaign: Campaign) -> None:
    other = store.open_campaign(three_questions(slug="other"), FIRST)
    for opened in (campaign, other):
        store.commit([candidate(opened, 1)], [])
        seal(store, opened, 0)
    assert store.drop_devices(campaign.id)
    assert not store.drop_devices(campaign.id)
    assert store.participation(campaign.id, FUEL) == ([], [])
    assert store.participation(other.id, FUEL) == ([1], [1])


def test_a_shuffled_redelivery_counts_the_same(
    store: Store, campaign: Campaign, engine: Engine
) -> None:
    """Duplicated, reordered and split deliveries end in the same counts."""
    reports = [candidate(campaign, d, d % 3, d % 3, 7 * d) for d in range(90)]
    store.commit(reports, [])
    shuffled: list[Candidate] = reports * 3
    random.Random(5).shuffle(shuffled)
    with closing(engine.open("other")) as other:
        twin = other.open_campaign(campaign.manifest, FIRST)
        for start in range(0, len(shuffled), 7):
            other.commit(shuffled[start : start + 7], [])
        for number in range(3):
            assert counts_of(other, twin, number) == counts_of(store, campaign, number)
