"""Connecting, and what devices are told of campaigns and of the collector."""

from __future__ import annotations

from contextlib import closing
from itertools import pairwise
from typing import NoReturn

import pytest

from collector.data_dir import DeviceKey
from collector.links import Link, Will
from collector.records import Campaign
from collector.service import Options, Service
from collector.store import Store
from collector.timing import Timing
from protocol_spec import (
    Outcome,
    Presence,
    PublishedThresholds,
    State,
    Topics,
    decode_thresholds,
    digest8,
    thresholds_fault,
)
from protocol_spec.programs.memory_broker import MemoryBroker
from protocol_spec.programs.settings import BrokerUnreachable
from tests.support.collector import (
    FIRST,
    FUEL,
    ManualTime,
    ServiceInMemory,
    counts_of,
    forget,
    links_to,
    reports,
    service_in_memory,
    state,
    three_questions,
)
from tests.support.databases import Engine, FullDisk


def test_it_starts_without_a_broker_and_says_so(
    at_work: ServiceInMemory, campaign: Campaign, topics: Topics
) -> None:
    at_work.broker.stop()
    at_work.turns(4)
    status = at_work.service.status
    assert not status.connected
    assert "it is stopped" in status.trouble
    at_work.broker.start(forget=True)
    at_work.turns(200)
    assert (status.connected, status.trouble) == (True, "")
    assert topics.manifest in at_work.broker.retained
    at_work.send([*reports(campaign, range(2)), forget(campaign, "d0")])
    at_work.turns(1)
    assert counts_of(at_work.store, campaign, 0) == {FUEL: [0, 1, 0, 0]}, "it has subscribed"


def test_pauses_between_attempts_grow_with_jitter_and_stay_below_a_minute() -> None:
    drawn = [[Timing().reconnect_pause(failures) for failures in range(12)] for _ in range(20)]
    for pauses in drawn:
        for failures, pause in enumerate(pauses):
            longest = min(60.0, 2.0**failures)
            assert longest / 2 <= pause <= longest
    assert len({pauses[0] for pauses in drawn}) > 1


def test_attempts_to_connect_are_made_after_ever_longer_pauses(
    disk: FullDisk, key: DeviceKey
) -> None:
    time, attempts = ManualTime(), list[float]()

    def nobody(_will: Will | None) -> NoReturn:
        attempts.append(time.now)
        raise BrokerUnreachable("nobody is there")

    service = Service(disk, key, links_to(nobody, time.clock()), Options(clock=time.clock()))
    while len(attempts) < 10:
        service.turn(0.5)
    pauses = [later - earlier for earlier, later in pairwise(attempts)]
    for failures, pause in enumerate(pauses):
        assert min(60.0, 2.0**failures) / 2 <= pause <= min(60.0, 2.0**failures)


def test_a_broker_that_breaks_every_connection_is_asked_less_and_less_often(
    disk: FullDisk, key: DeviceKey
) -> None:
    """A5. One that lasted begins anew."""
    time, broker, opened = ManualTime(), MemoryBroker(), list[float]()

    def connect(will: Will | None) -> Link:
        opened.append(time.now)
        return broker.connect("collector", will=will)

    service = Service(disk, key, links_to(connect, time.clock()), Options(clock=time.clock()))

    def cut_after(seconds: float) -> float:
        """The pause that follows a connection that lasted so long."""
        before = len(opened)
        time.pass_time(seconds)
        broker.cut()
        ended = time.now
        while len(opened) == before:
            service.turn(0.5)
        return opened[-1] - ended

    service.turn(0.5)
    hasty = [cut_after(0.1) for _ in range(8)]
    for failures, pause in enumerate(hasty):
        assert min(60.0, 2.0**failures) / 2 <= pause <= min(60.0, 2.0**failures)
    cut_after(Timing().steady_seconds)
    assert cut_after(0.1) <= 1.0


def test_devices_find_the_manifest_and_the_state(
    at_work: ServiceInMemory, campaign: Campaign, topics: Topics
) -> None:
    at_work.turns(1)
    assert at_work.broker.retained[topics.manifest] == campaign.manifest.to_bytes()
    assert state(at_work, topics) == State(digest8(campaign.manifest), Presence.ONLINE, None)
    thresholds = decode_thresholds(at_work.broker.retained[topics.thresholds])
    assert isinstance(thresholds, PublishedThresholds)
    assert thresholds_fault(thresholds, campaign.manifest) is None
    at_work.service.shut_down()
    assert state(at_work, topics).presence is Presence.OFFLINE


def test_a_campaign_opened_elsewhere_is_announced(
    store: Store, key: DeviceKey, engine: Engine
) -> None:
    work = service_in_memory(store, key)
    work.turns(1)
    assert work.broker.retained == {}
    with closing(engine.open()) as other:
        opened = other.open_campaign(three_questions(), FIRST)
    work.turns(1)
    assert Topics(opened.name).manifest in work.broker.retained


@pytest.mark.parametrize("running", [True, False])
def test_devices_hear_of_a_closing(
    at_work: ServiceInMemory, campaign: Campaign, engine: Engine, topics: Topics, running: bool
) -> None:
    """Also when no service was there while it was closed."""
    if running:
        at_work.turns(1)
    with closing(engine.open()) as other:
        other.close_campaign(campaign, int(at_work.time.now))
    at_work.turns(1)
    assert {topics.manifest, topics.thresholds}.isdisjoint(at_work.broker.retained)
    assert state(at_work, topics).presence is Presence.CLOSED
    at_work.turns(5)
    assert at_work.store.last_sealed(campaign.id) == 0, "what had begun is sealed"
    at_work.send(reports(campaign, range(1)))
    at_work.turns(1)
    assert at_work.store.outcomes() == {Outcome.UNKNOWN_CAMPAIGN: 1}


def test_a_revoked_device_is_refused_from_then_on(
    at_work: ServiceInMemory, campaign: Campaign, engine: Engine
) -> None:
    at_work.turns(1)
    with closing(engine.open()) as other:
        other.revoke("d0", 0)
    at_work.send(reports(campaign, range(2)))
    at_work.turns(2)
    assert at_work.store.outcomes() == {Outcome.REVOKED: 1, Outcome.ACCEPTED: 1}
