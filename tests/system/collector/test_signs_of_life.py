"""A1: reading over TLS goes in whole batches, and any byte received is a sign of life."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from collector.links import Message
from collector.links.mqtt import PahoLink
from edge_client.link import PahoLink as AgentLink
from edge_client.link import connect
from protocol_spec.programs.settings import Credentials, parse_broker
from protocol_spec.programs.system import random_client_id
from testbed.brokers import Broker, Mosquitto, Nats, publish, with_tls
from tests.support.harness import need
from tests.support.network import PATIENCE_SECONDS, PINGREQ, Peer, Wire, subscribe

MESSAGES = 1_000
BATCH = 50  # far more than one, far less than what waits in the socket
KEEPALIVE = 3  # of which a client makes one second
PINGS = 3


class Roomy(Mosquitto):
    extra = "allow_anonymous true\nmax_queued_messages 0\nmax_inflight_messages 2000\n"


@pytest.fixture(params=["nats", "mosquitto"])
def encrypted(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    if request.param == "mosquitto":
        need("mosquitto")
    made = with_tls(Nats) if request.param == "nats" else with_tls(Roomy)
    with made(tmp_path / "broker") as running:
        yield running


def test_what_waits_is_read_in_whole_batches(encrypted: Broker) -> None:
    """Brokers send nearly every message as a TLS record of its own."""
    name, root = random_client_id("reader"), random_client_id("batches")
    trusted = Credentials(ca_file=str(encrypted.ca_file))
    link = PahoLink(parse_broker(encrypted.url), trusted, client_id=name)
    link.connect()
    subscribe(link, f"{root}/#")
    waiting = [(f"{root}/{number}", b"%d" % number) for number in range(MESSAGES)]
    publish(encrypted.url, waiting, ca_file=encrypted.ca_file)
    batches: list[list[Message]] = []
    limit = time.monotonic() + PATIENCE_SECONDS
    while sum(len(batch) for batch in batches) < MESSAGES:
        assert time.monotonic() < limit, [len(batch) for batch in batches]
        batches.append(link.step(0.1))
        link.acknowledge(batches[-1])
    link.close()
    found = sorted(int(message.payload) for batch in batches for message in batch)
    assert found == list(range(MESSAGES))
    assert max(map(len, batches)) >= BATCH, [len(batch) for batch in batches]


class Busy:
    """Delivers steadily and never answers a PINGREQ, until it has seen enough of them."""

    def __init__(self) -> None:
        self.pings = 0
        self.enough = threading.Event()

    def __call__(self, wire: Wire) -> None:
        if not wire.expect_connect():
            return
        wire.connack()
        delivering = threading.Thread(target=self._deliver, args=[wire])
        delivering.start()
        while (packet := wire.read()) is not None:
            self.pings += packet.kind == PINGREQ
            if self.pings >= PINGS:
                self.enough.set()
        self.enough.set()
        delivering.join()

    def _deliver(self, wire: Wire) -> None:
        while not self.enough.wait(0.05):
            wire.publish("some/topic", b"x")


def test_a_busy_broker_is_not_taken_for_a_dead_one() -> None:
    """It has so much to deliver that its answers to PINGREQ are far behind."""
    busy = Busy()
    with Peer(busy) as peer:
        link = PahoLink(
            parse_broker(peer.url), Credentials(), client_id="test", keepalive=KEEPALIVE
        )
        link.connect()
        limit = time.monotonic() + PATIENCE_SECONDS
        while not busy.enough.is_set():
            assert time.monotonic() < limit
            link.step(0.1)
            assert link.lost is None
        link.close()
    assert busy.pings >= PINGS, "a client that only listens must still be heard"


def test_nor_by_an_agent() -> None:
    busy = Busy()
    with Peer(busy) as peer:
        link = AgentLink(parse_broker(peer.url), Credentials(), keepalive=KEEPALIVE)
        connect(link)
        limit = time.monotonic() + PATIENCE_SECONDS
        while not busy.enough.is_set():
            assert time.monotonic() < limit
            link.step(0.1)
            assert link.lost is None
        link.close()
    assert busy.pings >= PINGS
