"""A round is sealed when the broker is shown to hold no more of it, and not before (F1, A3)."""

from __future__ import annotations

import pytest

from collector.data_dir import DeviceKey
from collector.records import Campaign
from protocol_spec import (
    DEFAULT_NAMESPACE,
    Outcome,
    Result,
    Topics,
    decode_result,
    receipt_page,
    receipt_tag,
)
from protocol_spec.programs.memory_broker import MemoryBroker
from protocol_spec.schedule import DEFAULT_DRAIN_SECONDS
from protocol_spec.topics import from_all_devices, is_device, marker
from tests.support.collector import (
    CLIENT,
    FIRST,
    ServiceInMemory,
    forget,
    page_of,
    reports,
    service_in_memory,
    state,
    three_questions,
)
from tests.support.databases import FullDisk

SETTLE = 35


class Losing(MemoryBroker):
    """Takes markers, and delivers them only on request."""

    def __init__(self, *, redelivers_later: bool = False) -> None:
        super().__init__(redelivers_later=redelivers_later)
        self.markers: list[bytes] = []

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        if topic == marker():
            self.markers.append(payload)
        else:
            super().publish(topic, payload, retain=retain)

    def deliver(self, *payloads: bytes) -> None:
        """By default all of them; some only probe the connection, and prove nothing."""
        for payload in payloads or self.markers:
            super().publish(marker(), payload)


@pytest.fixture
def losing() -> Losing:
    return Losing()


@pytest.fixture
def waiting(store: FullDisk, campaign: Campaign, key: DeviceKey, losing: Losing) -> ServiceInMemory:
    """A service past the deadline of round 0, whose broker keeps markers back."""
    made = service_in_memory(store, key, broker=losing)
    made.turns(1)
    pass_deadline(made)
    return made


def pass_deadline(work: ServiceInMemory, number: int = 0, by: float = 1.0) -> None:
    work.time.now = work.store.campaigns()[0].manifest.rounds.deadline(number) + by


def sealed(work: ServiceInMemory) -> bool:
    return work.store.last_sealed(work.store.campaigns()[0].id) is not None


# --- markers --------------------------------------------------------------------------------------
def test_silence_is_no_proof(waiting: ServiceInMemory, campaign: Campaign, losing: Losing) -> None:
    """F1: a network or a broker may stand still for longer than two seconds, or two minutes."""
    waiting.turns(DEFAULT_DRAIN_SECONDS // 2)
    assert not sealed(waiting)
    waiting.send(reports(campaign, range(7)))
    losing.deliver()
    waiting.turns(2)
    assert sealed(waiting)
    assert waiting.emitted[0].n == 7
    assert waiting.store.outcomes() == {Outcome.ACCEPTED: 7}, "markers are no reports"
    assert waiting.kept() == 0, "and are acknowledged"


def test_a_broker_without_markers_is_waited_for_as_long_as_the_manifest_allows(
    waiting: ServiceInMemory, campaign: Campaign, caplog: pytest.LogCaptureFixture
) -> None:
    """A3: no device makes it longer, neither by reports and requests in turn, nor by a flood."""
    for _ in range(DEFAULT_DRAIN_SECONDS):
        waiting.send([*reports(campaign, range(1)), forget(campaign, "d0")] * 5)
        waiting.turns(1)
    assert not sealed(waiting)
    why = waiting.service.status.waiting[campaign.name]
    assert why["round"] == 0
    assert why["until"] == pytest.approx(waiting.time.now, abs=3.0)
    waiting.turns(3)
    assert sealed(waiting)
    assert waiting.service.status.waiting == {}
    assert "sealed without proof" in caplog.text


def test_a_stranger_cannot_forge_a_marker(waiting: ServiceInMemory, losing: Losing) -> None:
    waiting.turns(60)
    assert len(set(losing.markers)) == len(losing.markers) > 3, "each has a number of its own"
    real = losing.markers[-1]
    losing.deliver(b"", bytes(16), real[:-1], real + b"\0", b"x" * 1000)
    waiting.turns(3)
    assert not sealed(waiting)
    assert waiting.kept() == 0
    assert waiting.store.received() == 0
    losing.deliver(real)
    waiting.turns(2)
    assert sealed(waiting)


def test_a_marker_of_an_earlier_connection_or_a_retained_one_proves_nothing(
    waiting: ServiceInMemory, losing: Losing
) -> None:
    """What that connection left unacknowledged may come after it."""
    waiting.turns(2)
    before = losing.markers[0]
    losing.retained[marker()] = losing.markers[-1]
    losing.cut()
    waiting.turns(5)
    assert waiting.service.status.connected
    losing.deliver(before)
    waiting.turns(3)
    assert not sealed(waiting)
    losing.deliver()
    waiting.turns(2)
    assert sealed(waiting)


def test_a_marker_sent_before_the_deadline_proves_nothing(
    store: FullDisk, campaign: Campaign, key: DeviceKey, losing: Losing
) -> None:
    """That of another campaign, or a probe of whether the broker answers."""
    work = service_in_memory(store, key, broker=losing)
    work.turns(60)
    early = list(losing.markers)
    assert early
    pass_deadline(work)
    losing.deliver(*early)
    work.turns(3)
    assert not sealed(work)


def test_time_without_a_connection_or_a_disk_does_not_count(
    waiting: ServiceInMemory, store: FullDisk, campaign: Campaign, losing: Losing
) -> None:
    """The bound is for a broker that does not deliver, not for a collector that cannot read."""
    store.full = True
    waiting.send(reports(campaign, range(3)))
    waiting.turns(DEFAULT_DRAIN_SECONDS, apart=0.5)
    store.full = False
    waiting.turns(10)
    waiting.time.pass_time(10.0 * DEFAULT_DRAIN_SECONDS)  # the whole process stood still
    waiting.turns(10)
    losing.stop()
    waiting.turns(DEFAULT_DRAIN_SECONDS)
    losing.start()
    waiting.turns(100)
    assert waiting.service.status.connected
    assert not sealed(waiting)
    assert store.outcomes() == {Outcome.ACCEPTED: 3}


def test_one_marker_is_enough_for_a_campaign_behind_a_long_queue(
    store: FullDisk, campaign: Campaign, key: DeviceKey
) -> None:
    """F1: B's reports stand behind A's when the collector comes back after B's deadline."""
    work = service_in_memory(store, key, broker=MemoryBroker(batch=20))
    second = store.open_campaign(three_questions(slug="second"), FIRST)
    pass_deadline(work, by=100.0)
    work.send(reports(campaign, range(20)) * 100)
    work.send(reports(second, range(50)))
    work.turns(110)
    assert store.last_sealed(second.id) == 0
    assert sum(t.n for t in store.tallies(second.id, 0).values()) == 50


@pytest.mark.parametrize("early", [SETTLE - 5, SETTLE + 15])
def test_where_redelivery_comes_later_a_marker_waits_for_it(
    store: FullDisk, campaign: Campaign, key: DeviceKey, early: int
) -> None:
    """NATS delivers what was left unacknowledged behind newer messages, after half a minute."""
    broker = Losing(redelivers_later=True)
    work = service_in_memory(store, key, broker=broker)
    pass_deadline(work)
    work.turns(early)
    broker.deliver()
    work.turns(2)
    assert sealed(work) == (early > SETTLE)


def test_one_device_that_asks_to_be_forgotten_all_the_time_delays_nothing(
    store: FullDisk, campaign: Campaign, key: DeviceKey
) -> None:
    """A3: also where redelivery comes later; it was waited for after each of these backlogs."""
    work = service_in_memory(store, key, broker=MemoryBroker(redelivers_later=True))
    work.turns(SETTLE + 5)
    pass_deadline(work, by=-10.0)
    for _ in range(3):
        work.send([forget(campaign, "d0")] * 2_500)
        work.turns(6)
    assert sealed(work)


def test_the_marker_goes_through_the_queue_of_reports_under_no_devices_name() -> None:
    broker = MemoryBroker()
    link = broker.connect(CLIENT)
    link.subscribe([from_all_devices()])
    broker.publish(marker(), b"x")
    assert [m.topic for m in link.step(0.0)] == [marker()]
    assert not is_device(marker().split("/")[4])
    assert marker().startswith(f"{DEFAULT_NAMESPACE}/v1/")


# --- sealing --------------------------------------------------------------------------------------
def test_nothing_is_sealed_before_its_deadline_and_no_device_delays_it(
    work: ServiceInMemory, campaign: Campaign
) -> None:
    """A3: with a broker that delivers it takes two turns, whatever one device does."""
    work.send(reports(campaign, range(3)))
    work.turns(2)
    pass_deadline(work, by=-10.0)
    nuisance = [*reports(campaign, range(1)), forget(campaign, "d0")]
    for _ in range(9):
        work.send(nuisance)
        work.turns(1)
    assert not sealed(work)
    for _ in range(4):
        work.send(nuisance)
        work.turns(1)
    assert sealed(work)
    assert work.emitted[0].n == 2


def test_nothing_is_sealed_without_a_broker_or_while_a_batch_is_held(
    work: ServiceInMemory, store: FullDisk, campaign: Campaign
) -> None:
    work.turns(1)
    work.broker.stop()
    pass_deadline(work, by=100.0)
    work.turns(20)
    assert not sealed(work)
    work.broker.start()
    store.full = True
    work.send(reports(campaign, range(3)))
    work.turns(100)
    assert not sealed(work)
    store.full = False
    work.turns(10)
    assert work.emitted[0].n == 3


# --- results and receipts -------------------------------------------------------------------------
@pytest.fixture
def after_round(work: ServiceInMemory, campaign: Campaign) -> ServiceInMemory:
    """Round 0 is sealed with 20 reports."""
    work.send(reports(campaign, range(20)))
    work.turns(1)
    pass_deadline(work)
    work.turns(6)
    return work


def retained_results(work: ServiceInMemory) -> dict[str, bytes]:
    return {topic: data for topic, data in work.broker.retained.items() if "/result/" in topic}


def test_results_are_published_as_they_are_stored_and_once(
    after_round: ServiceInMemory, campaign: Campaign, topics: Topics
) -> None:
    stored = after_round.store.results(campaign.id)
    assert len(stored) == 4  # three attributes, and one of them pooled
    kept = retained_results(after_round)
    for result in stored:
        assert kept[topics.result(result.attribute, result.round)] == result.encode()
    assert after_round.store.unpublished() == []
    last = decode_result(kept[topics.result("fuel")])
    assert isinstance(last, Result)
    assert (last.round, last.n, last.devices) == (None, 20, 20)
    assert state(after_round, topics).last_sealed == 0
    after_round.published.clear()
    after_round.turns(1)
    assert not any("/result/" in topic for topic, _ in after_round.published)


def test_a_broker_that_forgot_gets_every_result_again(after_round: ServiceInMemory) -> None:
    kept = retained_results(after_round)
    after_round.broker.stop()
    after_round.broker.start(forget=True)
    assert after_round.broker.retained == {}
    after_round.turns(10)
    assert retained_results(after_round) == kept


def test_every_counted_report_gets_its_receipt_also_after_a_restart(
    work: ServiceInMemory, campaign: Campaign, key: DeviceKey
) -> None:
    work.send(reports(campaign, range(40)) * 2)
    work.turns(6)
    again = service_in_memory(work.store, key)
    stops = iter([False] * 8 + [True])
    again.service.run(lambda: next(stops), lambda: again.time.pass_time(1.0))
    pages = {receipt_page(campaign.manifest, f"d{i}") for i in range(40)}
    for each in (work, again):
        assert len([t for t in each.broker.retained if "/receipt/" in t]) == len(pages)
        for i in range(40):
            tag = receipt_tag(campaign.manifest, 0, f"d{i}")
            assert tag in page_of(each, campaign, f"d{i}").tags
