"""Health and metrics over real HTTP: every documented name, right numbers, nothing to change."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from collector.errors import CollectorError
from collector.metrics import METRICS, exposition, registry, resident_memory
from collector.service import Standing
from collector.store import NO_CAMPAIGN, NO_ROUND, Campaign, Refusal
from collector.store.sqlite import SqliteStore
from collector.web.server import serving
from protocol_spec import Outcome
from tests.collector.fakes import COLOUR, candidate, seal
from tests.collector.test_store import rows

Samples = dict[str, float]


@pytest.fixture
def standing() -> Standing:
    return Standing(
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


def scrape(directory: Path, standing: Standing) -> Samples:
    return samples(exposition(registry(directory, lambda: standing)).decode())


def test_every_metric_that_is_documented_appears(
    tmp_path: Path, used: Campaign, standing: Standing
) -> None:
    text = exposition(registry(tmp_path, lambda: standing)).decode()
    shown = {name.split("{")[0] for name in samples(text)}
    assert shown == set(METRICS)
    for name, words in METRICS.items():
        assert f"# HELP {name} {words}" in text


def test_the_numbers_are_the_stores_and_the_services(
    tmp_path: Path, used: Campaign, standing: Standing
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
    tmp_path: Path, used: Campaign, standing: Standing
) -> None:
    """I12, as a monitor sees it."""
    shown = scrape(tmp_path, standing)
    counted = sum(n for name, n in shown.items() if name.startswith("allomfree_outcomes_total"))
    assert counted == shown["allomfree_received_total"]


def test_trouble_shows(tmp_path: Path, used: Campaign) -> None:
    shown = scrape(tmp_path, Standing(connected=False, trouble="the broker is gone"))
    assert (shown["allomfree_connected"], shown["allomfree_healthy"]) == (0, 0)


def test_memory_is_this_processs() -> None:
    assert 10 << 20 < resident_memory() < 4 << 30


# --- over HTTP ----------------------------------------------------------------------------------


@pytest.fixture
def port(tmp_path: Path, used: Campaign, standing: Standing) -> Iterator[int]:
    with serving(("127.0.0.1", 0), tmp_path, lambda: standing) as chosen:
        yield chosen


def ask(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def test_metrics_are_served(port: int, tmp_path: Path, standing: Standing) -> None:
    status, text = ask(port, "/metrics")
    assert status == 200
    shown, expected = samples(text), scrape(tmp_path, standing)
    assert shown.keys() == expected.keys()
    assert shown["allomfree_received_total"] == 14


def test_health_follows_the_service(port: int, standing: Standing) -> None:
    status, text = ask(port, "/health")
    assert (status, json.loads(text)) == (200, {"healthy": True, "connected": True, "trouble": ""})
    standing.trouble = "the disk is full"
    status, text = ask(port, "/health")
    assert status == 503
    assert json.loads(text)["trouble"] == "the disk is full"


def test_metrics_follow_the_store(port: int, store: SqliteStore, used: Campaign) -> None:
    store.commit([candidate(used, 99, 1)], [])
    assert samples(ask(port, "/metrics")[1])["allomfree_received_total"] == 15


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_changed(port: int, store: SqliteStore, method: str) -> None:
    before = rows(store)
    for path in ("/metrics", "/health"):
        assert ask(port, path, method)[0] == 405
    assert ask(port, "/nosuch", method)[0] == 404
    assert rows(store) == before


def test_a_port_in_use_is_an_error_with_a_next_step(tmp_path: Path, standing: Standing) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = ("127.0.0.1", taken.getsockname()[1])
        with (
            pytest.raises(CollectorError, match="in use; choose another with --listen"),
            serving(address, tmp_path, lambda: standing),
        ):
            pass


def test_the_port_is_free_afterwards(tmp_path: Path, used: Campaign, standing: Standing) -> None:
    with serving(("127.0.0.1", 0), tmp_path, lambda: standing) as chosen:
        assert ask(chosen, "/health")[0] == 200
    with serving(("127.0.0.1", chosen), tmp_path, lambda: standing) as again:
        assert again == chosen
        assert ask(again, "/health")[0] == 200
