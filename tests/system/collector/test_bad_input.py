"""Bad messages and floods at a running collector: one counter each, and good reports are counted.

The whole table of bad messages is in tests/unit/collector/test_admit.py.
"""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from collector.commands import reading
from collector.data_dir import open_store
from collector.health import examine
from collector.results.facts import status_facts
from protocol_spec import Manifest, Outcome, Report, Topics, digest8, make_report
from protocol_spec.limits import MAX_REPORT_BYTES
from testbed.brokers import Broker, mqtt_text, publish
from tests.support.campaigns import manifest
from tests.support.collector_processes import (
    ATTRIBUTE,
    Collection,
    CollectorRun,
    Launcher,
    Message,
    assert_one_outcome_each,
    collector,
    connect_raw,
    own_namespace,
    wait_until_open,
)
from tests.support.network import PUBACK, PUBLISH, frame
from tests.support.processes import wait_until

K = 11
HOUR = 3600
SEALED, NOW, LATER = 0, 2, 3


def two_protocols() -> Manifest:
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
    made = Collection.of(tmp_path / "data", two_protocols(), K, own_namespace())
    with closing(open_store(made.data)) as store:
        store.revoke("revoked", 0)
    return made


@pytest.fixture
def running(collection: Collection, broker: Broker, launcher: Launcher) -> Iterator[CollectorRun]:
    run = launcher.start(collection.options(broker))
    run.wait_for("round 0 sealed")
    yield run
    assert run.is_running
    assert run.terminate() == 0


def bad_and_good(collection: Collection) -> Iterator[tuple[Message, Outcome]]:
    """A message for every outcome, in order: some are wrong only after those before them."""
    manifest, topics = collection.manifest, collection.topics
    digest, unary = digest8(manifest), manifest.body_formats[0].encode(0)
    beyond = bytes([K]).ljust(len(unary), b"\0")

    def report(number: int = NOW, attribute: int = 0, body: bytes = unary) -> bytes:
        return Report(digest, number, attribute, body).encode()

    good, other = report(), Topics("other-00000000", collection.namespace)
    for payload, outcome in [
        (b"", Outcome.MALFORMED),
        (b"\xdd\xff\xff\xff\xff", Outcome.MALFORMED),  # an array of 4 GB
        (bytes(MAX_REPORT_BYTES + 1), Outcome.OVERSIZE),
        (Report(bytes(8), NOW, 0, unary).encode(), Outcome.WRONG_MANIFEST),
        (report(LATER), Outcome.EARLY),
        (report(SEALED), Outcome.LATE),
        (report(attribute=2), Outcome.BAD_ATTRIBUTE),
        (report(body=unary + b"\0"), Outcome.BAD_LENGTH),
        (report(body=unary[:-1] + b"\x01"), Outcome.BAD_PADDING),
        (report(attribute=1, body=beyond), Outcome.BAD_VALUE),
    ]:
        yield (topics.report("kitchen-7"), payload), outcome
    for name in ("Kitchen", "a" * 33, "küche", "$sys", "\u202e"):
        yield (topics.report("x").replace("/x/", f"/{name}/"), good), Outcome.TOPIC_MISMATCH
    yield (other.report("kitchen-7"), good), Outcome.UNKNOWN_CAMPAIGN
    index = make_report(manifest, NOW, 1, b"\0").encode()
    before = make_report(manifest, NOW - 1, 1, b"\0").encode()
    yield collection.report(0, NOW), Outcome.ACCEPTED
    yield collection.report(0, NOW), Outcome.DUPLICATE
    yield collection.report(0, NOW, bit=1), Outcome.CONFLICT
    yield (topics.report("device-0"), index), Outcome.CONFLICT
    yield (topics.report("device-0"), before), Outcome.ATTRIBUTE_CHANGED
    yield (topics.report("revoked"), good), Outcome.REVOKED


def wait_for(collection: Collection, received: int) -> dict[Outcome, int]:
    wait_until(lambda: collection.store.received() >= received, timeout=60)
    counted = collection.look()
    assert_one_outcome_each(counted)
    assert counted.received == received
    return counted.outcomes


def still_counts(collection: Collection, broker: Broker) -> None:
    """The proof at the end: the next good report is counted."""
    before = collection.look()
    publish(broker.url, [collection.report(7, NOW)])
    outcomes = wait_for(collection, before.received + 1)
    assert outcomes[Outcome.ACCEPTED] == before.outcomes.get(Outcome.ACCEPTED, 0) + 1
    assert collection.look(NOW).counts[7] == 1


def test_every_outcome(collection: Collection, broker: Broker, running: CollectorRun) -> None:
    expected = Counter[Outcome]()
    for received, (message, outcome) in enumerate(bad_and_good(collection), 1):
        publish(broker.url, [message])
        expected[outcome] += 1
        assert wait_for(collection, received) == expected, message
    assert collection.look(NOW).counts == [1] + [0] * (K - 1), "the first stays"
    collector("revoke", "revoked", "--undo", "--data-dir", collection.data)
    topic = collection.topics.report("revoked")

    def counted() -> bool:
        """Sent again and again, as a device does that has no receipt yet."""
        received = collection.store.received()
        publish(broker.url, [(topic, collection.report(2, NOW)[1])])
        wait_for(collection, received + 1)
        return collection.look(NOW).counts[2] == 1

    wait_until(counted)
    still_counts(collection, broker)


def test_odd_bytes_of_the_protocol_itself(
    collection: Collection, broker: Broker, running: CollectorRun
) -> None:
    """Topics that are no UTF-8 or hold a NUL end the device's connection, or are one counter."""
    _, good = collection.report(0, NOW)
    root = collection.topics.report("x").removesuffix("x/report").encode()
    for name in (b"a b", b"a\0b", b"\xff\xfe", b"\xed\xa0\x80"):
        with socket.create_connection(("127.0.0.1", broker.port), 30) as sock:
            wire = connect_raw(sock)
            topic = mqtt_text(root + name + b"/report")
            sock.sendall(frame(PUBLISH, topic + b"\0\1" + good, flags=2))
            answer = wire.read()
            assert answer is None or answer.kind == PUBACK
            wire.close()
    publish(broker.url, [collection.report(7, NOW)])
    collection.wait_for(1, NOW)
    counted = collection.look()
    assert_one_outcome_each(counted)
    assert counted.outcomes.keys() <= {Outcome.ACCEPTED, Outcome.TOPIC_MISMATCH}


# --- a device that floods is suspended, and the operator is informed (A8) -------------------------


def test_one_device_floods_and_the_others_are_counted(
    tmp_path: Path, broker: Broker, launcher: Launcher
) -> None:
    """While the flood goes on, the others report; when it is over, so is the suspension."""
    devices, count = 50, 6000
    collection = Collection.shared(tmp_path / "data", devices)
    running = launcher.start(collection.options(broker))
    wait_until_open(collection, broker.port)
    flood = [collection.report(0)] * count

    def suspended() -> list[str]:
        beat = examine(collection.data).beat
        return beat.status.suspended_names if beat else []

    def status_text() -> str:
        return reading.status_text(status_facts(collection.store, collection.data, time.time()))

    publish(broker.url, flood)
    wait_until(lambda: suspended() == ["device-0"], timeout=60)
    assert "revoke device-0" in status_text()
    with ThreadPoolExecutor(1) as flooder:
        more = flooder.submit(publish, broker.url, flood)
        publish(broker.url, collection.reports()[1:])
        collection.wait_for(devices)
        more.result(60)
    wait_until(lambda: collection.look().received == 2 * count + devices - 1, timeout=60)
    counted = collection.look()
    assert counted.counts == [1] * devices
    assert counted.outcomes[Outcome.SUSPENDED] > 0
    assert_one_outcome_each(counted)
    wait_until(lambda: suspended() == [], timeout=60)
    assert "revoke" not in status_text()
    publish(broker.url, [collection.report(0)])
    wait_until(lambda: collection.look().received == 2 * count + devices, timeout=60)
    again = counted.outcomes[Outcome.DUPLICATE] + 1
    assert collection.look().outcomes == {**counted.outcomes, Outcome.DUPLICATE: again}
    log = running.log
    # Where the machine is too slow for the flood it stops and begins again; each time is logged.
    assert log.count("is suspended until it stops") == log.count("no longer suspended") >= 1
    assert "device-0" not in log
