"""A round is sealed when the broker is shown to hold no more of it, and not before (F1, A3)."""

from __future__ import annotations

from contextlib import closing

import pytest

from collector.data_dir import DeviceKey
from collector.links.mqtt import BACKLOG
from collector.records import Campaign
from protocol_spec import DEFAULT_NAMESPACE, Outcome
from protocol_spec.programs.memory_broker import MemoryBroker
from protocol_spec.schedule import DEFAULT_DRAIN_SECONDS
from protocol_spec.topics import from_all_devices, is_device, marker
from tests.support.collector import (
    CLIENT,
    FIRST,
    HOUR,
    ServiceInMemory,
    forget,
    reports,
    service_in_memory,
    three_questions,
)
from tests.support.databases import Engine, FullDisk

SETTLE = 35


class Losing(MemoryBroker):
    """Takes markers, and delivers them only when it is told to."""

    def __init__(self, *, redelivers_later: bool = False) -> None:
        super().__init__(redelivers_later=redelivers_later)
        self.kept_back: list[tuple[str, bytes]] = []

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        if topic == marker():
            self.kept_back.append((topic, payload))
        else:
            super().publish(topic, payload, retain=retain)

    def deliver(self, payload: bytes) -> None:
        super().publish(marker(), payload)

    def deliver_all(self) -> None:
        """Among them words that only ask for an answer, and prove nothing."""
        for _, payload in self.kept_back:
            self.deliver(payload)


@pytest.fixture
def losing() -> Losing:
    return Losing()


@pytest.fixture
def work(disk: FullDisk, key: DeviceKey, losing: Losing) -> ServiceInMemory:
    """A service past the deadline of round 0, whose broker keeps markers back."""
    made = service_in_memory(disk, key, broker=losing)
    made.turns(1)
    made.time.now = disk.campaign(None).manifest.rounds.deadline(0) + 1.0
    return made


def sealed(work: ServiceInMemory) -> bool:
    return work.store.last_sealed(work.store.campaigns()[0].id) is not None


def test_silence_is_no_proof(work: ServiceInMemory, disk: FullDisk, losing: Losing) -> None:
    """F1: a network or a broker may stand still for longer than two seconds, or two minutes."""
    work.turns(DEFAULT_DRAIN_SECONDS // 2)
    assert not sealed(work)
    work.send(reports(disk.campaign(None), range(7)))
    losing.deliver_all()
    work.turns(2)
    assert sealed(work)
    assert work.emitted[0].n == 7
    assert disk.outcomes() == {Outcome.ACCEPTED: 7}, "markers are no messages of devices"
    assert work.kept() == 0, "and are acknowledged"


def test_a_broker_without_markers_is_waited_for_as_long_as_the_manifest_says(
    work: ServiceInMemory, caplog: pytest.LogCaptureFixture
) -> None:
    work.turns(DEFAULT_DRAIN_SECONDS)
    assert not sealed(work)
    waiting = work.service.status.waiting[work.store.campaigns()[0].name]
    assert waiting["round"] == 0
    assert waiting["until"] == pytest.approx(work.time.now, abs=3.0)
    work.turns(2)
    assert sealed(work)
    assert work.service.status.waiting == {}
    assert "sealed without proof" in caplog.text


def test_no_device_makes_it_wait_longer(work: ServiceInMemory, disk: FullDisk) -> None:
    """A3: neither by reporting and withdrawing in turn, nor by a flood."""
    campaign, turns = disk.campaign(None), 0
    while not sealed(work):
        work.send([*reports(campaign, range(1)), forget(campaign, "d0")] * 5)
        work.turns(1)
        turns += 1
    assert turns <= DEFAULT_DRAIN_SECONDS + 3


def test_reports_and_withdrawals_in_turn_do_not_delay_a_marker(
    at_work: ServiceInMemory, campaign: Campaign
) -> None:
    """A3: with a broker that delivers, sealing takes two turns, whatever one device does."""
    at_work.turns(1)
    at_work.time.now = campaign.manifest.rounds.deadline(0) + 1.0
    for _ in range(4):
        at_work.send([*reports(campaign, range(1)), forget(campaign, "d0")])
        at_work.turns(1)
    assert at_work.store.last_sealed(campaign.id) == 0


def test_a_stranger_cannot_forge_a_marker(work: ServiceInMemory, losing: Losing) -> None:
    work.turns(3)
    _, real = losing.kept_back[-1]
    for forged in (b"", bytes(16), real[:-1], real + b"\0", b"x" * 1000):
        losing.deliver(forged)
    work.turns(3)
    assert not sealed(work)
    assert work.kept() == 0
    assert work.store.received() == 0
    losing.deliver(real)
    work.turns(2)
    assert sealed(work)


def test_every_marker_has_a_number_of_its_own(work: ServiceInMemory, losing: Losing) -> None:
    work.turns(60)
    numbers = [payload for _, payload in losing.kept_back]
    assert len(set(numbers)) == len(numbers) > 3
    assert {len(number) for number in numbers} == {16}


def test_a_marker_of_an_earlier_connection_proves_nothing(
    work: ServiceInMemory, losing: Losing
) -> None:
    """What that connection left unacknowledged may come after it."""
    work.turns(2)
    (_, before), *_ = losing.kept_back
    losing.cut()
    work.turns(5)
    assert work.service.status.connected
    losing.deliver(before)
    work.turns(3)
    assert not sealed(work)
    losing.deliver_all()
    work.turns(2)
    assert sealed(work)


def test_a_marker_sent_before_the_deadline_proves_nothing(
    disk: FullDisk, key: DeviceKey, losing: Losing
) -> None:
    """That of another campaign, or the word that shows whether the broker answers."""
    work = service_in_memory(disk, key, broker=losing)
    work.turns(60)
    early = [payload for _, payload in losing.kept_back]
    assert early
    work.time.now = disk.campaign(None).manifest.rounds.deadline(0) + 1.0
    for payload in early:
        losing.deliver(payload)
    work.turns(3)
    assert not sealed(work)


def test_time_without_a_connection_or_a_disk_does_not_count(
    work: ServiceInMemory, disk: FullDisk, losing: Losing
) -> None:
    """The bound is for a broker that does not deliver, not for a collector that cannot read."""
    disk.full = True
    work.send(reports(disk.campaign(None), range(3)))
    work.turns(DEFAULT_DRAIN_SECONDS, apart=0.5)
    disk.full = False
    work.turns(10)
    work.time.pass_time(10.0 * DEFAULT_DRAIN_SECONDS)  # the whole process stood still
    work.turns(10)
    losing.stop()
    work.turns(DEFAULT_DRAIN_SECONDS)
    losing.start()
    work.turns(100)
    assert work.service.status.connected
    assert not sealed(work)
    assert disk.outcomes() == {Outcome.ACCEPTED: 3}


def test_one_marker_is_enough_for_a_campaign_behind_a_long_queue(
    disk: FullDisk, key: DeviceKey
) -> None:
    """F1: B's reports stand behind A's when the collector comes back after B's deadline."""
    broker = MemoryBroker(batch=20)
    work = service_in_memory(disk, key, broker=broker)
    first = disk.campaign(None)
    second = disk.open_campaign(three_questions(slug="second"), FIRST)
    work.time.now = second.manifest.rounds.deadline(0) + 100.0
    work.send(reports(first, range(20)) * 100)
    work.send(reports(second, range(50)))
    work.turns(110)
    by_name = {campaign.name: campaign.id for campaign in disk.campaigns()}
    assert disk.last_sealed(by_name[second.name]) == 0
    assert sum(t.n for t in disk.tallies(by_name[second.name], 0).values()) == 50


def test_many_rounds_that_are_due_need_one_marker(
    disk: FullDisk, key: DeviceKey, losing: Losing
) -> None:
    work = service_in_memory(disk, key, broker=losing)
    rounds = disk.campaign(None).manifest.rounds
    work.time.now = rounds.deadline(2) + 1.0
    work.turns(2)
    losing.deliver_all()
    work.turns(2)
    assert work.store.last_sealed(disk.campaign(None).id) == 2


@pytest.mark.parametrize("early", [SETTLE - 5, SETTLE + 15])
def test_where_redelivery_comes_later_a_marker_waits_for_it(
    disk: FullDisk, key: DeviceKey, early: int
) -> None:
    """NATS delivers what was left unacknowledged behind newer messages."""
    broker = Losing(redelivers_later=True)
    work = service_in_memory(disk, key, broker=broker)
    work.time.now = disk.campaign(None).manifest.rounds.deadline(0) + 1.0
    work.turns(early)
    broker.deliver_all()
    work.turns(2)
    assert sealed(work) == (early > SETTLE)


def test_requests_in_a_backlog_can_push_reports_behind_where_redelivery_comes_later(
    disk: FullDisk, key: DeviceKey
) -> None:
    """NATS drops what exceeds a session's share, and delivers it again later."""
    broker, campaign = Losing(redelivers_later=True), disk.campaign(None)
    work = service_in_memory(disk, key, broker=broker)
    work.turns(SETTLE + 5)
    work.time.now = campaign.manifest.rounds.deadline(0) + 1.0
    work.turns(1)
    work.send([*reports(campaign, range(20)) * (BACKLOG // 20), forget(campaign, "d0")])
    broker.deliver_all()
    work.turns(10)
    assert not sealed(work)
    work.turns(SETTLE)
    broker.deliver_all()
    work.turns(2)
    assert sealed(work)


def test_what_waits_at_a_closing_is_counted(
    at_work: ServiceInMemory, campaign: Campaign, engine: Engine
) -> None:
    """F1: also when the collector was away; until its rounds are sealed."""
    at_work.send(reports(campaign, range(9)))
    with closing(engine.open()) as other:
        other.close_campaign(campaign, int(at_work.time.now))
    at_work.turns(4)
    assert at_work.store.last_sealed(campaign.id) == 0
    assert at_work.store.outcomes() == {Outcome.ACCEPTED: 9}
    at_work.send(reports(campaign, range(9, 10)))
    at_work.turns(1)
    assert at_work.store.outcomes()[Outcome.UNKNOWN_CAMPAIGN] == 1


def test_the_marker_goes_through_the_queue_of_reports_under_no_devices_name() -> None:
    broker = MemoryBroker()
    link = broker.connect(CLIENT)
    link.subscribe(from_all_devices()[:1])
    broker.publish(marker(), b"x")
    assert [m.topic for m in link.step(0.0)] == [marker()]
    assert not is_device(marker().split("/")[4])
    assert marker().startswith(f"{DEFAULT_NAMESPACE}/v1/")


def test_a_retained_marker_proves_nothing(work: ServiceInMemory, losing: Losing) -> None:
    work.turns(2)
    losing.retained[marker()] = losing.kept_back[-1][1]
    losing.cut()
    work.turns(5)
    assert not sealed(work)


def test_a_clock_that_was_set_ahead_seals_nothing_at_once(disk: FullDisk, key: DeviceKey) -> None:
    """F8: rounds that are over by a jump alone are kept open for as long as the manifest allows."""
    work = service_in_memory(disk, key)
    work.time.confirmed = False
    work.turns(2)
    ahead = disk.campaign(None).manifest.rounds.deadline(0) + 1.0 - work.time.now
    work.time.set_ahead(ahead)
    work.turns(20)
    assert not sealed(work)
    status = work.service.status
    assert "the clock was set ahead" in status.clock
    assert "clock" in status.waiting[disk.campaign(None).name]["why"]
    work.send(reports(disk.campaign(None), range(4)))
    work.turns(DEFAULT_DRAIN_SECONDS)
    assert sealed(work)
    assert work.emitted[0].n == 4


def test_a_clock_that_was_set_back_shuts_nobody_out(disk: FullDisk, key: DeviceKey) -> None:
    """F8: an hour back just before a deadline. Reports that came meanwhile were refused as early,
    and acknowledged, so that nobody sent them again in time."""
    work = service_in_memory(disk, key)
    work.time.confirmed = False
    campaign = disk.campaign(None)
    work.time.now = campaign.manifest.rounds.deadline(0) - 5.0
    work.turns(2)
    work.time.set_ahead(-2.0 * HOUR)
    work.send(reports(campaign, range(4)))
    work.turns(2)
    assert work.service.status.accepted == 4
    work.time.set_ahead(2.0 * HOUR)
    work.turns(10)
    assert sealed(work), "nor is the right time doubted"
    assert work.emitted[0].n == 4
