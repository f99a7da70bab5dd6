"""Receipt pages: every tag on its page, once, and only what changed is published."""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector import timing as collector_timing
from collector.data_dir import DeviceKey
from collector.ingest.receipts import ReceiptPages
from collector.links import WINDOW
from collector.records import Campaign
from collector.store import ReceiptBatch, ReceiptKind, Store
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
from protocol_spec.programs.memory_broker import MemoryBroker
from tests.support.collector import (
    FIRST,
    FUEL,
    HOUR,
    ServiceInMemory,
    page_of,
    reports,
    service_in_memory,
    tags_on,
    three_questions,
)

CAMPAIGN = Campaign(5, three_questions(), FIRST, None)
TOPICS = Topics(CAMPAIGN.name)


EVERY = collector_timing.DEFAULT_TIMING.receipts_every_seconds


def pages_with(*tags: int, page: int = 3, number: int = 0) -> ReceiptPages:
    made = ReceiptPages("allomfree")
    change(made, ReceiptKind.COUNTED, *tags, page=page, number=number)
    return made


def change(
    pages: ReceiptPages, kind: ReceiptKind, *tags: int, page: int = 3, number: int = 0
) -> None:
    """As the store reports it: counted, repeated or withdrawn."""
    places = np.array([page] * len(tags), np.uint32), np.array(tags, np.uint32)
    pages.apply([ReceiptBatch(kind, CAMPAIGN.id, number, *places)])


def count(pages: ReceiptPages, *tags: int, page: int = 3, number: int = 0) -> None:
    change(pages, ReceiptKind.COUNTED, *tags, page=page, number=number)


def tags_of(pages: ReceiptPages, limit: int = 1000, now: float = 0.0) -> dict[str, bytes]:
    """Every page that would be published now, by topic."""
    taken = pages.take({CAMPAIGN.id: CAMPAIGN}, limit, now, next_at=now)
    return {topic: message for _, topic, message in taken}


def read(data: bytes) -> ReceiptPage:
    page = decode_receipts(data)
    assert isinstance(page, ReceiptPage)
    return page


def test_a_page_is_what_the_protocol_says() -> None:
    pages = tags_of(pages_with(0xFFFFFFFF, 1, 0x80, 1))
    tags = frozenset(tag.to_bytes(4) for tag in (1, 0x80, 0xFFFFFFFF))
    expected = ReceiptPage(digest8(CAMPAIGN.manifest), 0, 3, tags)
    assert pages == {TOPICS.receipt(0, 3): expected.encode()}


def test_only_changed_pages_are_published() -> None:
    made = pages_with(1, page=1)
    count(made, 7, page=2)
    count(made, 8, page=2, number=1)
    assert len(tags_of(made)) == 3
    assert tags_of(made) == {}
    count(made, 9, page=1)
    (data,) = tags_of(made).values()
    assert len(read(data).tags) == 2
    made.publish_again()
    assert len(tags_of(made)) == 3


def repeat(pages: ReceiptPages, *tags: int) -> None:
    change(pages, ReceiptKind.REPEATED, *tags)


def test_a_repeated_report_does_not_publish_a_page_that_it_is_on() -> None:
    """510 bytes of repeated reports made 23 kB for every reader of the page (A7)."""
    made = pages_with(*range(PAGE_TAGS))
    repeat(made, 7)
    assert len(tags_of(made)) == 1, "not published yet"
    for _ in range(20):
        repeat(made, 7, 8)
        assert tags_of(made) == {}
    made.publish_again()
    assert len(tags_of(made)) == 1, "on a new connection"


def test_a_page_that_changes_all_the_time_is_published_now_and_then() -> None:
    """Every report changes its page (A7)."""
    made, known = pages_with(0), {CAMPAIGN.id: CAMPAIGN}
    sizes = []
    for second in range(1, 9):
        taken = made.take(known, 100, float(second), next_at=second + EVERY)
        sizes.append([len(read(data).tags) for _, _, data in taken])
        count(made, second)
    assert sizes == [[1], [], [3], [], [5], [], [7], []]
    made.publish_again()
    assert [len(read(data).tags) for data in tags_of(made).values()] == [9], "at once"


def test_a_page_comes_before_its_device_looks_and_that_before_it_sends_again() -> None:
    waits = edge_timing.Timing()
    assert EVERY < waits.receipt_seconds < waits.resend_seconds / 2


def test_a_page_of_all_devices_never_exceeds_its_limit_and_leaves_nobody_out() -> None:
    """270,000 devices on one page, which real agents read (F5)."""
    manifest = replace(three_questions(), receipt_pages=1)
    campaign = replace(CAMPAIGN, manifest=manifest)
    made, names = ReceiptPages("allomfree"), [f"device-{i}" for i in range(270_000)]
    hashed = hashed_for_tag(manifest, 0)
    tags = [int.from_bytes(hashed(name.encode("ascii"))[:TAG_BYTES]) for name in names]
    made.load(campaign.id, 0, ((0, tag) for tag in tags))
    traced: list[str] = []
    agents = [waiting(manifest, names[i], traced.append) for i in (0, 123_456, -1)]
    seen: set[bytes] = set()
    now, publications = 0.0, 0
    while taken := list(made.take({campaign.id: campaign}, 10, now, next_at=now + EVERY)):
        ((_, topic, data),) = taken
        assert len(data) <= MAX_RECEIPT_BYTES
        page = read(data)
        assert len(page.tags) <= PAGE_TAGS
        seen.update(page.tags)
        for agent in agents:
            agent.handle(topic, data, now)
        now, publications = now + EVERY, publications + 1
    assert publications == math.ceil(270_000 / PAGE_TAGS)
    assert seen == {tag.to_bytes(TAG_BYTES) for tag in tags}
    assert traced == ["receipt seen"] * len(agents)


def waiting(manifest: Manifest, device: str, trace: Trace) -> CampaignQueue:
    """A device's report of round 0, sent, without a receipt."""
    joined = Membership(
        manifest.campaign,
        manifest,
        "",
        "allomfree",
        device,
        FUEL,
        "joined",
        FIRST,
        0,
        None,
        "",
        0.0,
    )
    queue = CampaignQueue(joined, trace)
    queue.add(Queued(manifest.campaign, 0, b"", FIRST + 10 * HOUR, FIRST, "queued"))
    return queue


def test_a_tag_that_had_to_leave_comes_back_when_its_report_does() -> None:
    """A device that was away while its tag was on the page sends again, and finds it (F5)."""
    made = pages_with(*range(PAGE_TAGS + 1))
    pages = [read(data).tags for _ in range(2) for data in tags_of(made).values()]
    gone = (0).to_bytes(TAG_BYTES)
    assert [gone in tags for tags in pages] == [True, False]
    assert [len(tags) for tags in pages] == [PAGE_TAGS, PAGE_TAGS]
    repeat(made, 0)
    (data,) = tags_of(made).values()
    assert gone in read(data).tags
    assert len(read(data).tags) == PAGE_TAGS
    repeat(made, 0)
    assert tags_of(made) == {}


STEPS = ["add", "repeat", "remove", "take"]


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 9))))
def test_a_page_holds_what_was_counted_and_not_removed(steps: list[tuple[str, int]]) -> None:
    made, counted = pages_with(), set[int]()
    shown: frozenset[bytes] | Set[bytes] = frozenset()
    for step, tag in [*steps, ("take", 0)]:
        if step == "add" and tag not in counted:
            count(made, tag)
            counted.add(tag)
        elif step == "repeat" and tag in counted:
            repeat(made, tag)
        elif step == "remove":
            change(made, ReceiptKind.WITHDRAWN, tag)
            counted.discard(tag)
        elif step == "take":
            for data in tags_of(made).values():
                shown = read(data).tags
            assert shown == {tag.to_bytes(4) for tag in counted}


def test_as_many_pages_at_once_as_may_be_in_flight() -> None:
    made = ReceiptPages("allomfree")
    for page in range(10):
        count(made, page, page=page)
    taken = [list(tags_of(made, limit=4)) for _ in range(4)]
    assert [len(pages) for pages in taken] == [4, 4, 2, 0]
    assert len({topic for pages in taken for topic in pages}) == 10


def test_a_forgotten_round_is_not_published() -> None:
    made = pages_with(1)
    count(made, 2, number=1)
    made.forget(CAMPAIGN.id, 0)
    assert list(tags_of(made)) == [TOPICS.receipt(1, 3)]
    made.publish_again()
    assert list(tags_of(made)) == [TOPICS.receipt(1, 3)]


# --- the service: pages that a broker refuses, or has to delete -----------------------------------
PAGES = 1000


class Strict(MemoryBroker):
    """A broker that can be told what to refuse."""

    def __init__(self) -> None:
        super().__init__(refuse=self._refusal)
        self.refused = ""
        self.asked: list[str] = []

    def _refusal(self, topic: str) -> str | None:
        self.asked.append(topic)
        return "Not authorized" if self.refused and self.refused in topic else None


@pytest.fixture
def many_pages(store: Store) -> Campaign:
    manifest = replace(three_questions(), receipt_pages=PAGES)
    return store.open_campaign(manifest, FIRST)


@pytest.fixture
def strict() -> Strict:
    return Strict()


@pytest.fixture
def work(store: Store, many_pages: Campaign, key: DeviceKey, strict: Strict) -> ServiceInMemory:
    return service_in_memory(store, key, broker=strict)


def past(work: ServiceInMemory, campaign: Campaign) -> None:
    """Count three reports, seal their round, and let the time of its receipts pass."""
    work.send(reports(campaign, range(3)))
    work.turns(6)
    work.time.now = campaign.manifest.rounds.deadline(0) + 1.0
    work.turns(6)
    work.time.now = float(campaign.manifest.rounds.deadline(0) + HOUR)


def old_pages(work: ServiceInMemory, campaign: Campaign) -> list[str]:
    root = Topics(campaign.name).receipt_root
    return [topic for topic in work.broker.retained if topic.startswith(f"{root}0/")]


def is_marked(work: ServiceInMemory, campaign: Campaign) -> bool:
    return 0 not in work.store.clearable_receipts(campaign.id)


def test_old_pages_are_cleared_within_the_window(
    work: ServiceInMemory, many_pages: Campaign, strict: Strict
) -> None:
    """65,536 at once took memory, and used packet numbers twice (A5)."""
    past(work, many_pages)
    assert len(old_pages(work, many_pages)) == 3
    for _ in range(40):
        strict.asked.clear()
        work.turns(1)
        assert len(strict.asked) <= WINDOW
    assert old_pages(work, many_pages) == []
    cleared = {topic for topic, payload in work.published if not payload}
    assert cleared == {Topics(many_pages.name).receipt(0, page) for page in range(PAGES)}
    assert is_marked(work, many_pages)


def test_a_round_is_marked_when_the_broker_has_deleted_all_of_it(
    work: ServiceInMemory, many_pages: Campaign, strict: Strict
) -> None:
    past(work, many_pages)
    strict.refused = "/receipt/0/"
    work.turns(40)
    strict.asked.clear()
    work.turns(20)
    assert not [topic for topic in strict.asked if "/receipt/0/" in topic], "not all the time"
    assert len(old_pages(work, many_pages)) == 3
    assert not is_marked(work, many_pages)
    strict.refused = ""
    work.turns(60)
    assert old_pages(work, many_pages) == []
    assert is_marked(work, many_pages)


def test_clearing_goes_on_after_a_lost_connection_and_after_a_restart(
    work: ServiceInMemory, many_pages: Campaign, strict: Strict, key: DeviceKey
) -> None:
    past(work, many_pages)
    work.turns(4)
    assert not is_marked(work, many_pages)
    strict.cut()
    work.turns(4)
    assert not is_marked(work, many_pages)
    again = service_in_memory(work.store, key, broker=strict)
    again.time.now = work.time.now
    again.turns(40)
    assert old_pages(again, many_pages) == []
    assert is_marked(again, many_pages)


def test_a_page_that_was_refused_is_published_again_on_the_same_connection(
    work: ServiceInMemory, many_pages: Campaign, strict: Strict, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker out of its quota for a moment; devices would send again for a whole round (A7)."""
    strict.refused = "/receipt/"
    work.send(reports(many_pages, range(1)))
    work.turns(6)
    assert not any(tags_on(work, many_pages, page) for page in range(PAGES))
    assert "Their reports are counted" in caplog.text
    asked = sum("/receipt/" in topic for topic in strict.asked)
    work.turns(6)
    assert sum("/receipt/" in topic for topic in strict.asked) == asked, "not at once"
    strict.refused = ""
    work.turns(40)
    assert len(page_of(work, many_pages, "d0").tags) == 1
