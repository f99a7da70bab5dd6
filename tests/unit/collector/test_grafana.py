"""The dashboard for Grafana: it loads, asks only for what the collector measures, and fits."""

from __future__ import annotations

import json
import re
from itertools import combinations
from typing import Any

import pytest

from collector.metrics import METRICS
from protocol_spec import Outcome
from tests.support.places import ROOT

FILE = ROOT / "deploy" / "grafana-dashboard.json"
BOARD: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
PANELS: list[dict[str, Any]] = BOARD["panels"]
LABELS = {"job", "instance", "campaign", "attribute", "outcome"}
VARIABLES = {v["name"]: v for v in BOARD["templating"]["list"]}


def queries() -> list[str]:
    return [target["expr"] for panel in PANELS for target in panel["targets"]]


def metrics_in(text: str) -> set[str]:
    return set(re.findall(r"allomfree_\w+", text))


def test_every_metric_it_names_exists_and_every_metric_is_shown() -> None:
    assert metrics_in(" ".join(queries())) == set(METRICS)
    for variable in VARIABLES.values():
        assert metrics_in(json.dumps(variable)) <= set(METRICS)


@pytest.mark.parametrize("query", queries())
def test_a_query_is_sound(query: str) -> None:
    for opened, closed in ("()", "{}", "[]"):
        assert query.count(opened) == query.count(closed)
    for label, value in re.findall(r'(\w+)=~?"([^"]*)"', query):
        assert label in LABELS
        assert value.startswith("$") or (label == "outcome" and value in list(Outcome))
    assert set(re.findall(r"\$(\w+)", query)) <= {*VARIABLES, "__rate_interval"}
    for counter in metrics_in(query):
        changes = re.search(rf"(rate|increase)\({counter}\b", query)
        total = re.search(rf"sum\({counter}\b", query)
        assert not counter.endswith("_total") or changes or total, "a counter is not a level"


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_says_what_it_shows_in_which_unit(panel: dict[str, Any]) -> None:
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["type"] in ("stat", "timeseries")
    sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
    assert sources == [{"type": "prometheus", "uid": "${datasource}"}] * len(sources)


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_number_is_of_now_and_never_of_a_collector_that_died(panel: dict[str, Any]) -> None:
    """A range would show the last value there was, for as long as the dashboard reaches back."""
    at_once = panel["type"] == "stat"
    assert all(bool(target.get("instant")) == at_once for target in panel["targets"])
    if panel["title"] in ("Connected", "Healthy"):
        (target,) = panel["targets"]
        assert target["expr"].endswith('or 0 * up{job=~"$job"}) or vector(0)'), "no is not unknown"


def test_all_jobs_are_those_that_were_found() -> None:
    """With `.*` the `up` of every other job in Prometheus would count as a collector's."""
    assert "allValue" not in VARIABLES["job"]


def test_the_source_of_data_is_chosen_by_whoever_imports_it() -> None:
    assert VARIABLES["datasource"]["type"] == "datasource"
    assert VARIABLES["datasource"]["query"] == "prometheus"
    assert "id" not in BOARD, "an id belongs to one Grafana"


def test_panels_do_not_overlap() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    for one, other in combinations([panel["gridPos"] for panel in PANELS], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in PANELS)
