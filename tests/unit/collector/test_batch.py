"""A batch: everything has one outcome, then a receipt; a device that floods is suspended (A8)."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from collector import ingest
from collector.data_dir import DeviceKey
from collector.errors import StorageFailure
from collector.health import Status
from collector.ingest.batch import Ingest, relax_garbage_collector
from collector.ingest.flood import LOOKED_AT, MOST_SUSPENDED, FloodGuard
from collector.links import BATCH, Message
from collector.records import Campaign
from collector.store import ReceiptKind, Store
from collector.store.sqlite import SqliteStore
from collector.timing import DEFAULT_TIMING, Clock, Timing
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
    open_campaigns,
    reports,
    service_in_memory,
    three_questions,
)
from tests.support.databases import FullDisk, snapshot

MANIFEST = three_questions()
GOOD, OTHER = message(MANIFEST, "d0", body=b"\1"), message(MANIFEST, "d1", number=1, body=b"\2")
BAD = [Message(None, b""), Message("x", b""), Message(GOOD.topic, b"")]
NOW = FIRST + 3601.0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FullDisk]:
    made = FullDisk(tmp_path / "collector.db")
    made.open_campaign(MANIFEST, FIRST)
    yield made
    made.close()


@pytest.fixture
def campaign(disk: FullDisk) -> Campaign:
    return disk.campaign(None)


@pytest.fixture
def known(disk: FullDisk, key: DeviceKey) -> ingest.OpenCampaigns:
    return open_campaigns(disk.campaign(None), key)


def test_every_message_has_one_outcome_and_what_was_counted_a_receipt(
    disk: FullDisk, known: ingest.OpenCampaigns
) -> None:
    disk.enlist("")
    disk.lead(10.0)
    disk.fresh_receipts()
    counted = ingest.count([GOOD, *BAD, OTHER, GOOD], disk, known, NOW)
    assert list(counted.outcomes) == [Outcome.ACCEPTED, Outcome.ACCEPTED, Outcome.DUPLICATE]
    assert (counted.received, counted.refused, counted.accepted) == (6, 3, 2)
    assert disk.outcomes() == {
        Outcome.ACCEPTED: 2,
        Outcome.DUPLICATE: 1,
        Outcome.TOPIC_MISMATCH: 2,
        Outcome.MALFORMED: 1,
    }
    assert [(each.kind, len(each.tags)) for each in disk.fresh_receipts()] == [
        (ReceiptKind.COUNTED, 1),
        (ReceiptKind.COUNTED, 1),
        (ReceiptKind.REPEATED, 1),
    ]
    ingest.count(BAD, disk, known, NOW)
    assert disk.fresh_receipts() == []


# --- the next batch, decided on while this one is committed --------------------------------------
class Taking:
    """Batches, and a time of day that can be set."""

    def __init__(self, disk: FullDisk, known: ingest.OpenCampaigns) -> None:
        self.now, self.disk, self.status = NOW, disk, Status()
        clock = Clock(now=lambda: self.now)
        self.guard = FloodGuard(clock, DEFAULT_TIMING)
        self.ingest = Ingest(disk, known, self.guard, self.status, clock.now, lambda _: None)

    def take(self, *batch: Message) -> dict[Outcome, int]:
        self.ingest.commit(list(batch))
        return self.disk.outcomes()


@pytest.fixture
def taking(disk: FullDisk, known: ingest.OpenCampaigns) -> Taking:
    return Taking(disk, known)


def test_a_batch_is_held_until_the_disk_takes_it(taking: Taking) -> None:
    """Also messages whose topic is not text, which are neither reports nor requests."""
    status, batch = taking.status, [GOOD, *BAD]
    before = snapshot(taking.disk)
    taking.disk.full = True
    for _ in range(3):
        with pytest.raises(StorageFailure):
            taking.ingest.commit(batch)
        assert taking.ingest.held == batch
    assert status.received == 0
    assert snapshot(taking.disk) == before
    taking.disk.full = False
    taking.ingest.commit(taking.ingest.held)
    assert taking.ingest.held == []
    assert (status.received, status.accepted, status.batches, status.largest_batch) == (4, 1, 1, 4)


def test_a_batch_is_decided_on_once(taking: Taking) -> None:
    """At the time at which it was read, however long the storage took over the one before."""
    taking.now = FIRST - 1.0
    taking.ingest.decide_prefetched([GOOD])
    taking.now = NOW
    assert taking.take(GOOD) == {Outcome.EARLY: 1}
    assert taking.take(GOOD) == {Outcome.EARLY: 1, Outcome.ACCEPTED: 1}, "that was once"
    taking.now = FIRST - 1.0
    taking.ingest.decide_prefetched([GOOD, OTHER])
    taking.now = NOW
    again = {Outcome.EARLY: 1, Outcome.ACCEPTED: 1, Outcome.DUPLICATE: 1}
    assert taking.take(GOOD) == again, "another batch than the expected is decided on"


def test_a_device_that_is_revoked_or_suspended_meanwhile_is_not_counted(
    taking: Taking, key: DeviceKey
) -> None:
    taking.ingest.decide_prefetched([GOOD, OTHER])
    campaign = taking.disk.campaign(None)
    taking.ingest.campaigns = open_campaigns(campaign, key, "d0")
    assert taking.take(GOOD, OTHER) == {Outcome.REVOKED: 1, Outcome.ACCEPTED: 1}
    taking.ingest.campaigns = open_campaigns(campaign, key)
    taking.ingest.decide_prefetched([GOOD] * 20)
    taking.guard.waste([GOOD] * (3 * DEFAULT_TIMING.flood_messages))
    assert taking.guard.suspended == {"d0"}
    outcomes = taking.take(*[GOOD] * 20)
    assert (outcomes[Outcome.ACCEPTED], outcomes[Outcome.SUSPENDED]) == (2, 19)


def test_requests_are_no_reports_in_the_next_batch_either(taking: Taking) -> None:
    assert GOOD.topic is not None
    request = Message(GOOD.topic.replace("/report", "/request"), b"")
    taking.ingest.decide_prefetched([GOOD, request, OTHER])
    assert taking.take(GOOD, request, OTHER) == {Outcome.ACCEPTED: 2}
    assert sum(taking.disk.requests().values()) == 1


# --- a whole batch is counted without one search for garbage --------------------------------------
def test_a_batch_is_counted_without_a_search_for_garbage(
    disk: FullDisk, known: ingest.OpenCampaigns
) -> None:
    found, usual = list[str](), gc.get_threshold()

    def note(phase: str, _: object) -> None:
        found.append(phase)

    relax_garbage_collector()
    gc.collect()
    gc.callbacks.append(note)
    try:
        batch = [message(MANIFEST, f"d{i}", body=b"\1") for i in range(BATCH)]
        assert ingest.count(batch, disk, known, FIRST + 1.0).accepted == BATCH
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*usual)
    assert not found


# --- floods: the guard ----------------------------------------------------------------------------
QUICK = Timing(flood_messages=100, flood_seconds=60.0)


def sent(device: str, payload: bytes = b"") -> Message:
    return Message(f"allomfree/v1/try-00000000/up/{device}/report", payload)


@pytest.fixture
def manual_time() -> ManualTime:
    return ManualTime()


@pytest.fixture
def guard(manual_time: ManualTime) -> FloodGuard:
    made = FloodGuard(manual_time.clock(), QUICK)
    made.begin_turn()
    return made


@pytest.fixture
def work(disk: Store, campaign: Campaign, key: DeviceKey) -> ServiceInMemory:
    made = service_in_memory(disk, key, timing=QUICK)
    made.turns(1)
    return made


# --- the guard ----------------------------------------------------------------------------------
def test_as_many_as_allowed_and_one_more(guard: FloodGuard) -> None:
    """A counted report pays for its repetitions, and no more."""
    guard.waste([sent("a")] * 100)
    assert not guard.suspended
    guard.waste([sent("a"), sent("b")])
    assert guard.suspended == {"a"}
    guard.credit(["c", "d"])
    guard.waste([sent("c"), sent("d")] * 200)
    assert guard.suspended == {"a"}
    guard.waste([sent("c")])
    assert guard.suspended == {"a", "c"}


def test_a_suspension_ends_when_the_flood_does_and_is_said_once(
    guard: FloodGuard, manual_time: ManualTime, caplog: pytest.LogCaptureFixture
) -> None:
    """No name is in the log: nothing about a device ever is."""
    caplog.set_level(logging.INFO, "allomfree.collector")
    for _ in range(10):
        guard.waste([sent("kitchen-7")] * 101)
        manual_time.pass_time(30.0)
        guard.begin_turn()
        assert guard.suspended == {"kitchen-7"}
    guard.waste([sent("kitchen-7")] * 5)
    manual_time.pass_time(60.0)
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


def test_a_whole_fleet_that_repeats_itself_is_no_flood(manual_time: ManualTime) -> None:
    """A storm of 700,000 repetitions in a minute, three of each device: nobody is suspended."""
    guard = FloodGuard(manual_time.clock(), DEFAULT_TIMING)
    guard.begin_turn()
    for start in range(0, 240_000, 4_000):
        guard.waste([sent(f"d{i}") for i in range(start, start + 4_000)] * 3)
    guard.waste([sent("flooder")] * (DEFAULT_TIMING.flood_messages + 1))
    assert guard.suspended == {"flooder"}


def test_memory_is_bounded_whoever_floods(guard: FloodGuard) -> None:
    guard.waste([sent(f"d{i}") for i in range(MOST_SUSPENDED + 50) for _ in range(101)])
    assert len(guard.suspended) == MOST_SUSPENDED


def test_topics_without_a_name_are_nobodys(guard: FloodGuard) -> None:
    long = sent("x" * 10_000)
    guard.waste([Message(None, b""), Message("a/b", b""), Message("", b""), long] * 500)
    assert not guard.suspended


# --- the service --------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["same", "malformed", "conflict", "other campaign", "requests"])
def test_a_flooder_is_suspended_and_others_are_counted(
    work: ServiceInMemory, campaign: Campaign, kind: str
) -> None:
    (good,) = reports(campaign, range(1))
    flood = {
        "same": [good] * 300,
        "malformed": [Message(good.topic, i.to_bytes(2)) for i in range(300)],
        "conflict": [message(campaign.manifest, "d0", body=bytes([i % 4])) for i in range(300)],
        "other campaign": [sent("d0")] * 300,
        "requests": [forget(campaign, "d0")] * 300,
    }[kind]
    work.send(flood)
    work.turns(2)
    assert work.service.status.suspended_names == ["d0"]
    for turn in range(3):
        work.send([*flood, *reports(campaign, range(10 * turn + 10, 10 * turn + 20)), *flood])
        work.turns(1)
    outcomes = work.store.outcomes()
    assert outcomes[Outcome.ACCEPTED] in (30, 31)
    assert sum(outcomes.values()) == work.store.received()
    assert work.store.received() == (30 if kind == "requests" else 300 * 7 + 30)
    if kind in ("same", "malformed", "conflict"):  # the others are refused as cheaply
        assert outcomes[Outcome.SUSPENDED] >= 1800 - 3 * LOOKED_AT
    work.time.pass_time(60.0)
    work.turns(1)
    assert work.service.status.suspended == 0, "a device that stops is counted as before"


def test_the_first_report_of_a_round_and_a_request_are_taken_while_suspended(
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
    work.send([forget(campaign, "d0")])
    work.turns(1)
    assert counts_of(work.store, campaign, 0) == {}
    assert work.store.requests() == {"done": 1}


def test_what_a_broker_kept_for_long_is_no_flood(disk: Store, key: DeviceKey) -> None:
    """A collector comes back after days. Its devices sent every report again and again, and did
    nothing wrong: each of their reports is counted (F1). One turn alone holds more repetitions of
    a device than a window allows."""
    rounds, copies = 100, 9
    campaign = disk.open_campaign(three_questions(count=rounds), FIRST)
    work = service_in_memory(disk, key, timing=QUICK, broker=MemoryBroker(batch=400))
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


def test_a_revoked_device_is_not_suspended_as_well(
    work: ServiceInMemory, disk: SqliteStore, campaign: Campaign
) -> None:
    with closing(SqliteStore(disk.path)) as elsewhere:
        elsewhere.revoke("d0", FIRST)
    work.send(reports(campaign, range(1)) * 300)
    work.turns(2)
    assert work.store.outcomes() == {Outcome.REVOKED: 300}
    assert work.service.status.suspended == 0
