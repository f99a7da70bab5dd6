"""Prometheus metrics, read from the store and the service's heartbeat when asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from collector.data_dir import read_store
from collector.health import Beat, Status, examine
from collector.records import NO_CAMPAIGN
from collector.store import Store
from protocol_spec import Outcome

METRICS: Final = {
    "allomfree_received_total": "messages received, ever",
    "allomfree_outcomes_total": "messages by campaign and outcome; they sum to those received",
    "allomfree_open_reports": "reports counted in rounds not yet sealed, by campaign and attribute",
    "allomfree_sealed_rounds": "rounds sealed, by campaign",
    "allomfree_connected": "1 while the broker is connected",
    "allomfree_healthy": "1 while there is no trouble",
    "allomfree_batches_total": "batches committed since start",
    "allomfree_largest_batch": "messages in the largest batch since start",
    "allomfree_last_commit_timestamp_seconds": "when a batch was last committed",
    "allomfree_storage_failures_total": "commits that the disk refused since start",
    "allomfree_resident_memory_bytes": "memory of the service's process",
}


class _Source:
    """Collects all families at once, from a read-only view of the database."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def collect(self) -> Iterator[Metric]:
        store = read_store(self._directory)
        try:
            yield from self._stored(store)
        finally:
            store.close()
        health = examine(self._directory)
        beat = health.beat or Beat(0, 0.0, 0, Status())
        status = beat.status
        values = {
            "allomfree_connected": float(status.connected),
            "allomfree_healthy": float(health.well),
            "allomfree_batches_total": status.batches,
            "allomfree_largest_batch": status.largest_batch,
            "allomfree_last_commit_timestamp_seconds": status.last_commit,
            "allomfree_storage_failures_total": status.storage_failures,
            "allomfree_resident_memory_bytes": beat.memory,
        }
        for name, value in values.items():
            family = _counter(name) if name.endswith("_total") else _gauge(name)
            family.add_metric([], value)
            yield family

    def _stored(self, store: Store) -> Iterator[Metric]:
        received = _counter("allomfree_received_total")
        received.add_metric([], store.received())
        yield received
        outcomes = _counter("allomfree_outcomes_total", "campaign", "outcome")
        reports = _gauge("allomfree_open_reports", "campaign", "attribute")
        sealed = _gauge("allomfree_sealed_rounds", "campaign")
        for name, counted in _outcomes(store):
            for outcome, n in counted.items():
                outcomes.add_metric([name, str(outcome)], n)
        for campaign in store.campaigns():
            last = store.last_sealed(campaign.id)
            sealed.add_metric([campaign.name], 0 if last is None else last + 1)
            counts = [0] * len(campaign.manifest.attributes)
            for number in store.open_rounds(campaign.id):
                for index, tally in store.tallies(campaign.id, number).items():
                    counts[index] += tally.n
            for attribute, n in zip(campaign.manifest.attributes, counts):
                reports.add_metric([campaign.name, attribute.name], n)
        yield from (outcomes, reports, sealed)


def _outcomes(store: Store) -> Iterator[tuple[str, dict[Outcome, int]]]:
    yield "", store.outcomes(NO_CAMPAIGN)
    for campaign in store.campaigns():
        yield campaign.name, store.outcomes(campaign.id)


def _counter(name: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(name, METRICS[name], labels=labels)


def _gauge(name: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, METRICS[name], labels=labels)


def registry(directory: Path) -> CollectorRegistry:
    """Everything there is to measure."""
    made = CollectorRegistry(auto_describe=False)
    made.register(_Source(directory))
    return made


def exposition(made: CollectorRegistry) -> bytes:
    """The text Prometheus reads."""
    return generate_latest(made)
