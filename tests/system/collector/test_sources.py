"""One contract for every source that workers share (I7, W4): memory, mosquitto, NATS's stream."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from collector.links.mqtt import PahoLink, Subscription
from protocol_spec.programs.settings import BrokerUnreachable, Credentials, parse_broker
from protocol_spec.programs.system import random_client_id
from testbed.brokers import Nats, publish
from testbed.processes import cpu_seconds
from tests.support.brokers import SharedBrokers
from tests.support.network import (
    Peer,
    Shared,
    SourceGround,
    Streamed,
    Wire,
    paho,
    receive_each,
    source_in_memory,
    until,
)

SENT = 4_000


@pytest.fixture
def root() -> str:
    """The namespace of this test."""
    return random_client_id("ns")


@pytest.fixture(params=["memory", "mosquitto", "nats"])
def ground(
    request: pytest.FixtureRequest, shared_brokers: SharedBrokers, root: str
) -> Iterator[SourceGround]:
    made: SourceGround
    if request.param == "memory":
        made = source_in_memory(root)
    elif request.param == "mosquitto":
        made = Shared(root, paho(shared_brokers.get("mosquitto")))
    else:
        broker = shared_brokers.get("nats")
        assert isinstance(broker, Nats)
        made = Streamed(root, broker)
    yield made
    made.close()


def report(root: str, device: object) -> str:
    return f"{root}/v1/camp-0123abcd/up/{device}/report"


def test_each_message_comes_to_one_of_two(ground: SourceGround, root: str) -> None:
    sources = [ground.source("a"), ground.source("b")]
    sent = {(report(root, f"d{i}"), b"%d" % i) for i in range(60)}
    sent.add((f"{root}/v1/camp-0123abcd/up/d1/request", b"ask"))
    for topic, payload in sent:
        ground.send(topic, payload)
    got = receive_each(sources, len(sent))
    for source, messages in zip(sources, got):
        source.acknowledge(messages)
        assert all(message.mid > 0 and not message.retained for message in messages)
    both = [(message.topic, message.payload) for messages in got for message in messages]
    assert sorted(both) == sorted(sent)
    for source in sources:
        assert not [m for m in source.step(0.1) if "/drain/" not in (m.topic or "")]
        source.close()
        assert source.lost


def test_only_what_devices_send_to_the_collector(ground: SourceGround, root: str) -> None:
    source = ground.source("a")
    ground.send(f"{root}/v1/camp-0123abcd/pub/state", b"not for us")
    ground.send(f"{root}/v1/camp-0123abcd/up/d1/other", b"nor this")
    ground.send(report(root, "a.b"), b"a strange name")
    ground.send(report(root, ""), b"no name")
    ground.send(report(root, "d1"), b"x" * 200_000)
    ((first, second, third),) = receive_each([source], 3)
    assert (first.topic, first.payload) == (report(root, "a.b"), b"a strange name")
    assert (second.topic, second.payload) == (report(root, ""), b"no name")
    assert third.topic == report(root, "d1")
    assert len(third.payload) > 100_000, "far too long for a report, and at most cut"
    source.acknowledge([first, second, third])
    until(source, lambda: source.drained == 100.0, moment=100.0)  # nothing else is waited for


def test_what_devices_send_again_costs_the_broker_no_more(root: str, tmp_path: Path) -> None:
    """With two filters, NATS goes through all devices for each message, for minutes if there are
    some tens of thousands."""
    with Nats(tmp_path) as broker:
        running = broker.process
        assert running is not None
        ground = Streamed(root, broker)
        ground.source("a").close()  # which makes the consumer
        costs = [cpu_seconds(running.pid)]
        for devices, times in ((SENT, 1), (SENT // 2, 2)):
            messages = [(report(root, f"{times}-{d}"), b"x" * 250) for d in range(devices)] * times
            publish(broker.url, messages)
            source = ground.source("a")
            ((*got,),) = receive_each([source], SENT)
            source.acknowledge(got)
            source.close()
            costs.append(cpu_seconds(running.pid))
        ground.close()
    once, twice = costs[1] - costs[0], costs[2] - costs[1]
    assert twice < 4 * once, "fifteen times as much, and growing with the square"


def test_what_was_not_acknowledged_comes_again(ground: SourceGround, root: str) -> None:
    """To its own worker if it is back, or to any where the stream is everybody's."""
    source = ground.source("a")
    for i in range(4):
        ground.send(report(root, f"d{i}"), b"%d" % i)
    ((*messages,),) = receive_each([source], 4)
    source.acknowledge(messages[:2])
    until(source, lambda: True)
    source.close()
    again = ground.source("a", again=True)
    ((*rest,),) = receive_each([again], 2)
    assert {m.payload for m in rest} == {m.payload for m in messages[2:]}
    again.acknowledge(rest)


def test_drained_only_when_all_before_is_acknowledged(ground: SourceGround, root: str) -> None:
    source = ground.source("a")
    assert source.drained == 0.0
    until(source, lambda: source.drained == 100.0, moment=100.0)
    ground.send(report(root, "d1"), b"1")
    ((message,),) = receive_each([source], 1)
    source.mark(200.0)
    if ground.whole:  # the message is ours until it is acknowledged, and no longer than a second
        limit = time.monotonic() + 0.5
        while time.monotonic() < limit:
            source.mark(200.0)
            source.step(0.05)
        assert source.drained == 100.0
    else:  # the marker stands behind it in the batch
        markers = [m for m in source.step(5.0) if "/drain/" in (m.topic or "")]
        assert source.drained == 100.0
        source.acknowledge([message, *markers])
    source.acknowledge([message])
    until(source, lambda: source.drained == 200.0, moment=200.0)


def test_a_worker_that_retires_gets_nothing_more(ground: SourceGround, root: str) -> None:
    leaving, staying = ground.source("a"), ground.source("b")
    if ground.whole:  # what it has asked for already it may still get
        until(leaving, lambda: True)
    leaving.retire(300.0)
    until(leaving, lambda: ground.whole or leaving.drained == 300.0)
    leaving.close(stay=False)
    for i in range(10):
        ground.send(report(root, f"d{i}"), b"%d" % i)
    (messages,) = receive_each([staying], 10)
    assert len({m.payload for m in messages}) == 10


# --- brokers that cannot share --------------------------------------------------------------------


def test_nats_has_no_shared_subscriptions(shared_brokers: SharedBrokers, root: str) -> None:
    link = paho(shared_brokers.get("nats"))(random_client_id("worker"), False)
    with pytest.raises(BrokerUnreachable, match="it speaks MQTT 3") as found:
        Subscription(link, root, shared=True)
    assert "--stream tls://HOST:4222" in str(found.value)
    assert link.step(0.0) == []
    assert link.lost, "it has said goodbye"


def test_a_broker_may_say_that_it_has_none(root: str) -> None:
    def script(wire: Wire) -> None:
        if wire.expect_connect():
            wire.connack(sharing=False)
            while wire.read() is not None:
                pass

    with Peer(script) as peer:
        link = PahoLink(parse_broker(peer.url), Credentials(), client_id=random_client_id("worker"))
        link.connect()
        with pytest.raises(BrokerUnreachable, match="it says that they are not available"):
            Subscription(link, root, shared=True)
