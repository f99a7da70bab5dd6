"""PostgreSQL with several at work in one moment: rows that are held, and what nobody could see."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from collector.errors import Fenced
from collector.settings import StoreAddress
from collector.store.postgres import PostgresStore
from protocol_spec import Outcome
from tests.support.collector import FIRST, candidate, seal, three_questions
from tests.support.databases import admin, new_schema, wait_for_a_lock

ACCEPTED = Outcome.ACCEPTED


@pytest.fixture
def address() -> StoreAddress:
    return new_schema()


@pytest.fixture
def store(address: StoreAddress) -> Iterator[PostgresStore]:
    with closing(PostgresStore(address)) as opened:
        yield opened


def stop_in_a_batch(address: StoreAddress, number: int) -> psycopg.Connection[tuple[object, ...]]:
    """A worker that was paused inside its transaction: the server sees an idle session."""
    db = psycopg.connect(address.url, application_name=f"allomfree worker {number}")
    db.execute("UPDATE worker SET received = received + 1 WHERE number = %s", (number,))
    return db


def test_a_worker_stopped_inside_a_batch_holds_up_nobody(
    address: StoreAddress, store: PostgresStore
) -> None:
    campaign = store.open_campaign(three_questions(), FIRST)
    with closing(PostgresStore(address)) as leader:
        leader.enlist("leader")
        number = store.enlist("stopped")
        held = stop_in_a_batch(address, number)
        leader.commit([candidate(campaign, 1)], [])
        assert leader.lead(3600)
        begun = time.monotonic()
        assert [w.number for w in leader.fence(silent_seconds=-1)] == [number]
        assert seal(leader, campaign, 0)
        assert time.monotonic() - begun < 10  # not as long as the server would wait
        held.close()
        with pytest.raises(Fenced):
            store.commit([candidate(campaign, 2, 1)], [])


def somebody_waits(address: StoreAddress) -> bool:
    told = admin(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
        "AND query LIKE '%FROM worker ORDER BY number FOR UPDATE%'",
        address,
    )
    return told == [(1,)]


@pytest.mark.parametrize("what", ["withdraw", "seal"])
def test_who_must_be_alone_waits_for_the_batches_at_hand(
    address: StoreAddress, store: PostgresStore, what: str
) -> None:
    """A batch is wholly before the end of a round, or before a device is forgotten, or after."""
    campaign = store.open_campaign(three_questions(), FIRST)
    store.commit([candidate(campaign, 1)], [])
    batch = stop_in_a_batch(address, 0)

    def work() -> None:
        with closing(PostgresStore(address)) as other:
            if what == "seal":
                seal(other, campaign, 0)
            else:
                other.withdraw([(campaign.id, 2)])

    thread = threading.Thread(target=work)
    thread.start()
    limit = time.monotonic() + 60
    while not somebody_waits(address) and time.monotonic() < limit:
        time.sleep(0.01)
    assert thread.is_alive()
    batch.execute("INSERT INTO report_1_0 VALUES (2, 0, 2, '\\000')")
    batch.commit()
    batch.close()
    thread.join()
    if what == "seal":
        assert store.participation(campaign.id, 0) == ([1], [2])
    else:
        assert [tag for _, tag in store.receipt_tags(campaign.id, 0)] == [1]


def all_asked(number: int) -> bool:
    """Whether a worker's session has answered the last question of a batch, and waits."""
    told = admin(
        "SELECT wait_event FROM pg_stat_activity "  # noqa: S608
        f"WHERE application_name = 'allomfree worker {number}' AND query LIKE '%known <>%'"
    )
    return told == [("ClientRead",)]


def test_an_attribute_that_nobody_saw_changing_is_taken_out_when_its_round_is_sealed(
    address: StoreAddress, store: PostgresStore
) -> None:
    """I11: two workers count a device for two rounds at one moment, under two attributes."""
    campaign = store.open_campaign(three_questions(), FIRST)
    number, waits = store.enlist("slow"), list[str]()

    def count_round_0() -> None:
        waits.append("for what the server knows, then for the end")
        if len(waits) > 1:
            return
        limit = time.monotonic() + 60
        while not all_asked(number):
            assert time.monotonic() < limit
            time.sleep(0.01)
        with closing(PostgresStore(address)) as fast:
            fast.commit([candidate(campaign, d, 0, 0) for d in (2, 3)], [])

    store.meanwhile = count_round_0
    assert list(store.commit([candidate(campaign, d, 1, 2) for d in (2, 4)], [])) == [ACCEPTED] * 2
    assert store.lead(3600)
    seal(store, campaign, 0)
    assert store.received() == 4
    seal(store, campaign, 1)
    assert store.tallies(campaign.id, 0)[0].n == 2
    assert store.tallies(campaign.id, 1)[2].n == 1
    assert store.outcomes(campaign.id, 1) == {ACCEPTED: 1, Outcome.ATTRIBUTE_CHANGED: 1}
    assert (store.received(), store.outcomes()[ACCEPTED]) == (4, 3)
    assert list(store.commit([candidate(campaign, 2, 2, 2)], [])) == [Outcome.ATTRIBUTE_CHANGED]
    assert list(store.commit([candidate(campaign, 2, 2, 0)], [])) == [ACCEPTED]


def test_workers_that_count_a_device_at_once_agree_on_its_attribute(
    address: StoreAddress, store: PostgresStore
) -> None:
    """I11: at the latest when rounds are sealed, every device is counted under one attribute."""
    campaign = store.open_campaign(three_questions(), FIRST)
    start, told = threading.Barrier(2), dict[int, list[Outcome]]()

    def work(number: int) -> None:
        with closing(PostgresStore(address)) as mine:
            mine.enlist(f"worker {number}")
            start.wait()
            told[number] = [
                outcome
                for first in range(0, 2000, 100)
                for outcome in mine.commit(
                    [candidate(campaign, d, number, 2 * number) for d in range(first, first + 100)],
                    [],
                )
            ]

    threads = [threading.Thread(target=work, args=[number]) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(ACCEPTED in both for both in zip(told[0], told[1]))
    for number in range(2):
        seal(store, campaign, number)
    counted = [store.tallies(campaign.id, number) for number in range(2)]
    assert sum(tally.n for tallies in counted for tally in tallies.values()) == 2000
    assert store.outcomes() == {ACCEPTED: 2000, Outcome.ATTRIBUTE_CHANGED: 2000}


def test_who_is_forgotten_when_its_first_round_is_sealed_stays_in_its_count(
    address: StoreAddress, store: PostgresStore
) -> None:
    """Its row is just being made, and nobody else can see it: the request waits for it."""
    campaign = store.open_campaign(three_questions(), FIRST)
    store.commit([candidate(campaign, d) for d in range(3)], [])

    def forget() -> None:
        with closing(PostgresStore(address)) as other:
            other.withdraw([(campaign.id, 1)])

    thread = threading.Thread(target=forget)
    with store.sealing(campaign, 0, FIRST) as sealing:
        assert sealing is not None
        sealing.end_reports({0}, set())
        thread.start()
        wait_for_a_lock(address, "INSERT INTO device")
    thread.join()
    assert store.participation(campaign.id, 0) == ([1], [3])
    assert list(store.commit([candidate(campaign, 1, 1)], [])) == [Outcome.FORGOTTEN]


def test_sealing_does_not_hold_up_other_rounds(address: StoreAddress, store: PostgresStore) -> None:
    """Batches of other rounds are committed while a round is made final; its own are late."""
    campaign = store.open_campaign(three_questions(), FIRST)
    store.commit([candidate(campaign, d) for d in range(3)], [])
    with closing(PostgresStore(address)) as other:
        with store.sealing(campaign, 0, FIRST) as sealing:
            assert sealing is not None
            sealing.end_reports({0}, set())
            batch = [
                candidate(campaign, 1, 1),
                candidate(campaign, 7, 1),
                candidate(campaign, 8, 0),
            ]
            assert list(other.commit(batch, [])) == [ACCEPTED, ACCEPTED, Outcome.LATE]
        assert other.last_sealed(campaign.id) == 0


def test_who_is_forgotten_while_a_round_is_sealed_stays_in_its_count(
    address: StoreAddress, store: PostgresStore
) -> None:
    """The sealed sum has its report, and the variance needs to know of how many devices."""
    campaign = store.open_campaign(three_questions(), FIRST)
    store.commit([candidate(campaign, d) for d in range(3)], [])
    with closing(PostgresStore(address)) as other:
        with store.sealing(campaign, 0, FIRST) as sealing:
            assert sealing is not None
            (gone,) = other.withdraw([(campaign.id, 1)])
            assert gone.reports == ()
            sealing.end_reports({0}, set())
        assert other.participation(campaign.id, 0) == ([1], [3])
        assert list(other.commit([candidate(campaign, 1, 1)], [])) == [Outcome.FORGOTTEN]
