"""`doctor` proves access list and limits by trying them, and leaves nothing behind (R17, A6)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from collector.brokers.config import (
    AUDITOR,
    COLLECTOR,
    PROBE,
    READER_PROBE,
    UNOPENED_CAMPAIGN,
    subjects,
)
from collector.data_dir import session_name
from protocol_spec.topics import CANARY_CAMPAIGN, everything_of, from_all_devices
from tests.support.brokers import BOTH, NEEDS_MOSQUITTO, PASSWORDS, ConfiguredBroker, Setup
from tests.support.collector_processes import Collection
from tests.support.command_line import Cli

GARDEN = "garden"


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    return Collection.opened(tmp_path / "data", 3)


def examine(cli: Cli, collection: Collection) -> dict[str, dict[str, Any]]:
    shown = cli("doctor", "--data-dir", collection.data, "--json")
    return {finding["check"]: finding for finding in json.loads(shown.stdout)}


def failed(found: dict[str, dict[str, Any]]) -> set[str]:
    return {check for check, finding in found.items() if not finding["ok"]}


PROBES = {
    "nobody connects without a credential",
    "nobody connects with a wrong credential",
    "a device reports as itself",
    "a device does not report as another",
    "a device does not publish as the collector",
    "a device does not answer other devices",
    "a device reads what is for everyone",
    "a device reads what is for itself",
    "a device does not read reports",
    "a device does not read what is for another",
    "nobody takes over another's session",
    "a device sends reports and requests only",
    "a device does not send large messages",
    "the collector publishes to everyone",
    "the collector does not write reports",
    "configuration",
    "listener",
}
LIMITS = {
    "mosquitto": {"a device has one session", "a device reports to known campaigns only"},
    "nats": {"a device does not store messages", "sessions"},
}


def configured(setup: Setup, collection: Collection, *names: str, **more: Any) -> ConfiguredBroker:
    """A broker in the collection's directory that knows its campaign, not yet running."""
    broker = ConfiguredBroker(setup, collection.data / "broker", *names, **more)
    broker.configured.change_plan(campaigns=(collection.manifest.campaign,))
    return broker


@pytest.mark.parametrize("setup", BOTH)
def test_what_was_configured_is_in_order(cli: Cli, setup: Setup, collection: Collection) -> None:
    with configured(setup, collection):
        found = examine(cli, collection)
    assert failed(found) == set()
    assert found.keys() >= PROBES | LIMITS[setup.kind] | {"broker", "certificate"}
    assert "more days" in found["certificate"]["finding"]


# --- negative controls ----------------------------------------------------------------------------

UP, PUB, DOWN = (f"allomfree/v1/+/{tree}/#" for tree in ("up", "pub", "down"))
OWN = f"allomfree/v1/+/up/{PROBE}/other"
CLOSED = f"allomfree/v1/{UNOPENED_CAMPAIGN}/up/{PROBE}/report"
END_OF_ACL = "pattern read allomfree/v1/+/down/%u/response\n"
CONF, ACL, USERS, NATS_CONF = "mosquitto.conf", "acl", "users.conf", "nats.conf"
SESSIONS = ["nobody takes over another's session", "a device has one session"]
ANYBODY = "nobody connects without a credential"
REPORTS_ONLY = "a device sends reports and requests only"
Change = tuple[str, str, str]


def may(name: str, verb: str, topics: str) -> Change:
    """mosquitto's access list with one line too many."""
    return ACL, END_OF_ACL, f"{END_OF_ACL}\nuser {name}\ntopic {verb} {topics}\n"


def also(own: str, subjects: str) -> Change:
    """NATS's list of users with one subject too many next to somebody's own."""
    return USERS, f'"{own}"] }}', f'"{own}", "{subjects}"] }}'


WRITES = f"allomfree.v1.canary.up.{PROBE}.doctor.try"
READS = f"allomfree.v1.*.down.{PROBE}.response"
OWN_SUBJECT = OWN.replace("/", ".").replace("+", "*")
NO_USER_NAMES = (CONF, "clientid true", "clientid false")
ANONYMOUS = (CONF, "allow_anonymous false", "allow_anonymous true")
# A change of a file and what doctor must find, besides that the file was changed. Whoever writes
# everywhere also writes what other probes try; some limits only time or gigabytes would show.
LAX: dict[str, list[tuple[list[Change], list[str]]]] = {
    "mosquitto": [
        ([(ACL, "pattern write", "pattern read")], ["a device reports as itself"]),
        (
            [may(PROBE, "write", UP)],
            [
                *("a device does not report as another", REPORTS_ONLY),
                "a device reports to known campaigns only",
            ],
        ),
        ([may(PROBE, "write", PUB)], ["a device does not publish as the collector"]),
        ([may(PROBE, "write", DOWN)], ["a device does not answer other devices"]),
        ([may(PROBE, "read", UP)], ["a device does not read reports"]),
        ([may(PROBE, "read", DOWN)], ["a device does not read what is for another"]),
        ([may(COLLECTOR, "write", UP)], ["the collector does not write reports"]),
        ([may(PROBE, "write", OWN)], [REPORTS_ONLY]),
        ([may(PROBE, "write", CLOSED)], ["a device reports to known campaigns only"]),
        ([(CONF, "max_packet_size", "# ")], ["a device does not send large messages"]),
        ([(CONF, "max_queued_bytes", "# "), (CONF, "persistent_client_expiration 30d", "")], []),
        ([NO_USER_NAMES], SESSIONS),
        ([ANONYMOUS, NO_USER_NAMES], [*SESSIONS, ANYBODY]),  # who has no user has no session's
    ],
    "nats": [
        (
            [also(WRITES, "allomfree.v1.*.up.>")],
            ["a device does not report as another", REPORTS_ONLY],
        ),
        ([also(WRITES, "allomfree.v1.*.pub.>")], ["a device does not publish as the collector"]),
        ([also(WRITES, "allomfree.v1.*.down.>")], ["a device does not answer other devices"]),
        ([also(READS, "allomfree.v1.*.up.>")], ["a device does not read reports"]),
        ([also(READS, "allomfree.v1.*.down.>")], ["a device does not read what is for another"]),
        ([also(WRITES, OWN_SUBJECT)], [REPORTS_ONLY]),
        (
            [also("allomfree.v1.drain.up.Marker.report", "allomfree.v1.*.up.>")],
            ["the collector does not write reports"],
        ),
        (
            [(NATS_CONF, "max_payload: 1", "max_payload: 8")],
            ["a device does not send large messages"],
        ),
        (
            [
                (NATS_CONF, "reject_qos2_publish: true", ""),
                (NATS_CONF, "consumer_inactive_threshold", "# "),
            ],
            [],
        ),
        (
            [
                (NATS_CONF, "mqtt {", 'mqtt {\n  no_auth_user: "anybody"'),
                (USERS, "users: [", 'users: [\n    { user: "anybody", password: "known" }'),
            ],
            [ANYBODY],
        ),
    ],
}


@pytest.mark.parametrize(
    ("kind", "changes", "findings"),
    [
        *(pytest.param("mosquitto", *row, marks=NEEDS_MOSQUITTO) for row in LAX["mosquitto"]),
        *(("nats", *row) for row in LAX["nats"]),
    ],
)
def test_a_lax_broker_is_found_out(
    cli: Cli, collection: Collection, kind: Any, changes: list[Change], findings: list[str]
) -> None:
    broker = configured(Setup(kind, "password"), collection).hurry()
    for change in changes:
        broker.spoil(*change)
    with broker:
        found = examine(cli, collection)
    assert failed(found) == {"configuration", *findings}
    remedies = [found[finding]["finding"] for finding in findings]
    assert all("use the configuration that broker-config wrote" in text for text in remedies)
    remedy = f"Run: allomfree-collector broker-config {kind}"
    assert remedy in found["configuration"]["next"]


LAX_READER = [f"allomfree/v1/canary/{end}" for end in ("up/+/report", "up/+/request", "pub/#")]
NO_READER_MAY = {
    "a reader does not report",
    "a reader does not ask to forget",
    "a reader does not publish as the collector",
}


@pytest.mark.parametrize("setup", PASSWORDS)
def test_a_reader_that_could_report_is_found_out(
    cli: Cli, setup: Setup, collection: Collection
) -> None:
    """R30. What mosquitto lets everybody do is denied to readers."""
    broker = configured(setup, collection)
    broker.configured.enrol_readers(["tv"])
    if setup.kind == "mosquitto":
        lines = "".join(f"topic write {topic}\n" for topic in LAX_READER)
        broker.spoil(ACL, f"user {READER_PROBE}\n", f"user {READER_PROBE}\n{lines}")
        broker.spoil(ACL, f"topic deny allomfree/v1/canary/up/{READER_PROBE}/doctor/try\n", "")
    else:
        name = f'user: "{READER_PROBE}"'
        before, after = (broker.directory / USERS).read_text().split(name)
        written = json.dumps([s for topic in LAX_READER for s in subjects(topic)])
        after = after.replace("allow: []", f"allow: {written}", 1)
        (broker.directory / USERS).write_text(f"{before}{name}{after}")
    with broker.hurry():
        found = examine(cli, collection)
    assert found["a reader reads results"]["ok"]
    assert failed(found) == {"configuration"} | NO_READER_MAY


def test_nats_without_its_limits(cli: Cli, collection: Collection) -> None:
    with configured(Setup("nats", "password"), collection, limited=False) as broker:
        found = examine(cli, collection)
        assert failed(found) == {"a device does not store messages"}
        with broker.client(AUDITOR) as late:
            late.subscribe(everything_of(CANARY_CAMPAIGN))
            assert late.receives(late.publish(f"allomfree/v1/{CANARY_CAMPAIGN}/pub/end"))
            assert len(late.received) == 1, "what the probe stored is cleared"


def test_sessions_left_behind_on_nats(cli: Cli, collection: Collection) -> None:
    """It cannot limit them, but they can be counted; agents leave none."""
    broker = configured(Setup("nats", "password"), collection, GARDEN)
    broker.hurry()
    with broker:
        for number in range(25):
            with broker.client(GARDEN, client_id=f"left-{number}", clean=False) as client:
                assert client.subscribe("allomfree/v1/+/pub/manifest", qos=1) == [True]
        found = examine(cli, collection)
    assert failed(found) == {"configuration", "sessions"}
    assert "25 stored subscriptions, 1 enrolled devices" in found["sessions"]["finding"]
    assert "devices send again what is missing" in found["sessions"]["next"]


@pytest.mark.parametrize("setup", PASSWORDS)
def test_a_broker_that_does_not_answer(cli: Cli, setup: Setup, collection: Collection) -> None:
    """The embedded one is started by the collector: that it does not run yet is no fault."""
    ConfiguredBroker(setup, collection.data / "broker")
    found = examine(cli, collection)
    assert failed(found) == ({"broker"} if setup.kind == "mosquitto" else set())
    warnings = {name for name, each in found.items() if each["level"] == "warn"}
    assert warnings - {"clock"} == {"service"} | ({"broker"} - failed(found))


# --- what it leaves -------------------------------------------------------------------------------


@pytest.mark.parametrize("setup", BOTH)
def test_it_leaves_nothing_behind_and_takes_nothing_away(
    cli: Cli, setup: Setup, collection: Collection
) -> None:
    """Reports that wait for the collector are still delivered to it, and nothing else is."""
    broker = configured(setup, collection, GARDEN)
    broker.hurry()
    spoiled = set()
    if setup.kind == "nats":  # or it delivers again after half a minute
        broker.spoil("nats.conf", "mqtt {", 'mqtt {\n  ack_wait: "1s"')
        spoiled = {"configuration"}
    ours = {"client_id": session_name(collection.data), "clean": False}
    with broker:
        with broker.client(COLLECTOR, **ours) as collectors:
            assert collectors.subscribe(from_all_devices(), qos=1) == [True]
        with broker.client(GARDEN) as garden:
            waiting = {garden.publish(collection.topics.report(GARDEN)) for _ in range(5)}
        before = collection.look()
        assert failed(examine(cli, collection)) == spoiled
        assert collection.look() == before
        with broker.client(AUDITOR) as auditor:
            auditor.subscribe(everything_of(CANARY_CAMPAIGN))
            assert auditor.receives(auditor.publish(f"allomfree/v1/{CANARY_CAMPAIGN}/pub/end"))
            assert len(auditor.received) == 1
        with broker.client(COLLECTOR, **ours) as collectors:
            assert collectors.session_present
            collectors.wait_for(lambda: collectors.payloads >= waiting)
            assert collectors.payloads == waiting
