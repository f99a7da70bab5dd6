"""Where the embedded broker listens is chosen once and said; mosquitto is started as printed."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from collector.brokers.embedded import PORTS, EmbeddedBroker, is_free
from protocol_spec.programs.settings import SettingsError
from testbed.processes import free_port
from tests.support.brokers import NEEDS_MOSQUITTO, ConfiguredBroker, Setup
from tests.support.command_line import Cli


@pytest.fixture
def taken() -> Iterator[ExitStack]:
    """MQTT's own port, by us or by somebody else."""
    with ExitStack() as stack:
        if is_free(PORTS[0]):
            stack.enter_context(socket.create_server(("127.0.0.1", PORTS[0])))
        yield stack


def test_the_next_port_is_taken_said_and_kept(
    taken: ExitStack, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port = EmbeddedBroker(tmp_path).url.port
    assert port in PORTS[1:]
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert f"uses port 1883, so the embedded broker gets port {port} and keeps it" in said
    assert str(tmp_path / "port") in said
    taken.close()
    assert EmbeddedBroker(tmp_path).url.port == port
    assert (tmp_path / "port").read_text() == str(port)


def test_no_port_at_all(taken: ExitStack, tmp_path: Path) -> None:
    for port in PORTS:
        if is_free(port):
            taken.enter_context(socket.create_server(("127.0.0.1", port)))
    with pytest.raises(
        SettingsError, match=r"the ports 1883 to 1899 of this machine are all taken"
    ):
        EmbeddedBroker(tmp_path)
    assert not (tmp_path / "port").exists()


@NEEDS_MOSQUITTO
def test_mosquitto_reads_its_files_whoever_starts_it(cli: Cli, data: Path) -> None:
    """By root, too, as most people do it first: it must not become somebody who cannot."""
    words = ("--host", "localhost", "--port", str(free_port()), "--data-dir", data)
    told = cli("broker-config", "mosquitto", *words)
    assert told.exit_code == 0, told.stderr
    assert f"Start it:  mosquitto -c {data}/broker/mosquitto.conf\n" in told.stdout
    assert ("mosquitto runs as root, too." in told.stdout) == (os.geteuid() == 0)
    broker = ConfiguredBroker(Setup("mosquitto", "password"), data / "broker", "kitchen")
    with broker, broker.guest("kitchen"):
        pass


def test_a_container_has_users_of_its_own(cli: Cli, data: Path) -> None:
    words = ("--host", "localhost", "--root", "/mosquitto", "--data-dir", data)
    assert cli("broker-config", "mosquitto", *words).exit_code == 0
    assert "\nuser " not in (data / "broker" / "mosquitto.conf").read_text()
