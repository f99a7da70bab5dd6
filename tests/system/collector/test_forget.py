"""A device asks to be forgotten: its reports leave every round not yet sealed, and it is told."""

from __future__ import annotations

from collections.abc import Iterator
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
from tests.support.brokers import Broker, Nats
from tests.support.collector_processes.campaign import (
    Desk,
    assert_one_outcome_each,
    wait_until_open,
)
from tests.support.collector_processes.driver import COMMITTED, Nursery, Order
from tests.support.collector_processes.wire import Message, Publisher, Watcher
from tests.support.edge_processes.processes import edge, wait_until

DEVICES = 4
NONCE = b"12345678"


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk.opened(tmp_path / "data", DEVICES)


@pytest.fixture
def order(desk: Desk, broker: Broker, nursery: Nursery) -> Iterator[Order]:
    """A collector at work, and how to start it again."""
    made = Order(str(desk.data), broker.url)
    life = nursery.start(made)
    wait_until_open(desk, broker.port)
    yield made
    life.kill()


def request(desk: Desk, device: str, manifest: Manifest | None = None) -> Message:
    asked = Request(digest8(manifest or desk.manifest), RequestKind.FORGET, NONCE)
    return desk.topics.request(device), asked.encode()


def answer(watcher: Watcher, topic: str) -> Response:
    response = decode_response(watcher.wait_for_topic(topic))
    assert isinstance(response, Response)
    return response


def test_reports_are_withdrawn(desk: Desk, broker: Broker, order: Order) -> None:
    with (
        Watcher(broker.port, desk.topics.response("device-2")) as watcher,
        Publisher(broker.port) as publisher,
    ):
        publisher.send(desk.reports())
        wait_until(lambda: desk.look().n == DEVICES)
        publisher.send([request(desk, "device-2")])
        told = answer(watcher, desk.topics.response("device-2"))
        assert (told.nonce, told.status, told.rounds) == (NONCE, ResponseStatus.DONE, 1)
        left = desk.look()
        assert left.counts == [1, 1, 0, 1]
        assert left.rows == left.n == DEVICES - 1
        publisher.send([desk.report(2)])
        wait_until(lambda: desk.look().n == DEVICES)
    counted = desk.look()
    assert counted.counts == [1] * DEVICES
    assert counted.outcomes == {Outcome.ACCEPTED: DEVICES + 1}
    assert_one_outcome_each(counted)


def test_requests_that_are_none(desk: Desk, broker: Broker, order: Order) -> None:
    """No answer and no change; the next good one is answered."""
    topic, good = request(desk, "device-1")
    other = replace(desk.manifest, title="Another")
    with (
        Watcher(broker.port, desk.topics.response("device-1")) as watcher,
        Publisher(broker.port) as publisher,
    ):
        publisher.send(desk.reports())
        wait_until(lambda: desk.look().n == DEVICES)
        bad = [b"", b"\xc1", good[:-1], good + b"\0", bytes(100), request(desk, "x", other)[1]]
        publisher.send([(topic, payload) for payload in bad])
        publisher.send([(topic.replace("device-1", "DEVICE"), good)])
        publisher.send([(topic, good)])
        told = answer(watcher, desk.topics.response("device-1"))
        assert told.rounds == 1
        assert len(watcher.history) == 1
    assert desk.look().n == DEVICES - 1
    assert_one_outcome_each(desk.look())


@pytest.mark.slow
def test_killed_before_the_answer(quick_nats: Nats, desk: Desk, nursery: Nursery) -> None:
    """The request comes again, finds nothing more to withdraw, and is answered."""
    order = Order(str(desk.data), quick_nats.url)
    life = nursery.start(replace(order, die_at=COMMITTED, nth=2))
    wait_until_open(desk, quick_nats.port)
    with (
        Watcher(quick_nats.port, desk.topics.response("device-0")) as watcher,
        Publisher(quick_nats.port) as publisher,
    ):
        publisher.send([desk.report(0)])
        wait_until(lambda: desk.look().n == 1)
        publisher.send([request(desk, "device-0")])
        life.end()
        assert desk.look().n == 0
        again = nursery.start(order)
        told = answer(watcher, desk.topics.response("device-0"))
        assert (told.status, told.rounds) == (ResponseStatus.DONE, 0)
        again.terminate()


@pytest.mark.slow
def test_the_owner_s_words(desk: Desk, broker: Broker, order: Order, tmp_path: Path) -> None:
    """`allomfree-edge forget` says what the collector did; who joins again is counted again."""
    config = tmp_path / "edge.toml"
    config.write_text(f'state_dir = "{tmp_path / "state"}"\n[sources.bit]\nvalue = "v1"\n')
    address = f"{broker.url}/allomfree/{desk.manifest.campaign}"
    flags = ("--config", config)
    assert edge("join", address, "--yes", *flags).returncode == 0
    reported = edge("report", *flags)
    assert "counted" in reported.stdout, reported.stderr
    assert desk.look().n == 1
    forgotten = edge("forget", "--yes", *flags)
    assert "withdrew this device's reports from 1 unsealed rounds" in forgotten.stdout
    assert desk.look().n == 0
    again = edge("join", address, "--yes", *flags)
    assert again.returncode == 0, again.stderr
    assert "counted" in edge("report", *flags).stdout
    assert desk.look().n == 1
    assert edge("show", *flags).stdout.count("memo drawn") == 2, "and charged again"
