"""The embedded broker syncs once a second: what kill -9 and a power cut cost, and who pays for it.

Everything that it acknowledged survives kill -9. A power cut may take the last second; here it
takes all, which is the worst. Devices have no receipts then, send again, and each is counted once.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from collector.brokers.config import SYNC_SECONDS
from collector.brokers.embedded import EmbeddedBroker
from collector.data_dir import DeviceKey
from collector.links import Links
from collector.links.mqtt import PahoConnector, Subscription
from collector.processes import listener_of
from collector.records import Campaign
from collector.service import Service
from collector.store.sqlite import SqliteStore
from protocol_spec import DEFAULT_NAMESPACE, Outcome
from protocol_spec.programs.settings import Credentials
from testbed.brokers import Message, publish
from testbed.processes import free_port
from tests.support.collector import message, three_questions

DEVICES = 3_000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    directory = tmp_path / "broker"
    directory.mkdir(mode=0o700)
    (directory / "port").write_text(str(free_port()))
    with EmbeddedBroker(directory) as made:
        yield made


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return SqliteStore(tmp_path / "collector.db")


@pytest.fixture
def campaign(store: SqliteStore) -> Campaign:
    first = int(time.time()) - 60
    return store.open_campaign(three_questions(first=first), first)


@pytest.fixture
def service(store: SqliteStore, broker: EmbeddedBroker, tmp_path: Path) -> Service:
    connect = PahoConnector(broker.url, Credentials(), client_id="collector")
    checked = broker.connecting(connect)
    links = Links(lambda will: Subscription(checked(will), DEFAULT_NAMESPACE))
    return Service(store, DeviceKey(tmp_path / "key"), links)


def reports(campaign: Campaign) -> list[Message]:
    made = (message(campaign.manifest, f"d{i}") for i in range(DEVICES))
    return [(report.topic or "", report.payload) for report in made]


def leave_a_session(service: Service) -> None:
    """The collector was there, and is not now."""
    while not service.status.connected or service.status.trouble:
        service.turn(0.1)
    for _ in range(3):
        service.turn(0.1)
    service.shut_down()


def kill(broker: EmbeddedBroker, *, with_its_memory: bool) -> None:
    pid = listener_of(broker.url.port)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    if with_its_memory:
        shutil.rmtree(broker.directory / "jetstream")
    while broker.trouble or listener_of(broker.url.port) in (None, pid):
        broker.supervise()


def count(service: Service, store: SqliteStore, received: int) -> None:
    limit = time.monotonic() + 60
    while store.received() < received and time.monotonic() < limit:
        service.turn(0.1)


def test_kill_9_costs_nothing_that_was_acknowledged(
    broker: EmbeddedBroker, service: Service, store: SqliteStore, campaign: Campaign
) -> None:
    """Killed right after the last acknowledgement, before it synced. Then all devices send again,
    because nobody has told them."""
    assert f'sync_interval: "{SYNC_SECONDS}s"' in (broker.directory / "nats.conf").read_text()
    leave_a_session(service)
    publish(str(broker.url), reports(campaign))
    kill(broker, with_its_memory=False)
    count(service, store, DEVICES)
    assert store.outcomes() == {Outcome.ACCEPTED: DEVICES}
    publish(str(broker.url), reports(campaign))
    count(service, store, 2 * DEVICES)
    assert store.outcomes() == {Outcome.ACCEPTED: DEVICES, Outcome.DUPLICATE: DEVICES}


def test_what_a_power_cut_takes_is_sent_again_and_counted_once(
    broker: EmbeddedBroker, service: Service, store: SqliteStore, campaign: Campaign
) -> None:
    leave_a_session(service)
    publish(str(broker.url), reports(campaign))
    kill(broker, with_its_memory=True)
    leave_a_session(service)
    assert store.received() == 0, "the broker forgot"
    publish(str(broker.url), reports(campaign))
    count(service, store, DEVICES)
    assert store.outcomes() == {Outcome.ACCEPTED: DEVICES}
