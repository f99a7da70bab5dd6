"""The whole product over TLS, as people run it: configure, open, run, enrol, join, report.

The collector finds its broker's directory by itself; nobody gives it an address or a password.
"""

from __future__ import annotations

import json
import shutil
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from collector.brokers.config import COLLECTOR
from collector.data_dir import read_store, session_name
from protocol_spec import Manifest, Outcome, Topics, make_report
from testbed.processes import free_port
from tests.support.brokers import BOTH, NATS, ConfiguredBroker, Guest, Setup, broker_config
from tests.support.campaigns import manifest_text
from tests.support.collector_processes.processes import CollectorProcess
from tests.support.command_line import Cli, facts
from tests.support.edge_processes import edge, wait_until

pytestmark = pytest.mark.slow


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

    def carry(self, name: str) -> Path:
        """A credential brought to its device; returns the configuration there."""
        place = self.devices / name
        shutil.copytree(self.broker.configured.credentials_dir(name), place)
        config = place / "edge.toml"
        config.write_text(config.read_text().replace("/etc/allomfree", str(place)))
        return config

    def outcomes(self) -> Counter[Outcome]:
        with closing(read_store(self.data)) as store:
            return Counter(store.outcomes())

    def deliver(self, sender: Guest) -> None:
        """Send a report and see it arrive; sent again it is a duplicate, but it has come."""
        before = sum(self.outcomes().values())
        body = self.manifest.body_formats[0].encode(0)
        report = make_report(self.manifest, 0, 0, body)
        sender.say(Topics(self.manifest.campaign).report(SENDER), report.encode())
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
        address = opened["join"].split()[-1]
        yield Product(data, broker, service, Manifest.from_file(file), address, place / "devices")
        assert service.said("connected to") == 1, service.lines
        assert service.terminate() == 0


def test_a_device_is_enrolled_joins_and_is_counted(cli: Cli, product: Product) -> None:
    """While all runs: the broker is told, and nobody else's connection ends."""
    enrolled = cli("enrol", "kitchen", "--data-dir", product.data, "--json")
    assert json.loads(enrolled.stdout)["reloaded"] is True
    before = product.outcomes()[Outcome.ACCEPTED]
    flags = ("--config", product.carry("kitchen"), "--state-dir", product.devices / "state")
    assert product.address.startswith("mqtts://localhost:")
    joined = edge("join", product.address, "--yes", *flags)
    assert joined.returncode == 0, joined.stderr
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
            product.broker.guest(SENDER) as sender,
            product.broker.guest(THIEF, client_id=name, clean=False) as thief,
        ):
            product.deliver(sender)
            assert (thief.heard, sender.lost) == ([], False)


def test_the_sessions_name_is_a_secret(product: Product) -> None:
    """Random, in a file of its owner's, and in nothing that a device can read."""
    name = session_name(product.data)
    random = name.removeprefix("coll-")
    assert len(bytes.fromhex(random)) * 8 >= 64
    assert stat.S_IMODE((product.data / "session").stat().st_mode) == 0o600
    with product.broker.guest(THIEF) as thief, product.broker.guest(SENDER) as sender:
        thief.listen("allomfree/v1/+/pub/#", f"allomfree/v1/+/down/{THIEF}/response")
        product.deliver(sender)
        topics = Topics(product.manifest.campaign)
        thief.wait_for(lambda: topics.receipt_root in "".join(topic for topic, _ in thief.heard))
        assert {topics.manifest, topics.state} <= {topic for topic, _ in thief.heard}
        for topic, payload in thief.heard:
            assert random.encode() not in topic.encode() + payload
    told = (product.data / "broker" / "broker.log").read_text()
    assert random not in told
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


@pytest.mark.parametrize("setup", NATS)
def test_why_the_name_must_be_secret_on_nats(setup: Setup, tmp_path: Path) -> None:
    """The negative control: NATS does not tie sessions to users."""
    with (
        ConfiguredBroker(setup, tmp_path / "broker", THIEF) as broker,
        broker.guest(COLLECTOR, client_id="known", clean=False) as collectors,
        broker.guest(THIEF, client_id="known", clean=False),
    ):
        collectors.wait_for(lambda: collectors.lost)
