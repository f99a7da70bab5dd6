"""Metrics: every documented name, with the numbers of the store and of the service's heartbeat."""

from __future__ import annotations

import json
import re
import shutil
import time
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from collector.brokers.authority import days_left
from collector.brokers.config import BrokerPlan
from collector.brokers.directory import BrokerDirectory
from collector.health import STALE_SECONDS, Heartbeat, Status, resident_memory
from collector.records import NO_CAMPAIGN, NO_ROUND, Campaign, Refusal
from collector.store.sqlite import SqliteStore
from collector.web.metrics import METRICS, exposition, registry
from protocol_spec import Outcome
from tests.support.collector import COLOUR, candidate, seal
from tests.support.harness import ROOT

Samples = dict[str, float]
CERTIFICATE = "allomfree_certificate_expiry_timestamp_seconds"


@pytest.fixture
def standing() -> Status:
    return Status(
        connected=True,
        trouble="",
        batches=4,
        largest_batch=30,
        last_commit=5e8,
        storage_failures=2,
        suspended=3,
    )


@pytest.fixture
def used(store: SqliteStore, campaign: Campaign) -> Campaign:
    refusals = [
        Refusal(NO_CAMPAIGN, NO_ROUND, Outcome.TOPIC_MISMATCH),
        Refusal(campaign.id, NO_ROUND, Outcome.MALFORMED),
    ]
    store.commit([candidate(campaign, d) for d in range(5)], refusals)
    seal(store, campaign, 0)
    store.commit([candidate(campaign, d, 1) for d in range(3)], [])
    store.commit([candidate(campaign, d, n, COLOUR) for d in (7, 8) for n in (1, 2)], [])
    store.withdraw([(campaign.id, 99)], repeated=4)
    return campaign


def samples(text: str) -> Samples:
    found = re.findall(r"^(allomfree_\S+) (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}


def shown_text(directory: Path, standing: Status) -> str:
    Heartbeat(directory).beat(standing)
    return exposition(registry(directory)).decode()


def scrape(directory: Path, standing: Status) -> Samples:
    return samples(shown_text(directory, standing))


def test_every_metric_that_is_documented_appears(
    tmp_path: Path, used: Campaign, standing: Status
) -> None:
    Heartbeat(tmp_path).beat(standing)
    while_open = registry(tmp_path, clock=lambda: used.manifest.rounds.first)
    text = exposition(while_open).decode()
    shown = {name.split("{")[0] for name in samples(text)}
    assert shown == set(METRICS) - {CERTIFICATE}
    for name in shown:
        assert f"# HELP {name} {METRICS[name]}" in text


def test_the_numbers_are_the_stores_and_the_services(
    tmp_path: Path, used: Campaign, standing: Status
) -> None:
    shown, name = scrape(tmp_path, standing), used.name
    expected = {
        "allomfree_received_total": 14,
        f'allomfree_outcomes_total{{campaign="{name}",outcome="accepted"}}': 12,
        f'allomfree_outcomes_total{{campaign="{name}",outcome="malformed"}}': 1,
        'allomfree_outcomes_total{campaign="",outcome="topic_mismatch"}': 1,
        f'allomfree_open_reports{{attribute="fuel",campaign="{name}"}}': 3,
        f'allomfree_open_reports{{attribute="colour",campaign="{name}"}}': 4,
        f'allomfree_open_reports{{attribute="town",campaign="{name}"}}': 0,
        f'allomfree_sealed_rounds{{campaign="{name}"}}': 1,
        'allomfree_requests_total{outcome="done"}': 1,
        'allomfree_requests_total{outcome="repeated"}': 4,
        'allomfree_requests_total{outcome="invalid"}': 0,
        "allomfree_suspended_devices": 3,
        "allomfree_connected": 1,
        "allomfree_healthy": 1,
        "allomfree_batches_total": 4,
        "allomfree_largest_batch": 30,
        "allomfree_last_commit_timestamp_seconds": 5e8,
        "allomfree_storage_failures_total": 2,
    }
    assert {key: shown[normal(shown, key)] for key in expected} == expected


def normal(shown: Samples, key: str) -> str:
    """The sample whose name and labels are these, in whatever order."""
    parts = set(re.findall(r'\w+="[^"]*"|^\w+', key))
    return next(k for k in shown if set(re.findall(r'\w+="[^"]*"|^\w+', k)) == parts)


def test_outcomes_sum_to_what_was_received(
    tmp_path: Path, used: Campaign, standing: Status
) -> None:
    """I12, as a monitor sees it."""
    shown = scrape(tmp_path, standing)
    counted = sum(n for name, n in shown.items() if name.startswith("allomfree_outcomes_total"))
    assert counted == shown["allomfree_received_total"]


def test_trouble_shows(tmp_path: Path, used: Campaign) -> None:
    shown = scrape(tmp_path, Status(connected=False, trouble="the broker is gone"))
    assert (shown["allomfree_connected"], shown["allomfree_healthy"]) == (0, 0)


def test_memory_is_the_services(tmp_path: Path, used: Campaign, standing: Status) -> None:
    """It is in the heartbeat: whoever serves the metrics is another process."""
    assert 10 << 20 < resident_memory() < 4 << 30
    shown = scrape(tmp_path, standing)["allomfree_resident_memory_bytes"]
    assert 10 << 20 < shown < 4 << 30


def test_what_is_late_shows_and_a_round_has_a_length_while_it_is_open(
    tmp_path: Path, used: Campaign
) -> None:
    rounds = used.manifest.rounds
    label = f'{{campaign="{used.name}"}}'

    def at(now: float) -> tuple[float, float | None]:
        shown = samples(exposition(registry(tmp_path, clock=lambda: now)).decode())
        length = shown.get(f"allomfree_round_seconds{label}")
        return shown[f"allomfree_unsealed_rounds{label}"], length

    assert at(rounds.deadline(1) - 1) == (0, rounds.period)
    assert at(rounds.deadline(1)) == (1, rounds.period)
    assert at(rounds.deadline(2)) == (2, rounds.period)
    assert at(rounds.first - 1) == (0, None)
    assert at(rounds.end)[1] is None


def test_a_service_that_fell_silent_is_not_connected(
    tmp_path: Path, used: Campaign, standing: Status
) -> None:
    Heartbeat(tmp_path).beat(standing)
    now = time.time()
    for moment, expected in ((now, 1.0), (now + STALE_SECONDS + 5, 0.0)):
        made = registry(tmp_path, clock=partial(float, moment))
        shown = samples(exposition(made).decode())
        assert (shown["allomfree_connected"], shown["allomfree_healthy"]) == (expected, expected)


def test_the_disk_and_the_start_of_the_service(
    tmp_path: Path, used: Campaign, standing: Status
) -> None:
    shown = scrape(tmp_path, standing)
    disk = shutil.disk_usage(tmp_path)
    assert shown["allomfree_disk_size_bytes"] == disk.total
    assert 0 < shown["allomfree_disk_free_bytes"] <= disk.total
    assert shown["allomfree_start_timestamp_seconds"] == pytest.approx(standing.since)


def test_the_brokers_certificate_and_none_that_cannot_be_read(
    tmp_path: Path, used: Campaign
) -> None:
    broker = tmp_path / "elsewhere"
    plan = BrokerPlan("mosquitto", "allomfree", ("localhost",), broker)
    BrokerDirectory.configure(broker, plan)
    shown = samples(exposition(registry(tmp_path, broker=broker)).decode())
    left = (shown[CERTIFICATE] - time.time()) / 86_400
    assert int(left) == days_left(broker / "tls/server.crt")
    (broker / "tls" / "server.crt").write_text("rubbish")
    assert CERTIFICATE not in samples(exposition(registry(tmp_path, broker=broker)).decode())


def test_a_service_that_is_gone_is_not_healthy(tmp_path: Path, used: Campaign) -> None:
    shown = samples(exposition(registry(tmp_path)).decode())
    assert shown.keys() >= {"allomfree_batches_total"}
    assert (shown["allomfree_connected"], shown["allomfree_healthy"]) == (0, 0)
    assert shown["allomfree_received_total"] == 14


# --- The dashboard for Grafana: it loads, asks only for what the collector measures, and fits.


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
