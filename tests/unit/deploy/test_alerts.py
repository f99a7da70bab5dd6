"""The alert rules: real `promtool` takes them and runs their tests; nothing in them is made up."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from collector.metrics import METRICS
from tests.support.deploy_files import DEPLOY, PROGRAMS
from tests.support.needs import path_of
from tests.support.places import ROOT

FILE = DEPLOY / "prometheus-alerts.yaml"
TESTS = Path(__file__).with_name("alerts.yaml")
RULES: list[dict[str, Any]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))["groups"][0]["rules"]
COMMAND = re.compile(r"(allomfree-collector) ([a-z-]+)")


def promtool(*words: str | Path) -> str:
    done = subprocess.run(
        [path_of("promtool"), *map(str, words)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_takes_the_rules() -> None:
    assert f"{len(RULES)} rules found" in promtool("check", "rules", FILE)


def test_each_fires_when_it_should_and_not_before() -> None:
    promtool("test", "rules", TESTS)


def test_every_rule_is_tested_firing_and_quiet() -> None:
    rows = [
        row
        for test in yaml.safe_load(TESTS.read_text(encoding="utf-8"))["tests"]
        for row in test["alert_rule_test"]
    ]
    names = {rule["alert"] for rule in RULES}
    assert {row["alertname"] for row in rows if row.get("exp_alerts")} == names
    assert {row["alertname"] for row in rows if not row.get("exp_alerts")} == names


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_rule_asks_for_what_is_measured_and_says_what_to_do(rule: dict[str, Any]) -> None:
    asked = set(re.findall(r"\b(?:allomfree_\w+|up\b)", rule["expr"]))
    assert asked
    assert asked <= {*METRICS, "up"}
    assert rule["expr"].count('job="allomfree"') == len(re.findall(r"\{", rule["expr"]))
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"].keys() == {"summary", "description"}
    for program, verb in COMMAND.findall(rule["annotations"]["description"]):
        assert verb in PROGRAMS[program].commands


def test_every_rule_is_on_the_page_and_the_page_names_no_other() -> None:
    section = (ROOT / "docs/dashboards.md").read_text(encoding="utf-8").split("### Alerts")[1]
    assert re.findall(r"^\| `(Allomfree\w+)`", section, re.MULTILINE) == [
        rule["alert"] for rule in RULES
    ]


def test_the_pages_configuration_of_prometheus_is_one(tmp_path: Path) -> None:
    text = (ROOT / "docs/dashboards.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "prometheus.yml").write_text(block)
    (tmp_path / FILE.name).write_text(FILE.read_text())
    promtool("check", "config", tmp_path / "prometheus.yml")
    assert f"{FILE.name}" in block
    assert "job_name: allomfree" in block
