"""At real brokers: any dashboard reads the latest word, and Home Assistant finds it by itself."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from collector.data_dir import read_store
from collector.rounds.home_assistant import discovery, discovery_topic
from collector.show.tables import as_json
from tests.support.brokers import Broker
from tests.support.collector_processes.campaign import ATTRIBUTE, Desk, wait_until_open
from tests.support.collector_processes.processes import CollectorProcess, collector, facts
from tests.support.collector_processes.wire import Publisher, Watcher, retained
from tests.support.edge_processes.processes import wait_until
from tests.unit.collector.test_home_assistant import rendered

HOUR = 3600
PAST = 0


def latest(desk: Desk) -> bytes:
    store = read_store(desk.data)
    campaign = store.campaign(None)
    pooled = [r for r in store.results(campaign.id) if r.round is None]
    store.close()
    return as_json(campaign, pooled[0])


@pytest.mark.slow
def test_results_in_json_and_discovery(broker: Broker, tmp_path: Path) -> None:
    desk = Desk.opened(tmp_path / "data", 3, first=int(time.time()) - HOUR - 5, count=3)
    asked = ("--broker", broker.url, "--listen", "off", "--home-assistant", "homeassistant")
    found, told = discovery_topic("homeassistant", desk.campaign()), desk.topics.state
    result = desk.topics.result_json(ATTRIBUTE)
    with CollectorProcess(desk.data, *asked), Watcher(broker.port, found, told, result) as watcher:
        wait_until_open(desk, broker.port)
        assert watcher.wait_for_topic(found) == discovery(desk.campaign(), desk.topics)
        with Publisher(broker.port) as publisher:
            publisher.send(desk.reports(PAST))
        wait_until(lambda: desk.look(PAST).n == 3)
        assert facts("seal", "--data-dir", desk.data, "--early")["sealed"] == [PAST]
        payload = watcher.wait_for_topic(result)
        assert payload == latest(desk)
        assert json.loads(payload)["histogram"][1]["value"] == "v1"
        sensors = json.loads(watcher.latest[found])["components"]
        assert rendered(sensors["collector"]["value_template"], watcher.latest[told]) == "ON"
        assert rendered(sensors[f"{ATTRIBUTE}_reports"]["value_template"], payload) == "3"
        wait_until(lambda: desk.look().unpublished == 0)
        assert collector("close", "--yes", "--data-dir", desk.data).returncode == 0
        watcher.wait_for_topic(found, b"")
        assert rendered(sensors["collector"]["value_template"], watcher.latest[told]) == "OFF"
    assert retained(broker.port, found) == {}
    kept = retained(broker.port, f"{desk.topics.result(ATTRIBUTE)}/#")
    assert json.loads(kept[result])["rounds"] >= 1, "results stay, as in msgpack"
