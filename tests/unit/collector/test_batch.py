"""`ingest.count` and the batches it is used for: everything has one outcome, and then a receipt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from collector import ingest
from collector.data_dir import DeviceKey
from collector.errors import StorageFailure
from collector.health import Status
from collector.ingest.batch import Ingest
from collector.ingest.flood import FloodGuard
from collector.links import Message
from collector.store import ReceiptKind
from collector.timing import USUAL, Clock
from protocol_spec import Outcome
from tests.support.collector import (
    FIRST,
    FUEL,
    counts_of,
    message,
    open_campaigns,
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
def known(disk: FullDisk, key: DeviceKey) -> ingest.OpenCampaigns:
    return open_campaigns(disk.campaign(None), key)


def test_every_message_has_one_outcome(disk: FullDisk, known: ingest.OpenCampaigns) -> None:
    counted = ingest.count([GOOD, *BAD, OTHER, GOOD], disk, known, NOW)
    told = [Outcome.ACCEPTED, Outcome.ACCEPTED, Outcome.DUPLICATE]
    assert list(counted.outcomes) == told
    assert (counted.received, counted.refused, counted.accepted) == (6, 3, 2)
    assert disk.received() == 6
    assert disk.outcomes() == {
        Outcome.ACCEPTED: 2,
        Outcome.DUPLICATE: 1,
        Outcome.TOPIC_MISMATCH: 2,
        Outcome.MALFORMED: 1,
    }


def test_only_what_was_counted_gets_a_receipt(disk: FullDisk, known: ingest.OpenCampaigns) -> None:
    disk.enlist("")
    disk.lead(10.0)
    disk.fresh_receipts()
    kinds = []
    for batch in ([GOOD, *BAD], [GOOD], BAD):
        ingest.count(batch, disk, known, NOW)
        kinds.append([(each.kind, len(each.tags)) for each in disk.fresh_receipts()])
    assert kinds == [[(ReceiptKind.COUNTED, 1)], [(ReceiptKind.REPEATED, 1)], []]


def test_a_full_disk_changes_nothing(disk: FullDisk, known: ingest.OpenCampaigns) -> None:
    before = snapshot(disk)
    disk.full = True
    with pytest.raises(StorageFailure):
        ingest.count([GOOD, *BAD], disk, known, NOW)
    assert snapshot(disk) == before


def test_a_batch_is_held_until_the_disk_takes_it(
    disk: FullDisk, known: ingest.OpenCampaigns
) -> None:
    """Also messages whose topic is not text, which are neither reports nor requests."""
    status = Status()
    clock = Clock(now=lambda: NOW)
    guard = FloodGuard(clock, USUAL)
    taking = Ingest(disk, known, guard, status, clock.now, lambda _: None)
    batch = [GOOD, *BAD]
    disk.full = True
    for _ in range(3):
        with pytest.raises(StorageFailure):
            taking.commit(batch)
        assert taking.held == batch
    assert status.received == 0
    disk.full = False
    taking.commit(taking.held)
    assert taking.held == []
    assert (status.received, status.accepted, status.batches, status.largest_batch) == (4, 1, 1, 4)
    assert counts_of(disk, disk.campaign(None), 0) == {FUEL: [0, 1, 0, 0]}


# --- the next batch, decided on while this one is committed --------------------------------------


class Taking:
    """Batches, and a time of day that can be set."""

    def __init__(self, disk: FullDisk, known: ingest.OpenCampaigns) -> None:
        self.now, self.disk, self.status = NOW, disk, Status()
        clock = Clock(now=lambda: self.now)
        self.guard = FloodGuard(clock, USUAL)
        self.ingest = Ingest(disk, known, self.guard, self.status, clock.now, lambda _: None)

    def take(self, *batch: Message) -> dict[Outcome, int]:
        self.ingest.commit(list(batch))
        return self.disk.outcomes()


@pytest.fixture
def taking(disk: FullDisk, known: ingest.OpenCampaigns) -> Taking:
    return Taking(disk, known)


def test_a_batch_is_decided_on_once(taking: Taking) -> None:
    """At the time at which it was read, however long the storage took over the one before."""
    taking.now = FIRST - 1.0
    taking.ingest.prepare([GOOD])
    taking.now = NOW
    assert taking.take(GOOD) == {Outcome.EARLY: 1}
    assert taking.take(GOOD) == {Outcome.EARLY: 1, Outcome.ACCEPTED: 1}, "that was once"


def test_another_batch_than_the_expected_is_decided_on(taking: Taking) -> None:
    taking.now = FIRST - 1.0
    taking.ingest.prepare([GOOD, OTHER])
    taking.now = NOW
    assert taking.take(GOOD) == {Outcome.ACCEPTED: 1}


def test_whoever_is_revoked_meanwhile_is_not_counted(taking: Taking, key: DeviceKey) -> None:
    taking.ingest.prepare([GOOD, OTHER])
    campaign = taking.disk.campaign(None)
    taking.ingest.campaigns = open_campaigns(campaign, key, "d0")
    assert taking.take(GOOD, OTHER) == {Outcome.REVOKED: 1, Outcome.ACCEPTED: 1}


def test_whoever_is_suspended_meanwhile_is_not_counted(taking: Taking) -> None:
    taking.take(GOOD)
    taking.ingest.prepare([GOOD] * 20)
    taking.guard.waste([GOOD] * (3 * USUAL.flood_messages))
    assert taking.guard.suspended == {"d0"}
    told = taking.take(*[GOOD] * 20)
    assert told == {Outcome.ACCEPTED: 1, Outcome.DUPLICATE: 1, Outcome.SUSPENDED: 19}


def test_requests_are_no_reports_in_the_next_batch_either(taking: Taking) -> None:
    assert GOOD.topic is not None
    request = Message(GOOD.topic.replace("/report", "/request"), b"")
    taking.ingest.prepare([GOOD, request, OTHER])
    assert taking.take(GOOD, request, OTHER) == {Outcome.ACCEPTED: 2}
    assert sum(taking.disk.requests().values()) == 1
