"""A8: a device that floods is suspended, the others are counted, and the operator is told."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from collector.commands import reading
from collector.health import examine
from collector.results.facts import status_facts
from protocol_spec import Outcome
from testbed.brokers import Broker
from tests.support.collector_processes.campaign import (
    Collection,
    assert_one_outcome_each,
    wait_until_open,
)
from tests.support.collector_processes.driver import CollectorRun, Launcher
from tests.support.collector_processes.wire import Publisher, send_quickly
from tests.support.edge_processes import wait_until

DEVICES = 50
FLOOD = 6000


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    return Collection.shared(tmp_path / "data", DEVICES)


@pytest.fixture
def running(collection: Collection, broker: Broker, launcher: Launcher) -> CollectorRun:
    run = launcher.start(collection.options(broker))
    wait_until_open(collection, broker.port)
    return run


def suspended(collection: Collection) -> list[str]:
    beat = examine(collection.data).beat
    return beat.status.suspended_names if beat else []


def status_text(collection: Collection) -> str:
    return reading.status_text(status_facts(collection.store, collection.data, time.time()))


def test_one_device_floods_and_the_others_are_counted(
    collection: Collection, broker: Broker, running: CollectorRun
) -> None:
    """While the flood goes on, the others report; when it is over, so is the suspension."""
    flood = [collection.report(0)] * FLOOD
    with Publisher(broker.port) as publisher, ThreadPoolExecutor(1) as flooder:
        send_quickly(broker.port, flood)
        wait_until(lambda: suspended(collection) == ["device-0"], timeout=60)
        assert "revoke device-0" in status_text(collection)
        more = flooder.submit(send_quickly, broker.port, flood)
        publisher.send(collection.reports()[1:])
        collection.wait_for(DEVICES)
        more.result(60)
        wait_until(lambda: collection.look().received == 2 * FLOOD + DEVICES - 1, timeout=60)
        counted = collection.look()
        assert counted.counts == [1] * DEVICES
        assert counted.outcomes[Outcome.SUSPENDED] > 0
        assert_one_outcome_each(counted)
        wait_until(lambda: suspended(collection) == [], timeout=60)
        assert "revoke" not in status_text(collection)
        publisher.send([collection.report(0)])
        wait_until(lambda: collection.look().received == 2 * FLOOD + DEVICES, timeout=60)
        again = counted.outcomes[Outcome.DUPLICATE] + 1
        assert collection.look().outcomes == {**counted.outcomes, Outcome.DUPLICATE: again}
    log = running.log.read_text()
    # Where the machine is too slow for the flood it stops and begins again; each time is said once.
    assert log.count("is suspended until it stops") == log.count("no longer suspended") >= 1
    assert "device-0" not in log


def test_bad_messages_of_one_device_are_dropped_unread(
    collection: Collection, broker: Broker, running: CollectorRun
) -> None:
    """A good report of the same device is still counted when its turn comes."""
    topic, good = collection.report(0)
    send_quickly(broker.port, [(topic, i.to_bytes(4)) for i in range(FLOOD)])
    wait_until(lambda: collection.look().received == FLOOD, timeout=60)
    with Publisher(broker.port) as publisher:
        publisher.send([(topic, good), *collection.reports()[1:]])
        collection.wait_for(DEVICES)
    assert collection.look().counts == [1] * DEVICES
    assert_one_outcome_each(collection.look())
