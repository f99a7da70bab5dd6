"""One contract for every link: the broker in memory, and the paho adapter at real brokers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from collector.links import Link, Message, Will
from protocol_spec.programs.system import random_client_id
from tests.support.brokers import SharedBrokers
from tests.support.network import (
    AtBroker,
    Ground,
    InMemory,
    publish,
    receive,
    subscribe,
    wait_until_lost,
)


@pytest.fixture(params=["memory", "quick nats", "mosquitto"])
def ground(request: pytest.FixtureRequest, shared_brokers: SharedBrokers) -> Iterator[Ground]:
    kind = request.param
    made = InMemory() if kind == "memory" else AtBroker(shared_brokers.get(kind))
    with made as ready:
        yield ready


@pytest.fixture
def root() -> str:
    """The first level of this test's topics."""
    return random_client_id("link")


@pytest.fixture
def sender(ground: Ground) -> Link:
    """Somebody else who publishes."""
    return ground.connect(random_client_id("sender"), persistent=False)


class Listener:
    """Connects under one name, again and again, and listens to what is below the root."""

    def __init__(self, ground: Ground, root: str) -> None:
        self._ground = ground
        self._root = root
        self._name = random_client_id("listener")
        self._early: dict[int, list[Message]] = {}

    def connect(self, *, qos: int = 1, persistent: bool = True) -> Link:
        link = self._ground.connect(self._name, persistent=persistent)
        self._early[id(link)] = subscribe(link, f"{self._root}/#", qos=qos)
        return link

    def receive(self, link: Link, count: int) -> list[Message]:
        """That many messages, also those that came before the subscription was confirmed."""
        early = self._early.pop(id(link), [])
        return early + receive(link, count - len(early))


@pytest.fixture
def listener(ground: Ground, root: str) -> Listener:
    return Listener(ground, root)


# --- delivery -----------------------------------------------------------------------------------


def test_what_is_published_arrives(listener: Listener, sender: Link, root: str) -> None:
    link = listener.connect()
    for payload in (b"", b"one", bytes(range(256)) * 20):
        assert publish(sender, f"{root}/a/b", payload) is None
        (message,) = listener.receive(link, 1)
        assert (message.topic, message.payload, message.retained) == (f"{root}/a/b", payload, False)
        assert message.mid > 0
        link.acknowledge([message])
    assert link.lost is None


def test_without_acknowledgement_where_it_was_not_asked_for(
    listener: Listener, sender: Link, root: str
) -> None:
    link = listener.connect(qos=0)
    publish(sender, f"{root}/a", b"one")
    (message,) = listener.receive(link, 1)
    assert (message.payload, message.mid) == (b"one", 0)


def test_only_what_a_filter_matches_arrives(ground: Ground, sender: Link, root: str) -> None:
    link = ground.connect(random_client_id("chooser"), persistent=False)
    for wanted_filter in ("+/up/+/report", "end"):
        assert subscribe(link, f"{root}/{wanted_filter}") == []
    wanted = [f"{root}/a/up/b/report", f"{root}//up/c/report"]
    others = ["a/up/b/c/report", "a/up/report", "a/down/b/report", "a/up/b/report/more", "a"]
    for topic in (*(f"{root}/{other}" for other in others), *wanted, f"{root}/end"):
        assert publish(sender, topic, b"x") is None
    assert {message.topic for message in receive(link, 3)} == {*wanted, f"{root}/end"}


def test_a_message_is_retained_for_who_comes_later(
    listener: Listener, sender: Link, root: str
) -> None:
    assert publish(sender, f"{root}/kept", b"old", retain=True) is None
    assert publish(sender, f"{root}/kept", b"new", retain=True) is None
    link = listener.connect()
    (message,) = listener.receive(link, 1)
    assert (message.topic, message.payload) == (f"{root}/kept", b"new")
    assert message.retained
    assert publish(sender, f"{root}/kept", b"live", retain=True) is None
    (live,) = listener.receive(link, 1)
    assert (live.payload, live.retained) == (b"live", False)


def test_an_empty_retained_message_takes_the_old_one_away(
    ground: Ground, sender: Link, root: str
) -> None:
    assert publish(sender, f"{root}/gone", b"old", retain=True) is None
    assert publish(sender, f"{root}/gone", b"", retain=True) is None
    assert publish(sender, f"{root}/here", b"mark", retain=True) is None
    link = ground.connect(random_client_id("late"), persistent=False)
    early = subscribe(link, f"{root}/#")
    found = early or receive(link, 1)
    assert [message.payload for message in found] == [b"mark"]


# --- sessions -----------------------------------------------------------------------------------


def test_what_was_not_acknowledged_comes_again(
    listener: Listener, ground: Ground, sender: Link, root: str
) -> None:
    first = listener.connect()
    assert not first.session_present
    for i in range(4):
        publish(sender, f"{root}/{i}", b"%d" % i)
    arrived = sorted(listener.receive(first, 4), key=lambda message: message.payload)
    first.acknowledge(arrived[:2])
    publish(sender, f"{root}/later", b"acknowledged behind them")
    first.acknowledge(listener.receive(first, 1))
    assert publish(first, f"{root}/own", b"own") is None  # so the acknowledgements have arrived
    ground.cut(first)
    second = listener.connect()
    assert second.session_present
    again = {message.payload for message in listener.receive(second, 3)}
    assert again == {b"2", b"3", b"own"}


def test_a_session_keeps_what_is_published_meanwhile(
    listener: Listener, sender: Link, root: str
) -> None:
    listener.connect().close()
    publish(sender, f"{root}/a", b"meanwhile")
    second = listener.connect()
    assert second.session_present
    (message,) = listener.receive(second, 1)
    assert (message.payload, message.retained) == (b"meanwhile", False)


def test_a_session_that_is_not_to_last_does_not(
    listener: Listener, sender: Link, root: str
) -> None:
    listener.connect(persistent=False).close()
    publish(sender, f"{root}/a", b"meanwhile")
    second = listener.connect(persistent=False)
    assert not second.session_present
    publish(sender, f"{root}/b", b"now")
    assert [message.payload for message in listener.receive(second, 1)] == [b"now"]


def test_an_acknowledgement_counts_only_where_it_was_delivered(
    listener: Listener, ground: Ground, sender: Link, root: str
) -> None:
    """I7: numbers mean nothing on another connection."""
    first = listener.connect()
    publish(sender, f"{root}/a", b"one")
    delivered = listener.receive(first, 1)
    ground.cut(first)
    second = listener.connect()
    first.acknowledge(delivered)
    assert [message.payload for message in listener.receive(second, 1)] == [b"one"]


def test_a_second_connection_ends_the_first(listener: Listener, sender: Link, root: str) -> None:
    first = listener.connect()
    second = listener.connect()
    wait_until_lost(first)
    assert "connection" in str(first.lost), "its words go to the log as they are"
    assert second.lost is None
    assert first.step(0.0) == []


# --- last words ---------------------------------------------------------------------------------


@pytest.mark.parametrize("goodbye", [True, False])
def test_a_last_will_is_for_those_who_say_no_goodbye(
    listener: Listener, ground: Ground, sender: Link, root: str, goodbye: bool
) -> None:
    watcher = listener.connect()
    will = Will(f"{root}/state", b"vanished")
    link = ground.connect(random_client_id("mortal"), will=will, persistent=False)
    link.close() if goodbye else ground.cut(link)
    if goodbye:
        publish(sender, f"{root}/after", b"said goodbye")
    (message,) = listener.receive(watcher, 1)
    assert message.payload == (b"said goodbye" if goodbye else b"vanished")


def test_what_was_published_before_a_goodbye_arrives(
    listener: Listener, ground: Ground, root: str
) -> None:
    watcher = listener.connect()
    link = ground.connect(random_client_id("hasty"), persistent=False)
    for i in range(50):
        link.publish(f"{root}/{i:02}", b"%d" % i)
    link.close()
    assert len({message.topic for message in listener.receive(watcher, 50)}) == 50


# --- publishing ---------------------------------------------------------------------------------


def test_every_publish_is_answered_once(ground: Ground, root: str) -> None:
    link = ground.connect(random_client_id("publisher"), persistent=False)
    everything = link.free
    sent = {link.publish(f"{root}/{i}", b"x", retain=False) for i in range(5)}
    assert len(sent) == 5
    assert link.free == everything - 5
    answers: dict[int, str | None] = {}
    while len(answers) < 5:
        assert link.lost is None
        link.step(0.1)
        fresh = link.answers()
        assert not fresh.keys() & answers.keys()
        answers |= fresh
    assert answers == dict.fromkeys(sent)
    assert link.free == everything
    assert link.answers() == {}


def test_a_link_says_where_it_leads(ground: Ground) -> None:
    assert ground.connect(random_client_id("named"), persistent=False).name
