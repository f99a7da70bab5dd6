"""Metrics: every documented name, with the numbers of the store and of the service's heartbeat."""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from collector.brokers.authority import days_left
from collector.brokers.config import BrokerPlan
from collector.brokers.directory import BrokerDirectory
from collector.health import STALE_SECONDS, Heartbeat, Status
from collector.records import NO_CAMPAIGN, NO_ROUND, Campaign, Refusal
from collector.store.sqlite import SqliteStore
from collector.web.metrics import METRICS, exposition, registry
from protocol_spec import Outcome
from tests.support.collector import COLOUR, candidate, seal
from tests.support.harness import ROOT

Samples = dict[str, float]
CERTIFICATE = "allomfree_certificate_expiry_timestamp_seconds"
STATUS = Status(
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


def scrape(directory: Path, now: float | None = None, broker: Path | None = None) -> Samples:
    """The samples, each under its name and its labels in the order of their names."""
    text = exposition(registry(directory, clock=lambda: now or time.time(), broker=broker)).decode()
    samples = {}
    for name, labels, value in re.findall(r"^(allomfree_\w+)(\{.*\})? (\S+)$", text, re.MULTILINE):
        assert f"# HELP {name} {METRICS[name]}" in text
        samples[" ".join([name, *sorted(re.findall(r'\w+="[^"]*"', labels))])] = float(value)
    return samples


def test_every_documented_metric_has_the_numbers_of_store_and_service(
    tmp_path: Path, used: Campaign
) -> None:
    Heartbeat(tmp_path).beat(STATUS)
    shown = scrape(tmp_path, now=used.manifest.rounds.first)
    assert {name.split()[0] for name in shown} == set(METRICS) - {CERTIFICATE}
    campaign = f'campaign="{used.name}"'
    expected = {
        "allomfree_received_total": 14,
        f'allomfree_outcomes_total {campaign} outcome="accepted"': 12,
        f'allomfree_outcomes_total {campaign} outcome="malformed"': 1,
        'allomfree_outcomes_total campaign="" outcome="topic_mismatch"': 1,
        f'allomfree_open_reports attribute="fuel" {campaign}': 3,
        f'allomfree_open_reports attribute="colour" {campaign}': 4,
        f'allomfree_open_reports attribute="town" {campaign}': 0,
        f"allomfree_sealed_rounds {campaign}": 1,
        'allomfree_requests_total outcome="done"': 1,
        'allomfree_requests_total outcome="repeated"': 4,
        'allomfree_requests_total outcome="invalid"': 0,
        "allomfree_suspended_devices": 3,
        "allomfree_batches_total": 4,
        "allomfree_largest_batch": 30,
        "allomfree_last_commit_timestamp_seconds": 5e8,
        "allomfree_storage_failures_total": 2,
        "allomfree_disk_size_bytes": shutil.disk_usage(tmp_path).total,
    }
    assert {name: shown[name] for name in expected} == expected
    assert shown["allomfree_start_timestamp_seconds"] == pytest.approx(STATUS.since)
    assert 0 < shown["allomfree_disk_free_bytes"] <= shown["allomfree_disk_size_bytes"]
    assert 10 << 20 < shown["allomfree_resident_memory_bytes"] < 4 << 30, "of the service"
    counted = sum(n for name, n in shown.items() if name.startswith("allomfree_outcomes_total"))
    assert counted == shown["allomfree_received_total"], "I12, as a monitor sees it"


def test_a_service_in_trouble_silent_or_gone_is_not_healthy(tmp_path: Path, used: Campaign) -> None:
    def health(later: float = 0) -> tuple[float, float]:
        shown = scrape(tmp_path, time.time() + later)
        assert shown["allomfree_received_total"] == 14
        return shown["allomfree_connected"], shown["allomfree_healthy"]

    assert health() == (0, 0)
    Heartbeat(tmp_path).beat(STATUS)
    assert health() == (1, 1)
    assert health(STALE_SECONDS + 5) == (0, 0)
    Heartbeat(tmp_path).beat(Status(connected=False, trouble="the broker is gone"))
    assert health() == (0, 0)


def test_late_rounds_are_counted_and_the_length_is_shown_while_open(
    tmp_path: Path, used: Campaign
) -> None:
    rounds = used.manifest.rounds
    label = f'campaign="{used.name}"'

    def at(now: float) -> tuple[float, float | None]:
        shown = scrape(tmp_path, now)
        length = shown.get(f"allomfree_round_seconds {label}")
        return shown[f"allomfree_unsealed_rounds {label}"], length

    assert at(rounds.deadline(1) - 1) == (0, rounds.period)
    assert at(rounds.deadline(1)) == (1, rounds.period)
    assert at(rounds.deadline(2)) == (2, rounds.period)
    assert at(rounds.first - 1) == (0, None)
    assert at(rounds.end)[1] is None


def test_the_brokers_certificate_and_none_that_cannot_be_read(
    tmp_path: Path, used: Campaign
) -> None:
    broker = tmp_path / "elsewhere"
    plan = BrokerPlan("mosquitto", "allomfree", ("localhost",), broker)
    BrokerDirectory.configure(broker, plan)
    left = (scrape(tmp_path, broker=broker)[CERTIFICATE] - time.time()) / 86_400
    assert int(left) == days_left(broker / "tls/server.crt")
    (broker / "tls" / "server.crt").write_text("rubbish")
    assert CERTIFICATE not in scrape(tmp_path, broker=broker)


# --- The dashboard for Grafana: it loads, asks only for what the collector measures, and fits -----

BOARD: dict[str, Any] = json.loads((ROOT / "deploy" / "grafana-dashboard.json").read_text())
PANELS: list[dict[str, Any]] = BOARD["panels"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]
VARIABLES = {v["name"]: v for v in BOARD["templating"]["list"]}


def metrics_in(text: str) -> set[str]:
    return set(re.findall(r"allomfree_\w+", text))


def test_the_dashboard_queries_every_metric_soundly() -> None:
    assert metrics_in(" ".join(QUERIES)) == set(METRICS)
    assert metrics_in(json.dumps(VARIABLES)) <= set(METRICS)
    for query in QUERIES:
        for opened, closed in ("()", "{}", "[]"):
            assert query.count(opened) == query.count(closed)
        for label, value in re.findall(r'(\w+)=~?"([^"]*)"', query):
            assert label in {"job", "instance", "campaign", "attribute", "outcome"}
            assert value.startswith("$") or (label == "outcome" and value in list(Outcome))
        assert set(re.findall(r"\$(\w+)", query)) <= {*VARIABLES, "__rate_interval"}
        for counter in metrics_in(query):
            changes = re.search(rf"(rate|increase|sum)\({counter}\b", query)
            assert not counter.endswith("_total") or changes, "a counter is not a level"


def test_a_panel_has_a_description_a_unit_and_current_numbers() -> None:
    """A range would show the last value of a collector that died, for as long as it reaches."""
    for panel in PANELS:
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["type"] in ("stat", "timeseries")
        sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        assert sources == [{"type": "prometheus", "uid": "${datasource}"}] * len(sources)
        instant = panel["type"] == "stat"
        assert all(bool(target.get("instant")) == instant for target in panel["targets"])
        if panel["title"] in ("Connected", "Healthy"):
            (target,) = panel["targets"]
            assert target["expr"].endswith('or 0 * up{job=~"$job"}) or vector(0)')


def test_the_dashboard_can_be_imported_anywhere() -> None:
    assert VARIABLES["datasource"]["type"] == "datasource"
    assert VARIABLES["datasource"]["query"] == "prometheus"
    assert "id" not in BOARD, "an id belongs to one Grafana"
    assert "allValue" not in VARIABLES["job"], "with .* other jobs would count as collectors"
