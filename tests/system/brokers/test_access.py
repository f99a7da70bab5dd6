"""Who may do what at a broker that `broker-config` configured (R17): a table of acts, each tried.

Every party is one connection subscribed to all it may read, so whoever is meant to hear an act is
there to hear it. What must not get through is shown absent once something said later has come.
"""

from __future__ import annotations

import json
import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from collector.brokers.authority import Authority
from collector.brokers.config import AUDITOR, COLLECTOR, PROBE, Pair
from protocol_spec.topics import CANARY_CAMPAIGN, from_all_devices, marker
from tests.support.brokers import (
    CERTIFICATES,
    EVERY,
    NATS,
    PASSWORDS,
    ROOT,
    ConfiguredBroker,
    Guest,
)

KITCHEN, GARDEN, ATTIC, LOFT = "kitchen", "garden", "attic", "loft"
MARK = f"allomfree/v1/{CANARY_CAMPAIGN}/pub/mark"  # the collector writes it, all may read it
READABLE = {
    COLLECTOR: ("allomfree/v1/+/pub/#", *from_all_devices()),
    KITCHEN: ("allomfree/v1/+/pub/#", f"allomfree/v1/+/down/{KITCHEN}/response"),
    GARDEN: ("allomfree/v1/+/pub/#", f"allomfree/v1/+/down/{GARDEN}/response"),
}


@pytest.fixture(scope="module", params=EVERY)
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ConfiguredBroker]:
    place = tmp_path_factory.mktemp("broker") / "broker"
    with ConfiguredBroker(request.param, place, KITCHEN, GARDEN, ATTIC, LOFT).hurry() as running:
        yield running


@pytest.fixture(scope="module")
def parties(broker: ConfiguredBroker) -> Iterator[dict[str, Guest]]:
    with ExitStack() as stack:
        found = {
            name: stack.enter_context(broker.guest(name))
            for name in (COLLECTOR, KITCHEN, GARDEN, ATTIC, AUDITOR, PROBE)
        }
        yield found
        assert not any(party.lost for party in found.values())


@contextmanager
def listening(parties: dict[str, Guest]) -> Iterator[None]:
    """While everybody listens to all they may hear."""
    for name, filters in READABLE.items():
        assert all(parties[name].listen(*filters))
    yield
    for name, filters in READABLE.items():
        parties[name].forget(*filters)


def heard_by(parties: dict[str, Guest], word: bytes) -> set[str]:
    """Who heard a word that the broker has dealt with already."""
    later = parties[COLLECTOR].say(MARK)
    assert all(parties[name].hears(later) for name in READABLE)
    return {name for name in READABLE if word in parties[name].words}


# --- writing --------------------------------------------------------------------------------------

WRONG = "wrong"
ALL = {COLLECTOR, KITCHEN, GARDEN}
NOBODY: set[str] = set()
WRITES = [
    (KITCHEN, f"{ROOT}/up/{KITCHEN}/report", {COLLECTOR}),
    (KITCHEN, f"{ROOT}/up/{KITCHEN}/request", {COLLECTOR}),
    (KITCHEN, f"{ROOT}/up/{KITCHEN}/other", NOBODY),
    (KITCHEN, f"{ROOT}/up/{KITCHEN}/report/more", NOBODY),
    (KITCHEN, f"{ROOT}/up/{GARDEN}/report", NOBODY),
    (KITCHEN, f"{ROOT}/up/{GARDEN}/request", NOBODY),
    (KITCHEN, f"{ROOT}/up/nobody/report", NOBODY),
    (KITCHEN, f"{ROOT}/up/{KITCHEN}x/report", NOBODY),
    (KITCHEN, f"{ROOT}/pub/manifest", NOBODY),
    (KITCHEN, f"{ROOT}/pub/state", NOBODY),
    (KITCHEN, f"{ROOT}/pub/receipt/0/0", NOBODY),
    (KITCHEN, f"{ROOT}/pub/result/fuel", NOBODY),
    (KITCHEN, f"{ROOT}/pub/up/{KITCHEN}/report", NOBODY),
    (KITCHEN, f"{ROOT}/down/{GARDEN}/response", NOBODY),
    (KITCHEN, f"{ROOT}/down/{KITCHEN}/response", NOBODY),
    (PROBE, f"{ROOT}/up/{KITCHEN}/report", NOBODY),
    (PROBE, f"{ROOT}/pub/manifest", NOBODY),
    (COLLECTOR, f"{ROOT}/pub/manifest", ALL),
    (COLLECTOR, f"{ROOT}/down/{GARDEN}/response", {GARDEN}),
    (COLLECTOR, marker(), {COLLECTOR}),
    (COLLECTOR, marker().replace("report", "request"), NOBODY),
    (KITCHEN, marker(), NOBODY),
    (AUDITOR, marker(), NOBODY),
    (COLLECTOR, f"{ROOT}/up/{GARDEN}/report", NOBODY),
    (COLLECTOR, f"{ROOT}/up/{GARDEN}/request", NOBODY),
    (COLLECTOR, f"{ROOT}/up/{COLLECTOR}/report", NOBODY),
    (COLLECTOR, marker(), {COLLECTOR}),
    (KITCHEN, marker(), NOBODY),
    (AUDITOR, marker(), NOBODY),
    (AUDITOR, f"{ROOT}/up/{GARDEN}/report", NOBODY),
    (AUDITOR, f"{ROOT}/up/{AUDITOR}/report", NOBODY),
    (AUDITOR, f"{ROOT}/pub/manifest", NOBODY),
    (AUDITOR, f"{ROOT}/down/{GARDEN}/response", NOBODY),
]


@pytest.mark.parametrize(("who", "topic", "heard"), WRITES)
def test_writing(parties: dict[str, Guest], who: str, topic: str, heard: set[str]) -> None:
    with listening(parties):
        assert heard_by(parties, parties[who].say(topic)) == heard


@pytest.mark.parametrize("who", [KITCHEN, AUDITOR])
def test_nobody_plants_a_manifest_for_those_who_come_later(
    broker: ConfiguredBroker, parties: dict[str, Guest], who: str
) -> None:
    parties[COLLECTOR].say(f"{ROOT}/pub/manifest", b"the real one", retain=True)
    parties[who].say(f"{ROOT}/pub/manifest", b"a planted one", retain=True)
    parties[who].say(f"{ROOT}/pub/planted", b"another one", retain=True)
    with broker.guest(LOFT) as late:
        late.listen(READABLE[KITCHEN][0], MARK)
        assert late.hears(b"the real one")
        assert late.hears(parties[COLLECTOR].say(MARK))
        assert not late.words & {b"a planted one", b"another one"}
    parties[COLLECTOR].say(f"{ROOT}/pub/manifest", retain=True)


@pytest.mark.parametrize(
    ("topic", "heard"),
    [
        (f"{ROOT}/pub/state", NOBODY),
        (f"{ROOT}/up/{GARDEN}/report", NOBODY),
        (f"{ROOT}/down/{GARDEN}/response", NOBODY),
        (f"{ROOT}/up/{LOFT}/report", {COLLECTOR}),
    ],
)
def test_a_last_will_is_no_way_round(
    broker: ConfiguredBroker, parties: dict[str, Guest], topic: str, heard: set[str]
) -> None:
    """The broker has spoken a will when that of the same name's next connection came."""
    tried = (topic, b"last words on " + topic.encode())
    later = (f"{ROOT}/up/{LOFT}/request", b"said after " + topic.encode())
    with listening(parties):
        for will in (tried, later):
            guest = broker.guest(LOFT, will=will)
            if guest.enter():
                guest.vanish()
            else:  # a broker may refuse the whole connection
                assert (will, heard) == (tried, NOBODY)
        assert parties[COLLECTOR].hears(later[1])
        assert heard_by(parties, tried[1]) == heard
    with broker.guest(LOFT) as late:
        late.listen(READABLE[KITCHEN][0], MARK)
        assert late.hears(parties[COLLECTOR].say(MARK))
        assert tried[1] not in late.words, "nor is it kept"


# --- reading --------------------------------------------------------------------------------------

PUBLIC, MINE, REPORT, REQUEST, ANSWER = "public", "attic's", "report", "request", "garden's"
MAY = {PUBLIC, MINE}
READS = [
    (ATTIC, f"{ROOT}/pub/manifest", {PUBLIC}),
    (ATTIC, f"{ROOT}/pub/#", {PUBLIC}),
    (ATTIC, "allomfree/v1/+/pub/#", {PUBLIC}),
    (ATTIC, f"{ROOT}/down/{ATTIC}/response", {MINE}),
    (ATTIC, f"allomfree/v1/+/down/{ATTIC}/response", {MINE}),
    (COLLECTOR, f"{ROOT}/up/+/report", {REPORT}),
    (COLLECTOR, "allomfree/v1/+/up/+/request", {REQUEST}),
]
# NATS refuses these as a whole; mosquitto grants them, and delivers only what is allowed.
TOO_WIDE = [
    (ATTIC, f"{ROOT}/down/{GARDEN}/response", NOBODY),
    (ATTIC, f"{ROOT}/down/{ATTIC}/#", {MINE}),
    (ATTIC, f"{ROOT}/down/+/response", {MINE}),
    (ATTIC, f"{ROOT}/down/#", {MINE}),
    (ATTIC, f"{ROOT}/up/{GARDEN}/report", NOBODY),
    (ATTIC, f"{ROOT}/up/{ATTIC}/report", NOBODY),
    (ATTIC, f"{ROOT}/up/+/report", NOBODY),
    (ATTIC, f"{ROOT}/up/#", NOBODY),
    (ATTIC, f"{ROOT}/+/{GARDEN}/+", NOBODY),
    (ATTIC, f"{ROOT}/#", MAY),
    (ATTIC, "allomfree/#", MAY),
    (ATTIC, "+/+/+/+/+/+", {MINE}),
    (ATTIC, "+/#", MAY),
    (ATTIC, "#", MAY),
    (ATTIC, "$SYS/#", NOBODY),
    (ATTIC, "$MQTT/#", NOBODY),
    (ATTIC, "$JS/#", NOBODY),
    (PROBE, "#", {PUBLIC}),
    (COLLECTOR, f"{ROOT}/down/#", NOBODY),
    (AUDITOR, f"{ROOT}/up/#", NOBODY),
    (AUDITOR, f"{ROOT}/down/#", NOBODY),
]


def traffic(parties: dict[str, Guest]) -> dict[str, bytes]:
    """One of everything that passes through a broker."""
    collector, garden = parties[COLLECTOR], parties[GARDEN]
    return {
        REPORT: garden.say(f"{ROOT}/up/{GARDEN}/report"),
        REQUEST: garden.say(f"{ROOT}/up/{GARDEN}/request"),
        ANSWER: collector.say(f"{ROOT}/down/{GARDEN}/response"),
        MINE: collector.say(f"{ROOT}/down/{ATTIC}/response"),
        PUBLIC: collector.say(f"{ROOT}/pub/manifest"),
    }


@pytest.mark.parametrize(
    ("who", "wanted", "heard", "wide"),
    [*((*row, False) for row in READS), *((*row, True) for row in TOO_WIDE)],
)
def test_reading(
    broker: ConfiguredBroker,
    parties: dict[str, Guest],
    who: str,
    wanted: str,
    heard: set[str],
    wide: bool,
) -> None:
    refused = wide and broker.setup.kind == "nats"
    reader = parties[who]
    already = len(reader.heard)
    assert reader.listen(wanted, qos=1) == [not refused]
    reader.listen(MARK)
    said = traffic(parties)
    assert reader.hears(parties[COLLECTOR].say(MARK))
    expected = NOBODY if refused else heard
    assert all(reader.hears(said[what]) for what in expected)
    reader.forget(wanted, MARK)
    came = reader.heard[already:]
    assert {what for what, word in said.items() if word in dict(came).values()} == expected
    assert not [topic for topic, _ in came if topic.startswith("$")]


# --- entering -------------------------------------------------------------------------------------


def with_certificate(broker: ConfiguredBroker, pair: Pair) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(broker.directory / "tls" / "ca.crt"))
    context.load_cert_chain(pair.certificate, pair.key)
    return context


def test_nobody_enters_without_a_credential(broker: ConfiguredBroker) -> None:
    assert not broker.guest(None).enter()
    assert not broker.guest(None, context=None).enter(), "in plain text"
    assert not broker.guest(None, name=KITCHEN).enter()
    assert not broker.guest(None, name=COLLECTOR, password="").enter()
    with broker.guest(LOFT):
        pass


@pytest.mark.parametrize("broker", PASSWORDS, indirect=True)
def test_a_password_is_good_for_its_owner_only(broker: ConfiguredBroker) -> None:
    kitchens = broker.configured.credentials(KITCHEN).password
    assert not broker.guest(GARDEN, password=kitchens).enter()
    assert not broker.guest(COLLECTOR, password=kitchens).enter()
    assert not broker.guest(GARDEN, password=WRONG).enter()
    assert not broker.guest(GARDEN, name="stranger").enter()
    hashed = broker.configured.users[GARDEN].password
    assert not broker.guest(GARDEN, password=hashed).enter(), "what the broker stores opens nothing"


@pytest.mark.parametrize("broker", CERTIFICATES, indirect=True)
def test_a_certificate_must_be_ours_and_made_for_a_client(
    broker: ConfiguredBroker, tmp_path_factory: pytest.TempPathFactory
) -> None:
    forger = Authority(tmp_path_factory.mktemp("forger"))
    forged = Pair(forger.files.certificate.with_name("f.crt"), forger.files.key.with_name("f.key"))
    forger.issue_client(forged, KITCHEN)
    assert not broker.guest(None, context=with_certificate(broker, forged)).enter()
    tls = broker.directory / "tls"
    servers = Pair(tls / "server.crt", tls / "server.key")
    assert not broker.guest(None, context=with_certificate(broker, servers)).enter()


@pytest.mark.parametrize("broker", CERTIFICATES, indirect=True)
@pytest.mark.parametrize("claimed", [COLLECTOR, GARDEN, f"CN={COLLECTOR}", f"CN={GARDEN}"])
def test_a_certificate_says_who_one_is_whatever_name_is_claimed(
    broker: ConfiguredBroker, parties: dict[str, Guest], claimed: str
) -> None:
    liar = broker.guest(LOFT, name=claimed, password=WRONG)
    if liar.enter():
        with listening(parties):
            assert heard_by(parties, liar.say(f"{ROOT}/pub/state")) == NOBODY
            assert heard_by(parties, liar.say(f"{ROOT}/up/{GARDEN}/report")) == NOBODY
            assert heard_by(parties, liar.say(f"{ROOT}/up/{LOFT}/report")) == {COLLECTOR}
        liar.leave()


@pytest.mark.parametrize("broker", NATS, indirect=True)
@pytest.mark.parametrize("name", [KITCHEN, COLLECTOR])
def test_nats_has_no_back_door(broker: ConfiguredBroker, name: str) -> None:
    """Its own protocol has a port too, on this machine: no credential of ours opens it."""
    log = (broker.directory / "broker.log").read_text()
    found = re.search(r"Listening for client connections on 127\.0\.0\.1:(\d+)", log)
    assert found, log
    known = broker.configured.credentials(name)
    claims = [{}, {"user": name, "pass": known.password}, {"user": f"CN={name}"}]
    for claim in claims:
        with socket.create_connection(("127.0.0.1", int(found[1])), 20) as sock:
            sock.sendall(b"CONNECT " + json.dumps(claim).encode() + b"\r\nPING\r\n")
            said = b"".join(iter(lambda: sock.recv(4096), b""))
            assert b"-ERR 'Authorization Violation'" in said
            assert b"PONG" not in said
