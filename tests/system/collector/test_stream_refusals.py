"""What may be wrong with the stream of reports: one clear message each, and nothing is lost."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from collector.brokers.directory import BrokerDirectory
from collector.links import Source
from collector.links.nats import NatsConnection
from collector.links.stream import STREAM, StreamConnector, consumer_name, consumer_settings
from collector.settings import StreamAddress
from protocol_spec.programs.settings import BrokerUnreachable, Credentials
from protocol_spec.programs.system import random_client_id
from testbed.brokers import Nats
from testbed.processes import free_port
from tests.support.brokers import ConfiguredBroker, Setup, SharedBrokers, plan
from tests.support.network import nats_with_a_stream, paho, receive_each


@pytest.fixture
def namespace() -> str:
    return random_client_id("ns")


@pytest.fixture
def nats(shared_brokers: SharedBrokers) -> Nats:
    return nats_with_a_stream(shared_brokers)


def refusal(
    address: StreamAddress, namespace: str = "allomfree", credentials: Credentials | None = None
) -> str:
    connect = StreamConnector(lambda: [address], credentials or Credentials(), namespace)
    with pytest.raises(BrokerUnreachable) as found:
        connect().close()
    return str(found.value)


def here(port: int, *, tls: bool = False) -> StreamAddress:
    return StreamAddress(tls, "127.0.0.1", port)


def ask(broker: Nats, subject: str, body: object = None) -> dict[str, Any]:
    """As an administrator would, with a client of its own."""
    inbox = f"_INBOX_{random_client_id('admin')}"
    connection = NatsConnection(here(broker.stream_port), Credentials(), inbox=inbox)
    connection.connect()
    with closing(connection):
        connection.subscribe(f"{inbox}.>")
        return connection.demand(subject, body)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"ack_policy": "none"}, "ack_policy"),
        ({"max_deliver": 5}, "max_deliver"),
        ({"filter_subjects": ["$MQTT.msgs.other.>"]}, "filter_subjects"),
        ({"deliver_subject": "somewhere"}, "deliver_subject"),
    ],
)
def test_a_consumer_of_somebody_else(
    nats: Nats, namespace: str, changed: dict[str, Any], named: str
) -> None:
    name = consumer_name(namespace)
    config = {**consumer_settings(namespace), "durable_name": name, **changed}
    told = ask(
        nats,
        f"$JS.API.CONSUMER.CREATE.{STREAM}.{name}",
        {"stream_name": STREAM, "config": config, "action": "create"},
    )
    assert "error" not in told
    text = refusal(here(nats.stream_port), namespace)
    assert f"its consumer {name} belongs to somebody else, or was changed: {named}" in text
    assert "Nothing was changed; delete it" in text
    told = ask(nats, f"$JS.API.CONSUMER.INFO.{STREAM}.{name}")
    assert told["config"][named] == config[named], "it is as it was"


def test_what_an_operator_may_change_of_ours(nats: Nats, namespace: str) -> None:
    connect = StreamConnector(lambda: [here(nats.stream_port)], Credentials(), namespace)
    connect().close()
    name = consumer_name(namespace)
    config = ask(nats, f"$JS.API.CONSUMER.INFO.{STREAM}.{name}")["config"] | {
        "ack_wait": 60 * 10**9,
        "max_ack_pending": 1_000,
    }
    body = {"stream_name": STREAM, "config": config, "action": "update"}
    assert "error" not in ask(nats, f"$JS.API.CONSUMER.CREATE.{STREAM}.{name}", body)
    connect().close()


def test_a_consumer_that_is_deleted_is_made_anew(nats: Nats, namespace: str) -> None:
    connect = StreamConnector(lambda: [here(nats.stream_port)], Credentials(), namespace)
    with closing(connect()) as source:
        source.step(0.1)
        ask(nats, f"$JS.API.CONSUMER.DELETE.{STREAM}.{consumer_name(namespace)}")
        wait_until_lost(source)
        assert "somebody deleted or changed the consumer" in str(source.lost)
    with closing(connect()) as source:
        device = paho(nats)(random_client_id("device"), False)
        device.publish(f"{namespace}/v1/heat-0123abcd/up/d1/report", b"x", retain=False)
        device.step(0.1)
        assert receive_each([source], 1)
        device.close()


def wait_until_lost(source: Source) -> None:
    for _ in range(600):
        if source.lost:
            return
        source.step(0.1)
    raise AssertionError("it goes on")


def test_no_stream_yet(tmp_path: Path) -> None:
    with Nats(tmp_path) as nats:
        text = refusal(here(nats.stream_port))
        assert f"it has no stream {STREAM}" in text
        assert "has the leader connected" in text


def test_a_stream_of_somebody_else(tmp_path: Path) -> None:
    with Nats(tmp_path) as nats:
        body = {"name": STREAM, "subjects": ["other.>"], "storage": "file"}
        assert "error" not in ask(nats, f"$JS.API.STREAM.CREATE.{STREAM}", body)
        assert f"its stream {STREAM} belongs to somebody else" in refusal(here(nats.stream_port))


def test_without_jetstream(tmp_path: Path) -> None:
    class Plain(Nats):
        ports = property(lambda self: [self.stream_port])

        def command(self) -> list[str]:
            made = super().command()
            file = self.directory / "nats.conf"
            file.write_text(f"listen: 127.0.0.1:{self.stream_port}\n")
            return made

    with Plain(tmp_path) as nats:
        assert "JetStream is switched off there" in refusal(here(nats.stream_port))


def test_nobody_is_there() -> None:
    assert "Connection refused" in refusal(here(free_port()))


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "it does not speak NATS"),
        (b"INFO {}\r\n", "it allows messages larger than 8 MB"),
        (b'INFO {"max_payload": 67108864}\r\n', "it allows messages larger than 8 MB"),
        (b'INFO {"max_payload": 1000}\r\nGET\r\n', "broke the rules of NATS"),
        (b"INFO {\"max_payload\": 1000}\r\n-ERR 'Authorization Violation'\r\n", "--username"),
        (b'INFO {"max_payload": 1000, "tls_required": true}\r\n', "write its address with tls://"),
        (b"", "it does not speak NATS"),
        (b"x" * 70_000, "it does not speak NATS"),
    ],
)
def test_what_is_no_nats_server(said: bytes, why: str, talker: Callable[[bytes], int]) -> None:
    assert why in refusal(here(talker(said)))


@pytest.fixture
def talker() -> Iterator[Callable[[bytes], int]]:
    """Servers that say something, and then nothing more."""
    made: list[socket.socket] = []

    def serve(said: bytes) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        made.append(listener)

        def talk() -> None:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                connection.sendall(said)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 16):
                    pass

        threading.Thread(target=talk, daemon=True).start()
        return int(listener.getsockname()[1])

    yield serve
    for listener in made:
        listener.close()


# --- with users and certificates ----------------------------------------------------------------


@pytest.fixture(params=["password", "certificate"])
def guarded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BrokerDirectory]:
    setup = Setup("nats", request.param)
    place = tmp_path / "broker"
    BrokerDirectory.configure(place, plan(setup, place, stream_port=free_port()))
    with ConfiguredBroker(setup, place) as running:
        yield running.configured


def test_a_worker_pulls_with_the_collectors_credential(guarded: BrokerDirectory) -> None:
    """And with no other right than broker-config gives it."""
    known = guarded.settings()
    (address,) = known["stream"]
    assert address.tls
    credentials = guarded.credentials("Collector")
    connect = StreamConnector(lambda: [address], credentials, guarded.plan.namespace)
    with closing(connect()) as source:
        source.mark(5.0)
        for _ in range(100):
            source.step(0.05)
            source.mark(5.0)
        assert source.lost is None
        assert source.drained == 5.0


def test_other_credentials_are_refused(guarded: BrokerDirectory) -> None:
    (address,) = guarded.settings()["stream"]
    text = refusal(address, credentials=guarded.credentials("Auditor"))
    assert "refused the user" in text or "ended the connection" in text
    nobody = Credentials(ca_file=guarded.credentials("Auditor").ca_file)
    text = refusal(address, credentials=nobody)
    assert "--username" in text or "certificate" in text
    assert "certificate is not trusted" in refusal(address)
    plain = StreamAddress(False, address.host, address.port)
    assert "write its address with tls://" in refusal(plain)


def test_a_right_that_is_missing_is_named(tmp_path: Path) -> None:
    """The collector's user as broker-config wrote it before there were workers."""

    class Narrow(Nats):
        extra = (
            'authorization { users: [ { user: "Collector", password: "secret", permissions: { '
            'publish: { allow: ["allomfree.>"] }, '
            'subscribe: { allow: ["_INBOX_allomfree.>"] } } } ] }'
        )

    with Narrow(tmp_path) as nats:
        text = refusal(here(nats.stream_port), credentials=Credentials("Collector", "secret"))
        assert "its user lacks a right" in text
        assert "STREAM.INFO" in text
        assert "broker-config nats --stream-port" in text
        wrong = refusal(here(nats.stream_port), credentials=Credentials("Collector", "wrong"))
        assert "it refused the user" in wrong


def test_a_server_without_tls_gets_no_password(tmp_path: Path) -> None:
    with Nats(tmp_path) as nats:
        assert "it offers no TLS; nothing was sent" in refusal(here(nats.stream_port, tls=True))
