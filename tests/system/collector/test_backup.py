"""A backup made while real reports are counted; another collector goes on from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.brokers import Broker
from tests.support.collector_processes.campaign import Collection, wait_until_open
from tests.support.collector_processes.processes import CollectorProcess
from tests.support.collector_processes.wire import Publisher
from tests.support.command_line import operator

DEVICES = 400
PARTS = 4


@pytest.mark.slow
def test_a_backup_while_counting_goes_on_as_the_same_collector(
    nats: Broker, tmp_path: Path
) -> None:
    collection, data = Collection.shared(tmp_path / "data", DEVICES), tmp_path / "data"
    reports, part, counts = collection.reports(), DEVICES // PARTS, []
    with operator() as typing:
        with CollectorProcess(data, *collection.flags(nats)) as running:
            wait_until_open(collection, nats.port)
            with Publisher(nats.port) as publisher:
                for number in range(PARTS):  # while the part before may still be on its way
                    publisher.send(reports[number * part : (number + 1) * part])
                    made = typing.asks("backup", tmp_path / f"{number}", "--data-dir", data)
                    counts.append(made["received"])
            collection.wait_for(DEVICES)
            assert running.is_running
        assert counts == sorted(counts)
        for number, received in enumerate(counts):
            found = typing.asks("restore", tmp_path / f"{number}", "--check")
            assert found["received"] == received
        typing.runs("restore", tmp_path / "1", "--data-dir", tmp_path / "again")
    again = Collection(tmp_path / "again", collection.manifest, DEVICES, collection.namespace)
    with CollectorProcess(again.data, *again.flags(nats)):
        with Publisher(nats.port) as publisher:
            publisher.send(reports)  # with the same key, who was counted before is known
        again.wait_for(DEVICES)
        assert again.look().counts == [1] * DEVICES
