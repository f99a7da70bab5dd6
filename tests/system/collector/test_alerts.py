"""A real Prometheus with the shipped rules sees a real collector live, and die."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest
import yaml

from testbed.collector import CollectorProcess
from testbed.processes import Process, free_port
from tests.support.campaigns import manifest_text
from tests.support.command_line import operator
from tests.support.documents import DEPLOY
from tests.support.harness import path_of

DOWN = "AllomfreeCollectorDown"
BOARD: dict[str, Any] = json.loads((DEPLOY / "grafana-dashboard.json").read_text(encoding="utf-8"))


class Prometheus(Process):
    """Prometheus that asks every second and judges more often; `for:` is a second."""

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
    data, port = tmp_path / "data", free_port()
    (tmp_path / "campaign.toml").write_text(manifest_text())
    with operator("--data-dir", data) as typing:
        typing.runs("open", tmp_path / "campaign.toml")
    collector = CollectorProcess(data, "--listen", f"127.0.0.1:{port}", log=tmp_path / "log")
    with collector, Prometheus(tmp_path / "prometheus", port) as prometheus:
        collector.wait_until_connected()
        prometheus.wait_for("a scrape", lambda: prometheus.value(panel("Connected")) == 1)
        prometheus.wait_for("health", lambda: prometheus.value(panel("Healthy")) == 1)
        prometheus.wait_for("quiet", lambda: DOWN not in prometheus.firing())
        assert prometheus.value("count(allomfree_round_seconds)") == 1
        collector.kill()
        prometheus.wait_for("the alert", lambda: DOWN in prometheus.firing())
        assert prometheus.value(panel("Connected")) == 0
        assert prometheus.value(panel("Healthy")) == 0
