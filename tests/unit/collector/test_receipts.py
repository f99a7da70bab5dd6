"""Receipt pages: every tag on its page, sorted, once; only what changed is published."""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from collector import timing as collector_timing
from collector.ingest.receipts import ReceiptPages
from collector.records import Campaign
from collector.store import ReceiptBatch, ReceiptKind
from edge_client import records as edge_timing
from edge_client.delivery import CampaignQueue
from edge_client.records import Membership, Queued, Trace
from protocol_spec import (
    Manifest,
    ReceiptPage,
    Topics,
    decode_receipts,
    digest8,
    hashed_for_tag,
)
from protocol_spec.limits import MAX_RECEIPT_BYTES, PAGE_TAGS, TAG_BYTES
from tests.support.collector import FIRST, FUEL, HOUR, tags_of, three_questions

CAMPAIGN = Campaign(5, three_questions(), FIRST, None)
TOPICS = Topics(CAMPAIGN.name)


def pages_with(*tags: int, page: int = 3) -> ReceiptPages:
    made = ReceiptPages("allomfree")
    for tag in tags:
        made.add(CAMPAIGN.id, 0, [page], [tag])
    return made


def read(data: bytes) -> ReceiptPage:
    page = decode_receipts(data)
    assert isinstance(page, ReceiptPage)
    return page


def test_a_page_is_what_the_protocol_says() -> None:
    pages = tags_of(pages_with(0xFFFFFFFF, 1, 0x80, 1), CAMPAIGN)
    tags = frozenset(tag.to_bytes(4) for tag in (1, 0x80, 0xFFFFFFFF))
    expected = ReceiptPage(digest8(CAMPAIGN.manifest), 0, 3, tags)
    assert pages == {TOPICS.receipt(0, 3): expected.encode()}


def test_only_changed_pages_are_published() -> None:
    made = pages_with(1, page=1)
    made.add(CAMPAIGN.id, 0, [2], [7])
    made.add(CAMPAIGN.id, 1, [2], [8])
    assert len(tags_of(made, CAMPAIGN)) == 3
    assert tags_of(made, CAMPAIGN) == {}
    made.add(CAMPAIGN.id, 0, [1], [9])
    (data,) = tags_of(made, CAMPAIGN).values()
    assert len(read(data).tags) == 2
    made.publish_again()
    assert len(tags_of(made, CAMPAIGN)) == 3


def repeat(pages: ReceiptPages, *tags: int) -> None:
    again = np.array([3] * len(tags), np.uint32), np.array(tags, np.uint32)
    pages.apply([ReceiptBatch(ReceiptKind.REPEATED, CAMPAIGN.id, 0, *again)])


def remove(pages: ReceiptPages, page: int, tag: int) -> None:
    gone = np.array([page], np.uint32), np.array([tag], np.uint32)
    pages.apply([ReceiptBatch(ReceiptKind.WITHDRAWN, CAMPAIGN.id, 0, *gone)])


def test_a_repeated_report_does_not_publish_a_page_that_it_is_on() -> None:
    """510 bytes of repeated reports made 23 kB for every reader of the page (A7)."""
    made = pages_with(*range(1000))
    repeat(made, 7)
    assert len(tags_of(made, CAMPAIGN)) == 1, "not published yet"
    for _ in range(20):
        repeat(made, 7, 8)
        assert tags_of(made, CAMPAIGN) == {}
    made.publish_again()
    assert len(tags_of(made, CAMPAIGN)) == 1, "on a new connection"


def taken_at(pages: ReceiptPages, now: float) -> list[int]:
    """How many tags each published page has."""
    taken = pages.take({CAMPAIGN.id: CAMPAIGN}, 100, now, bytes_per_second=1000.0)
    return [len(read(data).tags) for _, _, data in taken]


def test_a_large_page_is_published_less_often_than_a_small_one() -> None:
    """Every report changes its page, and the page goes to all who share it (A7)."""
    large, small = pages_with(*range(1000)), pages_with(0)
    assert (taken_at(large, 100.0), taken_at(small, 100.0)) == ([1000], [1])
    for made in (large, small):
        made.add(CAMPAIGN.id, 0, [3], [5000])
    assert (taken_at(large, 101.0), taken_at(small, 101.0)) == ([], [2])
    assert (taken_at(large, 103.9), taken_at(large, 104.1)) == ([], [1001])
    large.add(CAMPAIGN.id, 0, [3], [5001])
    large.publish_again()
    assert taken_at(large, 104.2) == [1002], "on a new connection at once"


def test_the_largest_page_comes_before_a_device_sends_again() -> None:
    largest = PAGE_TAGS * TAG_BYTES / collector_timing.USUAL.receipt_bytes_per_second
    waits = largest + collector_timing.USUAL.receipts_every_seconds
    assert waits < edge_timing.Timing().resend


def test_a_page_of_all_devices_never_exceeds_its_limit_and_leaves_nobody_out() -> None:
    """270,000 devices on one page, which real agents read (F5)."""
    manifest = replace(three_questions(), receipt_pages=1)
    campaign = replace(CAMPAIGN, manifest=manifest)
    made, names = ReceiptPages("allomfree"), [f"device-{i}" for i in range(270_000)]
    hashed = hashed_for_tag(manifest, 0)
    tags = [int.from_bytes(hashed(name.encode("ascii"))[:TAG_BYTES]) for name in names]
    for tag in tags:
        made.add(campaign.id, 0, [0], [tag])
    told: list[str] = []
    agents = [waiting(manifest, names[i], told.append) for i in (0, 123_456, -1)]
    seen: set[bytes] = set()
    now, publications = 0.0, 0
    while taken := list(made.take({campaign.id: campaign}, 10, now, bytes_per_second=4096.0)):
        ((_, topic, data),) = taken
        assert len(data) <= MAX_RECEIPT_BYTES
        page = read(data)
        assert len(page.tags) <= PAGE_TAGS
        seen.update(page.tags)
        for agent in agents:
            agent.handle(topic, data)
        now, publications = now + 20.0, publications + 1
    assert publications == math.ceil(270_000 / PAGE_TAGS)
    assert seen == {tag.to_bytes(TAG_BYTES) for tag in tags}
    assert told == ["receipt seen"] * len(agents)


def waiting(manifest: Manifest, device: str, trace: Trace) -> CampaignQueue:
    """A device's report of round 0, sent, without a receipt."""
    member = Membership(
        name=manifest.campaign,
        manifest=manifest,
        broker="",
        namespace="allomfree",
        device=device,
        attribute_index=FUEL,
        status="joined",
        joined=FIRST,
        last_round=0,
        last_value=None,
        boot="",
        round_opened=0.0,
    )
    queue = CampaignQueue(member, trace)
    queue.add(Queued(manifest.campaign, 0, b"", FIRST + 10 * HOUR, FIRST, "queued"))
    return queue


def test_a_tag_that_had_to_leave_comes_back_when_its_report_does() -> None:
    """A device that was away while its tag was on the page sends again, and finds it (F5)."""
    made = pages_with(*range(PAGE_TAGS + 1))
    pages = [read(data).tags for _ in range(2) for data in tags_of(made, CAMPAIGN).values()]
    gone = (0).to_bytes(TAG_BYTES)
    assert [gone in tags for tags in pages] == [True, False]
    assert [len(tags) for tags in pages] == [PAGE_TAGS, PAGE_TAGS]
    repeat(made, 0)
    (data,) = tags_of(made, CAMPAIGN).values()
    assert gone in read(data).tags
    assert len(read(data).tags) == PAGE_TAGS
    repeat(made, 0)
    assert tags_of(made, CAMPAIGN) == {}


def test_a_removed_tag_leaves_its_page_and_no_other() -> None:
    made = pages_with(1, 2)
    made.add(CAMPAIGN.id, 0, [4], [1])
    tags_of(made, CAMPAIGN)
    made.add(CAMPAIGN.id, 0, [3], [5])
    for tag in (1, 5, 77):
        remove(made, 3, tag)
    remove(made, 9, 1)
    ((topic, data),) = tags_of(made, CAMPAIGN).items()
    assert (topic, read(data).tags) == (TOPICS.receipt(0, 3), {(2).to_bytes(4)})
    repeat(made, 2)
    remove(made, 3, 2)
    (data,) = tags_of(made, CAMPAIGN).values()
    assert read(data).tags == frozenset(), "an empty page is published too"
    remove(made, 3, 2)
    assert tags_of(made, CAMPAIGN) == {}


STEPS = ["add", "repeat", "remove", "take"]


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 9))))
def test_a_page_holds_what_was_counted_and_not_removed(steps: list[tuple[str, int]]) -> None:
    made, counted = pages_with(), set[int]()
    shown: frozenset[bytes] | Set[bytes] = frozenset()
    for step, tag in [*steps, ("take", 0)]:
        if step == "add" and tag not in counted:
            made.add(CAMPAIGN.id, 0, [3], [tag])
            counted.add(tag)
        elif step == "repeat" and tag in counted:
            repeat(made, tag)
        elif step == "remove":
            remove(made, 3, tag)
            counted.discard(tag)
        elif step == "take":
            for data in tags_of(made, CAMPAIGN).values():
                shown = read(data).tags
            assert shown == {tag.to_bytes(4) for tag in counted}


def test_as_many_pages_at_once_as_may_be_in_flight() -> None:
    made = ReceiptPages("allomfree")
    for page in range(10):
        made.add(CAMPAIGN.id, 0, [page], [page])
    known = {CAMPAIGN.id: CAMPAIGN}
    taken = [[topic for _, topic, _ in made.take(known, 4)] for _ in range(4)]
    assert [len(pages) for pages in taken] == [4, 4, 2, 0]
    assert len({topic for pages in taken for topic in pages}) == 10
    assert list(made.take(known, 0)) == []


def test_a_forgotten_round_is_not_published() -> None:
    made = pages_with(1)
    made.add(CAMPAIGN.id, 1, [3], [2])
    made.forget(CAMPAIGN.id, 0)
    assert list(tags_of(made, CAMPAIGN)) == [TOPICS.receipt(1, 3)]
    made.publish_again()
    assert list(tags_of(made, CAMPAIGN)) == [TOPICS.receipt(1, 3)]


def test_a_withdrawn_tag_leaves_its_page_even_when_it_was_alone() -> None:
    made = pages_with(1, page=1)
    made.add(CAMPAIGN.id, 0, [5], [6])
    made.add(CAMPAIGN.id, 0, [2], [7])
    made.add(CAMPAIGN.id, 0, [2], [8])
    tags_of(made, CAMPAIGN)
    remove(made, 1, 1)
    remove(made, 2, 7)
    pages = tags_of(made, CAMPAIGN)
    assert len(pages) == 2, "the others did not change"
    assert read(pages[TOPICS.receipt(0, 1)]).tags == frozenset()
    assert read(pages[TOPICS.receipt(0, 2)]).tags == {(8).to_bytes(4)}


def test_a_page_of_a_thousand_devices_takes_four_kilobytes() -> None:
    (data,) = tags_of(pages_with(*range(0, 4_000_000_000, 4_000_000)), CAMPAIGN).values()
    assert len(read(data).tags) == 1000
    assert len(data) < 4100
