"""`ingest.count` and the batches it is used for: everything has one outcome, and then a receipt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from collector import ingest
from collector.device_key import DeviceKey
from collector.errors import StorageFailure
from collector.health import Status
from collector.ingest.batch import Ingest
from collector.ingest.flood import FloodGuard
from collector.ingest.receipts import ReceiptPages
from collector.links import Message
from collector.timing import USUAL, Clock
from protocol_spec import Outcome
from protocol_spec.programs.memory_broker import MemoryBroker
from tests.support.collector import (
    FIRST,
    FUEL,
    counts_of,
    message,
    open_campaigns,
    tags_of,
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
    pages = ReceiptPages("allomfree")
    ingest.count([GOOD, *BAD], disk, known, NOW, pages)
    assert len(tags_of(pages, disk.campaign(None))) == 1
    ingest.count([GOOD], disk, known, NOW, pages)
    assert tags_of(pages, disk.campaign(None)) == {}, "seen again: it stands there"
    ingest.count(BAD, disk, known, NOW, pages)
    assert tags_of(pages, disk.campaign(None)) == {}


def test_a_full_disk_changes_nothing_and_gives_no_receipt(
    disk: FullDisk, known: ingest.OpenCampaigns
) -> None:
    pages, before = ReceiptPages("allomfree"), snapshot(disk)
    disk.full = True
    with pytest.raises(StorageFailure):
        ingest.count([GOOD, *BAD], disk, known, NOW, pages)
    assert snapshot(disk) == before
    assert tags_of(pages, disk.campaign(None)) == {}


def test_a_batch_is_held_until_the_disk_takes_it(
    disk: FullDisk, known: ingest.OpenCampaigns
) -> None:
    """Also messages whose topic is not text, which are neither reports nor requests."""
    link, status = MemoryBroker().connect("collector"), Status()
    clock = Clock(now=lambda: NOW)
    pages, guard = ReceiptPages("allomfree"), FloodGuard(clock, USUAL)
    taking = Ingest(disk, known, pages, guard, status, clock.now, lambda _: None)
    batch = [GOOD, *BAD]
    disk.full = True
    for _ in range(3):
        with pytest.raises(StorageFailure):
            taking.take(link, batch)
        assert taking.held == batch
    assert status.received == 0
    disk.full = False
    taking.take(link, taking.held)
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
        pages, self.link = ReceiptPages("allomfree"), MemoryBroker().connect("collector")
        self.ingest = Ingest(disk, known, pages, self.guard, self.status, clock.now, lambda _: None)

    def take(self, *batch: Message) -> dict[Outcome, int]:
        self.ingest.take(self.link, list(batch))
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
