"""Readers, such as Home Assistant: they read results and discovery, and never vote (R30)."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from collector.brokers.choose import choose_broker, let_announce
from collector.brokers.config import COLLECTOR, PROBE, READER_PROBE, subjects
from collector.brokers.directory import BrokerDirectory
from collector.rounds.publishing import discovery, discovery_topic
from collector.settings import resolve
from protocol_spec.topics import parse_from_device
from testbed.processes import free_port
from tests.support.brokers import (
    BOTH,
    NEEDS_MOSQUITTO,
    PASSWORDS,
    ROOT,
    ConfiguredBroker,
    Guest,
    Setup,
    broker_config,
)
from tests.support.collector_processes.campaign import Collection
from tests.support.collector_processes.processes import CollectorProcess
from tests.support.command_line import Cli
from tests.support.edge_processes import wait_until

PREFIX = "homeassistant"
TV, KITCHEN = "Reader-tv", "kitchen"


@pytest.fixture(scope="module", params=BOTH)
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ConfiguredBroker]:
    place = tmp_path_factory.mktemp("readers") / "broker"
    broker = ConfiguredBroker(request.param, place, KITCHEN)
    configured = broker.configured
    configured.announce_below(PREFIX)
    configured.enrol_readers(["tv"])
    with broker as running:
        yield running


@pytest.fixture(scope="module")
def reader(broker: ConfiguredBroker) -> Iterator[Guest]:
    """It says, as Home Assistant does, what is to be said when it is gone."""
    with broker.guest(TV, will=(f"{PREFIX}/status", b"offline")) as guest:
        yield guest


@pytest.fixture(scope="module")
def collectors(broker: ConfiguredBroker) -> Iterator[Guest]:
    with broker.guest(COLLECTOR) as guest:
        guest.listen("allomfree/v1/+/up/+/report", "allomfree/v1/+/up/+/request", f"{ROOT}/pub/#")
        yield guest


@pytest.mark.parametrize(
    "topic",
    [
        f"{ROOT}/up/{TV}/report",
        f"{ROOT}/up/{TV}/request",
        f"{ROOT}/up/tv/report",
        f"{ROOT}/up/tv/request",
        f"{ROOT}/up/{KITCHEN}/report",
        f"{ROOT}/up/{KITCHEN}/request",
        f"{ROOT}/pub/manifest",
        f"{ROOT}/pub/result/fuel/json",
    ],
)
def test_a_reader_never_votes_nor_forgets_nor_speaks(
    reader: Guest, collectors: Guest, topic: str
) -> None:
    word = reader.say(topic)
    assert collectors.hears(collectors.say(f"{ROOT}/pub/mark"))
    assert word not in collectors.words


def test_no_reader_has_a_devices_name() -> None:
    """Even a broker that let it write could not make anybody count it."""
    assert parse_from_device(f"{ROOT}/up/{TV}/report") is None
    assert parse_from_device(f"{ROOT}/up/{KITCHEN}/report") is not None


def test_it_reads_results_and_discovery(reader: Guest, collectors: Guest) -> None:
    """As Home Assistant asks for them, retained and new."""
    kept = collectors.say(f"{PREFIX}/device/allomfree_x/config", retain=True)
    result = collectors.say(f"{ROOT}/pub/result/fuel/json", retain=True)
    filters = (f"{PREFIX}/+/+/config", f"{PREFIX}/+/+/+/config", f"{ROOT}/pub/result/fuel/json")
    assert all(reader.listen(*filters))
    assert reader.hears(kept)
    assert reader.hears(result)
    assert reader.hears(collectors.say(f"{ROOT}/pub/result/fuel/json", retain=True))
    assert not reader.lost


def test_it_does_not_read_reports(
    broker: ConfiguredBroker, reader: Guest, collectors: Guest
) -> None:
    reader.listen(f"{ROOT}/up/#", f"{ROOT}/pub/end")
    with broker.guest(KITCHEN) as kitchen:
        word = kitchen.say(f"{ROOT}/up/{KITCHEN}/report")
    assert collectors.hears(word)
    assert reader.hears(collectors.say(f"{ROOT}/pub/end"))
    assert word not in reader.words


def test_a_revoked_reader_is_kept_out(cli: Cli, broker: ConfiguredBroker, tmp_path: Path) -> None:
    place = ("--broker-dir", broker.directory, "--data-dir", tmp_path / "data")
    told = cli("enrol", "--reader", "guest", *place)
    assert told.exit_code == 0, told.stderr
    wait_until(lambda: _gets_in(broker, "Reader-guest"))
    told = cli("revoke", "Reader-guest", *place)
    assert "Its credential for the broker is no longer valid." in told.stdout
    wait_until(lambda: not _gets_in(broker, "Reader-guest"))
    told = cli("revoke", "Reader-gast", *place)
    assert (told.exit_code, told.stderr) == (
        2,
        f"error: no reader Reader-gast is enrolled here: there are {TV}. Nothing was changed\n",
    )


def _gets_in(broker: ConfiguredBroker, name: str) -> bool:
    guest = broker.guest(name)
    entered = guest.enter()
    guest.leave()
    return entered


# --- the product ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("setup", PASSWORDS)
def test_home_assistant_finds_a_campaign_with_one_command(
    cli: Cli, setup: Setup, tmp_path: Path
) -> None:
    """While all runs: the broker lets discovery through, and the collector announces it."""
    collection = Collection.opened(tmp_path / "data", 3)
    data, port = collection.data, str(free_port())
    assert cli(*broker_config(setup, data, "--host", "localhost", "--port", port)).exit_code == 0
    broker = ConfiguredBroker(setup, data / "broker")
    if setup.kind == "mosquitto":
        broker.start()
    try:
        with CollectorProcess(data) as process:
            process.wait_for("collecting for")
            enrol = ("enrol", "--reader", "home", "--home-assistant", PREFIX, "--data-dir", data)
            told = cli(*enrol)
            assert "In Home Assistant: Settings" in told.stdout, told.stderr
            assert "The running broker uses it now." in told.stdout
            campaign = collection.campaign()
            wanted = discovery(campaign, collection.topics)
            with broker.guest("Reader-home", will=(f"{PREFIX}/status", b"offline")) as home:
                assert all(home.listen(f"{PREFIX}/+/+/config", collection.topics.state))
                assert home.hears(wanted)
                assert discovery_topic(PREFIX, campaign) in dict(home.heard)
                home.wait_for(lambda: collection.topics.state in dict(home.heard))
            assert "refused" not in "".join(line["message"] for line in process.lines)
            doctor = json.loads(cli("doctor", "--data-dir", data, "--json").stdout)
            found = {f["check"]: f for f in doctor if f["check"].startswith("a reader")}
            assert {name: f["finding"] for name, f in found.items()} == READERS
            assert [f for f in doctor if not f["ok"]] == []
            assert process.terminate() == 0
    finally:
        broker.stop()


READERS = {
    "a reader reads results": "works",
    "a reader does not report": "refused",
    "a reader does not ask to forget": "refused",
    "a reader does not publish as the collector": "refused",
}
LAX = ("up/+/report", "up/+/request", "pub/#")
OWN_TRIAL = f"topic deny allomfree/v1/canary/up/{READER_PROBE}/try\n"


@pytest.mark.parametrize("setup", PASSWORDS)
def test_doctor_finds_a_reader_that_could_vote(cli: Cli, tmp_path: Path, setup: Setup) -> None:
    collection = Collection.opened(tmp_path / "data", 3)
    broker = ConfiguredBroker(setup, collection.data / "broker")
    broker.configured.enrol_readers(["tv"])
    topics = [f"allomfree/v1/canary/{levels}" for levels in LAX]
    if setup.kind == "mosquitto":
        lines = "".join(f"topic write {topic}\n" for topic in topics)
        broker.spoil("acl", f"user {READER_PROBE}\n", f"user {READER_PROBE}\n{lines}")
    else:
        name = f'user: "{READER_PROBE}"'
        before, after = (broker.directory / "users.conf").read_text().split(name)
        written = json.dumps([s for topic in topics for s in subjects(topic)])
        after = after.replace("allow: []", f"allow: {written}", 1)
        (broker.directory / "users.conf").write_text(f"{before}{name}{after}")
        broker.spoil("nats.conf", "mqtt {", 'mqtt {\n  js_api_timeout: "1s"')
    refused = {name for name, finding in READERS.items() if finding == "refused"}
    assert wrong(cli, collection, broker) == {"service", "configuration"} | refused


@NEEDS_MOSQUITTO
def test_what_mosquitto_lets_everybody_do_is_denied_to_readers(cli: Cli, tmp_path: Path) -> None:
    collection = Collection.opened(tmp_path / "data", 3)
    broker = ConfiguredBroker(Setup("mosquitto", "password"), collection.data / "broker")
    broker.configured.enrol_readers(["tv"])
    broker.spoil("acl", OWN_TRIAL, "")
    found = wrong(cli, collection, broker)
    assert found == {"service", "configuration", "a reader does not report"}


def wrong(cli: Cli, collection: Collection, broker: ConfiguredBroker) -> set[str]:
    with broker:
        shown = json.loads(cli("doctor", "--data-dir", collection.data, "--json").stdout)
    return {finding["check"] for finding in shown if not finding["ok"]}


def test_what_a_reader_is_given(cli: Cli, data: Path) -> None:
    done = cli("broker-config", "nats", "--host", "pi.local", "--data-dir", data)
    assert done.exit_code == 0, done.stderr
    flags = ("--home-assistant", PREFIX, "--data-dir", data)
    told = json.loads(cli("enrol", "--reader", "home", *flags, "--json").stdout)
    (row,) = told["readers"]
    place = Path(row["credentials"])
    assert (row["reader"], told["enrolled"], told["home_assistant"]) == ("Reader-home", [], PREFIX)
    assert {file.name for file in place.iterdir()} == {"reader.toml", "ca.crt", "password"}
    assert tomllib.loads((place / "reader.toml").read_text()) == {
        "host": "pi.local",
        "port": 8883,
        "tls": True,
        "username": "Reader-home",
        "password_file": "password",
        "ca_file": "ca.crt",
    }
    for wrong in ("home", "Home", "a b"):
        refused = cli("enrol", "--reader", wrong, "--data-dir", data)
        assert refused.exit_code == 2
        assert "Nothing was enrolled" in refused.stderr
    assert PROBE in BrokerDirectory.load(data / "broker").users


@pytest.mark.parametrize(
    ("configured", "given", "used"),
    [(None, PREFIX, PREFIX), (PREFIX, None, PREFIX), (PREFIX, "off", ""), (PREFIX, "ha", "ha")],
)
def test_the_prefix_is_kept_until_another_is_given(
    cli: Cli, data: Path, configured: str | None, given: str | None, used: str
) -> None:
    flags = ("--home-assistant", configured) if configured else ()
    for more in (("--host", "pi.local", *flags), ()):  # the second time it is kept
        assert cli("broker-config", "nats", *more, "--data-dir", data).exit_code == 0
    assert BrokerDirectory.load(data / "broker").plan.home_assistant == configured
    flag = {} if given is None else {"home_assistant": given}
    settings = resolve({"data_dir": data, **flag}, environ={})
    let_announce(settings)
    assert BrokerDirectory.load(data / "broker").plan.home_assistant == (used or None)
    assert choose_broker(settings)[0].home_assistant == used
