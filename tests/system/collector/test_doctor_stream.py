"""`doctor` looks at what workers share: the stream of reports, or the broker's subscriptions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from collector.links.nats import NatsConnection
from collector.links.stream import (
    STREAM,
    StreamConnector,
    consumer_name,
    consumer_settings,
)
from collector.settings import StreamAddress
from protocol_spec.programs.settings import Credentials
from protocol_spec.programs.system import random_client_id
from testbed.brokers import Broker, Nats
from tests.support.brokers import SharedBrokers
from tests.support.command_line import Cli, cli, home
from tests.support.databases import new_schema
from tests.support.network import nats_with_a_stream

__all__ = ["cli", "home"]
pytestmark = pytest.mark.needs("postgres")


@pytest.fixture
def namespace() -> str:
    return random_client_id("ns")


@pytest.fixture
def nats(shared_brokers: SharedBrokers) -> Nats:
    return nats_with_a_stream(shared_brokers)


def examine(run: Cli, data: Path, broker: Broker, namespace: str, *flags: object) -> dict[str, Any]:
    data.mkdir(mode=0o700, exist_ok=True)
    shown = run(
        *("doctor", "--data-dir", data, "--store", new_schema().url, "--broker", broker.url),
        *("--namespace", namespace, *flags, "--json"),
    )
    return {f["check"]: f for f in json.loads(shown.stdout)}


def make_consumer(nats: Nats, namespace: str, **changed: object) -> None:
    inbox = f"_INBOX_{random_client_id('admin')}"
    where = StreamAddress(False, "127.0.0.1", nats.stream_port)
    connection = NatsConnection(where, Credentials(), inbox=inbox)
    connection.connect()
    connection.subscribe(f"{inbox}.>")
    name = consumer_name(namespace)
    config = {**consumer_settings(namespace), "durable_name": name, **changed}
    body = {"stream_name": STREAM, "config": config, "action": "create"}
    assert "error" not in connection.demand(f"$JS.API.CONSUMER.CREATE.{STREAM}.{name}", body)
    connection.close()


def found_stream(run: Cli, data: Path, nats: Nats, namespace: str) -> tuple[bool, str]:
    stream = f"nats://127.0.0.1:{nats.stream_port}"
    found = examine(run, data, nats, namespace, "--stream", stream)
    assert "shared subscriptions" not in found
    return found["stream"]["ok"], found["stream"]["finding"]


def test_a_stream_that_is_well(cli: Cli, tmp_path: Path, nats: Nats, namespace: str) -> None:
    ok, text = found_stream(cli, tmp_path / "data", nats, namespace)
    assert ok
    assert f"the first worker makes {namespace}-collectors" in text
    assert found_stream(cli, tmp_path / "data", nats, namespace) == (ok, text), "it made none"
    where = StreamAddress(False, "127.0.0.1", nats.stream_port)
    StreamConnector(lambda: [where], Credentials(), namespace)().close()
    ok, text = found_stream(cli, tmp_path / "data", nats, namespace)
    assert ok
    assert text.endswith("0 reports wait and 0 are not acknowledged yet")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"max_deliver": 5}, "belongs to somebody else, or was changed: max_deliver"),
        ({"ack_wait": 10**9}, "delivers again after 1 s (ack_wait)"),
        ({"max_ack_pending": 100}, "lets only 100 reports be unacknowledged (max_ack_pending)"),
    ],
)
def test_a_consumer_that_is_not(
    cli: Cli, tmp_path: Path, nats: Nats, namespace: str, changed: dict[str, object], told: str
) -> None:
    make_consumer(nats, namespace, **changed)
    ok, text = found_stream(cli, tmp_path / "data", nats, namespace)
    assert not ok
    assert told in text


def test_nobody_at_the_stream(cli: Cli, tmp_path: Path, nats: Nats, namespace: str) -> None:
    found = examine(cli, tmp_path / "data", nats, namespace, "--stream", "nats://127.0.0.1:1")
    assert found["stream"]["ok"] is False
    assert "Connection refused" in found["stream"]["finding"]


def test_a_broker_without_a_stream(
    cli: Cli, tmp_path: Path, nats: Nats, namespace: str, shared_brokers: SharedBrokers
) -> None:
    found = examine(cli, tmp_path / "data", nats, namespace)["shared subscriptions"]
    assert found["ok"] is False
    assert "name its own port with --stream" in found["finding"]
    mosquitto = shared_brokers.get("mosquitto")
    found = examine(cli, tmp_path / "data", mosquitto, namespace)["shared subscriptions"]
    assert found["ok"] is True
