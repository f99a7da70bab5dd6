"""One contract for every link, and one for every source that workers share (I7, W4): the broker in
memory, and the adapters at real brokers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from collector.links import Link, Message, Source, Will
from collector.links.mqtt import PahoLink, Subscription, filters
from collector.links.stream import StreamConnector
from collector.settings import StreamAddress
from protocol_spec.programs.memory_broker import MemoryBroker, MemoryLink
from protocol_spec.programs.settings import BrokerUnreachable, Credentials, parse_broker
from protocol_spec.programs.system import random_client_id
from protocol_spec.topics import from_device
from testbed.brokers import Broker, Nats, publish
from tests.support.brokers import SharedBrokers
from tests.support.network import Peer, Proxy, Wire, paho

PATIENCE_SECONDS = 60.0
REDELIVERY_SECONDS = 30.0  # of NATS, by default


def step_until(done: Callable[[], bool], step: Callable[[], object]) -> None:
    limit = time.monotonic() + PATIENCE_SECONDS
    while not done():
        assert time.monotonic() < limit
        step()


class Ground:
    """A broker to connect to, real or in memory, and a way to cut a connection."""

    def __init__(self, broker: Broker | None) -> None:
        self._broker = broker
        self._memory = MemoryBroker()
        self._proxies: dict[int, Proxy] = {}
        self.stack = ExitStack()

    def connect(self, name: str, *, will: Will | None = None, persistent: bool = True) -> Link:
        if self._broker is None:
            return self._memory.connect(name, will=will, persistent=persistent)
        proxy = self.stack.enter_context(Proxy(self._broker.port))
        link = PahoLink(
            parse_broker(proxy.url), Credentials(), client_id=name, will=will, persistent=persistent
        )
        self.stack.callback(link.close)
        link.connect()
        self._proxies[id(link)] = proxy
        return link

    def cut(self, link: Link) -> None:
        """End a connection without a DISCONNECT."""
        if isinstance(link, MemoryLink):
            link.end("the connection was cut")
        else:
            self._proxies[id(link)].reset()
            step_until(lambda: link.lost is not None, lambda: link.step(0.1))


@pytest.fixture(params=["memory", "quick nats", "mosquitto"])
def ground(request: pytest.FixtureRequest, shared_brokers: SharedBrokers) -> Iterator[Ground]:
    made = Ground(None if request.param == "memory" else shared_brokers.get(request.param))
    with made.stack:
        yield made


@pytest.fixture
def root() -> str:
    """The first level of this test's topics."""
    return random_client_id("link")


@pytest.fixture
def sender(ground: Ground) -> Link:
    return ground.connect(random_client_id("sender"), persistent=False)


def subscribe(link: Link, topic_filter: str, *, qos: int = 1) -> list[Message]:
    """Subscribe, and wait until the broker confirms it; the messages that came before."""
    wanted, arrived = link.granted + 1, list[Message]()
    link.subscribe([topic_filter], qos=qos)
    step_until(lambda: link.granted >= wanted, lambda: arrived.extend(link.step(0.1)))
    return arrived


def receive(link: Link, count: int) -> list[Message]:
    """That many messages, none of them acknowledged."""
    arrived: list[Message] = []
    step_until(lambda: len(arrived) >= count, lambda: arrived.extend(link.step(0.1)))
    return arrived


def publish_and_wait(link: Link, topic: str, payload: bytes, *, retain: bool = False) -> None:
    """Publish, and wait until the broker has taken it."""
    number, answers = link.publish(topic, payload, retain=retain), dict[int, str | None]()

    def step() -> None:
        assert link.lost is None, link.lost
        link.step(0.1)
        answers.update(link.answers())

    step_until(lambda: number in answers, step)
    assert answers[number] is None


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


# --- links: delivery ------------------------------------------------------------------------------


def test_what_is_published_arrives(ground: Ground, sender: Link, root: str) -> None:
    listener, other = Listener(ground, root), Listener(ground, root)
    link = listener.connect()
    for payload in (b"", b"one", bytes(range(256)) * 20):
        publish_and_wait(sender, f"{root}/a/b", payload)
        (message,) = listener.receive(link, 1)
        assert (message.topic, message.payload, message.retained) == (f"{root}/a/b", payload, False)
        assert message.mid > 0
        link.acknowledge([message])
    assert link.lost is None
    second = other.connect(qos=0)
    publish_and_wait(sender, f"{root}/a", b"one")
    (message,) = other.receive(second, 1)
    assert (message.payload, message.mid) == (b"one", 0), "nothing to acknowledge with QoS 0"


def test_only_what_a_filter_matches_arrives(ground: Ground, sender: Link, root: str) -> None:
    link = ground.connect(random_client_id("chooser"), persistent=False)
    for wanted_filter in ("+/up/+/report", "end"):
        assert subscribe(link, f"{root}/{wanted_filter}") == []
    wanted = [f"{root}/a/up/b/report", f"{root}//up/c/report"]
    others = ["a/up/b/c/report", "a/up/report", "a/down/b/report", "a/up/b/report/more", "a"]
    for topic in (*(f"{root}/{other}" for other in others), *wanted, f"{root}/end"):
        publish_and_wait(sender, topic, b"x")
    assert {message.topic for message in receive(link, 3)} == {*wanted, f"{root}/end"}


def test_a_message_is_retained_for_later_subscribers(
    listener: Listener, sender: Link, root: str
) -> None:
    """Only the latest of a topic; an empty one deletes it."""
    for payload in (b"old", b""):
        publish_and_wait(sender, f"{root}/gone", payload, retain=True)
    for payload in (b"old", b"new"):
        publish_and_wait(sender, f"{root}/kept", payload, retain=True)
    link = listener.connect()
    (message,) = listener.receive(link, 1)
    assert (message.topic, message.payload) == (f"{root}/kept", b"new")
    assert message.retained
    publish_and_wait(sender, f"{root}/kept", b"live", retain=True)
    (live,) = listener.receive(link, 1)
    assert (live.payload, live.retained) == (b"live", False)


def test_every_publish_is_answered_once(ground: Ground, root: str) -> None:
    link = ground.connect(random_client_id("publisher"), persistent=False)
    everything = link.free
    sent = {link.publish(f"{root}/{i}", b"x", retain=False) for i in range(5)}
    assert len(sent) == 5
    assert link.free == everything - 5
    answers: dict[int, str | None] = {}

    def step() -> None:
        link.step(0.1)
        fresh = link.answers()
        assert not fresh.keys() & answers.keys()
        answers.update(fresh)

    step_until(lambda: len(answers) == 5, step)
    assert answers == dict.fromkeys(sent)
    assert link.free == everything
    assert link.answers() == {}


# --- links: sessions ------------------------------------------------------------------------------


def test_what_was_not_acknowledged_comes_again(
    listener: Listener, ground: Ground, sender: Link, root: str
) -> None:
    first = listener.connect()
    assert not first.session_present
    for i in range(4):
        publish_and_wait(sender, f"{root}/{i}", b"%d" % i)
    arrived = sorted(listener.receive(first, 4), key=lambda message: message.payload)
    first.acknowledge(arrived[:2])
    publish_and_wait(sender, f"{root}/later", b"acknowledged behind them")
    first.acknowledge(listener.receive(first, 1))
    publish_and_wait(first, f"{root}/own", b"own")  # so the acknowledgements have arrived
    ground.cut(first)
    second = listener.connect()
    assert second.session_present
    again = {message.payload for message in listener.receive(second, 3)}
    assert again == {b"2", b"3", b"own"}


@pytest.mark.slow
def test_requests_push_no_reports_behind_on_nats(shared_brokers: SharedBrokers, root: str) -> None:
    """A3: each subscription may have 20,000 messages unacknowledged, and so may the session; what
    exceeds that is delivered only half a minute later, behind the marker."""
    ground, most = Ground(shared_brokers.get("nats")), 20_000
    kinds = from_device("someone", root, "heat-0123abcd")
    with ground.stack:
        link = ground.connect(random_client_id("listener"), persistent=False)
        for wanted in filters(root, shared=False):
            subscribe(link, wanted)
        nats = shared_brokers.get("nats")
        publish(nats.url, [(kind, b"x") for kind in kinds for _ in range(most)])
        held = receive(link, most)
        assert link.step(0.5) == [], "the session's share"
        link.acknowledge(held)
        began = time.monotonic()
        receive(link, most)
        assert time.monotonic() - began < REDELIVERY_SECONDS / 2


@pytest.mark.parametrize("persistent", [True, False])
def test_a_persistent_session_keeps_what_is_published_meanwhile(
    listener: Listener, sender: Link, root: str, persistent: bool
) -> None:
    listener.connect(persistent=persistent).close()
    publish_and_wait(sender, f"{root}/a", b"meanwhile")
    second = listener.connect(persistent=persistent)
    assert second.session_present == persistent
    publish_and_wait(sender, f"{root}/b", b"now")
    wanted = {b"meanwhile", b"now"} if persistent else {b"now"}  # NATS promises no order here
    came = listener.receive(second, len(wanted))
    assert {(message.payload, message.retained) for message in came} == {(w, False) for w in wanted}


def test_an_acknowledgement_counts_only_where_it_was_delivered(
    listener: Listener, ground: Ground, sender: Link, root: str
) -> None:
    """I7: numbers mean nothing on another connection."""
    first = listener.connect()
    publish_and_wait(sender, f"{root}/a", b"one")
    delivered = listener.receive(first, 1)
    ground.cut(first)
    second = listener.connect()
    first.acknowledge(delivered)
    assert [message.payload for message in listener.receive(second, 1)] == [b"one"]


def test_a_second_connection_ends_the_first(listener: Listener) -> None:
    first, second = listener.connect(), listener.connect()
    step_until(lambda: first.lost is not None, lambda: first.step(0.1))
    assert "connection" in str(first.lost), "it goes to the log as it is"
    assert second.lost is None
    assert first.step(0.0) == []


@pytest.mark.parametrize("goodbye", [True, False])
def test_a_last_will_is_published_without_a_disconnect_only(
    listener: Listener, ground: Ground, sender: Link, root: str, goodbye: bool
) -> None:
    watcher = listener.connect()
    will = Will(f"{root}/state", b"vanished")
    link = ground.connect(random_client_id("mortal"), will=will, persistent=False)
    if goodbye:
        publish_and_wait(link, f"{root}/before", b"said goodbye")
        link.close()
        publish_and_wait(sender, f"{root}/after", b"later")
    else:
        ground.cut(link)
    arrived = listener.receive(watcher, 2 if goodbye else 1)
    expected = {b"said goodbye", b"later"} if goodbye else {b"vanished"}
    assert {message.payload for message in arrived} == expected


# --- sources: shared subscriptions, in memory or of MQTT 5, and NATS's own stream -----------------


class SourceGround:
    """Workers of one namespace at one broker, and a device."""

    drained_is_global = False  # whether what is pulled is anybody's, as with a stream

    def __init__(self, namespace: str, connect: Callable[[str, bool], Link]) -> None:
        self._namespace = namespace
        self._connect = connect
        self._device = connect(random_client_id("device"), False)
        self._made: list[Link | Source] = [self._device]

    def source(self, name: str, *, again: bool = False) -> Source:
        """Ready to receive: the broker has confirmed the subscriptions, or knew them."""
        link = self._connect(f"{self._namespace}-{name}", True)
        self._made.append(link)
        source = Subscription(link, self._namespace, shared=True)
        step_until(lambda: link.granted >= 2 or again, lambda: source.step(0.05))
        return source

    def send(self, device: object, payload: bytes) -> None:
        publish_and_wait(self._device, report(self._namespace, device), payload)

    def send_to(self, topic: str, payload: bytes) -> None:
        publish_and_wait(self._device, topic, payload)

    def close(self) -> None:
        for each in self._made:
            each.close()


class Streamed(SourceGround):
    """NATS's own stream, whose consumer delivers again after a second."""

    drained_is_global = True

    def __init__(self, namespace: str, broker: Nats) -> None:
        super().__init__(namespace, paho(broker))
        here = StreamAddress(False, "127.0.0.1", broker.stream_port)
        self._pull = StreamConnector(lambda: [here], Credentials(), namespace, ack_seconds=1)

    def source(self, name: str, *, again: bool = False) -> Source:  # noqa: ARG002
        made = self._pull()
        self._made.append(made)
        return made


@pytest.fixture(params=["memory", "mosquitto", "nats"])
def workers(
    request: pytest.FixtureRequest, shared_brokers: SharedBrokers, root: str
) -> Iterator[SourceGround]:
    memory = MemoryBroker()
    if request.param == "memory":
        made = SourceGround(root, lambda name, kept: memory.connect(name, persistent=kept))
    elif request.param == "mosquitto":
        made = SourceGround(root, paho(shared_brokers.get("mosquitto")))
    else:
        broker = shared_brokers.get("nats")
        assert isinstance(broker, Nats)
        made = Streamed(root, broker)
    yield made
    made.close()


def report(namespace: str, device: object) -> str:
    return f"{namespace}/v1/camp-0123abcd/up/{device}/report"


def receive_each(sources: list[Source], count: int) -> list[list[Message]]:
    """What each of them gets, that many together; nothing is acknowledged."""
    found: list[list[Message]] = [[] for _ in sources]

    def step() -> None:
        for source, got in zip(sources, found):
            assert source.lost is None
            got += [m for m in source.step(0.05) if "/drain/" not in (m.topic or "")]

    step_until(lambda: sum(map(len, found)) >= count, step)
    return found


def until(source: Source, done: Callable[[], bool], moment: float | None = None) -> None:
    """Let a source work, acknowledging only its own markers, until a condition holds."""

    def step() -> None:
        assert source.lost is None
        if moment is not None:
            source.mark(moment)
        source.acknowledge([m for m in source.step(0.05) if "/drain/" in (m.topic or "")])

    step_until(done, step)


def test_each_message_comes_to_one_of_two(workers: SourceGround, root: str) -> None:
    sources = [workers.source("a"), workers.source("b")]
    sent = {(report(root, f"d{i}"), b"%d" % i) for i in range(60)}
    sent.add((f"{root}/v1/camp-0123abcd/up/d1/request", b"ask"))
    for topic, payload in sent:
        workers.send_to(topic, payload)
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


def test_only_what_devices_send_to_the_collector(workers: SourceGround, root: str) -> None:
    source = workers.source("a")
    workers.send_to(f"{root}/v1/camp-0123abcd/pub/state", b"not for us")
    workers.send("a.b", b"a strange name")
    workers.send("", b"no name")
    workers.send("d1", b"x" * 200_000)
    ((first, second, third),) = receive_each([source], 3)
    assert (first.topic, first.payload) == (report(root, "a.b"), b"a strange name")
    assert (second.topic, second.payload) == (report(root, ""), b"no name")
    assert third.topic == report(root, "d1")
    assert len(third.payload) > 100_000, "far too long for a report, and at most cut"
    source.acknowledge([first, second, third])
    until(source, lambda: source.drained == 100.0, moment=100.0)  # nothing else is waited for


def test_what_a_worker_did_not_acknowledge_comes_again(workers: SourceGround) -> None:
    """To its own worker if it is back, or to any where the stream is everybody's."""
    source = workers.source("a")
    for i in range(4):
        workers.send(f"d{i}", b"%d" % i)
    ((*messages,),) = receive_each([source], 4)
    source.acknowledge(messages[:2])
    until(source, lambda: True)
    source.close()
    again = workers.source("a", again=True)
    ((*rest,),) = receive_each([again], 2)
    assert {m.payload for m in rest} == {m.payload for m in messages[2:]}
    again.acknowledge(rest)


def test_drained_only_when_all_before_is_acknowledged(workers: SourceGround) -> None:
    source = workers.source("a")
    assert source.drained == 0.0
    until(source, lambda: source.drained == 100.0, moment=100.0)
    workers.send("d1", b"1")
    ((message,),) = receive_each([source], 1)
    source.mark(200.0)
    # The message is ours until it is acknowledged, and no longer than a second.
    if workers.drained_is_global:
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


def test_a_worker_that_retires_gets_nothing_more(workers: SourceGround) -> None:
    leaving, staying = workers.source("a"), workers.source("b")
    if workers.drained_is_global:  # what it has asked for already it may still get
        until(leaving, lambda: True)
    leaving.retire(300.0)
    until(leaving, lambda: workers.drained_is_global or leaving.drained == 300.0)
    leaving.close(stay=False)
    for i in range(10):
        workers.send(f"d{i}", b"%d" % i)
    (messages,) = receive_each([staying], 10)
    assert len({m.payload for m in messages}) == 10


def test_brokers_that_cannot_share(shared_brokers: SharedBrokers, root: str) -> None:
    link = paho(shared_brokers.get("nats"))(random_client_id("worker"), False)
    with pytest.raises(BrokerUnreachable, match="it speaks MQTT 3") as found:
        Subscription(link, root, shared=True)
    assert "--stream tls://HOST:4222" in str(found.value)
    assert link.step(0.0) == []
    assert link.lost, "it has disconnected"

    def script(wire: Wire) -> None:
        if wire.expect_connect():
            wire.connack(sharing=False)
            while wire.read() is not None:
                pass

    with Peer(script) as peer:
        link = PahoLink(parse_broker(peer.url), Credentials(), client_id="worker")
        link.connect()
        with pytest.raises(BrokerUnreachable, match="it says that they are not available"):
            Subscription(link, root, shared=True)
