"""Receipts that a broker refuses, or has to forget: a few at a time, and until it has done so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collector.data_dir import DeviceKey
from collector.links import WINDOW
from collector.records import Campaign
from collector.store import Store
from protocol_spec import Topics
from protocol_spec.programs.memory_broker import MemoryBroker
from tests.support.collector import (
    FIRST,
    HOUR,
    ServiceInMemory,
    page_of,
    reports,
    service_in_memory,
    tags_on,
    three_questions,
)

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


def test_a_round_is_marked_when_the_broker_has_taken_all_of_it(
    work: ServiceInMemory, many_pages: Campaign, strict: Strict
) -> None:
    past(work, many_pages)
    strict.refused = "/receipt/0/"
    work.turns(60)
    assert len(old_pages(work, many_pages)) == 3
    assert not is_marked(work, many_pages)
    strict.refused = ""
    work.turns(60)
    assert old_pages(work, many_pages) == []
    assert is_marked(work, many_pages)


def test_refused_clearing_is_not_tried_all_the_time(
    work: ServiceInMemory, many_pages: Campaign, strict: Strict
) -> None:
    past(work, many_pages)
    strict.refused = "/receipt/0/"
    work.turns(3)
    strict.asked.clear()
    work.turns(20)
    assert not [topic for topic in strict.asked if "/receipt/0/" in topic]


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
