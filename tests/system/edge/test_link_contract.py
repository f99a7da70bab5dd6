"""What an agent relies on in a link: one body of tests for paho on real brokers and for memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from edge_client.errors import BrokerUnreachable
from edge_client.link import WINDOW, Link, MakeLink, PahoLink, connect
from protocol_spec.programs.memory_broker import MemoryBroker
from protocol_spec.programs.mqtt import MQTT_5, MQTT_311
from protocol_spec.programs.packets import Message
from protocol_spec.programs.settings import BrokerUrl, Credentials, parse_broker
from testbed.brokers import BROKERS, Broker, Mosquitto, publish
from tests.support.harness import need

PATIENCE = 30.0


@dataclass
class World:
    """A broker, how to link to it, and how others publish what is retained."""

    url: BrokerUrl
    make_link: MakeLink
    retain: Callable[[str, bytes], None]
    stop: Callable[[], object]
    start: Callable[[], object]

    def link(self) -> Link:
        return self.make_link(self.url, Credentials(), keepalive=60, version=MQTT_5)


def in_memory() -> World:
    broker = MemoryBroker()
    return World(
        parse_broker("mqtt://localhost"),
        broker.link,
        lambda topic, payload: broker.publish(topic, payload, retain=True),
        broker.stop,
        broker.start,
    )


def over_tcp(broker: Broker) -> World:
    def retain(topic: str, payload: bytes) -> None:
        publish(broker.url, [(topic, payload)], retain=True)

    return World(parse_broker(broker.url), PahoLink, retain, broker.stop, broker.start)


@pytest.fixture(params=["memory", *sorted(BROKERS)])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    if request.param == "memory":
        yield in_memory()
        return
    chosen = BROKERS[request.param](tmp_path / "broker")
    if isinstance(chosen, Mosquitto):
        need("mosquitto")
    with chosen:
        yield over_tcp(chosen)


@contextmanager
def connected(world: World) -> Iterator[Link]:
    with closing(world.link()) as link:
        connect(link)
        yield link


def until(link: Link, done: Callable[[], bool], arrived: list[Message]) -> list[Message]:
    """Step a link until enough has happened; returns what arrived."""
    limit = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < limit, arrived
        arrived += link.step(0.1)
    return arrived


def arrived(link: Link, count: int) -> list[Message]:
    messages: list[Message] = []
    return until(link, lambda: len(messages) >= count, messages)


def acknowledged(link: Link, count: int) -> list[int]:
    numbers: list[int] = []

    def enough() -> bool:
        answers = link.answers()
        assert not any(answers.values())
        numbers.extend(answers)
        return len(numbers) >= count

    until(link, enough, [])
    return numbers


def test_a_link_is_ready_when_it_says_so(world: World) -> None:
    with closing(world.link()) as link:
        assert not link.ready
        assert link.broker == world.url
        link.start()
        assert not link.ready
        until(link, lambda: link.ready, [])
        assert link.lost is None
        assert link.version in (MQTT_5, MQTT_311)
        assert link.step(0.0) == []


def test_publishing_is_acknowledged_by_its_number_and_once(world: World) -> None:
    with connected(world) as link:
        numbers = [link.publish("a/b", b"%d" % i) for i in range(5)]
        assert len(set(numbers)) == 5
        assert sorted(acknowledged(link, 5)) == sorted(numbers)
        assert acknowledged(link, 0) == []
        assert link.step(0.1) == []


def test_the_window_fills_and_empties(world: World) -> None:
    with connected(world) as link:
        assert link.free == WINDOW
        for number in range(WINDOW):
            assert link.free == WINDOW - number
            link.publish("a/b", b"x")
        assert link.free == 0
        acknowledged(link, WINDOW)
        assert link.free == WINDOW


def test_messages_arrive_whole_and_only_those_asked_for(world: World) -> None:
    every_byte = bytes(range(256)) * 20
    with connected(world) as reader, connected(world) as writer:
        writer.subscribe(["down/me/other"])
        reader.subscribe(["pub/one", "down/+/answer", "receipts/#"])
        settle(world, writer)
        settle(world, reader)
        sent = [
            ("pub/one", every_byte),
            ("pub/two", b"not asked for"),
            ("down/me/answer", b"yes"),
            ("down/me/other", b"not asked for"),
            ("receipts/7/3", b""),
            ("receipts", b"the parent too"),
        ]
        for message in sent:
            writer.publish(*message)
        found = {message[:2] for message in arrived(reader, 4)}
        assert found == {each for each in sent if each[1] != b"not asked for"}
        assert reader.step(0.1) == []
        assert arrived(writer, 2)[-1].topic == "down/me/other", "a message to oneself"


def settle(world: World, reader: Link) -> None:
    """Until earlier subscriptions are known to be granted: a retained message has come by one that
    was made later. It is asked for again, because NATS may not have it yet when it says so."""
    world.retain("settled", b"now")
    limit = time.monotonic() + PATIENCE
    reader.subscribe(["settled"])
    while b"now" not in [message.payload for message in reader.step(0.5)]:
        assert time.monotonic() < limit
        reader.subscribe(["settled"])
    while reader.step(0.1):
        pass


def test_what_is_retained_arrives_with_the_subscription(world: World) -> None:
    world.retain("pub/manifest", b"first")
    world.retain("pub/manifest", b"second")
    world.retain("pub/gone", b"first")
    world.retain("pub/gone", b"")
    with connected(world) as link:
        link.subscribe(["pub/gone", "pub/manifest"])
        assert [message.payload for message in arrived(link, 1)] == [b"second"]
        assert link.step(0.1) == []
        link.subscribe(["pub/manifest"])  # whoever asks again gets it again
        assert [message.payload for message in arrived(link, 1)] == [b"second"]


def test_a_broker_that_goes_is_noticed_and_comes_back(world: World) -> None:
    with ExitStack() as stack:
        link = stack.enter_context(connected(world))
        world.stop()
        until(link, lambda: link.lost is not None, [])
        assert str(link.lost).startswith("the connection was lost (")
        with pytest.raises(BrokerUnreachable, match=f"the broker {world.url} cannot be used: Conn"):
            world.link().start()
        world.start()
        again = stack.enter_context(connected(world))
        number = again.publish("a/b", b"after")
        assert acknowledged(again, 1) == [number]


def test_closing_one_link_leaves_the_others(world: World) -> None:
    with connected(world) as other:
        with connected(world) as link:
            link.subscribe(["a/b"])
        number = other.publish("a/b", b"x")
        assert acknowledged(other, 1) == [number]
    for closed in (link, other):
        closed.close()  # closing twice does no harm
