"""Thousands of messages in a second: at most one draw a round, agent alive, nothing repinned."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_client import EdgeClient
from edge_client.records import Queued
from protocol_spec import (
    Manifest,
    Presence,
    ReceiptPage,
    State,
    Topics,
    digest8,
    receipt_page,
    receipt_tag,
)
from testbed.brokers import Nats, Tally
from tests.support.campaigns import manifest
from tests.support.edge import QUICK, tick_until
from tests.support.edge_processes.loops import fresh_manifest
from tests.support.edge_processes.processes import AgentProcess, joined
from tests.support.network import Peer, Wire

EACH = 1_000


def flood(asked: Manifest, dice: random.Random) -> Iterator[tuple[str, bytes]]:
    """Manifests, states, receipts and garbage on the campaign's topics; none of them closes it."""
    topics, page = Topics(asked.campaign), receipt_page(asked, "device")
    others = [manifest(slug=f"other-{i}", period=1).to_bytes() for i in range(20)]
    for _ in range(EACH):
        yield topics.manifest, dice.choice([*others, asked.to_bytes()])
        yield topics.state, state(asked, dice)
        number = dice.randrange(1000, 60_000)
        yield topics.receipt(number, page), receipts(asked, number, page)
        anywhere = (topics.manifest, topics.state, topics.receipt(number, page))
        yield dice.choice(anywhere), dice.randbytes(dice.randrange(60))


def state(asked: Manifest, dice: random.Random) -> bytes:
    sealed = dice.randrange(60_000)
    if dice.random() < 0.5:
        return State(dice.randbytes(8), Presence.CLOSED, sealed).encode()
    presence = dice.choice((Presence.ONLINE, Presence.OFFLINE))
    return State(digest8(asked), presence, sealed).encode()


def receipts(asked: Manifest, number: int, page: int) -> bytes:
    """A page with the device's own tag, for a round that has not been reported."""
    tags = frozenset({receipt_tag(asked, number, "device")})
    return ReceiptPage(digest8(asked), number, page, tags).encode()


@pytest.mark.slow
def test_a_running_agent(nats: Nats, tmp_path: Path) -> None:
    asked, state_dir = fresh_manifest(period=1, grace=600), tmp_path / "state"
    config = joined(state_dir, asked, nats.url)
    with Tally(nats.port, asked) as tally, AgentProcess(config) as agent:
        agent.wait_for("was counted")
        for topic, payload in flood(asked, random.Random(1)):
            tally.send(topic, payload)
        before = agent.said("was counted")
        agent.wait_for("was counted", times=before + 2)
        assert agent.is_running
        assert agent.terminate() == 0
    with EdgeClient(state_dir) as client:
        membership = client.find()
        assert membership.manifest.to_bytes() == asked.to_bytes()
        rows = client.store.reports(asked.campaign)
        (memo,) = client.store.memos(asked.campaign).values()
        assert len(client.store.ledger()) == 1
    assert memo.reports == len(rows), "one draw for each round"
    assert all(asked.rounds.round_at(row.drawn) == row.round for row in rows)
    assert all(len(payloads) == 1 for payloads in tally.payloads.values())


def test_a_hostile_broker(tmp_path: Path) -> None:
    """The same straight into the agent's socket, subscribed or not, and a true receipt at last."""
    asked, points = manifest(), list[str]()

    def hostile(wire: Wire) -> None:
        if not wire.expect_connect():
            return
        wire.connack()
        wire.send(*(wire.publication(*message) for message in flood(asked, random.Random(2))))
        page = receipt_page(asked, "device")
        wire.publish(Topics(asked.campaign).receipt(0, page), receipts(asked, 0, page))
        wire.serve(lambda published: wire.puback(published.mid))

    with (
        Peer(hostile) as peer,
        EdgeClient(tmp_path / "state", trace=points.append, timing=QUICK) as client,
    ):
        client.join(
            client.invitation(manifest=asked, broker=peer.url),
            device="device",
        )
        drawn = client.agent.draw(client.find(), lambda _: "wood")
        assert isinstance(drawn, Queued)
        runner = client.runner(lambda _: "gas")
        tick_until(runner, lambda: client.store.reports(asked.campaign)[0].fate == "counted")
        runner.close()
        assert points.count("report drawn") == points.count("memo drawn") == 1
        assert [row.payload for row in client.store.reports(asked.campaign)] == [drawn.payload]
        assert client.find().manifest.digest == asked.digest
