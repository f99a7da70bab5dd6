"""No byte of ours goes to a broker whose certificate is wrong, nor in plain text over a network."""

from __future__ import annotations

import re
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

import pytest

from collector.brokers.config import Pair, ServerCertificate
from collector.brokers.directory import BrokerDirectory
from collector.links.mqtt import PahoLink
from edge_client.link import PahoLink as AgentLink
from edge_client.link import connect
from protocol_spec.programs.settings import BrokerUnreachable, BrokerUrl, Credentials
from tests.support.brokers import FAULTS, PASSWORDS, ConfiguredBroker, Files, Setup, plan
from tests.support.campaigns import manifest_text
from tests.support.command_line import Cli, facts
from tests.support.harness import ROOT

Connect = Callable[[BrokerUrl, Credentials], None]


class Listener:
    """A TLS server with a certificate that keeps what it receives."""

    def __init__(self, chain: Path, key: Path) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(chain, key)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        self.received = b""
        self._thread = threading.Thread(target=self._receive)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(20)
        self._socket.close()

    def _receive(self) -> None:
        sock, _ = self._socket.accept()
        with sock, suppress(OSError):
            sock.settimeout(20)
            with self._context.wrap_socket(sock, server_side=True) as secure:
                self.received = secure.recv(4096)


def as_collector(broker: BrokerUrl, credentials: Credentials) -> None:
    PahoLink(broker, credentials, client_id="test").connect()


def as_agent(broker: BrokerUrl, credentials: Credentials) -> None:
    connect(AgentLink(broker, credentials))


# paho does not close the socket of a failed handshake; it ends when nothing refers to it any more.
ENDS_LATER = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@ENDS_LATER
@pytest.mark.parametrize("connect", [as_collector, as_agent])
@pytest.mark.parametrize("fault", ["none", *FAULTS])
def test_nothing_is_sent_to_a_broker_that_is_not_trusted(
    connect: Connect, fault: str, tmp_path: Path
) -> None:
    files = Files.made(tmp_path)
    credentials = Credentials("kitchen", "secret", str(files.directory / "ca.pem"))
    host = "127.0.0.1" if fault == "wrong address" else "localhost"
    certificate = files.server("localhost") if fault == "none" else files.faulty(fault)
    with Listener(*certificate) as listener, pytest.raises(BrokerUnreachable) as refused:
        connect(BrokerUrl(True, host, listener.port), credentials)
    if fault == "none":
        assert b"kitchen" in listener.received
        assert b"secret" in listener.received
    else:
        assert listener.received == b""
        assert FAULTS[fault] in str(refused.value)


@ENDS_LATER
@pytest.mark.slow
@pytest.mark.parametrize("setup", PASSWORDS)
def test_the_collector_reports_why_it_does_not_trust_a_broker(setup: Setup, tmp_path: Path) -> None:
    fault = "wrong address"
    files = Files.made(tmp_path)
    given = ServerCertificate(Pair(*files.faulty(fault)), files.directory / "ca.pem")
    data = tmp_path / "data"
    planned = plan(setup, data / "broker", hosts=("127.0.0.1",), own_certificate=False)
    BrokerDirectory.configure(data / "broker", planned, given)
    with ConfiguredBroker(setup, data / "broker"):
        found = {f["check"]: f for f in facts("doctor", "--data-dir", data)}
    assert not found["broker"]["ok"]
    finding = found["broker"]["finding"]
    assert f"the broker {planned.url} cannot be used: its certificate is not trusted" in finding
    assert FAULTS[fault] in finding


@pytest.mark.parametrize("command", ["run", "open", "doctor"])
def test_plain_text_leaves_this_machine_only_when_asked_for(
    cli: Cli, home: Path, command: str
) -> None:
    file = home / "heat.toml"
    file.write_text(manifest_text())
    words = [command, *([file] if command == "open" else [])]
    refused = cli(*words, "--data-dir", home / "data", "--broker", "mqtt://192.0.2.1")
    text = refused.stderr + refused.stdout
    assert refused.exit_code == (1 if command == "doctor" else 2)
    assert "mqtt://192.0.2.1:1883 is not encrypted and not this machine; nothing was sent" in text
    assert "--allow-plaintext" in text


def test_nothing_switches_verification_off() -> None:
    switches = re.compile(r"CERT_NONE|CERT_OPTIONAL|insecure|unverified|check_hostname")
    for package in ("collector", "protocol_spec", "edge_client"):
        for module in (ROOT / package).rglob("*.py"):
            assert not switches.search(module.read_text()), module
