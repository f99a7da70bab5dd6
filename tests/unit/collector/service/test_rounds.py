"""Rounds at the service: sealed when due and drained, then published; and their receipts."""

from __future__ import annotations

import pytest

from collector.data_dir import DeviceKey
from collector.records import Campaign
from protocol_spec import (
    Outcome,
    Result,
    Topics,
    decode_result,
    receipt_page,
    receipt_tag,
)
from protocol_spec.programs.memory_broker import MemoryBroker
from tests.support.collector import (
    COLOUR,
    HOUR,
    ServiceInMemory,
    forget,
    message,
    page_of,
    reports,
    service_in_memory,
    state,
    tags_on,
)
from tests.support.databases import FullDisk

# --- sealing ------------------------------------------------------------------------------------


def test_nothing_is_sealed_before_its_deadline(
    at_work: ServiceInMemory, campaign: Campaign
) -> None:
    at_work.send(reports(campaign, range(3)))
    at_work.turns(2)
    at_work.time.now = campaign.manifest.rounds.deadline(0) - 10.0
    at_work.turns(9)
    assert at_work.store.last_sealed(campaign.id) is None
    at_work.turns(3)
    assert at_work.store.last_sealed(campaign.id) == 0


def test_no_device_delays_sealing_by_report_and_forget(
    at_work: ServiceInMemory, campaign: Campaign
) -> None:
    """A3: a device that was forgotten is not counted again, so it is not waited for either."""
    at_work.send(reports(campaign, range(3)))
    at_work.turns(2)
    at_work.time.now = campaign.manifest.rounds.deadline(0) - 2.0
    for _ in range(8):
        at_work.send([*reports(campaign, range(1)), forget(campaign, "d0")])
        at_work.turns(1)
    assert at_work.store.last_sealed(campaign.id) == 0
    assert at_work.emitted[0].n == 2


def test_a_collector_that_was_away_takes_what_was_kept_before_it_seals(
    at_work: ServiceInMemory, campaign: Campaign
) -> None:
    """The broker hands over its backlog in small parts, all of it after the deadline."""
    at_work.time.now = campaign.manifest.rounds.deadline(0) + 100.0
    at_work.broker.batch = 10
    at_work.send(reports(campaign, range(100)))
    at_work.turns(30)
    assert at_work.store.last_sealed(campaign.id) == 0
    assert at_work.store.outcomes() == {Outcome.ACCEPTED: 100}
    assert at_work.emitted[0].n == 100


def test_live_reports_of_later_rounds_do_not_put_off_the_sealing(
    at_work: ServiceInMemory, campaign: Campaign
) -> None:
    at_work.send(reports(campaign, range(3)))
    at_work.turns(1)
    at_work.time.now = campaign.manifest.rounds.deadline(0) + 1.0
    at_work.broker.batch = 1
    at_work.send(reports(campaign, range(5), number=2))
    for device in range(5, 15):
        at_work.send(reports(campaign, range(device, device + 1), number=2))
        at_work.turns(1)
    assert at_work.kept() >= 5, "there was never a pause"
    assert at_work.store.last_sealed(campaign.id) == 0


def test_nothing_is_sealed_while_the_broker_is_away(
    at_work: ServiceInMemory, campaign: Campaign
) -> None:
    at_work.turns(1)
    at_work.broker.stop()
    at_work.time.now = campaign.manifest.rounds.deadline(0) + 100.0
    at_work.turns(20)
    assert at_work.store.last_sealed(campaign.id) is None


def test_nothing_is_sealed_while_a_batch_is_held(on_disk: ServiceInMemory, disk: FullDisk) -> None:
    campaign = disk.campaign(None)
    on_disk.turns(1)
    on_disk.time.now = campaign.manifest.rounds.deadline(0) + 100.0
    disk.full = True
    on_disk.send(reports(campaign, range(3)))
    on_disk.turns(21)
    assert disk.last_sealed(campaign.id) is None
    disk.full = False
    on_disk.turns(10)
    assert on_disk.emitted[0].n == 3


@pytest.mark.parametrize(("later", "longest"), [(False, 5), (True, 40)])
def test_a_broker_that_delivers_again_later_is_waited_for(
    disk: FullDisk, key: DeviceKey, later: bool, longest: int
) -> None:
    """NATS waits half a minute before it delivers an unacknowledged message again."""
    campaign, broker = disk.campaign(None), MemoryBroker(redelivers_later=later)
    work = service_in_memory(disk, key, broker=broker)
    work.time.now = campaign.manifest.rounds.deadline(0) + 100.0
    turns = 0
    while disk.last_sealed(campaign.id) is None:
        work.turns(1)
        turns += 1
    assert longest - 6 < turns <= longest


# --- results ------------------------------------------------------------------------------------


def test_results_are_published_as_they_are_stored(
    sealed: ServiceInMemory, campaign: Campaign, topics: Topics
) -> None:
    stored = sealed.store.results(campaign.id)
    assert len(stored) == 4  # three attributes, and one of them pooled
    for result in stored:
        assert sealed.broker.retained[topics.result(result.attribute, result.round)] == (
            result.encode()
        )
    assert sealed.store.unpublished() == []
    last = decode_result(sealed.broker.retained[topics.result("fuel")])
    assert isinstance(last, Result)
    assert (last.round, last.n, last.devices) == (None, 20, 20)
    assert state(sealed, topics).last_sealed == 0


def test_results_are_published_once(sealed: ServiceInMemory, topics: Topics) -> None:
    before = len(sealed.published)
    assert any("/result/" in topic for topic, _ in sealed.published)
    sealed.turns(1)
    assert not any("/result/" in topic for topic, _ in sealed.published[before:])


def test_a_broker_that_forgot_gets_every_result_again(
    sealed: ServiceInMemory, topics: Topics
) -> None:
    kept = {t: m for t, m in sealed.broker.retained.items() if "/result/" in t}
    sealed.broker.stop()
    sealed.broker.start(forget=True)
    assert sealed.broker.retained == {}
    sealed.turns(10)
    again = {t: m for t, m in sealed.broker.retained.items() if "/result/" in t}
    assert again == kept


# --- receipts -----------------------------------------------------------------------------------


def test_every_counted_report_gets_its_receipt(
    at_work: ServiceInMemory, campaign: Campaign
) -> None:
    at_work.send(reports(campaign, range(40)))
    at_work.send(reports(campaign, range(40)))
    at_work.turns(6)
    pages = {receipt_page(campaign.manifest, f"d{i}") for i in range(40)}
    assert len([t for t in at_work.broker.retained if "/receipt/" in t]) == len(pages)
    for i in range(40):
        tag = receipt_tag(campaign.manifest, 0, f"d{i}")
        assert tag in page_of(at_work, campaign, f"d{i}").tags


def test_a_refused_report_gets_no_receipt(at_work: ServiceInMemory, campaign: Campaign) -> None:
    at_work.send(
        [
            message(campaign.manifest, "d0", body=b"\1"),
            message(campaign.manifest, "d1", body=b"\xff"),
            message(campaign.manifest, "d0", number=0, attribute=COLOUR, body=b"\0\0"),
        ]
    )
    at_work.turns(6)
    tags = {t for p in range(16) for t in tags_on(at_work, campaign, p)}
    assert tags == {receipt_tag(campaign.manifest, 0, "d0")}


def test_receipts_are_rebuilt_after_a_restart(
    at_work: ServiceInMemory, campaign: Campaign, key: DeviceKey
) -> None:
    at_work.send(reports(campaign, range(3)))
    at_work.turns(1)
    again = service_in_memory(at_work.store, key)
    stops = iter([False] * 8 + [True])
    again.service.run(lambda: next(stops), lambda: again.time.pass_time(1.0))
    for i in range(3):
        tag = receipt_tag(campaign.manifest, 0, f"d{i}")
        assert tag in page_of(again, campaign, f"d{i}").tags


def test_receipts_stand_a_period_beyond_the_deadline_and_are_then_cleared(
    sealed: ServiceInMemory, campaign: Campaign, topics: Topics
) -> None:
    end = campaign.manifest.rounds.deadline(0) + HOUR
    sealed.time.now = end - 5.0
    sealed.turns(2)
    assert [t for t in sealed.broker.retained if "/receipt/0/" in t]
    sealed.time.now = float(end)
    sealed.turns(3)
    assert not [t for t in sealed.broker.retained if "/receipt/0/" in t]
    cleared = {topic for topic, payload in sealed.published if not payload}
    assert cleared == {topics.receipt(0, page) for page in range(16)}
    assert 0 not in sealed.store.clearable_receipts(campaign.id)
