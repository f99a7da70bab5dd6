"""What may be wrong with the stream of reports: one clear message each, also from
`doctor`, and nothing is lost."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from collector.brokers.directory import BrokerDirectory
from collector.links.nats import NatsConnection
from collector.links.stream import (
    STREAM,
    StreamConnector,
    consumer_name,
    consumer_settings,
)
from collector.settings import StreamAddress
from protocol_spec.programs.settings import BrokerUnreachable, Credentials
from protocol_spec.programs.system import random_client_id
from testbed.brokers import Broker, Nats
from testbed.processes import free_port
from tests.support.brokers import ConfiguredBroker, Setup, SharedBrokers, plan
from tests.support.command_line import Cli, cli, home
from tests.support.databases import new_schema
from tests.support.network import paho
from tests.support.processes import wait_until


@pytest.fixture
def namespace() -> str:
    return random_client_id("ns")


@pytest.fixture
def nats(shared_brokers: SharedBrokers) -> Nats:
    """The NATS that tests share; it makes its stream for the first client."""
    found = shared_brokers.get("nats")
    assert isinstance(found, Nats)
    paho(found)(random_client_id("first"), False).close()
    return found


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


def write_consumer(nats: Nats, namespace: str, **changed: object) -> dict[str, object]:
    """Create the consumer of a namespace with other settings, or change those of ours."""
    name = consumer_name(namespace)
    config = {**consumer_settings(namespace), "durable_name": name, **changed}
    body = {"stream_name": STREAM, "config": config, "action": ""}
    assert "error" not in ask(nats, f"$JS.API.CONSUMER.CREATE.{STREAM}.{name}", body)
    return config


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
    config, name = write_consumer(nats, namespace, **changed), consumer_name(namespace)
    text = refusal(here(nats.stream_port), namespace)
    assert f"its consumer {name} belongs to somebody else, or was changed: {named}" in text
    assert "Nothing was changed; delete it" in text
    found = ask(nats, f"$JS.API.CONSUMER.INFO.{STREAM}.{name}")
    assert found["config"][named] == config[named], "it is as it was"


def test_a_consumer_may_be_changed_and_is_created_again_when_deleted(
    nats: Nats, namespace: str
) -> None:
    connect = StreamConnector(lambda: [here(nats.stream_port)], Credentials(), namespace)
    connect().close()
    write_consumer(nats, namespace, ack_wait=60 * 10**9, max_ack_pending=1_000)
    with closing(connect()) as source:
        source.step(0.1)
        ask(nats, f"$JS.API.CONSUMER.DELETE.{STREAM}.{consumer_name(namespace)}")
        wait_until(lambda: source.step(0.1) == [] and source.lost is not None)
        assert "somebody deleted or changed the consumer" in str(source.lost)
    with closing(connect()) as source:
        device = paho(nats)(random_client_id("device"), False)
        device.publish(f"{namespace}/v1/heat-0123abcd/up/d1/report", b"x", retain=False)
        device.step(0.1)
        wait_until(lambda: [m.payload for m in source.step(0.1)] == [b"x"])
        device.close()


def test_a_server_with_no_stream_or_another_one(tmp_path: Path) -> None:
    with Nats(tmp_path) as nats:
        text = refusal(here(nats.stream_port))
        assert f"it has no stream {STREAM}" in text
        assert "has the leader connected" in text
        body = {"name": STREAM, "subjects": ["other.>"], "storage": "file"}
        assert "error" not in ask(nats, f"$JS.API.STREAM.CREATE.{STREAM}", body)
        assert f"its stream {STREAM} belongs to somebody else" in refusal(here(nats.stream_port))
        assert "it offers no TLS; nothing was sent" in refusal(here(nats.stream_port, tls=True))
    assert "Connection refused" in refusal(here(free_port()))


def test_without_jetstream(tmp_path: Path) -> None:
    class Plain(Nats):
        ports = property(lambda self: [self.stream_port])

        def configured_command(self) -> list[str]:
            made = super().configured_command()
            file = self.directory / "nats.conf"
            file.write_text(f"listen: 127.0.0.1:{self.stream_port}\n")
            return made

    with Plain(tmp_path) as nats:
        assert "JetStream is switched off there" in refusal(here(nats.stream_port))


@pytest.mark.parametrize(
    ("sent", "reason"),
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
def test_what_is_no_nats_server(sent: bytes, reason: str) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def talk() -> None:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                connection.sendall(sent)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 16):
                    pass

        threading.Thread(target=talk, daemon=True).start()
        assert reason in refusal(here(int(listener.getsockname()[1])))


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


# --- the command doctor ---------------------------------------------------------------------------


__all__ = ["cli", "home"]


def examine(run: Cli, data: Path, broker: Broker, namespace: str, *flags: object) -> dict[str, Any]:
    data.mkdir(mode=0o700, exist_ok=True)
    shown = run(
        *("doctor", "--data-dir", data, "--store", new_schema().url, "--broker", broker.url),
        *("--namespace", namespace, *flags, "--json"),
    )
    return {f["check"]: f for f in json.loads(shown.stdout)}


def found_stream(run: Cli, data: Path, nats: Nats, namespace: str) -> tuple[bool, str]:
    stream = f"nats://127.0.0.1:{nats.stream_port}"
    found = examine(run, data, nats, namespace, "--stream", stream)
    assert "shared subscriptions" not in found
    return found["stream"]["ok"], found["stream"]["finding"]


@pytest.mark.needs("postgres")
def test_doctor_accepts_a_good_stream(cli: Cli, tmp_path: Path, nats: Nats, namespace: str) -> None:
    ok, text = found_stream(cli, tmp_path / "data", nats, namespace)
    assert ok
    assert f"the first worker makes {namespace}-collectors" in text
    assert found_stream(cli, tmp_path / "data", nats, namespace) == (ok, text), "it made none"
    StreamConnector(lambda: [here(nats.stream_port)], Credentials(), namespace)().close()
    ok, text = found_stream(cli, tmp_path / "data", nats, namespace)
    assert ok
    assert text.endswith("0 reports wait and 0 are not acknowledged yet")


@pytest.mark.needs("postgres")
@pytest.mark.parametrize(
    ("changed", "finding"),
    [
        ({"max_deliver": 5}, "belongs to somebody else, or was changed: max_deliver"),
    ],
)
def test_doctor_finds_a_bad_consumer(
    cli: Cli, tmp_path: Path, nats: Nats, namespace: str, changed: dict[str, object], finding: str
) -> None:
    write_consumer(nats, namespace, **changed)
    ok, text = found_stream(cli, tmp_path / "data", nats, namespace)
    assert not ok
    assert finding in text


@pytest.mark.needs("postgres")
def test_doctor_finds_a_missing_stream(
    cli: Cli, tmp_path: Path, nats: Nats, namespace: str, shared_brokers: SharedBrokers
) -> None:
    found = examine(cli, tmp_path / "data", nats, namespace, "--stream", "nats://127.0.0.1:1")
    assert found["stream"]["ok"] is False
    assert "Connection refused" in found["stream"]["finding"]
    found = examine(cli, tmp_path / "data", nats, namespace)["shared subscriptions"]
    assert found["ok"] is False
    assert "name its own port with --stream" in found["finding"]
    mosquitto = shared_brokers.get("mosquitto")
    found = examine(cli, tmp_path / "data", mosquitto, namespace)["shared subscriptions"]
    assert found["ok"] is True
