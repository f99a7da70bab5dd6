"""One device's share of a configured broker (A6): what it asks to be kept is not kept, or fits a
few topics; and the collector has all that it needs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from collector.brokers.config import COLLECTOR, LARGEST_PACKET
from protocol_spec.topics import from_all_devices
from tests.support.brokers import (
    BOTH,
    CAMPAIGN,
    NEEDS_MOSQUITTO,
    PASSWORDS,
    ROOT,
    ConfiguredBroker,
    Setup,
)
from tests.support.edge_processes import wait_until

HOSTILE, HONEST = "hostile", "honest"
MANY = 150
LARGE = 1_000_000


def started(setup: Setup, place: Path) -> ConfiguredBroker:
    broker = ConfiguredBroker(setup, place / "broker", HOSTILE, HONEST)
    broker.configured.name_campaigns([CAMPAIGN])
    return broker.hurry()


@pytest.fixture(params=BOTH)
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ConfiguredBroker]:
    with started(request.param, tmp_path) as running:
        yield running


def kept(broker: ConfiguredBroker) -> list[tuple[str, bytes]]:
    """What a collector that comes later finds of the devices."""
    with broker.guest(COLLECTOR) as late:
        mark = f"{ROOT}/pub/mark"
        late.listen(*from_all_devices(), "allomfree/v1/+/up/#", mark)
        assert late.hears(late.say(mark))
        return [(topic, word) for topic, word in late.heard if topic != mark]


def test_a_device_cannot_fill_the_broker_with_retained_messages(broker: ConfiguredBroker) -> None:
    with broker.guest(HOSTILE) as hostile:
        for number in range(MANY):
            payload = bytes([number]) * LARGE
            hostile.say(f"{ROOT}/up/{HOSTILE}/keep-{number}", payload, retain=True)
        if broker.setup.kind == "mosquitto":
            for number in range(MANY):
                topic = f"allomfree/v1/heat-{number:08x}/up/{HOSTILE}/report"
                hostile.say(topic, bytes([number]) * 1000, retain=True)
        for kind in ("report", "request"):
            hostile.say(f"{ROOT}/up/{HOSTILE}/{kind}", b"k" * LARGE, retain=True)
    left = kept(broker)
    if broker.setup.kind == "nats":
        assert left == []
    else:  # it cannot refuse, but those are all the topics there are
        assert {topic for topic, _ in left} == {
            f"{ROOT}/up/{HOSTILE}/report",
            f"{ROOT}/up/{HOSTILE}/request",
        }
    size = sum(f.stat().st_size for f in broker.directory.rglob("*") if f.is_file())
    assert size < 10 * LARGE


def test_a_last_will_is_not_kept_on_nats(tmp_path: Path) -> None:
    with started(Setup("nats", "password"), tmp_path) as broker:
        with broker.guest(COLLECTOR) as collector:
            collector.listen(*from_all_devices())
            guest = broker.guest(HOSTILE, will=(f"{ROOT}/up/{HOSTILE}/report", b"kept?"))
            assert guest.enter()
            guest.vanish()
            assert collector.hears(b"kept?"), "it is sent"
        assert kept(broker) == []


@pytest.mark.parametrize("setup", PASSWORDS)
def test_the_limits_outlive_a_restart(setup: Setup, tmp_path: Path) -> None:
    """And what the collector retains does, too, with its waiting reports."""
    broker = started(setup, tmp_path)
    session = {"client_id": "the-collectors", "clean": False}
    with broker:
        with broker.guest(COLLECTOR, **session) as collector:
            collector.listen(*from_all_devices(), qos=1)
            collector.say(f"{ROOT}/pub/manifest", b"m" * (LARGEST_PACKET - 200), retain=True)
        with broker.guest(HONEST) as honest:
            report = honest.say(f"{ROOT}/up/{HONEST}/report")
        broker.stop()
        broker.start()
        with broker.guest(HOSTILE) as hostile:
            hostile.say(f"{ROOT}/up/{HOSTILE}/keep", retain=True)
            hostile.listen("allomfree/v1/+/pub/#")
            hostile.wait_for(lambda: bool(hostile.words))
            assert {len(word) for word in hostile.words} == {LARGEST_PACKET - 200}
        with broker.guest(COLLECTOR, **session) as collector:
            assert collector.session_present
            assert collector.hears(report)
        assert kept(broker) == []


@NEEDS_MOSQUITTO
def test_a_device_has_one_session_on_mosquitto(tmp_path: Path) -> None:
    """Under whatever name it leaves one: the next finds it."""
    with started(Setup("mosquitto", "password"), tmp_path) as broker:
        found = []
        for number in range(5):
            with broker.guest(HOSTILE, client_id=f"left-{number}", clean=False) as guest:
                found.append(guest.session_present)
                guest.listen("allomfree/v1/+/pub/#", qos=1)
        assert found == [False, True, True, True, True]


def test_large_messages_end_the_connection_and_nobody_elses(broker: ConfiguredBroker) -> None:
    with broker.guest(COLLECTOR) as collector, broker.guest(HONEST) as honest:
        collector.listen(*from_all_devices())
        with broker.guest(HOSTILE) as hostile:
            hostile.say(f"{ROOT}/up/{HOSTILE}/report", b"x" * (LARGEST_PACKET + 1))
            wait_until(lambda: hostile.lost)
        assert collector.hears(honest.say(f"{ROOT}/up/{HONEST}/report"))
        assert len(collector.heard) == 1
