"""Metrics: every documented name, with the numbers of the store and of the service's heartbeat."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from collector.health import Heartbeat, Status, resident_memory
from collector.records import NO_CAMPAIGN, NO_ROUND, Campaign, Refusal
from collector.show.metrics import METRICS, exposition, registry
from collector.store.sqlite import SqliteStore
from protocol_spec import Outcome
from tests.support.collector_fakes import COLOUR, candidate, seal

Samples = dict[str, float]


@pytest.fixture
def standing() -> Status:
    return Status(
        connected=True, trouble="", batches=4, largest_batch=30, last_commit=5e8, storage_failures=2
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
    text = shown_text(tmp_path, standing)
    shown = {name.split("{")[0] for name in samples(text)}
    assert shown == set(METRICS)
    for name, words in METRICS.items():
        assert f"# HELP {name} {words}" in text


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


def test_a_service_that_is_gone_is_not_healthy(tmp_path: Path, used: Campaign) -> None:
    shown = samples(exposition(registry(tmp_path)).decode())
    assert shown.keys() >= {"allomfree_batches_total"}
    assert (shown["allomfree_connected"], shown["allomfree_healthy"]) == (0, 0)
    assert shown["allomfree_received_total"] == 14
