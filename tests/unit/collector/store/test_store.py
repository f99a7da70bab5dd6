"""The store's claims, engine by engine: counted once, first stays, nothing half-written."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from collector.records import NO_CAMPAIGN, NO_ROUND, Campaign, Refusal
from collector.store import Store
from collector.store.common import count_bodies
from protocol_spec import BodyFormat, Outcome
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

ACCEPTED, DUPLICATE, CONFLICT = Outcome.ACCEPTED, Outcome.DUPLICATE, Outcome.CONFLICT
LATE, CHANGED = Outcome.LATE, Outcome.ATTRIBUTE_CHANGED


# --- once (I8), and the first stays (I9) --------------------------------------------------------


def test_a_repetition_inside_a_batch_is_counted_once(store: Store, campaign: Campaign) -> None:
    same = candidate(campaign, 1)
    outcomes = store.commit([same, candidate(campaign, 2), same, same], [])
    assert list(outcomes) == [ACCEPTED, ACCEPTED, DUPLICATE, DUPLICATE]
    assert counts_of(store, campaign, 0) == {FUEL: [2, 0, 0, 0]}


def test_a_repetition_in_a_later_batch_is_counted_once(store: Store, campaign: Campaign) -> None:
    for expected in (ACCEPTED, DUPLICATE, DUPLICATE):
        assert list(store.commit([candidate(campaign, 1)], [])) == [expected]
    assert counts_of(store, campaign, 0) == {FUEL: [1, 0, 0, 0]}


def test_a_repetition_after_a_restart_is_counted_once(
    store: Store, campaign: Campaign, engine: Engine
) -> None:
    store.commit([candidate(campaign, 1)], [])
    with closing(engine.open()) as again:
        assert list(again.commit([candidate(campaign, 1)], [])) == [DUPLICATE]
        assert counts_of(again, campaign, 0) == {FUEL: [1, 0, 0, 0]}


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


def test_an_attribute_cannot_change_after_a_sealing(
    store: Store, campaign: Campaign, engine: Engine
) -> None:
    store.commit([candidate(campaign, 1)], [])
    seal(store, campaign, 0)
    changed, kept = candidate(campaign, 1, 1, attribute=TOWN), candidate(campaign, 1, 1)
    assert list(store.commit([changed, kept], [])) == [CHANGED, ACCEPTED]
    with closing(engine.open()) as again:
        assert list(again.commit([candidate(campaign, 1, 2, attribute=TOWN)], [])) == [CHANGED]


def test_an_attribute_cannot_change_after_a_restart(
    store: Store, campaign: Campaign, engine: Engine
) -> None:
    """The rounds that hold reports are found again."""
    store.commit([candidate(campaign, 1, 4)], [])
    with closing(engine.open()) as again:
        assert list(again.commit([candidate(campaign, 1, 5, attribute=TOWN)], [])) == [CHANGED]


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
