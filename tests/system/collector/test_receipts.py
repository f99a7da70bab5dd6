"""Receipt pages at real brokers: as few bytes as may be, and room for everybody."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from collector.data_dir import open_store
from protocol_spec import Outcome, ReceiptPage, decode_receipts, receipt_page, receipt_tag
from protocol_spec.limits import PAGE_TAGS
from testbed.brokers import Broker
from tests.support.collector_processes.campaign import (
    Collection,
    own_bits,
    own_namespace,
    wait_until_open,
)
from tests.support.collector_processes.driver import CollectorRun, Launcher
from tests.support.collector_processes.wire import Message, Publisher, Watcher, send_quickly
from tests.support.edge_processes import edge, wait_until

BITS = 8
DEVICES = 20
CROWD = PAGE_TAGS + 100


def opened(data: Path, pages: int) -> Collection:
    """A campaign with so many pages of receipts."""
    manifest = replace(own_bits(BITS), receipt_pages=pages)
    with closing(open_store(data)) as store:
        store.open_campaign(manifest, int(time.time()))
    return Collection(data, manifest, DEVICES, own_namespace())


@pytest.fixture(params=[4, 1], ids="{} pages".format)
def collection(tmp_path: Path, request: pytest.FixtureRequest) -> Collection:
    return opened(tmp_path / "data", request.param)


@pytest.fixture
def running(collection: Collection, broker: Broker, launcher: Launcher) -> CollectorRun:
    run = launcher.start(collection.options(broker))
    wait_until_open(collection, broker.port)
    return run


def sent_by(collection: Collection, device: int) -> Message:
    return collection.report(device, bit=device % BITS)


def pages_in(watcher: Watcher) -> list[ReceiptPage]:
    """Every page that was published so far, in order."""
    pages = [decode_receipts(data) for _, data in list(watcher.history)]
    assert all(isinstance(page, ReceiptPage) for page in pages), "too large to be read"
    return [page for page in pages if isinstance(page, ReceiptPage)]


def seen_in(watcher: Watcher) -> set[bytes]:
    return {tag for page in pages_in(watcher) for tag in page.tags}


def tags(collection: Collection, *devices: int) -> set[bytes]:
    return {receipt_tag(collection.manifest, 0, f"device-{device}") for device in devices}


@pytest.mark.parametrize("collection", [4], indirect=True)
def test_repeated_reports_publish_nothing(
    collection: Collection, broker: Broker, running: CollectorRun
) -> None:
    """Not one byte to the readers of a page for reports that are on it (A7)."""
    with (
        Watcher(broker.port, collection.topics.receipt_root + "#") as watcher,
        Publisher(broker.port) as publisher,
    ):
        publisher.send(sent_by(collection, device) for device in range(DEVICES))
        watcher.wait_for(lambda: tags(collection, *range(DEVICES)) <= seen_in(watcher))
        before = len(watcher.history)
        publisher.send([sent_by(collection, device) for device in range(DEVICES)] * 3)
        wait_until(lambda: collection.look().outcomes.get(Outcome.DUPLICATE) == 3 * DEVICES)
        for device in (DEVICES, DEVICES + 1):  # whatever was to be published before, is then
            publisher.send([sent_by(collection, device)])
            watcher.wait_for(lambda: tags(collection, device) <= seen_in(watcher))  # noqa: B023
        told = [page.page for page in pages_in(watcher)[before:]]
    newcomers = [f"device-{device}" for device in (DEVICES, DEVICES + 1)]
    assert told == [receipt_page(collection.manifest, name) for name in newcomers]


@pytest.mark.parametrize("collection", [1], indirect=True)
def test_more_devices_than_fit_on_a_page(
    collection: Collection, broker: Broker, running: CollectorRun, tmp_path: Path
) -> None:
    """Every tag is published, no page is too large, and a real agent gets its receipt (F5)."""
    with Watcher(broker.port, collection.topics.receipt_root + "#") as watcher:
        send_quickly(broker.port, [sent_by(collection, device) for device in range(CROWD)])
        collection.wait_for(CROWD)
        everybody = tags(collection, *range(CROWD))
        watcher.wait_for(lambda: len(seen_in(watcher)) == len(everybody))
        assert seen_in(watcher) == everybody
        alike = CROWD - len(everybody)  # two of so many share their tag once in 125 runs
        largest = max(len(page.tags) for page in pages_in(watcher))
        assert PAGE_TAGS - alike <= largest <= PAGE_TAGS
        first = next(iter(tags(collection, 0)))
        if first not in pages_in(watcher)[-1].tags:
            with Publisher(broker.port) as publisher:
                publisher.send([sent_by(collection, 0)])
            watcher.wait_for(lambda: first in pages_in(watcher)[-1].tags)
    assert "counted" in reported(collection, broker, tmp_path)


def reported(collection: Collection, broker: Broker, place: Path) -> str:
    config = place / "edge.toml"
    config.write_text(f'state_dir = "{place / "state"}"\n[sources.bit]\nvalue = "v1"\n')
    address = f"{broker.url}/{collection.namespace}/{collection.manifest.campaign}"
    joined = edge("join", address, "--yes", "--config", config)
    assert joined.returncode == 0, joined.stderr
    return edge("report", "--config", config).stdout
