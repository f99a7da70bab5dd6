"""Prometheus metrics, read from the store and the service's heartbeat when asked for."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from collector.brokers.credentials import server_expires
from collector.data_dir import read_store
from collector.health import Beat, Status, examine
from collector.records import NO_CAMPAIGN, Campaign, RequestOutcome
from collector.results.facts import ROLES, role_of, worker_facts
from collector.rounds.sealing import due
from collector.store import Store
from protocol_spec import Outcome

METRICS: Final = {
    "allomfree_received_total": "messages received, ever",
    "allomfree_outcomes_total": "messages by campaign and outcome; they sum to those received",
    "allomfree_open_reports": "reports counted in rounds not yet sealed, by campaign and attribute",
    "allomfree_sealed_rounds": "rounds sealed, by campaign",
    "allomfree_requests_total": "requests to be forgotten, by what became of them",
    "allomfree_suspended_devices": "devices that flood and are suspended now",
    "allomfree_connected": "1 while the broker is connected",
    "allomfree_healthy": "1 while there is no trouble",
    "allomfree_batches_total": "batches committed since start",
    "allomfree_largest_batch": "messages in the largest batch since start",
    "allomfree_last_commit_timestamp_seconds": "when a batch was last committed",
    "allomfree_storage_failures_total": "commits that the disk refused since start",
    "allomfree_resident_memory_bytes": "memory of the service's process",
    "allomfree_workers": "workers that share the store, by what they do",
    "allomfree_leads": "1 while this worker leads",
    "allomfree_start_timestamp_seconds": "when the service started",
    "allomfree_round_seconds": "length of a round, by campaign that has a round open now",
    "allomfree_unsealed_rounds": "rounds past their deadline that are not sealed, by campaign",
    "allomfree_disk_free_bytes": "free space on the disk that holds the data",
    "allomfree_disk_size_bytes": "size of the disk that holds the data",
    "allomfree_certificate_expiry_timestamp_seconds": "when the broker's certificate expires",
}


class _Source:
    """Collects all families at once, from a read-only view of the database."""

    def __init__(
        self,
        directory: Path,
        open_store: Callable[[Path], Store],
        broker: Path,
        clock: Callable[[], float],
    ) -> None:
        self._directory = directory
        self._open_store = open_store
        self._broker = broker
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        store = self._open_store(self._directory)
        try:
            yield from self._stored(store)
        finally:
            store.close()
        health = examine(self._directory, self._clock)
        beat = health.beat or Beat(0, 0.0, 0, Status(since=0.0))
        status = beat.status
        disk = os.statvfs(self._directory)
        values: dict[str, float | None] = {
            "allomfree_suspended_devices": status.suspended,
            "allomfree_connected": float(status.connected),
            "allomfree_healthy": float(health.well),
            "allomfree_batches_total": status.batches,
            "allomfree_largest_batch": status.largest_batch,
            "allomfree_last_commit_timestamp_seconds": status.last_commit,
            "allomfree_storage_failures_total": status.storage_failures,
            "allomfree_resident_memory_bytes": beat.memory,
            "allomfree_leads": float(status.leads),
            "allomfree_start_timestamp_seconds": status.since,
            "allomfree_disk_free_bytes": disk.f_bavail * disk.f_frsize,
            "allomfree_disk_size_bytes": disk.f_blocks * disk.f_frsize,
            "allomfree_certificate_expiry_timestamp_seconds": server_expires(self._broker / "tls"),
        }
        for name, value in values.items():
            if value is None:  # there is no broker's certificate here
                continue
            family = _counter(name) if name.endswith("_total") else _gauge(name)
            family.add_metric([], value)
            yield family

    def _stored(self, store: Store) -> Iterator[Metric]:
        received = _counter("allomfree_received_total")
        received.add_metric([], store.received())
        yield received
        requests = _counter("allomfree_requests_total", "outcome")
        for asked in RequestOutcome:
            requests.add_metric([str(asked)], store.requests().get(asked, 0))
        yield requests
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
        yield from (outcomes, reports, sealed, _workers(store))
        yield from self._schedule(store, store.campaigns())

    def _schedule(self, store: Store, campaigns: Iterable[Campaign]) -> Iterator[Metric]:
        """How long rounds are, for alerts on a silence; and those that should be sealed by now."""
        lengths = _gauge("allomfree_round_seconds", "campaign")
        unsealed = _gauge("allomfree_unsealed_rounds", "campaign")
        now = self._clock()
        for campaign in campaigns:
            rounds = campaign.manifest.rounds
            if campaign.closed is None and rounds.round_at(now) is not None:
                lengths.add_metric([campaign.name], rounds.period)
            overdue = sum(1 for _ in due(store, campaign, now))
            unsealed.add_metric([campaign.name], overdue)
        yield from (lengths, unsealed)


def _workers(store: Store) -> Metric:
    """None of each where the store is one collector's own."""
    roles = [role_of(worker) for worker in worker_facts(store)]
    family = _gauge("allomfree_workers", "role")
    for role in ROLES:
        family.add_metric([role], roles.count(role))
    return family


def _outcomes(store: Store) -> Iterator[tuple[str, dict[Outcome, int]]]:
    yield "", store.outcomes(NO_CAMPAIGN)
    for campaign in store.campaigns():
        yield campaign.name, store.outcomes(campaign.id)


def _counter(name: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(name, METRICS[name], labels=labels)


def _gauge(name: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, METRICS[name], labels=labels)


def registry(
    directory: Path,
    open_store: Callable[[Path], Store] = read_store,
    broker: Path | None = None,
    clock: Callable[[], float] = time.time,
) -> CollectorRegistry:
    """Everything there is to measure; `broker` is where `broker-config` writes."""
    made = CollectorRegistry(auto_describe=False)
    made.register(_Source(directory, open_store, broker or directory / "broker", clock))
    return made


def exposition(made: CollectorRegistry) -> bytes:
    """The text Prometheus reads."""
    return generate_latest(made)
