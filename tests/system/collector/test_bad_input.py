"""Bad messages at a running collector: one counter each, and the next good report is counted."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest

from collector.data_dir import open_store
from protocol_spec import Manifest, Outcome, Report, Topics, digest8, make_report
from protocol_spec.limits import MAX_REPORT_BYTES
from testbed.brokers import Broker
from tests.support.campaigns import manifest
from tests.support.collector_processes.campaign import (
    ATTRIBUTE,
    Collection,
    assert_one_outcome_each,
    own_namespace,
)
from tests.support.collector_processes.driver import CollectorRun, Launcher
from tests.support.collector_processes.processes import collector, resident
from tests.support.collector_processes.wire import Message, Publisher
from tests.support.edge_processes import wait_until
from tests.support.network import CONNACK, CONNECT, PUBACK, PUBLISH, Wire, frame, text

K = 11
HOUR = 3600
SEALED, NOW, LATER = 0, 2, 3


def three_kinds() -> Manifest:
    """Round 0 is over and can be sealed; round 2 is open. Unary with padding bits, and an index."""
    values = ", ".join(f'"v{i}"' for i in range(K))
    tables = "".join(
        f'[[attributes]]\nname = "{name}"\nquestion = "?"\nprotocol = "{protocol}"\n'
        f"values = [{values}]\n"
        for name, protocol in ((ATTRIBUTE, "L-OSUE"), ("index", "L-GRR"))
    )
    first = int(time.time()) - 2 * HOUR - 5
    return manifest(first=first, period=HOUR, grace=HOUR, count=10, attributes=tables)


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    made = Collection(tmp_path / "data", three_kinds(), K, own_namespace())
    store = open_store(made.data)
    store.open_campaign(made.manifest, int(time.time()))
    store.revoke("revoked", 0)
    store.close()
    return made


@pytest.fixture
def running(collection: Collection, broker: Broker, launcher: Launcher) -> Iterator[CollectorRun]:
    run = launcher.start(collection.options(broker))
    run.wait_for("round 0 sealed")
    yield run
    assert run.is_running
    assert run.terminate() == 0


def raw(*fields: object) -> bytes:
    packed: bytes = msgpack.packb(fields)
    return packed


def bodies(collection: Collection) -> dict[str, tuple[bytes, Outcome]]:
    """Payloads that no device should send, and what becomes of each."""
    digest, unary = digest8(collection.manifest), collection.manifest.body_formats[0].encode(0)
    beyond = bytes([K]).ljust(len(unary), b"\0")
    good = raw(1, digest, NOW, 0, unary)
    bad = Outcome.MALFORMED

    def report(number: int = NOW, attribute: int = 0, body: bytes = unary) -> bytes:
        return Report(digest, number, attribute, body).encode()

    return {
        "empty": (b"", bad),
        "truncated": (good[:-1], bad),
        "trailing bytes": (good + b"\0", bad),
        "nested arrays": (b"\x91" * 400, bad),
        "a 4 GB array": (b"\xdd\xff\xff\xff\xff", bad),
        "a 4 GB map": (b"\xdf\xff\xff\xff\xff", bad),
        "4 GB of bytes": (b"\x95\x01\xc6\xff\xff\xff\xff", bad),
        "4 GB of text": (b"\x95\x01\xdb\xff\xff\xff\xff", bad),
        "4 GB of extension": (b"\x95\x01\xc9\xff\xff\xff\xff\x01", bad),
        "an extension": (raw(1, digest, msgpack.ExtType(1, b"x"), 0, unary), bad),
        "a float": (raw(1, digest, 2.0, 0, unary), bad),
        "not a number": (raw(1, digest, float("nan"), 0, unary), bad),
        "nothing": (raw(1, digest, None, 0, unary), bad),
        "a truth": (raw(True, digest, NOW, 0, unary), bad),
        "a negative round": (raw(1, digest, -1, 0, unary), bad),
        "a round beyond 2^63": (raw(1, digest, 2**64 - 1, 0, unary), bad),
        "text as body": (raw(1, digest, NOW, 0, "ab"), bad),
        "not canonical": (b"\xdc\x00\x05" + good[1:], bad),
        "another version": (raw(2, digest, NOW, 0, unary), bad),
        "not msgpack": (b"\xc1", bad),
        "a short digest": (raw(1, digest[:7], NOW, 0, unary), bad),
        "too long": (bytes(MAX_REPORT_BYTES + 1), Outcome.OVERSIZE),
        "another digest": (raw(1, b"\0" * 8, NOW, 0, unary), Outcome.WRONG_MANIFEST),
        "a round to come": (report(LATER), Outcome.EARLY),
        "a round beyond the last": (report(10), Outcome.EARLY),
        "a sealed round": (report(SEALED), Outcome.LATE),
        "no such attribute": (report(attribute=2), Outcome.BAD_ATTRIBUTE),
        "a long body": (report(body=unary + b"\0"), Outcome.BAD_LENGTH),
        "no body": (report(body=b""), Outcome.BAD_LENGTH),
        "padding bits": (report(body=unary[:-1] + b"\x01"), Outcome.BAD_PADDING),
        "an index too large": (report(attribute=1, body=beyond), Outcome.BAD_VALUE),
    }


def wait_for(collection: Collection, received: int) -> dict[Outcome, int]:
    wait_until(lambda: collection.store.received() >= received, timeout=60)
    counted = collection.look()
    assert_one_outcome_each(counted)
    assert counted.received == received
    return counted.outcomes


def test_every_bad_input(collection: Collection, broker: Broker, running: CollectorRun) -> None:
    with Publisher(broker.port) as publisher:
        outcomes: dict[Outcome, int] = {}
        for received, (name, (payload, fate)) in enumerate(bodies(collection).items(), 1):
            publisher.send([(collection.topics.report("kitchen-7"), payload)])
            outcomes[fate] = outcomes.get(fate, 0) + 1
            assert wait_for(collection, received) == outcomes, name
        still_counts(collection, publisher, outcomes)


def still_counts(collection: Collection, publisher: Publisher, before: dict[Outcome, int]) -> None:
    """The proof at the end of every bad day."""
    publisher.send([collection.report(7, NOW)])
    outcomes = wait_for(collection, sum(before.values()) + 1)
    assert outcomes[Outcome.ACCEPTED] == before.get(Outcome.ACCEPTED, 0) + 1
    assert collection.look(NOW).counts[7] == 1


def test_histories(collection: Collection, broker: Broker, running: CollectorRun) -> None:
    """What only the past makes wrong: other bits, another attribute, a name taken back."""
    other = make_report(collection.manifest, NOW, 1, b"\0").encode()
    before = make_report(collection.manifest, NOW - 1, 1, b"\0").encode()
    earlier = Report(
        digest8(collection.manifest), NOW, 0, collection.manifest.body_formats[0].encode(2)
    )
    steps: list[tuple[Message, Outcome]] = [
        (collection.report(0, NOW), Outcome.ACCEPTED),
        (collection.report(0, NOW), Outcome.DUPLICATE),
        (collection.report(0, NOW, bit=1), Outcome.CONFLICT),
        ((collection.topics.report("device-0"), other), Outcome.CONFLICT),
        ((collection.topics.report("device-0"), before), Outcome.ATTRIBUTE_CHANGED),
        ((collection.topics.report("revoked"), earlier.encode()), Outcome.REVOKED),
    ]
    with Publisher(broker.port) as publisher:
        outcomes: dict[Outcome, int] = {}
        for received, (message, fate) in enumerate(steps, 1):
            publisher.send([message])
            outcomes[fate] = outcomes.get(fate, 0) + 1
            assert wait_for(collection, received) == outcomes
        assert collection.look(NOW).counts == [1] + [0] * (K - 1), "the first stays"
        collector("revoke", "revoked", "--undo", "--data-dir", collection.data)
        resend_until_counted(
            collection, publisher, (collection.topics.report("revoked"), earlier.encode())
        )
        still_counts(collection, publisher, collection.look().outcomes)


def resend_until_counted(collection: Collection, publisher: Publisher, message: Message) -> None:
    """As a device does that has no receipt yet: the collector may not have looked since."""

    def counted() -> bool:
        received = collection.look().received
        publisher.send([message])
        wait_for(collection, received + 1)
        return collection.look(NOW).counts[2] == 1

    wait_until(counted)


def test_bad_topics(collection: Collection, broker: Broker, running: CollectorRun) -> None:
    """The broker delivers what the filter matches; names that no device has are one counter."""
    _, good = collection.report(0, NOW)
    other = Topics("other-00000000", collection.namespace).report("kitchen-7")
    root = collection.topics.report("x").removesuffix("x/report")
    names = ["Kitchen", "a" * 33, "küche", "a.b", "$sys", "\u202e"]
    with Publisher(broker.port) as publisher:
        publisher.send([(f"{root}{name}/report", good) for name in names])
        wait_until(lambda: collection.look().received >= len(names))
        outcomes = wait_for(collection, len(names))
        assert outcomes == {Outcome.TOPIC_MISMATCH: len(names)}
        publisher.send([(other, good)])
        publisher.send([(f"{root}a/b/report", good), (f"{root}a/report/more", good)])
        wait_until(lambda: collection.look().outcomes.get(Outcome.UNKNOWN_CAMPAIGN) == 1)
        still_counts(collection, publisher, collection.look().outcomes)


def test_a_retained_report(collection: Collection, broker: Broker, launcher: Launcher) -> None:
    """Kept by the broker from before: it may be old, and is refused as often as it comes."""
    with Publisher(broker.port) as publisher:
        publisher.send([collection.report(0, NOW)], retain=True)
        run = launcher.start(collection.options(broker))
        run.wait_for("round 0 sealed")
        wait_until(lambda: collection.store.received() == 1)
        assert collection.look().outcomes == {Outcome.RETAINED: 1}
        still_counts(collection, publisher, collection.look().outcomes)
        assert run.terminate() == 0


def test_a_thousand_bad_then_a_good_one(
    collection: Collection, broker: Broker, launcher: Launcher
) -> None:
    """No poison loop: the bad ones are acknowledged and never come again (R28, I15)."""
    bad = [(collection.topics.report("kitchen-7"), i.to_bytes(2)) for i in range(1000)]
    with Publisher(broker.port) as publisher:
        first = launcher.start(collection.options(broker))
        first.wait_for("round 0 sealed")
        publisher.send([*bad, collection.report(3, NOW)])
        outcomes = wait_for(collection, 1001)
        assert outcomes == {Outcome.MALFORMED: 1000, Outcome.ACCEPTED: 1}
        assert first.terminate() == 0
        again = launcher.start(collection.options(broker))
        again.wait_for("connected to")
        still_counts(collection, publisher, outcomes)


def test_a_message_larger_than_any_buffer(
    collection: Collection, own_mosquitto: Broker, launcher: Launcher
) -> None:
    """The broker is asked to keep it: megabytes for nothing do not reach the collector."""
    run = launcher.start(collection.options(own_mosquitto))
    run.wait_for("round 0 sealed")
    before = resident(run.pid)
    with Publisher(own_mosquitto.port) as publisher:
        publisher.send([(collection.topics.report("kitchen-7"), bytes(30_000_000))])
        publisher.send([collection.report(3, NOW)])
        collection.wait_for(1, NOW)
    assert resident(run.pid) < before + 20


def test_odd_bytes_of_the_protocol_itself(
    collection: Collection, broker: Broker, running: CollectorRun
) -> None:
    """Topics that are no UTF-8 or hold a NUL end the device's connection, or are one counter."""
    _, good = collection.report(0, NOW)
    root = collection.topics.report("x").removesuffix("x/report").encode()
    for name in (b"a b", b"a\0b", b"\xff\xfe", b"\xed\xa0\x80"):
        send_raw(broker.port, root + name + b"/report", good)
    with Publisher(broker.port) as publisher:
        publisher.send([collection.report(7, NOW)])
    collection.wait_for(1, NOW)
    counted = collection.look()
    assert_one_outcome_each(counted)
    assert counted.outcomes.keys() <= {Outcome.ACCEPTED, Outcome.TOPIC_MISMATCH}


def send_raw(port: int, topic: bytes, payload: bytes) -> None:
    """Publish what paho would not, and wait until the broker has answered or hung up."""
    hello = text("MQTT") + bytes([4, 2, 0, 60]) + text("raw")
    with socket.create_connection(("127.0.0.1", port), 30) as sock:
        sock.sendall(frame(CONNECT, hello))
        wire = Wire(sock)
        answer = wire.read()
        assert answer
        assert answer.kind == CONNACK
        sock.sendall(frame(PUBLISH, text(topic) + b"\0\1" + payload, flags=2))
        answer = wire.read()
        assert answer is None or answer.kind == PUBACK
        wire.close()
