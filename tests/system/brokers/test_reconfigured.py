"""The broker is configured while the collector runs: it takes that over by itself, loses nothing,
and is not well until it has (F9)."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from collector.brokers.choose import ConfigurationWatch, choose_broker
from collector.brokers.directory import BrokerDirectory, has_reloaded
from collector.brokers.embedded import EmbeddedBroker, is_free
from collector.health import OUTDATED, examine, fingerprint
from collector.settings import Settings, resolve
from testbed.processes import free_port
from tests.support.brokers import (
    NEEDS_MOSQUITTO,
    PASSWORDS,
    ConfiguredBroker,
    Setup,
    broker_config,
    plan,
)
from tests.support.collector_processes.campaign import (
    Collection,
    assert_each_once,
    wait_until_open,
)
from tests.support.collector_processes.processes import CollectorProcess
from tests.support.collector_processes.wire import Publisher
from tests.support.command_line import Cli
from tests.support.edge_processes import wait_until

NATS, MOSQUITTO = Setup("nats", "password"), Setup("mosquitto", "password")
DEVICES = 4


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    made = Collection.opened(tmp_path / "data", DEVICES)
    (made.data / "broker").mkdir(mode=0o700)
    (made.data / "broker" / "port").write_text(str(free_port()))
    return made


def local_port(collection: Collection) -> int:
    return int((collection.data / "broker" / "port").read_text())


def enrol(cli: Cli, collection: Collection, *names: str) -> dict[str, object]:
    done = cli("enrol", *names, "--data-dir", collection.data, "--json")
    assert done.exit_code == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.slow
def test_open_to_this_machine_then_configured(cli: Cli, collection: Collection) -> None:
    """As somebody does who ran it first and thought of security later."""
    port = free_port()
    with CollectorProcess(collection.data) as process:
        process.wait_for("connected to")
        wait_until_open(collection, local_port(collection))
        with Publisher(local_port(collection)) as publisher:
            publisher.send(collection.reports()[:2])
        words = broker_config(NATS, collection.data, "--host", "localhost", "--port", str(port))
        told = cli(*words)
        assert "The running broker uses it now." in told.stdout, told
        assert examine(collection.data).well
        assert process.said("configuration was changed: restarting") == 1
        assert is_free(local_port(collection)), "nobody gets in without a credential any more"
        assert enrol(cli, collection, "device-2", "device-3")["reloaded"] is True
        broker = ConfiguredBroker(NATS, collection.data / "broker")
        assert not broker.guest(None).enter()
        for number in (2, 3):
            with broker.guest(f"device-{number}") as device:
                device.say(*collection.report(number))
        collection.wait_for(DEVICES)
        assert_each_once(collection.look(), DEVICES)
        assert process.said("configuration was changed: restarting") == 1, (
            "enrolment needs no restart"
        )
        assert process.terminate() == 0


@pytest.mark.slow
def test_not_well_until_it_is_taken_over(cli: Cli, collection: Collection) -> None:
    """What waits meanwhile at the broker is counted afterwards."""
    with CollectorProcess(collection.data) as process:
        process.wait_for("collecting for")
        wait_until(lambda: examine(collection.data).well)
        wait_until_open(collection, local_port(collection))
        os.kill(process.pid, signal.SIGSTOP)
        with Publisher(local_port(collection)) as publisher:
            publisher.send(collection.reports())
        directory = collection.data / "broker"
        BrokerDirectory.configure(directory, plan(NATS, directory))
        told = cli("health", "--data-dir", collection.data)
        assert (told.exit_code, told.stdout) == (1, f"{OUTDATED}\n")
        os.kill(process.pid, signal.SIGCONT)
        process.wait_for("connected to", times=2)
        wait_until(lambda: examine(collection.data).well)
        collection.wait_for(DEVICES)
        assert_each_once(collection.look(), DEVICES)
        assert process.terminate() == 0


# --- noticing -------------------------------------------------------------------------------------


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    directory = tmp_path / "data" / "broker"
    directory.mkdir(parents=True, mode=0o700)
    (directory / "port").write_text(str(free_port()))
    return resolve({"data_dir": tmp_path / "data"}, environ={})


@pytest.fixture
def watch(settings: Settings) -> ConfigurationWatch:
    """That of a service whose embedded broker serves this machine."""
    watch = ConfigurationWatch(settings, every_seconds=0.0)
    _, embedded = choose_broker(settings)
    assert embedded is not None
    embedded.prepare()
    watch.started(embedded)
    assert not watch.changed()
    return watch


def configure(settings: Settings, **options: object) -> None:
    BrokerDirectory.configure(settings.broker_dir, plan(NATS, settings.broker_dir, **options))


def test_only_a_whole_configuration_is_taken_over(
    settings: Settings, watch: ConfigurationWatch
) -> None:
    with BrokerDirectory.changing(settings.broker_dir):
        configure(settings)
        assert not watch.changed(), "its writer has not finished"
    assert watch.changed()


def test_what_cannot_be_used_ends_nothing(
    settings: Settings, watch: ConfigurationWatch, caplog: pytest.LogCaptureFixture
) -> None:
    configure(settings)
    stored = settings.broker_dir / "broker.json"
    whole = stored.read_text()
    stored.write_text("{")
    assert not watch.changed()
    assert not watch.changed()
    (said,) = caplog.messages
    assert "the broker's new configuration cannot be used" in said
    stored.write_text(whole)
    configure(settings)  # on another port
    assert watch.changed()


def test_a_broker_named_by_hand_is_not_watched(settings: Settings) -> None:
    named = resolve({"data_dir": settings.data_dir, "broker": "mqtts://broker.example"}, environ={})
    watch = ConfigurationWatch(named, every_seconds=0.0)
    configure(settings)
    assert (watch.in_use, watch.changed()) == ("", False)


def test_enrolment_and_another_campaign_are_no_new_configuration(settings: Settings) -> None:
    configure(settings)
    before = fingerprint(settings.broker_dir)
    BrokerDirectory.load(settings.broker_dir).enrol(["kitchen"])
    assert fingerprint(settings.broker_dir) == before


def test_configured_between_choosing_and_starting(settings: Settings) -> None:
    """What was written meanwhile is not overwritten, and is taken over next."""
    embedded = EmbeddedBroker(settings.broker_dir)
    configure(settings)
    written = (settings.broker_dir / "nats.conf").read_text()
    embedded.prepare()
    assert (settings.broker_dir / "nats.conf").read_text() == written
    watch = ConfigurationWatch(settings, every_seconds=0.0)
    watch.started(embedded)
    assert watch.changed()


# --- telling --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "done"),
    [
        ("Reloaded server configuration (sha256:12)", True),
        ("Failed to reload server configuration: config reload not supported for MQTT", False),
        ("Something else", False),
    ],
)
def test_only_its_log_says_whether_nats_reloaded(tmp_path: Path, lines: str, done: bool) -> None:
    log = tmp_path / "broker.log"
    log.write_text("Reloaded server configuration, long ago\n")
    size = log.stat().st_size
    with log.open("a") as file:
        file.write(f"{lines}\n")
    patience = 0.2 if lines == "Something else" else 600.0
    assert has_reloaded(log, size, patience) == done
    log.write_text(f"{lines}\n")  # begun anew
    assert has_reloaded(log, 10_000, patience) == done


@pytest.mark.parametrize("setup", PASSWORDS)
def test_a_listener_that_cannot_be_reloaded(cli: Cli, setup: Setup, data: Path) -> None:
    """No broker that was started by somebody else listens elsewhere because of a signal."""
    first = ("--host", "localhost", "--port", str(free_port()))
    assert cli(*broker_config(setup, data, *first)).exit_code == 0
    with ConfiguredBroker(setup, data / "broker"):
        wait_until((data / "broker" / "broker.pid").exists)
        same = json.loads(cli(*broker_config(setup, data), "--json").stdout)
        assert (same["reloaded"], same["restart"]) == (True, False)
        told = cli(*broker_config(setup, data, "--port", str(free_port()))).stdout
    assert "uses it now" not in told
    wanted = {"mosquitto": "mosquitto must be RESTARTED", "nats": "Start it:  allomfree-collector"}
    assert wanted[setup.kind] in told


@NEEDS_MOSQUITTO
@pytest.mark.slow
def test_the_collector_follows_its_mosquitto(cli: Cli, collection: Collection) -> None:
    """From the embedded broker to mosquitto, when that is configured and started."""
    with CollectorProcess(collection.data) as process:
        process.wait_for("collecting for")
        directory = collection.data / "broker"
        BrokerDirectory.configure(directory, plan(MOSQUITTO, directory))
        with ConfiguredBroker(MOSQUITTO, directory):
            process.wait_for("connected to mqtts://")
            wait_until(lambda: examine(collection.data).well)
        assert process.terminate() == 0
