"""A8: a device that floods is suspended, the others are counted, and it ends by itself."""

from __future__ import annotations

import logging
from contextlib import closing

import pytest

from collector.data_dir import DeviceKey
from collector.ingest.flood import LOOKED_AT, MOST_SUSPENDED, FloodGuard
from collector.links import Message
from collector.records import Campaign
from collector.store import Store
from collector.store.sqlite import SqliteStore
from collector.timing import USUAL, Timing
from protocol_spec import Outcome
from protocol_spec.programs.memory_broker import MemoryBroker
from tests.support.collector import (
    FIRST,
    FUEL,
    HOUR,
    ManualTime,
    ServiceInMemory,
    counts_of,
    forget,
    message,
    reports,
    service_in_memory,
    three_questions,
)

QUICK = Timing(flood_messages=100, flood_seconds=60.0)


def sent(device: str, payload: bytes = b"") -> Message:
    return Message(f"allomfree/v1/try-00000000/up/{device}/report", payload)


@pytest.fixture
def time() -> ManualTime:
    return ManualTime()


@pytest.fixture
def guard(time: ManualTime) -> FloodGuard:
    made = FloodGuard(time.clock(), QUICK)
    made.begin_turn()
    return made


@pytest.fixture
def campaign(store: Store) -> Campaign:
    return store.open_campaign(three_questions(), FIRST)


@pytest.fixture
def work(store: Store, campaign: Campaign, key: DeviceKey) -> ServiceInMemory:
    made = service_in_memory(store, key, timing=QUICK)
    made.turns(1)
    return made


# --- the guard ----------------------------------------------------------------------------------


def test_as_many_as_allowed_and_one_more(guard: FloodGuard) -> None:
    guard.waste([sent("a")] * 100)
    assert not guard.suspended
    guard.waste([sent("a"), sent("b")])
    assert guard.suspended == {"a"}


def test_a_new_window_begins_at_nothing(guard: FloodGuard, time: ManualTime) -> None:
    for _ in range(5):
        guard.waste([sent("a")] * 100)
        time.pass_time(60.0)
        guard.begin_turn()
    assert not guard.suspended


def test_a_suspension_ends_when_the_flood_does_and_is_said_once(
    guard: FloodGuard, time: ManualTime, caplog: pytest.LogCaptureFixture
) -> None:
    """No name is in the log: nothing about a device ever is."""
    caplog.set_level(logging.INFO, "allomfree.collector")
    for _ in range(10):
        guard.waste([sent("kitchen-7")] * 101)
        time.pass_time(30.0)
        guard.begin_turn()
        assert guard.suspended == {"kitchen-7"}
    guard.waste([sent("kitchen-7")] * 5)
    time.pass_time(60.0)
    guard.begin_turn()
    assert not guard.suspended
    begun, ended = caplog.messages
    assert "revoke NAME" in begun
    assert "status names it" in begun
    assert "no longer suspended" in ended
    assert "kitchen" not in caplog.text


def test_different_messages_are_looked_at_few_in_a_turn(guard: FloodGuard) -> None:
    for _ in range(2):
        guard.begin_turn()
        same = [guard.looks_at(sent("a", b"same")) for _ in range(50)]
        assert same == [True] + [False] * 49
        other = [guard.looks_at(sent("a", bytes([i]))) for i in range(50)]
        assert sum(other) == LOOKED_AT - 1
        assert guard.looks_at(sent("b", b"same"))


def test_a_whole_fleet_that_repeats_itself_is_no_flood(time: ManualTime) -> None:
    """A storm of 700,000 repetitions in a minute, three of each device: nobody is suspended."""
    guard = FloodGuard(time.clock(), USUAL)
    guard.begin_turn()
    for start in range(0, 240_000, 4_000):
        guard.waste([sent(f"d{i}") for i in range(start, start + 4_000)] * 3)
    guard.waste([sent("flooder")] * (USUAL.flood_messages + 1))
    assert guard.suspended == {"flooder"}


def test_memory_is_bounded_whoever_floods(guard: FloodGuard) -> None:
    guard.waste([sent(f"d{i}") for i in range(MOST_SUSPENDED + 50) for _ in range(101)])
    assert len(guard.suspended) == MOST_SUSPENDED


def test_topics_without_a_name_are_nobodys(guard: FloodGuard) -> None:
    long = sent("x" * 10_000)
    guard.waste([Message(None, b""), Message("a/b", b""), Message("", b""), long] * 500)
    assert not guard.suspended


# --- the service --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["same", "malformed", "conflict", "other campaign"])
def test_a_flooder_is_suspended_and_others_are_counted(
    work: ServiceInMemory, campaign: Campaign, kind: str
) -> None:
    (good,) = reports(campaign, range(1))
    flood = {
        "same": [good] * 300,
        "malformed": [Message(good.topic, i.to_bytes(2)) for i in range(300)],
        "conflict": [message(campaign.manifest, "d0", body=bytes([i % 4])) for i in range(300)],
        "other campaign": [sent("d0")] * 300,
    }[kind]
    work.send(flood)
    work.turns(2)
    assert work.service.status.suspended_names == ["d0"]
    for turn in range(3):
        work.send([*flood, *reports(campaign, range(10 * turn + 10, 10 * turn + 20)), *flood])
        work.turns(1)
    assert work.store.outcomes()[Outcome.ACCEPTED] in (30, 31)
    assert sum(work.store.outcomes().values()) == work.store.received() == 300 * 7 + 30
    if kind != "other campaign":  # that is refused as cheaply
        assert work.store.outcomes()[Outcome.SUSPENDED] >= 1800 - 3 * LOOKED_AT


def test_the_first_report_of_a_round_is_counted_also_while_suspended(
    work: ServiceInMemory, campaign: Campaign
) -> None:
    """A broken agent that repeats one report for ever still takes part in the next round."""
    work.send(reports(campaign, range(1)) * 300)
    work.turns(2)
    work.time.now = FIRST + HOUR + 60.0
    for _ in range(3):
        old, new = reports(campaign, range(1)), reports(campaign, range(1), number=1)
        work.send([*old * 200, *new, *old * 200])
        work.turns(1)
    assert work.service.status.suspended_names == ["d0"]
    assert counts_of(work.store, campaign, 1) == {FUEL: [0, 1, 0, 0]}


def test_what_a_broker_kept_for_long_is_no_flood(store: Store, key: DeviceKey) -> None:
    """A collector comes back after days. Its devices sent every report again and again, and did
    nothing wrong: each of their reports is counted (F1). One turn alone holds more repetitions of
    a device than a window allows."""
    rounds, copies = 100, 9
    campaign = store.open_campaign(three_questions(count=rounds), FIRST)
    work = service_in_memory(store, key, timing=QUICK, broker=MemoryBroker(batch=400))
    for number in range(rounds):
        work.send(reports(campaign, range(2), number=number) * copies)
    work.time.now = FIRST + rounds * HOUR
    work.turns(rounds, apart=0.1)
    assert work.store.received() == 2 * copies * rounds
    assert work.store.outcomes() == {
        Outcome.ACCEPTED: 2 * rounds,
        Outcome.DUPLICATE: 2 * (copies - 1) * rounds,
    }
    assert work.service.status.suspended == 0


def test_a_counted_report_pays_for_its_repetitions_and_no_more(guard: FloodGuard) -> None:
    guard.credit(["a", "b"])
    guard.waste([sent("a"), sent("b")] * 200)
    assert not guard.suspended
    guard.waste([sent("a")])
    assert guard.suspended == {"a"}


def test_a_suspended_device_can_still_ask_to_be_forgotten(
    work: ServiceInMemory, campaign: Campaign
) -> None:
    work.send(reports(campaign, range(1)) * 300)
    work.turns(2)
    assert work.service.status.suspended_names == ["d0"]
    work.send([forget(campaign, "d0")])
    work.turns(1)
    assert counts_of(work.store, campaign, 0) == {}
    assert work.store.requests() == {"done": 1}


def test_a_flood_of_requests_suspends_too(work: ServiceInMemory, campaign: Campaign) -> None:
    work.send([forget(campaign, "d0")] * 300)
    work.turns(2)
    assert work.service.status.suspended_names == ["d0"]


def test_a_revoked_device_is_not_suspended_as_well(
    work: ServiceInMemory, store: SqliteStore, campaign: Campaign
) -> None:
    with closing(SqliteStore(store.path)) as elsewhere:
        elsewhere.revoke("d0", FIRST)
    work.send(reports(campaign, range(1)) * 300)
    work.turns(2)
    assert work.store.outcomes() == {Outcome.REVOKED: 300}
    assert work.service.status.suspended == 0


def test_a_device_that_stops_is_taken_as_before(work: ServiceInMemory, campaign: Campaign) -> None:
    work.send(reports(campaign, range(1)) * 300)
    work.turns(2)
    work.time.pass_time(60.0)
    work.turns(1)
    assert work.service.status.suspended == 0
    work.send(reports(campaign, range(1)) * 20)
    work.turns(1)
    assert work.store.outcomes() == {Outcome.ACCEPTED: 1, Outcome.DUPLICATE: 319}
