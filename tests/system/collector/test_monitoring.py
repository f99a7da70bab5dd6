"""What others see of a running collector: Prometheus, dashboards, Home Assistant, a terminal."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import time
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest
import yaml

from collector.data_dir import open_store
from collector.rounds.publishing import discovery, discovery_topic
from collector.rounds.results import result_json
from protocol_spec import Manifest
from testbed.brokers import Broker, publish
from testbed.processes import Process, command_of, environment, free_port
from tests.support.campaigns import manifest_text
from tests.support.collector import candidate
from tests.support.collector_processes import (
    ATTRIBUTE,
    Collection,
    CollectorProcess,
    Watcher,
    own_namespace,
    retained,
    wait_until_open,
)
from tests.support.command_line import operator
from tests.support.documents import DEPLOY, rendered
from tests.support.harness import path_of
from tests.support.processes import wait_until

DOWN = "AllomfreeCollectorDown"
BOARD: dict[str, Any] = json.loads((DEPLOY / "grafana-dashboard.json").read_text(encoding="utf-8"))


class Prometheus(Process):
    """With the shipped rules; it scrapes every second and evaluates more often."""

    def __init__(self, directory: Path, target: int) -> None:
        directory.mkdir()
        self.port = free_port()
        rules = yaml.safe_load((DEPLOY / "prometheus-alerts.yaml").read_text(encoding="utf-8"))
        for rule in rules["groups"][0]["rules"]:
            rule.update({"for": "1s"} if "for" in rule else {})
        (directory / "rules.yaml").write_text(yaml.safe_dump(rules))
        job = {"job_name": "allomfree", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "200ms"},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [job],
        }
        (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
        command = [
            path_of("prometheus"),
            f"--config.file={directory}/prometheus.yml",
            f"--storage.tsdb.path={directory}/data",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]
        super().__init__("prometheus", command, directory / "log")

    def ask(self, path: str) -> Any:
        try:
            with urlopen(f"http://127.0.0.1:{self.port}/api/v1/{path}", timeout=10) as reply:
                return json.load(reply)["data"]
        except OSError:
            return {}

    def value(self, query: str) -> float | None:
        found = self.ask(f"query?query={quote(query)}").get("result", [])
        return float(found[0]["value"][1]) if found else None

    def firing(self) -> set[str]:
        alerts = self.ask("alerts").get("alerts", [])
        return {a["labels"]["alertname"] for a in alerts if a["state"] == "firing"}


def panel(title: str) -> str:
    """What the dashboard asks for, with its job chosen."""
    (found,) = [panel for panel in BOARD["panels"] if panel["title"] == title]
    expression: str = found["targets"][0]["expr"]
    return expression.replace("$job", "allomfree")


@pytest.mark.slow
def test_a_killed_collector_fires_the_alert_and_is_not_connected(tmp_path: Path) -> None:
    data, port = Collection.opened(tmp_path / "data", 2).data, free_port()
    (data / "broker").mkdir(mode=0o700)
    (data / "broker" / "port").write_text(str(free_port()))
    with (
        CollectorProcess(data, "--listen", f"127.0.0.1:{port}") as collector,
        Prometheus(tmp_path / "prometheus", port) as prometheus,
    ):
        collector.wait_for("connected to")
        prometheus.wait_for("a scrape", lambda: prometheus.value(panel("Connected")) == 1)
        prometheus.wait_for("health", lambda: prometheus.value(panel("Healthy")) == 1)
        prometheus.wait_for("quiet", lambda: DOWN not in prometheus.firing())
        assert prometheus.value("count(allomfree_round_seconds)") == 1
        collector.process.kill()
        prometheus.wait_for("the alert", lambda: DOWN in prometheus.firing())
        assert prometheus.value(panel("Connected")) == 0
        assert prometheus.value(panel("Healthy")) == 0


# --- results in JSON, and discovery by Home Assistant ---------------------------------------------


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
    found, state = discovery_topic(prefix, collection.campaign()), collection.topics.state
    result = collection.topics.result_json(ATTRIBUTE)
    with (
        operator("--data-dir", collection.data) as typing,
        CollectorProcess(collection.data, *asked),
        Watcher(broker.port, found, state, result) as watcher,
    ):
        wait_until_open(collection, broker.port)
        assert watcher.wait_for_topic(found) == discovery(collection.campaign(), collection.topics)
        publish(broker.url, collection.reports(PAST))
        collection.wait_for(3, PAST)
        assert typing.asks("seal", "--early")["sealed"] == [PAST]
        payload = watcher.wait_for_topic(result)
        assert payload == latest(collection)
        assert json.loads(payload)["histogram"][1]["value"] == "v1"
        sensors = json.loads(watcher.latest[found])["components"]
        shown = sensors["collector"]["value_template"]
        watcher.wait_for_topic(state)
        assert rendered(shown, watcher.latest[state]) == "ON"
        assert rendered(sensors[f"{ATTRIBUTE}_reports"]["value_template"], payload) == "3"
        wait_until(lambda: collection.look().unpublished == 0)
        typing.runs("close", "--yes")
        watcher.wait_for_topic(found, b"")
        # NATS may hand on another topic first
        watcher.wait_for(lambda: rendered(shown, watcher.latest[state]) == "OFF")
    assert retained(broker.port, found) == {}
    kept = retained(broker.port, f"{collection.topics.result(ATTRIBUTE)}/#")
    assert json.loads(kept[result])["rounds"] >= 1, "results stay, as in msgpack"


# --- status --watch on a terminal -----------------------------------------------------------------


CLEAR = b"\x1b[2J\x1b[H"
PATIENCE_SECONDS = 60.0


def read_until(terminal: int, wanted: bytes, seen: bytes = b"") -> bytes:
    """What the terminal shows up to and with some text."""
    until = time.monotonic() + PATIENCE_SECONDS
    while wanted not in seen:
        assert time.monotonic() < until, seen
        seen += os.read(terminal, 4096)
    return seen


def test_a_change_is_shown_in_place_of_what_was_there(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with closing(open_store(data)) as store:
        made = store.open_campaign(Manifest.from_toml(manifest_text()), int(time.time()))
        ours, theirs = pty.openpty()
        words = ("status", "--watch", "--data-dir", data)
        command = command_of("allomfree-collector", *words)
        watching = subprocess.Popen(
            command, stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL, env=environment()
        )
        os.close(theirs)
        try:
            seen = read_until(ours, b"0 sealed")
            assert seen.startswith(CLEAR)
            assert b"accepted" not in seen
            store.commit([candidate(made, 1)], [])
            seen = read_until(ours, b"counted in its round")
            assert seen.count(CLEAR) == 1
            watching.send_signal(signal.SIGINT)
            assert watching.wait(PATIENCE_SECONDS) == 0
        finally:
            watching.kill()
            watching.wait()
            os.close(ours)
