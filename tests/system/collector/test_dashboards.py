"""At real brokers: any dashboard reads the latest word, and Home Assistant finds it by itself."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from collector.rounds.publishing import discovery, discovery_topic
from collector.rounds.results import result_json
from testbed.brokers import Broker
from tests.support.collector_processes.campaign import (
    ATTRIBUTE,
    Collection,
    own_namespace,
    wait_until_open,
)
from tests.support.collector_processes.processes import CollectorProcess
from tests.support.collector_processes.wire import Publisher, Watcher, retained
from tests.support.command_line import operator
from tests.support.documents import rendered
from tests.support.edge_processes import wait_until

HOUR = 3600
PAST = 0


def latest(collection: Collection) -> bytes:
    campaign = collection.campaign()
    pooled = [r for r in collection.store.results(campaign.id) if r.round is None]
    return result_json(campaign, pooled[0])


@pytest.mark.slow
def test_results_in_json_and_discovery(broker: Broker, tmp_path: Path) -> None:
    first, prefix = int(time.time()) - HOUR - 5, own_namespace()
    collection = Collection.shared(tmp_path / "data", 3, first=first, count=3)
    asked = (*collection.flags(broker), "--listen", "off", "--home-assistant", prefix)
    found, told = discovery_topic(prefix, collection.campaign()), collection.topics.state
    result = collection.topics.result_json(ATTRIBUTE)
    with (
        operator("--data-dir", collection.data) as typing,
        CollectorProcess(collection.data, *asked),
        Watcher(broker.port, found, told, result) as watcher,
    ):
        wait_until_open(collection, broker.port)
        assert watcher.wait_for_topic(found) == discovery(collection.campaign(), collection.topics)
        with Publisher(broker.port) as publisher:
            publisher.send(collection.reports(PAST))
        collection.wait_for(3, PAST)
        assert typing.asks("seal", "--early")["sealed"] == [PAST]
        payload = watcher.wait_for_topic(result)
        assert payload == latest(collection)
        assert json.loads(payload)["histogram"][1]["value"] == "v1"
        sensors = json.loads(watcher.latest[found])["components"]
        shown = sensors["collector"]["value_template"]
        watcher.wait_for_topic(told)
        assert rendered(shown, watcher.latest[told]) == "ON"
        assert rendered(sensors[f"{ATTRIBUTE}_reports"]["value_template"], payload) == "3"
        wait_until(lambda: collection.look().unpublished == 0)
        typing.runs("close", "--yes")
        watcher.wait_for_topic(found, b"")
        # NATS may hand on another topic first
        watcher.wait_for(lambda: rendered(shown, watcher.latest[told]) == "OFF")
    assert retained(broker.port, found) == {}
    kept = retained(broker.port, f"{collection.topics.result(ATTRIBUTE)}/#")
    assert json.loads(kept[result])["rounds"] >= 1, "results stay, as in msgpack"
