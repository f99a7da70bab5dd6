"""The contract of every engine: counted once, the first stays, nothing is half-written."""

from __future__ import annotations

import random
import threading
from contextlib import closing
from typing import NoReturn

import pytest

from collector.errors import CollectorError, UnknownCampaign
from collector.records import NO_CAMPAIGN, NO_ROUND, POOLED, Campaign, Candidate, Refusal
from collector.store import Store
from collector.store.common import count_bodies
from protocol_spec import BodyFormat, Outcome, Result
from tests.support.collector import (
    COLOUR,
    FIRST,
    FUEL,
    TOWN,
    candidate,
    counts_of,
    random_counts,
    recount,
    seal,
    three_questions,
)
from tests.support.databases import Engine, snapshot, withdraw
from tests.support.hostile import A, B

ACCEPTED, DUPLICATE, CONFLICT = Outcome.ACCEPTED, Outcome.DUPLICATE, Outcome.CONFLICT
LATE, CHANGED = Outcome.LATE, Outcome.ATTRIBUTE_CHANGED


# --- once (I8), and the first stays (I9) --------------------------------------------------------


def test_a_repetition_is_counted_once(store: Store, campaign: Campaign, engine: Engine) -> None:
    """In a batch, in a later one, and after a restart."""
    same = candidate(campaign, 1)
    outcomes = store.commit([same, candidate(campaign, 2), same, same], [])
    assert list(outcomes) == [ACCEPTED, ACCEPTED, DUPLICATE, DUPLICATE]
    assert list(store.commit([same], [])) == [DUPLICATE]
    with closing(engine.open()) as again:
        assert list(again.commit([same], [])) == [DUPLICATE]
        assert counts_of(again, campaign, 0) == {FUEL: [2, 0, 0, 0]}


def test_two_connections_at_once_count_every_report_once(
    store: Store, campaign: Campaign, engine: Engine
) -> None:
    """R21: the unique key decides, not who looked first."""
    batches = [
        [candidate(campaign, d, body=d) for d in range(b, b + 40)] for b in range(0, 400, 20)
    ]
    start, told = threading.Barrier(2), list[Outcome]()

    def work() -> None:
        with closing(engine.open()) as mine:
            start.wait()
            for batch in batches:
                told.extend(mine.commit(batch, []))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    devices = {c.device for batch in batches for c in batch}
    assert told.count(ACCEPTED) == len(devices)
    assert store.tallies(campaign.id, 0)[FUEL].n == len(devices)
    assert store.received() == sum(store.outcomes().values()) == len(told)


@pytest.mark.parametrize("together", [True, False])
def test_other_bits_for_a_counted_round_change_nothing(
    store: Store, campaign: Campaign, together: bool
) -> None:
    first, second = candidate(campaign, 1, body=2), candidate(campaign, 1, body=3)
    batches = [[first, second]] if together else [[first], [second]]
    outcomes = [o for batch in batches for o in store.commit(batch, [])]
    assert outcomes == [ACCEPTED, CONFLICT]
    assert counts_of(store, campaign, 0) == {FUEL: [0, 0, 1, 0]}
    assert list(store.commit([first], [])) == [DUPLICATE]


def test_another_attribute_in_the_same_round_is_a_conflict(
    store: Store, campaign: Campaign
) -> None:
    batch = [candidate(campaign, 1), candidate(campaign, 1, attribute=COLOUR)]
    assert list(store.commit(batch, [])) == [ACCEPTED, CONFLICT]
    assert set(counts_of(store, campaign, 0)) == {FUEL}


# --- one attribute for life (I11) ---------------------------------------------------------------


@pytest.mark.parametrize("together", [True, False])
def test_an_attribute_cannot_change_across_open_rounds(
    store: Store, campaign: Campaign, together: bool
) -> None:
    first, second = candidate(campaign, 1, 3), candidate(campaign, 1, 2, attribute=COLOUR)
    batches = [[first, second]] if together else [[first], [second]]
    assert [o for b in batches for o in store.commit(b, [])] == [ACCEPTED, CHANGED]
    assert counts_of(store, campaign, 2) == {}


def test_an_attribute_cannot_change_after_a_sealing_or_a_restart(
    store: Store, campaign: Campaign, engine: Engine
) -> None:
    store.commit([candidate(campaign, 1), candidate(campaign, 2, 4)], [])
    seal(store, campaign, 0)
    changed, kept = candidate(campaign, 1, 1, attribute=TOWN), candidate(campaign, 1, 1)
    assert list(store.commit([changed, kept], [])) == [CHANGED, ACCEPTED]
    with closing(engine.open()) as again:
        for device in (1, 2):
            other = candidate(campaign, device, 5, attribute=TOWN)
            assert list(again.commit([other], [])) == [CHANGED]


def test_campaigns_do_not_know_each_others_devices(store: Store, campaign: Campaign) -> None:
    other = store.open_campaign(three_questions(slug="other"), FIRST)
    batch = [candidate(campaign, 1), candidate(other, 1, attribute=TOWN)]
    assert list(store.commit(batch, [])) == [ACCEPTED, ACCEPTED]


# --- sealed is final (I10) ----------------------------------------------------------------------


def test_a_report_for_a_sealed_round_is_only_late(store: Store, campaign: Campaign) -> None:
    store.commit([candidate(campaign, 1)], [])
    seal(store, campaign, 0)
    before = snapshot(store)
    late = [candidate(campaign, 1), candidate(campaign, 1, body=3), candidate(campaign, 2)]
    assert list(store.commit(late, [])) == [LATE] * 3
    after = snapshot(store)
    assert after[campaign.name] == before[campaign.name]
    assert store.outcomes(campaign.id)[LATE] == 3
    assert store.outcomes(campaign.id, 0) == {ACCEPTED: 1}


# --- every message has one outcome (I12) --------------------------------------------------------


def test_refusals_are_counted_where_they_stand(store: Store, campaign: Campaign) -> None:
    refusals = [
        Refusal(NO_CAMPAIGN, NO_ROUND, Outcome.TOPIC_MISMATCH),
        Refusal(campaign.id, NO_ROUND, Outcome.MALFORMED),
        Refusal(campaign.id, NO_ROUND, Outcome.MALFORMED),
    ]
    store.commit([candidate(campaign, 1)], refusals)
    store.commit([], refusals[:1])
    assert store.outcomes(NO_CAMPAIGN) == {Outcome.TOPIC_MISMATCH: 2}
    assert store.outcomes(campaign.id) == {ACCEPTED: 1, Outcome.MALFORMED: 2}
    assert store.received() == sum(store.outcomes().values()) == 5


# --- counts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("attribute", [FUEL, TOWN, COLOUR])
def test_counts_equal_a_slow_recount(store: Store, campaign: Campaign, attribute: int) -> None:
    form = campaign.manifest.body_formats[attribute]
    bodies, quick = random_counts(form, 500, seed=attribute)
    reports = [candidate(campaign, d, 0, attribute, body) for d, body in enumerate(bodies)]
    for start in range(0, len(reports), 97):
        store.commit(reports[start : start + 97], [])
    assert counts_of(store, campaign, 0)[attribute] == recount(bodies, form) == quick.tolist()
    assert store.tallies(campaign.id, 0)[attribute].n == 500


@pytest.mark.parametrize("unary", [True, False])
@pytest.mark.parametrize("k", [2, 7, 8, 9, 16, 255, 256, 257, 4096])
def test_bodies_of_every_width_are_counted(unary: bool, k: int) -> None:
    form = BodyFormat(unary, k)
    bodies, quick = random_counts(form, 60, seed=k)
    bodies.append(form.encode(k - 1))
    quick[k - 1] += 1
    assert count_bodies(bodies, form).tolist() == recount(bodies, form) == quick.tolist()


# --- forgetting ---------------------------------------------------------------------------------


def test_a_withdrawn_report_leaves_no_trace_in_the_counts(store: Store, campaign: Campaign) -> None:
    others = [candidate(campaign, d, r, COLOUR, 100 * d + r) for d in (1, 2) for r in (0, 1)]
    store.commit(others, [])
    before = {n: counts_of(store, campaign, n) for n in (0, 1, 2)}
    store.commit([candidate(campaign, 9, r, COLOUR, 2047 - r) for r in (0, 1, 2)], [])
    assert withdraw(store, campaign, 9) == 3
    assert {n: counts_of(store, campaign, n) for n in (0, 1, 2)} == before
    assert [store.tallies(campaign.id, n)[COLOUR].n for n in (0, 1, 2)] == [2, 2, 0]
    assert withdraw(store, campaign, 9) == 0


@pytest.mark.parametrize("attribute", [FUEL, COLOUR])
def test_a_forgotten_device_is_not_counted_again(
    store: Store, campaign: Campaign, attribute: int
) -> None:
    """A4: neither in the round it was withdrawn from nor later, also about another attribute."""
    store.commit([candidate(campaign, 1), candidate(campaign, 1, 1)], [])
    seal(store, campaign, 0)
    assert withdraw(store, campaign, 1) == 1
    before = {n: counts_of(store, campaign, n) for n in (0, 1, 2)}
    again = [candidate(campaign, 1, n, attribute) for n in (0, 1, 2)]
    other = candidate(campaign, 2, 2, attribute)
    outcomes = list(store.commit([*again, other], []))
    assert outcomes == [Outcome.LATE, Outcome.FORGOTTEN, Outcome.FORGOTTEN, ACCEPTED]
    assert {n: counts_of(store, campaign, n) for n in (0, 1)} == {0: before[0], 1: before[1]}
    assert store.tallies(campaign.id, 2)[attribute].n == 1
    assert store.outcomes(campaign.id, 2) == {Outcome.FORGOTTEN: 1, ACCEPTED: 1}


def test_who_never_reported_is_forgotten_too(store: Store, campaign: Campaign) -> None:
    """A4: its reports may be on their way."""
    assert withdraw(store, campaign, 1) == 0
    assert list(store.commit([candidate(campaign, 1)], [])) == [Outcome.FORGOTTEN]


def test_another_campaign_and_the_end_of_retention_know_nothing_of_it(
    store: Store, campaign: Campaign
) -> None:
    other = store.open_campaign(three_questions(slug="other"), FIRST)
    withdraw(store, campaign, 1)
    assert list(store.commit([candidate(other, 1)], [])) == [ACCEPTED]
    assert store.drop_devices(campaign.id)
    assert list(store.commit([candidate(campaign, 1)], [])) == [ACCEPTED]


def test_requests_are_counted_by_what_became_of_them(
    store: Store, campaign: Campaign, engine: Engine
) -> None:
    """A2: a batch is one transaction; a device is forgotten once."""
    store.commit([candidate(campaign, device) for device in range(4)], [])
    asked = [(campaign.id, device) for device in (1, 2)]
    done = store.withdraw(asked, repeated=5, invalid=2)
    assert [(d.device, len(d.reports), d.repeated) for d in done] == [(1, 1, False), (2, 1, False)]
    again = store.withdraw([(campaign.id, 2), (campaign.id, 3)])
    assert [(d.device, len(d.reports), d.repeated) for d in again] == [(2, 0, True), (3, 1, False)]
    with closing(engine.open()) as other:
        assert other.requests() == {"done": 3, "repeated": 6, "invalid": 2}
    assert counts_of(store, campaign, 0) == {FUEL: [1, 0, 0, 0]}


def test_sealed_sums_keep_their_senders_count_after_a_withdrawal(
    store: Store, campaign: Campaign
) -> None:
    """Pooling divides sealed counts by the reports that made them, also those of who left."""
    for number in range(2):
        store.commit([candidate(campaign, d, number, body=d) for d in range(10)], [])
        seal(store, campaign, number)
    for device in range(5):
        assert withdraw(store, campaign, device) == 0
    released = store.released(campaign.id, FUEL)
    reports, devices = store.participation(campaign.id, FUEL)
    assert released is not None
    assert (released.rounds, released.tally.n, reports, devices) == (2, 20, [2], [10])
    store.commit([candidate(campaign, 9, 2, body=1)], [])
    seal(store, campaign, 2)
    pooled = store.results(campaign.id, FUEL)[0]
    assert (pooled.n, pooled.devices) == (21, 10)
    assert sum(pooled.raw) == pytest.approx(1.0)


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


# --- names and signatures (P3) ------------------------------------------------------------------


def test_the_name_of_another_campaign_is_refused(store: Store) -> None:
    store.open_campaign(A, FIRST)
    before = snapshot(store)
    with pytest.raises(CollectorError, match="Nothing was opened or changed") as told:
        store.open_campaign(B, FIRST)
    assert A.digest.hex() in str(told.value)
    assert B.digest.hex() in str(told.value)
    assert snapshot(store) == before
    assert store.open_campaign(A, FIRST).manifest == A


def test_a_signature_is_kept(store: Store) -> None:
    opened = store.open_campaign(A, FIRST)
    assert store.signature(opened.id) == b""
    assert store.open_campaign(A, FIRST, b"s" * 64) == opened
    assert store.open_campaign(A, FIRST) == opened
    assert store.signature(opened.id) == b"s" * 64
    assert store.signature(opened.id + 1) == b""
