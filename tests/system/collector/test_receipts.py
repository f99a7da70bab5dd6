"""What devices hear at real brokers: receipt pages, and answers to a request to be forgotten."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from protocol_spec import (
    Outcome,
    ReceiptPage,
    Request,
    RequestKind,
    Response,
    ResponseStatus,
    decode_receipts,
    decode_response,
    digest8,
    receipt_page,
    receipt_tag,
)
from protocol_spec.limits import PAGE_TAGS
from testbed.brokers import Broker, publish
from tests.support.agents import edge
from tests.support.collector_processes import (
    COMMITTED,
    Collection,
    Launcher,
    Message,
    Watcher,
    assert_one_outcome_each,
    own_bits,
    own_namespace,
    wait_until_open,
)
from tests.support.processes import wait_until

BITS = 8
CROWD = PAGE_TAGS + 100
NONCE = b"12345678"


def started(collection: Collection, broker: Broker, launcher: Launcher) -> Collection:
    launcher.start(collection.options(broker))
    wait_until_open(collection, broker.port)
    return collection


def with_pages(data: Path, pages: int) -> Collection:
    """A campaign with that many pages of receipts."""
    manifest = replace(own_bits(BITS), receipt_pages=pages)
    return Collection.of(data, manifest, BITS, own_namespace())


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


def test_repeated_reports_publish_nothing(
    tmp_path: Path, broker: Broker, launcher: Launcher
) -> None:
    """Not one byte to the readers of a page for reports that are on it (A7)."""
    devices = 20
    collection = started(with_pages(tmp_path / "data", 4), broker, launcher)
    with Watcher(broker.port, collection.topics.receipt_root + "#") as watcher:
        publish(broker.url, [sent_by(collection, device) for device in range(devices)])
        watcher.wait_for(lambda: tags(collection, *range(devices)) <= seen_in(watcher))
        before = len(watcher.history)
        publish(broker.url, [sent_by(collection, device) for device in range(devices)] * 3)
        wait_until(lambda: collection.look().outcomes.get(Outcome.DUPLICATE) == 3 * devices)
        for device in (devices, devices + 1):  # whatever was to be published before, is then
            publish(broker.url, [sent_by(collection, device)])
            watcher.wait_for(lambda: tags(collection, device) <= seen_in(watcher))  # noqa: B023
        pages = [page.page for page in pages_in(watcher)[before:]]
    newcomers = [f"device-{device}" for device in (devices, devices + 1)]
    assert pages == [receipt_page(collection.manifest, name) for name in newcomers]


def test_more_devices_than_fit_on_a_page(
    tmp_path: Path, broker: Broker, launcher: Launcher
) -> None:
    """Every tag is published, no page is too large, and a real agent gets its receipt (F5)."""
    collection = started(with_pages(tmp_path / "data", 1), broker, launcher)
    with Watcher(broker.port, collection.topics.receipt_root + "#") as watcher:
        publish(broker.url, [sent_by(collection, device) for device in range(CROWD)])
        collection.wait_for(CROWD)
        everybody = tags(collection, *range(CROWD))
        watcher.wait_for(lambda: len(seen_in(watcher)) == len(everybody))
        assert seen_in(watcher) == everybody
        alike = CROWD - len(everybody)  # two of so many share their tag once in 125 runs
        largest = max(len(page.tags) for page in pages_in(watcher))
        assert PAGE_TAGS - alike <= largest <= PAGE_TAGS
        first = next(iter(tags(collection, 0)))
        if first not in pages_in(watcher)[-1].tags:
            publish(broker.url, [sent_by(collection, 0)])
            watcher.wait_for(lambda: first in pages_in(watcher)[-1].tags)
    join, flags = agent_of(collection, broker, tmp_path)
    assert edge(*join, *flags).returncode == 0
    assert "counted" in edge("report", *flags).stdout


def agent_of(
    collection: Collection, broker: Broker, place: Path
) -> tuple[tuple[str, ...], tuple[str | Path, ...]]:
    """What its owner types to join, and the flags of every command."""
    config = place / "edge.toml"
    config.write_text(f'state_dir = "{place / "state"}"\n[sources.bit]\nvalue = "v1"\n')
    address = f"{broker.url}/{collection.namespace}/{collection.manifest.campaign}"
    return ("join", address, "--yes"), ("--config", config)


# --- a device asks to be forgotten: its reports leave every round not yet sealed ------------------
def request(collection: Collection, device: str) -> Message:
    asked = Request(digest8(collection.manifest), RequestKind.FORGET, NONCE)
    return collection.topics.request(device), asked.encode()


def answer(watcher: Watcher, topic: str) -> Response:
    response = decode_response(watcher.wait_for_topic(topic))
    assert isinstance(response, Response)
    return response


def test_reports_are_withdrawn(tmp_path: Path, broker: Broker, launcher: Launcher) -> None:
    collection = started(Collection.shared(tmp_path / "data", 4), broker, launcher)
    topic = collection.topics.response("device-2")
    with Watcher(broker.port, topic) as watcher:
        publish(broker.url, collection.reports())
        collection.wait_for(4)
        publish(broker.url, [request(collection, "device-2")])
        answered = answer(watcher, topic)
        assert (answered.nonce, answered.status, answered.rounds) == (NONCE, ResponseStatus.DONE, 1)
        left = collection.look()
        assert left.counts == [1, 1, 0, 1]
        assert left.rows == left.n == 3
        publish(broker.url, [collection.report(2), collection.report(2, bit=1)])
        wait_until(lambda: collection.look().received == 6, timeout=60)
    counted = collection.look()
    assert counted.counts == [1, 1, 0, 1], "A4: it cannot come back as another device"
    assert counted.outcomes == {Outcome.ACCEPTED: 4, Outcome.FORGOTTEN: 2}
    assert_one_outcome_each(counted)


@pytest.mark.slow
def test_killed_before_the_answer(quick_nats: Broker, tmp_path: Path, launcher: Launcher) -> None:
    """The request comes again, finds nothing more to withdraw, and is answered."""
    collection = Collection.shared(tmp_path / "data", 2)
    first = launcher.start(collection.options(quick_nats, die_at=COMMITTED, nth=2))
    wait_until_open(collection, quick_nats.port)
    topic = collection.topics.response("device-0")
    with Watcher(quick_nats.port, topic) as watcher:
        publish(quick_nats.url, [collection.report(0)])
        collection.wait_for(1)
        publish(quick_nats.url, [request(collection, "device-0")])
        first.wait_for_end()
        assert collection.look().n == 0
        again = launcher.start(collection.options(quick_nats))
        answered = answer(watcher, topic)
        assert (answered.status, answered.rounds) == (ResponseStatus.DONE, 0)
        assert again.terminate() == 0


@pytest.mark.slow
def test_the_command_forget(tmp_path: Path, broker: Broker, launcher: Launcher) -> None:
    """`allomfree-edge forget` prints what the collector did; a device without a user name that
    joins again has a new name, and is charged again."""
    collection = started(Collection.shared(tmp_path / "data", 2), broker, launcher)
    join, flags = agent_of(collection, broker, tmp_path)
    for _ in range(2):
        joined = edge(*join, *flags)
        assert joined.returncode == 0, joined.stderr
        assert "counted" in edge("report", *flags).stdout
        assert collection.look().n == 1
        if edge("show", *flags).stdout.count("memo drawn") == 2:
            return
        forgotten = edge("forget", "--yes", *flags)
        assert "withdrew this device's reports from 1 unsealed round." in forgotten.stdout
        assert collection.look().n == 0
    raise AssertionError("joining again was not charged again")
