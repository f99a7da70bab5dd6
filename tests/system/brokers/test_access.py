"""What each credential may do at a configured broker (R17, R30, A6), and TLS (R18).

Every party is one connection, and a publication is received by exactly those who may read it. What
must not get through is shown absent once something that was published later has arrived.
"""

from __future__ import annotations

import json
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Self

import pytest

from collector.brokers.authority import Authority
from collector.brokers.config import (
    AUDITOR,
    COLLECTOR,
    LARGEST_PACKET,
    PROBE,
    Pair,
    Role,
    access,
)
from collector.links.mqtt import PahoLink
from edge_client.link import PahoLink as AgentLink
from edge_client.link import connect
from protocol_spec.programs.settings import BrokerUnreachable, BrokerUrl, Credentials
from protocol_spec.topics import CANARY_CAMPAIGN, from_all_devices, marker, parse_from_device
from tests.support.brokers import (
    BOTH,
    CAMPAIGN,
    CERTIFICATES,
    EVERY,
    FAULTS,
    NATS,
    NEEDS_MOSQUITTO,
    PASSWORDS,
    ROOT,
    BrokerClient,
    ConfiguredBroker,
    Files,
    Setup,
)
from tests.support.campaigns import manifest_text
from tests.support.command_line import Cli
from tests.support.harness import ROOT as REPOSITORY
from tests.support.processes import wait_until

KITCHEN, GARDEN, ATTIC, LOFT, TV = "kitchen", "garden", "attic", "loft", "Reader-tv"
PREFIX = "homeassistant"
MARK = f"allomfree/v1/{CANARY_CAMPAIGN}/pub/mark"  # the collector publishes it, all may read it
READABLE = {
    COLLECTOR: ("allomfree/v1/+/pub/#", from_all_devices()),
    KITCHEN: ("allomfree/v1/+/pub/#", f"allomfree/v1/+/down/{KITCHEN}/response"),
    GARDEN: ("allomfree/v1/+/pub/#", f"allomfree/v1/+/down/{GARDEN}/response"),
}
Parties = dict[str, BrokerClient]


@pytest.fixture(scope="module", params=EVERY)
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ConfiguredBroker]:
    place = tmp_path_factory.mktemp("broker") / "broker"
    made = ConfiguredBroker(request.param, place, KITCHEN, GARDEN, ATTIC, LOFT)
    configured = made.configured
    configured.change_plan(home_assistant=PREFIX)
    configured.enrol_readers(["tv"])
    with made.hurry() as running:
        yield running


@pytest.fixture(scope="module")
def parties(broker: ConfiguredBroker) -> Iterator[Parties]:
    with ExitStack() as stack:
        found = {
            name: stack.enter_context(broker.client(name))
            for name in (COLLECTOR, KITCHEN, GARDEN, ATTIC, AUDITOR, PROBE)
        }
        will = (f"{PREFIX}/status", b"offline")  # as Home Assistant has one
        found[TV] = stack.enter_context(broker.client(TV, will=will))
        yield found
        assert not any(party.lost for party in found.values())


@contextmanager
def subscribed(parties: Parties) -> Iterator[None]:
    """While everybody is subscribed to all they may read."""
    for name, filters in READABLE.items():
        assert all(parties[name].subscribe(*filters))
    yield
    for name, filters in READABLE.items():
        parties[name].unsubscribe(*filters)


def received_by(parties: Parties, payload: bytes) -> set[str]:
    """Who received a payload that the broker has already dealt with."""
    later = parties[COLLECTOR].publish(MARK)
    assert all(parties[name].receives(later) for name in READABLE)
    return {name for name in READABLE if payload in parties[name].payloads}


# --- publishing -----------------------------------------------------------------------------------

ALL = {COLLECTOR, KITCHEN, GARDEN}
NOBODY: set[str] = set()
WRITES = [
    (KITCHEN, f"{ROOT}/up/{KITCHEN}/report", {COLLECTOR}),
    (KITCHEN, f"{ROOT}/up/{KITCHEN}/request", {COLLECTOR}),
    (KITCHEN, f"{ROOT}/up/{KITCHEN}/other", NOBODY),
    (KITCHEN, f"{ROOT}/up/{KITCHEN}/report/more", NOBODY),
    (KITCHEN, f"{ROOT}/up/{GARDEN}/report", NOBODY),
    (KITCHEN, f"{ROOT}/up/{KITCHEN}x/report", NOBODY),
    (KITCHEN, f"{ROOT}/pub/manifest", NOBODY),
    (KITCHEN, f"{ROOT}/pub/receipt/0/0", NOBODY),
    (KITCHEN, f"{ROOT}/down/{GARDEN}/response", NOBODY),
    (KITCHEN, f"{ROOT}/down/{KITCHEN}/response", NOBODY),
    (KITCHEN, marker(), NOBODY),
    (PROBE, f"{ROOT}/up/{KITCHEN}/report", NOBODY),
    (PROBE, f"{ROOT}/pub/manifest", NOBODY),
    (COLLECTOR, f"{ROOT}/pub/manifest", ALL),
    (COLLECTOR, f"{ROOT}/down/{GARDEN}/response", {GARDEN}),
    (COLLECTOR, marker(), {COLLECTOR}),
    (COLLECTOR, marker().replace("report", "request"), NOBODY),
    (COLLECTOR, f"{ROOT}/up/{GARDEN}/report", NOBODY),
    (COLLECTOR, f"{ROOT}/up/{COLLECTOR}/report", NOBODY),
    (AUDITOR, marker(), NOBODY),
    (AUDITOR, f"{ROOT}/up/{GARDEN}/report", NOBODY),
    (AUDITOR, f"{ROOT}/pub/manifest", NOBODY),
    (AUDITOR, f"{ROOT}/down/{GARDEN}/response", NOBODY),
    (TV, f"{ROOT}/up/{TV}/report", NOBODY),
    (TV, f"{ROOT}/up/{TV}/request", NOBODY),
    (TV, f"{ROOT}/up/{KITCHEN}/report", NOBODY),
    (TV, f"{ROOT}/pub/manifest", NOBODY),
    (TV, f"{ROOT}/pub/result/fuel/json", NOBODY),
]


def test_publishing(parties: Parties) -> None:
    with subscribed(parties):
        for who, topic, received in WRITES:
            assert received_by(parties, parties[who].publish(topic)) == received, (who, topic)
    assert parse_from_device(f"{ROOT}/up/{KITCHEN}/report") is not None
    assert access(Role.READER, TV, "allomfree").write == (), "without Home Assistant"
    assert parse_from_device(f"{ROOT}/up/{TV}/report") is None, (
        "no reader has a device's name (R30)"
    )


def test_nobody_plants_a_retained_manifest(broker: ConfiguredBroker, parties: Parties) -> None:
    parties[COLLECTOR].publish(f"{ROOT}/pub/manifest", b"the real one", retain=True)
    for who in (KITCHEN, AUDITOR, TV):
        parties[who].publish(f"{ROOT}/pub/manifest", b"a planted one", retain=True)
        parties[who].publish(f"{ROOT}/pub/planted", b"another one", retain=True)
    with broker.client(LOFT) as late:
        late.subscribe(READABLE[KITCHEN][0], MARK)
        assert late.receives(b"the real one")
        assert late.receives(parties[COLLECTOR].publish(MARK))
        assert not late.payloads & {b"a planted one", b"another one"}
    parties[COLLECTOR].publish(f"{ROOT}/pub/manifest", retain=True)


def test_a_last_will_is_restricted_too(broker: ConfiguredBroker, parties: Parties) -> None:
    """The broker has published a will when that of the same name's next connection arrives."""
    for topic, received in (
        (f"{ROOT}/pub/state", NOBODY),
        (f"{ROOT}/up/{GARDEN}/report", NOBODY),
        (f"{ROOT}/down/{GARDEN}/response", NOBODY),
        (f"{ROOT}/up/{LOFT}/report", {COLLECTOR}),
    ):
        tried = (topic, b"last words on " + topic.encode())
        later = (f"{ROOT}/up/{LOFT}/request", b"sent after " + topic.encode())
        with subscribed(parties):
            for will in (tried, later):
                client = broker.client(LOFT, will=will)
                if client.connect():
                    client.drop()
                else:  # a broker may refuse the whole connection
                    assert (will, received) == (tried, NOBODY)
            assert parties[COLLECTOR].receives(later[1])
            assert received_by(parties, tried[1]) == received
        with broker.client(LOFT) as late:
            late.subscribe(READABLE[KITCHEN][0], MARK)
            assert late.receives(parties[COLLECTOR].publish(MARK))
            assert tried[1] not in late.payloads, "nor is it retained"


# --- reading --------------------------------------------------------------------------------------

PUBLIC, MINE, REPORT = "public", "mine", "report"
REQUEST, ANSWER, DISCOVERY = "request", "answer", "discovery"
MAY = {PUBLIC, MINE}
READS = [
    (ATTIC, f"{ROOT}/pub/#", {PUBLIC}),
    (ATTIC, "allomfree/v1/+/pub/#", {PUBLIC}),
    (ATTIC, f"{ROOT}/down/{ATTIC}/response", {MINE}),
    (ATTIC, f"allomfree/v1/+/down/{ATTIC}/response", {MINE}),
    (COLLECTOR, f"{ROOT}/up/+/report", {REPORT}),
    (COLLECTOR, "allomfree/v1/+/up/+/request", {REQUEST}),
    (TV, f"{ROOT}/pub/#", {PUBLIC}),
    (TV, f"{PREFIX}/+/+/config", {DISCOVERY}),
]
# NATS refuses these as a whole; mosquitto grants them, and delivers only what is allowed.
TOO_WIDE = [
    (ATTIC, f"{ROOT}/down/{GARDEN}/response", NOBODY),
    (ATTIC, f"{ROOT}/down/+/response", {MINE}),
    (ATTIC, f"{ROOT}/down/#", {MINE}),
    (ATTIC, f"{ROOT}/up/{GARDEN}/report", NOBODY),
    (ATTIC, f"{ROOT}/up/+/report", NOBODY),
    (ATTIC, f"{ROOT}/up/#", NOBODY),
    (ATTIC, f"{ROOT}/+/{GARDEN}/+", NOBODY),
    (ATTIC, "allomfree/#", MAY),
    (ATTIC, "+/+/+/+/+/+", {MINE}),
    (ATTIC, "#", MAY),
    (ATTIC, "$SYS/#", NOBODY),
    (ATTIC, "$MQTT/#", NOBODY),
    (ATTIC, "$JS/#", NOBODY),
    (PROBE, "#", {PUBLIC}),
    (COLLECTOR, f"{ROOT}/down/#", NOBODY),
    (AUDITOR, f"{ROOT}/up/#", NOBODY),
    (AUDITOR, f"{ROOT}/down/#", NOBODY),
    (TV, f"{ROOT}/up/#", NOBODY),
]


def traffic(parties: Parties) -> dict[str, bytes]:
    """One of everything that passes through a broker."""
    collector, garden = parties[COLLECTOR], parties[GARDEN]
    return {
        REPORT: garden.publish(f"{ROOT}/up/{GARDEN}/report"),
        REQUEST: garden.publish(f"{ROOT}/up/{GARDEN}/request"),
        ANSWER: collector.publish(f"{ROOT}/down/{GARDEN}/response"),
        MINE: collector.publish(f"{ROOT}/down/{ATTIC}/response"),
        PUBLIC: collector.publish(f"{ROOT}/pub/manifest"),
        DISCOVERY: collector.publish(f"{PREFIX}/device/allomfree_x/config"),
    }


def test_reading(broker: ConfiguredBroker, parties: Parties) -> None:
    for who, wanted, received in [*READS, *TOO_WIDE]:
        refused = (who, wanted, received) in TOO_WIDE and broker.setup.kind == "nats"
        reader = parties[who]
        already = len(reader.received)
        assert reader.subscribe(wanted, qos=1) == [not refused]
        reader.subscribe(MARK)
        sent = traffic(parties)
        assert reader.receives(parties[COLLECTOR].publish(MARK))
        expected = NOBODY if refused else received
        assert all(reader.receives(sent[what]) for what in expected)
        reader.unsubscribe(wanted, MARK)
        came = reader.received[already:]
        found = {what for what, payload in sent.items() if payload in dict(came).values()}
        assert found == expected, (who, wanted)
        assert not [topic for topic, _ in came if topic.startswith("$")]


# --- connecting -----------------------------------------------------------------------------------


def test_nobody_connects_without_a_credential(broker: ConfiguredBroker) -> None:
    assert not broker.client(None).connect()
    assert not broker.client(None, context=None).connect(), "in plain text"
    assert not broker.client(None, name=KITCHEN).connect()
    assert not broker.client(None, name=COLLECTOR, password="").connect()
    assert broker.admits(LOFT)


@pytest.mark.parametrize("broker", PASSWORDS, indirect=True)
def test_a_password_is_good_for_its_owner_only(broker: ConfiguredBroker) -> None:
    kitchens = broker.credentials(KITCHEN).password
    hashed = broker.configured.users[GARDEN].password
    for name, wrong in ((GARDEN, kitchens), (COLLECTOR, kitchens), (GARDEN, "wrong")):
        assert not broker.client(name, password=wrong).connect()
    assert not broker.client(GARDEN, password=hashed).connect(), "nor the hash that is stored"
    assert not broker.client(GARDEN, name="stranger").connect()


@pytest.mark.parametrize("broker", CERTIFICATES, indirect=True)
def test_a_certificate_must_be_ours_and_a_clients(
    broker: ConfiguredBroker, tmp_path_factory: pytest.TempPathFactory
) -> None:
    forger = Authority(tmp_path_factory.mktemp("forger"))
    forged = Pair(forger.files.certificate.with_name("f.crt"), forger.files.key.with_name("f.key"))
    _, certificate, key = forger.issue_client(KITCHEN)
    forged.certificate.write_text(certificate)
    forged.key.write_text(key)
    tls = broker.directory / "tls"
    for pair in (forged, Pair(tls / "server.crt", tls / "server.key")):
        context = ssl.create_default_context(cafile=str(tls / "ca.crt"))
        context.load_cert_chain(pair.certificate, pair.key)
        assert not broker.client(None, context=context).connect()


@pytest.mark.parametrize("broker", CERTIFICATES, indirect=True)
def test_a_certificate_decides_whatever_name_is_claimed(
    broker: ConfiguredBroker, parties: Parties
) -> None:
    for claimed in (COLLECTOR, GARDEN, f"CN={COLLECTOR}", f"CN={GARDEN}"):
        liar = broker.client(LOFT, name=claimed)
        if liar.connect():
            with subscribed(parties):
                assert received_by(parties, liar.publish(f"{ROOT}/pub/state")) == NOBODY
                assert received_by(parties, liar.publish(f"{ROOT}/up/{GARDEN}/report")) == NOBODY
                own = liar.publish(f"{ROOT}/up/{LOFT}/report")
                assert received_by(parties, own) == {COLLECTOR}
            liar.disconnect()


@pytest.mark.parametrize("broker", NATS, indirect=True)
def test_nats_has_no_back_door(broker: ConfiguredBroker) -> None:
    """Its own protocol has a port too, on this machine: no credential of ours opens it."""
    log = (broker.directory / "broker.log").read_text()
    found = re.search(r"Listening for client connections on 127\.0\.0\.1:(\d+)", log)
    assert found, log
    for name in (KITCHEN, COLLECTOR):
        known = broker.credentials(name)
        for claim in ({}, {"user": name, "pass": known.password}, {"user": f"CN={name}"}):
            with socket.create_connection(("127.0.0.1", int(found[1])), 20) as sock:
                sock.sendall(b"CONNECT " + json.dumps(claim).encode() + b"\r\nPING\r\n")
                answer = b"".join(iter(lambda: sock.recv(4096), b""))
                assert b"-ERR 'Authorization Violation'" in answer
                assert b"PONG" not in answer


# --- one device's share of the broker (A6) --------------------------------------------------------

HOSTILE, HONEST = "hostile", "honest"
MANY = 150
LARGE = 1_000_000


def shared(setup: Setup, place: Path) -> ConfiguredBroker:
    broker = ConfiguredBroker(setup, place / "broker", HOSTILE, HONEST)
    broker.configured.change_plan(campaigns=(CAMPAIGN,))
    return broker.hurry()


def retained(broker: ConfiguredBroker) -> set[str]:
    """The topics of devices on which a later collector finds something."""
    with broker.client(COLLECTOR) as late:
        mark = f"{ROOT}/pub/mark"
        late.subscribe(from_all_devices(), "allomfree/v1/+/up/#", mark)
        assert late.receives(late.publish(mark))
        return late.topics - {mark}


@pytest.mark.parametrize("setup", BOTH)
def test_a_device_cannot_fill_the_broker_with_retained_messages(
    setup: Setup, tmp_path: Path
) -> None:
    own = {f"{ROOT}/up/{HOSTILE}/report", f"{ROOT}/up/{HOSTILE}/request"}
    with shared(setup, tmp_path) as broker:
        with broker.client(HOSTILE) as hostile:
            for number in range(MANY):
                payload = bytes([number]) * LARGE
                hostile.publish(f"{ROOT}/up/{HOSTILE}/keep-{number}", payload, retain=True)
                if setup.kind == "mosquitto":
                    topic = f"allomfree/v1/heat-{number:08x}/up/{HOSTILE}/report"
                    hostile.publish(topic, bytes([number]) * 1000, retain=True)
            for topic in own:
                hostile.publish(topic, b"k" * LARGE, retain=True)
        with broker.client(COLLECTOR) as collector:
            collector.subscribe(from_all_devices())
            client = broker.client(HOSTILE, will=(f"{ROOT}/up/{HOSTILE}/report", b"kept?"))
            assert client.connect()
            client.drop()
            assert collector.receives(b"kept?"), "a last will is sent"
        # mosquitto cannot refuse to retain, but those are all the topics there are
        assert retained(broker) == (NOBODY if setup.kind == "nats" else own)
        size = sum(f.stat().st_size for f in broker.directory.rglob("*") if f.is_file())
    assert size < 10 * LARGE


@pytest.mark.parametrize("setup", PASSWORDS)
def test_the_limits_survive_a_restart(setup: Setup, tmp_path: Path) -> None:
    """And so does what the collector retains, with its waiting reports."""
    session = {"client_id": "the-collectors", "clean": False}
    size = LARGEST_PACKET - 200
    with shared(setup, tmp_path) as broker:
        with broker.client(COLLECTOR, **session) as collector:
            collector.subscribe(from_all_devices(), qos=1)
            collector.publish(f"{ROOT}/pub/manifest", b"m" * size, retain=True)
        with broker.client(HONEST) as honest:
            report = honest.publish(f"{ROOT}/up/{HONEST}/report")
        broker.stop()
        broker.start()
        with broker.client(HOSTILE) as hostile:
            hostile.publish(f"{ROOT}/up/{HOSTILE}/keep", retain=True)
            hostile.subscribe("allomfree/v1/+/pub/#")
            assert hostile.receives(b"m" * size)
        with broker.client(COLLECTOR, **session) as collector:
            assert collector.session_present
            assert collector.receives(report)
        assert retained(broker) == NOBODY


@NEEDS_MOSQUITTO
def test_a_device_has_one_session_on_mosquitto(tmp_path: Path) -> None:
    """Under whatever name it leaves one: the next connection finds it."""
    with shared(Setup("mosquitto", "password"), tmp_path) as broker:
        found = []
        for number in range(5):
            with broker.client(HOSTILE, client_id=f"left-{number}", clean=False) as client:
                found.append(client.session_present)
                client.subscribe("allomfree/v1/+/pub/#", qos=1)
        assert found == [False, True, True, True, True]


@pytest.mark.parametrize("setup", PASSWORDS)
def test_a_large_message_ends_its_senders_connection_only(setup: Setup, tmp_path: Path) -> None:
    with (
        shared(setup, tmp_path) as broker,
        broker.client(COLLECTOR) as collector,
        broker.client(HONEST) as honest,
    ):
        collector.subscribe(from_all_devices())
        with broker.client(HOSTILE) as hostile:
            hostile.publish(f"{ROOT}/up/{HOSTILE}/report", b"x" * (LARGEST_PACKET + 1))
            wait_until(lambda: hostile.lost)
        assert collector.receives(honest.publish(f"{ROOT}/up/{HONEST}/report"))
        assert len(collector.received) == 1


# --- no byte goes to a broker whose certificate is wrong, nor in plain text over a network --------


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
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
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
        for module in (REPOSITORY / package).rglob("*.py"):
            assert not switches.search(module.read_text()), module
