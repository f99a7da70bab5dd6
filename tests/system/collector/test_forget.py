"""A device asks to be forgotten: its reports leave every round not yet sealed, and it is told."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from protocol_spec import (
    Manifest,
    Outcome,
    Request,
    RequestKind,
    Response,
    ResponseStatus,
    decode_response,
    digest8,
)
from testbed.brokers import Broker
from tests.support.collector_processes.campaign import (
    Collection,
    assert_one_outcome_each,
    wait_until_open,
)
from tests.support.collector_processes.driver import COMMITTED, CollectorRun, Launcher
from tests.support.collector_processes.wire import Message, Publisher, Watcher, send_quickly
from tests.support.edge_processes import edge, wait_until

DEVICES = 4
NONCE = b"12345678"


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    return Collection.shared(tmp_path / "data", DEVICES)


@pytest.fixture
def running(collection: Collection, broker: Broker, launcher: Launcher) -> CollectorRun:
    """A collector at work."""
    run = launcher.start(collection.options(broker))
    wait_until_open(collection, broker.port)
    return run


def request(collection: Collection, device: str, manifest: Manifest | None = None) -> Message:
    asked = Request(digest8(manifest or collection.manifest), RequestKind.FORGET, NONCE)
    return collection.topics.request(device), asked.encode()


def answer(watcher: Watcher, topic: str) -> Response:
    response = decode_response(watcher.wait_for_topic(topic))
    assert isinstance(response, Response)
    return response


def test_reports_are_withdrawn(
    collection: Collection, broker: Broker, running: CollectorRun
) -> None:
    with (
        Watcher(broker.port, collection.topics.response("device-2")) as watcher,
        Publisher(broker.port) as publisher,
    ):
        publisher.send(collection.reports())
        collection.wait_for(DEVICES)
        publisher.send([request(collection, "device-2")])
        told = answer(watcher, collection.topics.response("device-2"))
        assert (told.nonce, told.status, told.rounds) == (NONCE, ResponseStatus.DONE, 1)
        left = collection.look()
        assert left.counts == [1, 1, 0, 1]
        assert left.rows == left.n == DEVICES - 1
        publisher.send([collection.report(2), collection.report(2, bit=1)])
        wait_until(lambda: collection.look().received == DEVICES + 2, timeout=60)
    counted = collection.look()
    assert counted.counts == [1, 1, 0, 1], "A4: it cannot come back as another device"
    assert counted.outcomes == {Outcome.ACCEPTED: DEVICES, Outcome.FORGOTTEN: 2}
    assert_one_outcome_each(counted)


@pytest.mark.parametrize("many", [False, True])
def test_thousands_of_requests_starve_nobody(
    tmp_path: Path, broker: Broker, launcher: Launcher, many: bool
) -> None:
    """A2: requests cost about what reports cost, and the reports of others are counted."""
    devices, asked = 3000, 2500
    collection = Collection.shared(tmp_path / "data", devices + 100)
    launcher.start(collection.options(broker))
    wait_until_open(collection, broker.port)
    begun = time.monotonic()
    send_quickly(broker.port, collection.reports()[:devices])
    collection.wait_for(devices)
    usual_seconds = time.monotonic() - begun
    begun = time.monotonic()
    names = [f"device-{i if many else 7}" for i in range(asked)]
    send_quickly(broker.port, [request(collection, name) for name in names])
    send_quickly(broker.port, collection.reports()[devices:])
    forgotten = len(set(names))
    collection.wait_for(devices + 100 - forgotten)
    wait_until(lambda: sum(collection.store.requests().values()) == asked, timeout=60)
    assert time.monotonic() - begun < 3 * usual_seconds + 3.0
    assert collection.store.requests() == (
        {"done": forgotten} if many else {"done": 1, "repeated": asked - 1}
    )
    assert_one_outcome_each(collection.look())


def test_requests_that_are_none(
    collection: Collection, broker: Broker, running: CollectorRun
) -> None:
    """No answer and no change; the next good one is answered."""
    topic, good = request(collection, "device-1")
    other = replace(collection.manifest, title="Another")
    with (
        Watcher(broker.port, collection.topics.response("device-1")) as watcher,
        Publisher(broker.port) as publisher,
    ):
        publisher.send(collection.reports())
        collection.wait_for(DEVICES)
        bad = [
            b"",
            b"\xc1",
            good[:-1],
            good + b"\0",
            bytes(100),
            request(collection, "x", other)[1],
        ]
        publisher.send([(topic, payload) for payload in bad])
        publisher.send([(topic.replace("device-1", "DEVICE"), good)])
        publisher.send([(topic, good)])
        told = answer(watcher, collection.topics.response("device-1"))
        assert told.rounds == 1
        assert len(watcher.history) == 1
    assert collection.look().n == DEVICES - 1
    assert_one_outcome_each(collection.look())


@pytest.mark.slow
def test_killed_before_the_answer(
    quick_nats: Broker, collection: Collection, launcher: Launcher
) -> None:
    """The request comes again, finds nothing more to withdraw, and is answered."""
    first = launcher.start(collection.options(quick_nats, die_at=COMMITTED, nth=2))
    wait_until_open(collection, quick_nats.port)
    with (
        Watcher(quick_nats.port, collection.topics.response("device-0")) as watcher,
        Publisher(quick_nats.port) as publisher,
    ):
        publisher.send([collection.report(0)])
        collection.wait_for(1)
        publisher.send([request(collection, "device-0")])
        first.wait_for_end()
        assert collection.look().n == 0
        again = launcher.start(collection.options(quick_nats))
        told = answer(watcher, collection.topics.response("device-0"))
        assert (told.status, told.rounds) == (ResponseStatus.DONE, 0)
        assert again.terminate() == 0


@pytest.mark.slow
def test_the_owner_s_words(
    collection: Collection, broker: Broker, running: CollectorRun, tmp_path: Path
) -> None:
    """`allomfree-edge forget` says what the collector did; a device without a user name that joins
    again has a new name, and is charged again."""
    config = tmp_path / "edge.toml"
    config.write_text(f'state_dir = "{tmp_path / "state"}"\n[sources.bit]\nvalue = "v1"\n')
    address = f"{broker.url}/{collection.namespace}/{collection.manifest.campaign}"
    flags = ("--config", config)
    join = ("join", address, "--yes", *flags)
    assert edge(*join).returncode == 0
    reported = edge("report", *flags)
    assert "counted" in reported.stdout, reported.stderr
    assert collection.look().n == 1
    forgotten = edge("forget", "--yes", *flags)
    assert "withdrew this device's reports from 1 unsealed rounds" in forgotten.stdout
    assert collection.look().n == 0
    again = edge(*join)
    assert again.returncode == 0, again.stderr
    assert "counted" in edge("report", *flags).stdout
    assert collection.look().n == 1
    assert edge("show", *flags).stdout.count("memo drawn") == 2, "and charged again"
