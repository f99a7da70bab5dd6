"""Receipt pages: every tag on its page, sorted, once; only what changed is published."""

from __future__ import annotations

from collector.ingest.receipts import ReceiptPages
from collector.records import Campaign
from protocol_spec import ReceiptPage, Topics, decode_receipts, digest8
from tests.support.collector_fakes import FIRST, tags_of, three_questions

CAMPAIGN = Campaign(5, three_questions(), FIRST, None)
TOPICS = Topics(CAMPAIGN.name)


def pages_with(*tags: int, page: int = 3) -> ReceiptPages:
    made = ReceiptPages("allomfree")
    for tag in tags:
        made.add(CAMPAIGN.id, 0, page, tag)
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
    made.add(CAMPAIGN.id, 0, 2, 7)
    made.add(CAMPAIGN.id, 1, 2, 8)
    assert len(tags_of(made, CAMPAIGN)) == 3
    assert tags_of(made, CAMPAIGN) == {}
    made.add(CAMPAIGN.id, 0, 1, 9)
    (data,) = tags_of(made, CAMPAIGN).values()
    assert len(read(data).tags) == 2
    made.publish_again()
    assert len(tags_of(made, CAMPAIGN)) == 3


def test_a_repeated_report_asks_for_its_page_again() -> None:
    made = pages_with(1)
    first = tags_of(made, CAMPAIGN)
    made.add(CAMPAIGN.id, 0, 3, 1)
    assert tags_of(made, CAMPAIGN) == first


def test_as_many_pages_at_once_as_may_be_in_flight() -> None:
    made = ReceiptPages("allomfree")
    for page in range(10):
        made.add(CAMPAIGN.id, 0, page, page)
    known = {CAMPAIGN.id: CAMPAIGN}
    taken = [dict(made.take(known, 4)) for _ in range(4)]
    assert [len(pages) for pages in taken] == [4, 4, 2, 0]
    assert len({topic for pages in taken for topic in pages}) == 10
    assert dict(made.take(known, 0)) == {}


def test_a_forgotten_round_is_not_published() -> None:
    made = pages_with(1)
    made.add(CAMPAIGN.id, 1, 3, 2)
    made.forget(CAMPAIGN.id, 0)
    assert list(tags_of(made, CAMPAIGN)) == [TOPICS.receipt(1, 3)]
    made.publish_again()
    assert list(tags_of(made, CAMPAIGN)) == [TOPICS.receipt(1, 3)]


def test_a_withdrawn_tag_leaves_its_page_even_when_it_was_alone() -> None:
    made = pages_with(1, page=1)
    made.add(CAMPAIGN.id, 0, 2, 7)
    made.add(CAMPAIGN.id, 0, 2, 8)
    tags_of(made, CAMPAIGN)
    made.reload(CAMPAIGN.id, 0, [(2, 8)])
    pages = tags_of(made, CAMPAIGN)
    assert read(pages[TOPICS.receipt(0, 1)]).tags == frozenset()
    assert read(pages[TOPICS.receipt(0, 2)]).tags == {(8).to_bytes(4)}


def test_every_page_of_a_round_can_be_cleared() -> None:
    topics = pages_with().topics(CAMPAIGN, 9)
    assert topics == [TOPICS.receipt(9, page) for page in range(16)]


def test_a_page_of_a_thousand_devices_takes_four_kilobytes() -> None:
    (data,) = tags_of(pages_with(*range(0, 4_000_000_000, 4_000_000)), CAMPAIGN).values()
    assert len(read(data).tags) == 1000
    assert len(data) < 4100
