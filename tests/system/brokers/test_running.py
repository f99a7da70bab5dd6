"""Running collectors and brokers: the product over TLS, revoking, and reconfiguration (F9)."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from collector.brokers.choose import ConfigurationWatch, choose_broker
from collector.brokers.config import COLLECTOR
from collector.brokers.directory import BrokerDirectory, has_reloaded
from collector.brokers.embedded import EmbeddedBroker, is_free
from collector.data_dir import open_store, read_store, session_name
from collector.health import OUTDATED, examine, fingerprint
from collector.settings import Settings, resolve
from protocol_spec import Manifest, Outcome, Topics, make_report
from testbed.brokers import publish
from testbed.processes import free_port
from tests.support.agents import edge
from tests.support.brokers import (
    BOTH,
    NEEDS_MOSQUITTO,
    PASSWORDS,
    ROOT,
    BrokerClient,
    ConfiguredBroker,
    Setup,
    broker_config,
    plan,
)
from tests.support.campaigns import manifest_text
from tests.support.collector_processes import (
    Collection,
    CollectorProcess,
    assert_each_once,
    wait_until_open,
)
from tests.support.command_line import Cli, facts
from tests.support.processes import wait_until

# --- configured while the collector runs (F9) ------------------------------------------------

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


@pytest.mark.slow
def test_open_to_this_machine_then_configured(cli: Cli, collection: Collection) -> None:
    """As somebody does who ran it first and thought of security later."""
    port = free_port()
    with CollectorProcess(collection.data) as process:
        process.wait_for("connected to")
        wait_until_open(collection, local_port(collection))
        publish(f"mqtt://127.0.0.1:{local_port(collection)}", collection.reports()[:2])
        words = broker_config(NATS, collection.data, "--host", "localhost", "--port", str(port))
        assert "The running broker uses it now." in cli(*words).stdout
        assert examine(collection.data).well
        assert is_free(local_port(collection)), "nobody gets in without a credential any more"
        enrolled = facts("enrol", "device-2", "device-3", "--data-dir", collection.data)
        assert enrolled["reloaded"] is True
        broker = ConfiguredBroker(NATS, collection.data / "broker")
        assert not broker.client(None).connect()
        for number in (2, 3):
            with broker.client(f"device-{number}") as device:
                device.publish(*collection.report(number))
        collection.wait_for(DEVICES)
        assert_each_once(collection.look(), DEVICES)
        assert process.said("configuration was changed: restarting") == 1, "not for enrolment"
        assert process.terminate() == 0


@pytest.mark.slow
def test_not_well_until_it_is_taken_over(cli: Cli, collection: Collection) -> None:
    """What waits meanwhile at the broker is counted afterwards."""
    with CollectorProcess(collection.data) as process:
        process.wait_for("collecting for")
        wait_until(lambda: examine(collection.data).well)
        wait_until_open(collection, local_port(collection))
        os.kill(process.pid, signal.SIGSTOP)
        publish(f"mqtt://127.0.0.1:{local_port(collection)}", collection.reports())
        directory = collection.data / "broker"
        BrokerDirectory.configure(directory, plan(NATS, directory))
        done = cli("health", "--data-dir", collection.data)
        assert done.exit_code == 1
        assert done.stdout.startswith(f"FAIL  service: {OUTDATED}\n")
        os.kill(process.pid, signal.SIGCONT)
        process.wait_for("connected to", times=2)
        wait_until(lambda: examine(collection.data).well)
        collection.wait_for(DEVICES)
        assert_each_once(collection.look(), DEVICES)
        assert process.terminate() == 0


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    directory = tmp_path / "data" / "broker"
    directory.mkdir(parents=True, mode=0o700)
    (directory / "port").write_text(str(free_port()))
    return resolve({"data_dir": tmp_path / "data"}, environ={})


def configure(settings: Settings, **options: object) -> None:
    BrokerDirectory.configure(settings.broker_dir, plan(NATS, settings.broker_dir, **options))


def test_only_a_whole_and_valid_configuration_is_taken_over(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """Enrolment is no new configuration; a broker named by hand is not watched."""
    watch = ConfigurationWatch(settings, every_seconds=0.0)
    _, embedded = choose_broker(settings)
    assert embedded is not None
    embedded.prepare()
    watch.started(embedded)
    assert not watch.changed()
    with BrokerDirectory.changing(settings.broker_dir):
        configure(settings)
        assert not watch.changed(), "its writer has not finished"
    stored = settings.broker_dir / "broker.json"
    whole = stored.read_text()
    stored.write_text("{")
    assert not watch.changed()
    assert not watch.changed()
    (warning,) = caplog.messages
    assert "the broker's new configuration cannot be used" in warning
    stored.write_text(whole)
    configure(settings)  # on another port
    assert watch.changed()
    before = fingerprint(settings.broker_dir)
    BrokerDirectory.load(settings.broker_dir).enrol(["kitchen"])
    assert fingerprint(settings.broker_dir) == before
    named = resolve({"data_dir": settings.data_dir, "broker": "mqtts://broker.example"}, environ={})
    by_hand = ConfigurationWatch(named, every_seconds=0.0)
    assert (by_hand.in_use, by_hand.changed()) == ("", False)


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


def test_only_its_log_shows_whether_nats_reloaded(tmp_path: Path) -> None:
    log = tmp_path / "broker.log"
    for line, done, patience in (
        ("Reloaded server configuration (sha256:12)", True, 600.0),
        ("Failed to reload server configuration: not supported for MQTT", False, 600.0),
        ("Something else", False, 0.2),
    ):
        earlier = "Reloaded server configuration, long ago\n"
        log.write_text(f"{earlier}{line}\n")
        assert has_reloaded(log, len(earlier), patience) == done
        log.write_text(f"{line}\n")  # a new log
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
        text = cli(*broker_config(setup, data, "--port", str(free_port()))).stdout
    assert "uses it now" not in text
    wanted = {"mosquitto": "mosquitto must be RESTARTED", "nats": "Start it:  allomfree-collector"}
    assert wanted[setup.kind] in text


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


# --- revoking ----------------------------------------------------------------------------------

STOLEN, GARDEN = "stolen", "garden"


@pytest.fixture(params=BOTH)
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ConfiguredBroker]:
    """A running broker, in the directory of a collector that is not."""
    data = tmp_path / "data"
    open_store(data).close()
    with ConfiguredBroker(request.param, data / "broker", STOLEN, GARDEN) as running:
        wait_until((data / "broker" / "broker.pid").exists)
        yield running


def run(cli: Cli, broker: ConfiguredBroker, *words: object) -> dict[str, object]:
    done = cli(*words, "--data-dir", broker.directory.parent, "--json")
    assert done.exit_code == 0, done.stderr
    return dict(json.loads(done.stdout))


def revoked(broker: ConfiguredBroker) -> frozenset[str]:
    with closing(read_store(broker.directory.parent)) as store:
        return frozenset(store.revoked())


def gets_through(
    client: BrokerClient, name: str, witness: BrokerClient, other: BrokerClient
) -> bool:
    """Whether what a client reports gets through, seen once another's later report has."""
    word = client.publish(f"{ROOT}/up/{name}/report") if not client.lost else b"nothing"
    assert witness.receives(other.publish(f"{ROOT}/up/{GARDEN}/report"))
    return word in witness.payloads


def test_revoke_and_undo(cli: Cli, broker: ConfiguredBroker) -> None:
    up = f"{ROOT}/up/{STOLEN}/report"
    with (
        broker.client(COLLECTOR) as collectors,
        broker.client(GARDEN) as garden,
        broker.client(STOLEN) as stolen,
    ):
        collectors.subscribe("allomfree/v1/+/up/+/report")
        stolen.subscribe("allomfree/v1/+/pub/#")
        garden.subscribe("allomfree/v1/+/pub/#")
        assert collectors.receives(stolen.publish(up))
        done = run(cli, broker, "revoke", STOLEN)
        assert (done["revoked"], done["enrolled"], done["reloaded"]) == (True, True, True)
        assert revoked(broker) == {STOLEN}, "the collector refuses its reports, too"
        wait_until(lambda: not gets_through(stolen, STOLEN, collectors, garden))
        news = collectors.publish(f"{ROOT}/pub/state")
        assert garden.receives(news)
        assert not gets_through(stolen, STOLEN, collectors, garden)
        assert news not in stolen.payloads
        assert not broker.admits(STOLEN)
        assert not collectors.lost
        assert not garden.lost
    done = run(cli, broker, "revoke", STOLEN, "--undo")
    assert (done["revoked"], done["enrolled"], done["reloaded"]) == (False, True, True)
    assert revoked(broker) == frozenset()
    wait_until(lambda: broker.admits(STOLEN))
    with broker.client(COLLECTOR) as collectors, broker.client(STOLEN) as welcome:
        collectors.subscribe("allomfree/v1/+/up/+/report")
        assert collectors.receives(welcome.publish(up))


@pytest.mark.parametrize("broker", PASSWORDS, indirect=True)
def test_a_broker_that_is_down_uses_it_from_its_next_start(
    cli: Cli, broker: ConfiguredBroker
) -> None:
    """Also when its process number now belongs to something else, which a signal would end."""
    broker.kill()
    assert run(cli, broker, "revoke", STOLEN)["reloaded"] is False
    with subprocess.Popen(["sleep", "60"]) as other:
        (broker.directory / "broker.pid").write_text(str(other.pid))
        done = cli("revoke", STOLEN, "--data-dir", broker.directory.parent)
        later = {
            "nats": "The broker uses it from its next start: allomfree-collector run",
            "mosquitto": "The broker must reload its configuration: send",
        }
        assert later[broker.setup.kind] in done.stdout
        other.terminate()
        assert other.wait(20) == -signal.SIGTERM
    broker.start()
    assert not broker.admits(STOLEN)
    assert broker.admits(GARDEN)


# --- the whole product ---------------------------------------------------------------------------


SENDER, THIEF = "sender", "thief"


@dataclass(frozen=True, slots=True)
class Product:
    """A running collector and the broker it found; where devices keep what was carried to them."""

    data: Path
    broker: ConfiguredBroker
    service: CollectorProcess
    manifest: Manifest
    address: str
    devices: Path

    def outcomes(self) -> Counter[Outcome]:
        with closing(read_store(self.data)) as store:
            return Counter(store.outcomes())

    def deliver(self, sender: BrokerClient) -> None:
        """Send a report and see it arrive; sent again it is a duplicate, but it has come."""
        before = sum(self.outcomes().values())
        body = self.manifest.body_formats[0].encode(0)
        report = make_report(self.manifest, 0, 0, body)
        sender.publish(Topics(self.manifest.campaign).report(SENDER), report.encode())
        wait_until(lambda: sum(self.outcomes().values()) == before + 1)


@pytest.fixture(scope="module", params=BOTH)
def product(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Product]:
    setup: Setup = request.param
    place = tmp_path_factory.mktemp("product")
    data, file = place / "data", place / "heat.toml"
    file.write_text(manifest_text())
    facts(*broker_config(setup, data, "--host", "localhost", "--port", str(free_port())))
    broker = ConfiguredBroker(setup, data / "broker", SENDER, THIEF)
    with ExitStack() as stack:
        if setup.kind == "mosquitto":
            stack.enter_context(broker)
        opened = facts("open", file, "--data-dir", data)
        service = stack.enter_context(CollectorProcess(data, "--listen", "off"))
        service.wait_for("collecting for")
        wait_until(lambda: examine(data).well)
        address = opened["join"].split()[-1]
        yield Product(data, broker, service, Manifest.from_file(file), address, place / "devices")
        assert service.said("connected to") == 1, service.lines
        assert service.terminate() == 0


def test_a_device_is_enrolled_joins_and_is_counted(cli: Cli, product: Product) -> None:
    """One file does it all, while all runs: the broker reloads, and nobody else's connection ends.
    The owner sees the label, and the file is not needed again."""
    words = ("enrol", "kitchen", "--label", "region=north", "--data-dir", product.data)
    enrolled = json.loads(cli(*words, "--json").stdout)
    assert enrolled["reloaded"] is True
    file = Path(enrolled["enrolled"][0]["invitation"])
    before = product.outcomes()[Outcome.ACCEPTED]
    flags = ("--state-dir", product.devices / "state")
    joined = edge("join", file, "--yes", *flags)
    assert joined.returncode == 0, joined.stderr
    assert "region = north" in joined.stdout
    file.unlink()
    assert "region = north" in edge("show", *flags).stdout
    sent = edge("report", "--value", "fuel=gas", *flags)
    assert sent.stdout == f"{product.manifest.campaign}: round 0: counted\n", sent.stderr
    assert product.outcomes()[Outcome.ACCEPTED] == before + 1


def test_nobody_takes_the_collectors_session(product: Product) -> None:
    """Neither its connection, which ends nowhere in this module, nor what is meant for it."""
    names = [COLLECTOR, "allomfree-collector", SENDER]
    if product.broker.setup.kind == "mosquitto":  # which gives sessions to users, not to names
        names.append(session_name(product.data))
    for name in names:
        with (
            product.broker.client(SENDER) as sender,
            product.broker.client(THIEF, client_id=name, clean=False) as thief,
        ):
            product.deliver(sender)
            assert (thief.received, sender.lost) == ([], False)


def test_the_sessions_name_is_a_secret(product: Product) -> None:
    """Random, in a file of its owner's, and in nothing that a device can read."""
    name = session_name(product.data)
    random = name.removeprefix("coll-")
    assert len(bytes.fromhex(random)) * 8 >= 64
    assert stat.S_IMODE((product.data / "session").stat().st_mode) == 0o600
    with product.broker.client(THIEF) as thief, product.broker.client(SENDER) as sender:
        thief.subscribe("allomfree/v1/+/pub/#", f"allomfree/v1/+/down/{THIEF}/response")
        product.deliver(sender)
        topics = Topics(product.manifest.campaign)
        thief.wait_for(lambda: topics.receipt_root in "".join(topic for topic, _ in thief.received))
        assert {topics.manifest, topics.state} <= {topic for topic, _ in thief.received}
        for topic, payload in thief.received:
            assert random.encode() not in topic.encode() + payload
    assert random not in (product.data / "broker" / "broker.log").read_text()
    assert random not in "".join(line["message"] for line in product.service.lines)


def test_doctor_beside_the_service(cli: Cli, product: Product) -> None:
    """Everything is in order; it disturbs nothing, and nothing it tried was counted."""
    before = product.outcomes()
    shown = cli("doctor", "--data-dir", product.data, "--json")
    findings = {f["check"]: f for f in json.loads(shown.stdout)}
    assert [f for f in findings.values() if not f["ok"]] == []
    assert shown.exit_code == 0
    tried = findings["the collector does not write reports"]["finding"]
    assert tried.startswith("refused" if product.broker.setup.kind == "nats" else "not tried")
    assert product.outcomes() == before


@pytest.mark.parametrize("setup", BOTH[:2])
def test_why_the_name_must_be_secret_on_nats(setup: Setup, tmp_path: Path) -> None:
    """The negative control: NATS does not tie sessions to users."""
    with (
        ConfiguredBroker(setup, tmp_path / "broker", THIEF) as broker,
        broker.client(COLLECTOR, client_id="known", clean=False) as collectors,
        broker.client(THIEF, client_id="known", clean=False),
    ):
        collectors.wait_for(lambda: collectors.lost)
