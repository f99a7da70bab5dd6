"""Prometheus metrics, read from the store and the service's heartbeat when asked for."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from collector.brokers.credentials import server_expires
from collector.data_dir import read_store
from collector.health import Beat, Status, examine
from collector.records import NO_CAMPAIGN, Campaign, RequestOutcome
from collector.results.facts import (
    ROLES,
    filling,
    is_plausible,
    latest_results,
    role_of,
    worker_facts,
)
from collector.rounds.sealing import due
from collector.store import Store

METRICS: Final = {
    "allomfree_received_total": "messages received, ever",
    "allomfree_outcomes_total": "messages by campaign and outcome; they sum to those received",
    "allomfree_open_reports": "reports in rounds not yet sealed, in steps of `min_reports`",
    "allomfree_sealed_rounds": "rounds sealed, by campaign",
    "allomfree_implausible_results": "1 if honest devices hardly send what was received",
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


_LABELS: Final = {
    "allomfree_outcomes_total": ("campaign", "outcome"),
    "allomfree_open_reports": ("campaign", "attribute"),
    "allomfree_sealed_rounds": ("campaign",),
    "allomfree_implausible_results": ("campaign", "attribute"),
    "allomfree_requests_total": ("outcome",),
    "allomfree_workers": ("role",),
    "allomfree_round_seconds": ("campaign",),
    "allomfree_unsealed_rounds": ("campaign",),
}
Sample = tuple[str, tuple[str, ...], float]  # a metric, the values of its labels, a number


@dataclass(frozen=True, slots=True)
class _Source:
    """Collects all families at once, from a read-only view of the database."""

    directory: Path
    open_store: Callable[[Path], Store]
    broker: Path
    clock: Callable[[], float]

    def collect(self) -> Iterator[Metric]:
        with closing(self.open_store(self.directory)) as store:
            samples = [*_stored(store, self.clock()), *self._service()]
        for name, help_text in METRICS.items():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            family = kind(name, help_text, labels=_LABELS.get(name, ()))
            for _, labels, value in (sample for sample in samples if sample[0] == name):
                family.add_metric(labels, value)
            if family.samples or name in _LABELS:  # a certificate's date only if there is one
                yield family

    def _service(self) -> Iterator[Sample]:
        health = examine(self.directory, self.clock)
        beat = health.beat or Beat(0, 0.0, 0, Status(since=0.0))
        status, disk = beat.status, os.statvfs(self.directory)
        values: dict[str, float | None] = {
            "suspended_devices": status.suspended,
            "connected": float(status.connected),
            "healthy": float(health.well),
            "batches_total": status.batches,
            "largest_batch": status.largest_batch,
            "last_commit_timestamp_seconds": status.last_commit,
            "storage_failures_total": status.storage_failures,
            "resident_memory_bytes": beat.memory,
            "leads": float(status.leads),
            "start_timestamp_seconds": status.since,
            "disk_free_bytes": disk.f_bavail * disk.f_frsize,
            "disk_size_bytes": disk.f_blocks * disk.f_frsize,
            "certificate_expiry_timestamp_seconds": server_expires(self.broker / "tls"),
        }
        for name, value in values.items():
            if value is not None:
                yield f"allomfree_{name}", (), value


def _stored(store: Store, now: float) -> Iterator[Sample]:
    yield "allomfree_received_total", (), store.received()
    requests = store.requests()
    for asked in RequestOutcome:
        yield "allomfree_requests_total", (str(asked),), requests.get(asked, 0)
    campaigns = store.campaigns()
    for id_, name in [(NO_CAMPAIGN, ""), *((c.id, c.name) for c in campaigns)]:
        for outcome, n in store.outcomes(id_).items():
            yield "allomfree_outcomes_total", (name, str(outcome)), n
    roles = [role_of(worker) for worker in worker_facts(store)]
    for role in ROLES:
        yield "allomfree_workers", (role,), roles.count(role)
    for campaign in campaigns:
        yield from _of_campaign(store, campaign, now)


def _of_campaign(store: Store, campaign: Campaign, now: float) -> Iterator[Sample]:
    name, rounds, last = campaign.name, campaign.manifest.rounds, store.last_sealed(campaign.id)
    yield "allomfree_sealed_rounds", (name,), 0 if last is None else last + 1
    counts = Counter[str]()
    for number in store.open_rounds(campaign.id):
        counts.update(filling(store, campaign, number)["reports"])
    for attribute in campaign.manifest.attributes:
        yield "allomfree_open_reports", (name, attribute.name), counts[attribute.name]
    for i, attribute in enumerate(campaign.manifest.attributes):
        latest = latest_results(store, campaign, i, 1).results
        odd = any(is_plausible(campaign, result) is False for result in latest)
        yield "allomfree_implausible_results", (name, attribute.name), float(odd)
    if campaign.closed is None and rounds.round_at(now) is not None:
        yield "allomfree_round_seconds", (name,), rounds.period  # for alerts on a silence
    yield "allomfree_unsealed_rounds", (name,), sum(1 for _ in due(store, campaign, now))


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
