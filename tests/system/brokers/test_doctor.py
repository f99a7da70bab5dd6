"""`doctor` proves the access list by trying it, says what is wrong, and leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from collector.brokers.access import AUDITOR, COLLECTOR, PROBE
from collector.data_dir import session_name
from protocol_spec.topics import CANARY_CAMPAIGN, everything_of, from_all_devices
from tests.support.broker_setup import BOTH, NEEDS_MOSQUITTO, PASSWORDS, ConfiguredBroker, Setup
from tests.support.collector_processes.campaign import Collection
from tests.support.command_line import Cli

GARDEN = "garden"
NO_SERVICE = {"service"}  # what is wrong anyway where only a broker runs


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    return Collection.opened(tmp_path / "data", 3)


def examine(cli: Cli, collection: Collection) -> dict[str, dict[str, Any]]:
    shown = cli("doctor", "--data-dir", collection.data, "--json")
    return {finding["check"]: finding for finding in json.loads(shown.stdout)}


def failed(found: dict[str, dict[str, Any]]) -> set[str]:
    return {check for check, finding in found.items() if not finding["ok"]}


TRIALS = {
    "nobody enters without a credential",
    "nobody enters with a wrong credential",
    "a device reports as itself",
    "a device does not report as another",
    "a device does not speak for the collector",
    "a device does not answer devices",
    "a device reads what is for all",
    "a device reads what is for itself",
    "a device does not read reports",
    "a device does not read what is for another",
    "nobody takes over another's session",
    "the collector speaks to all",
    "the collector does not write reports",
}


@pytest.mark.parametrize("setup", BOTH)
def test_what_was_configured_is_in_order(cli: Cli, setup: Setup, collection: Collection) -> None:
    with ConfiguredBroker(setup, collection.data / "broker"):
        found = examine(cli, collection)
    assert failed(found) == NO_SERVICE
    assert found.keys() >= TRIALS | {"broker", "certificate"}
    assert "more days" in found["certificate"]["finding"]


# --- negative controls ----------------------------------------------------------------------------

UP, PUB, DOWN = (f"allomfree/v1/+/{tree}/#" for tree in ("up", "pub", "down"))
END_OF_ACL = "pattern read allomfree/v1/+/down/%u/#\n"
CONF, ACL, USERS = "mosquitto.conf", "acl", "users.conf"


def may(name: str, verb: str, topics: str) -> tuple[str, str, str]:
    """mosquitto's access list with one line too many."""
    return ACL, END_OF_ACL, f"{END_OF_ACL}\nuser {name}\ntopic {verb} {topics}\n"


def also(own: str, subjects: str) -> tuple[str, str, str]:
    """NATS's list of users with one subject too many beside somebody's own."""
    return USERS, f'"{own}"] }}', f'"{own}", "{subjects}"] }}'


MOSQUITTO_LAX = [
    ((CONF, "clientid true", "clientid false"), "nobody takes over another's session"),
    ((ACL, "pattern write", "pattern read"), "a device reports as itself"),
    (may(PROBE, "write", UP), "a device does not report as another"),
    (may(PROBE, "write", PUB), "a device does not speak for the collector"),
    (may(PROBE, "write", DOWN), "a device does not answer devices"),
    (may(PROBE, "read", UP), "a device does not read reports"),
    (may(PROBE, "read", DOWN), "a device does not read what is for another"),
    (may(COLLECTOR, "write", UP), "the collector does not write reports"),
]
WRITES, READS = (f"allomfree.v1.*.{tree}.{PROBE}" for tree in ("up", "down"))
NATS_LAX = [
    (also(WRITES, "allomfree.v1.*.up.>"), "a device does not report as another"),
    (also(WRITES, "allomfree.v1.*.pub.>"), "a device does not speak for the collector"),
    (also(WRITES, "allomfree.v1.*.down.>"), "a device does not answer devices"),
    (also(READS, "allomfree.v1.*.up.>"), "a device does not read reports"),
    (also(READS, "allomfree.v1.*.down.>"), "a device does not read what is for another"),
    (
        also("allomfree.v1.*.down.*", "allomfree.v1.*.up.>"),
        "the collector does not write reports",
    ),
]


@pytest.mark.parametrize(
    ("kind", "lax", "finding"),
    [
        *(pytest.param("mosquitto", *row, marks=NEEDS_MOSQUITTO) for row in MOSQUITTO_LAX),
        *(("nats", *row) for row in NATS_LAX),
    ],
)
def test_a_lax_broker_is_found_out(
    cli: Cli, collection: Collection, kind: Any, lax: tuple[str, str, str], finding: str
) -> None:
    broker = ConfiguredBroker(Setup(kind, "password"), collection.data / "broker")
    broker.spoil(*lax)
    with broker:
        found = examine(cli, collection)
    assert failed(found) == NO_SERVICE | {finding}
    assert "use the configuration that broker-config wrote" in found[finding]["finding"]


@NEEDS_MOSQUITTO
def test_mosquitto_that_lets_anybody_in(cli: Cli, collection: Collection) -> None:
    """It must not tie sessions to users then, who have none; so that is found out, too."""
    broker = ConfiguredBroker(Setup("mosquitto", "password"), collection.data / "broker")
    broker.spoil(CONF, "allow_anonymous false", "allow_anonymous true")
    broker.spoil(CONF, "clientid true", "clientid false")
    with broker:
        found = failed(examine(cli, collection))
    anybody, session = "nobody enters without a credential", "nobody takes over another's session"
    assert found == NO_SERVICE | {anybody, session}


def test_nats_that_lets_anybody_in(cli: Cli, collection: Collection) -> None:
    broker = ConfiguredBroker(Setup("nats", "password"), collection.data / "broker")
    broker.spoil("nats.conf", "mqtt {", 'mqtt {\n  no_auth_user: "anybody"')
    broker.spoil(USERS, "users: [", 'users: [\n    { user: "anybody", password: "known" }')
    with broker:
        found = failed(examine(cli, collection))
    assert found == NO_SERVICE | {"nobody enters without a credential"}


@pytest.mark.parametrize("setup", PASSWORDS)
def test_a_broker_that_does_not_answer(cli: Cli, setup: Setup, collection: Collection) -> None:
    ConfiguredBroker(setup, collection.data / "broker")
    assert failed(examine(cli, collection)) == NO_SERVICE | {"broker"}


# --- what it leaves -------------------------------------------------------------------------------


@pytest.mark.parametrize("setup", BOTH)
def test_it_leaves_nothing_behind_and_takes_nothing_away(
    cli: Cli, setup: Setup, collection: Collection
) -> None:
    """Reports that wait for the collector are still delivered to it, and nothing else is."""
    broker = ConfiguredBroker(setup, collection.data / "broker", GARDEN)
    if setup.kind == "nats":  # or it delivers again after half a minute
        broker.spoil("nats.conf", "mqtt {", 'mqtt {\n  ack_wait: "1s"')
    ours = {"client_id": session_name(collection.data), "clean": False}
    with broker:
        with broker.guest(COLLECTOR, **ours) as collectors:
            assert collectors.listen(*from_all_devices(), qos=1) == [True, True]
        with broker.guest(GARDEN) as garden:
            waiting = {garden.say(collection.topics.report(GARDEN)) for _ in range(5)}
        before = collection.look()
        assert failed(examine(cli, collection)) == NO_SERVICE
        assert collection.look() == before
        with broker.guest(AUDITOR) as auditor:
            auditor.listen(everything_of(CANARY_CAMPAIGN))
            assert auditor.hears(auditor.say(f"allomfree/v1/{CANARY_CAMPAIGN}/pub/end"))
            assert len(auditor.heard) == 1
        with broker.guest(COLLECTOR, **ours) as collectors:
            assert collectors.session_present
            collectors.wait_for(lambda: collectors.words >= waiting)
            assert collectors.words == waiting
