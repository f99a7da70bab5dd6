"""What is asked of `broker-config`: odd answers are refused, and what was chosen is kept to."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from collector.brokers.auditor import limit_nats
from collector.brokers.config import AUDITOR, COLLECTOR, PROBE
from collector.brokers.directory import BrokerDirectory
from collector.brokers.embedded import EmbeddedBroker
from collector.links.mqtt import PahoLink
from protocol_spec.programs.settings import SettingsError
from testbed.processes import free_port
from tests.support.brokers import NATS, Files, Setup, broker_config, users_of
from tests.support.campaigns import manifest_text
from tests.support.command_line import Cli
from tests.support.edge_processes import environment

MOSQUITTO, NATS_BY_PASSWORD = Setup("mosquitto", "password"), Setup("nats", "password")
OURS = (COLLECTOR, AUDITOR, PROBE)


def configured(cli: Cli, data: Path, *words: str | Path, setup: Setup = NATS_BY_PASSWORD) -> str:
    done = cli(*broker_config(setup, data, *words))
    assert done.exit_code == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("--host", "bücher.example"),
        ("--host", ""),
        ("--host", "a" * 300),
        ("--host", "mqtts://broker.example"),
        ("--host", "pi.local\nallow_anonymous true"),
        ("--host", "pi.local", "--run-as", "root\nallow_anonymous true"),
        ("--host", "pi.local", "--bind", "127.0.0.1\nallow_anonymous true"),
        ("--host", "pi.local", "--root", "/srv\nallow_anonymous true"),
        ("--host", "pi.local", "--home-assistant", "home\nuser x"),
    ],
)
def test_what_could_mean_something_else_to_a_broker(
    cli: Cli, data: Path, words: tuple[str, ...]
) -> None:
    refused = cli(*broker_config(MOSQUITTO, data, *words))
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.startswith("error: ")
    assert not data.exists()


def test_an_address_is_known_however_it_is_written(cli: Cli, data: Path) -> None:
    configured(cli, data, "--host", "FD00::0:1")
    before = (data / "broker" / "tls" / "server.crt").read_bytes()
    configured(cli, data, "--host", "fd00::1")
    assert (data / "broker" / "tls" / "server.crt").read_bytes() == before


@pytest.mark.parametrize("bind", ["127.0.0.2", "::1"])
@pytest.mark.parametrize("setup", NATS)
def test_a_broker_on_one_address_only(cli: Cli, data: Path, setup: Setup, bind: str) -> None:
    configured(cli, data, "--host", "pi.local", "--bind", bind, "--port", str(free_port()))
    with EmbeddedBroker(data / "broker") as embedded:
        configured_here = BrokerDirectory.load(data / "broker")
        link = PahoLink(embedded.url, configured_here.credentials(COLLECTOR), client_id="test")
        link.connect()
        link.close()


@pytest.mark.parametrize(
    ("host", "bind", "said", "unsaid"),
    [
        ("localhost", "127.0.0.1", "only this machine can reach it", "other machines"),
        ("pi.local", "all", "other machines reach it at mqtts://pi.local:", "only this machine"),
    ],
)
def test_who_can_reach_it_is_logged(
    cli: Cli,
    data: Path,
    caplog: pytest.LogCaptureFixture,
    host: str,
    bind: str,
    said: str,
    unsaid: str,
) -> None:
    configured(cli, data, "--host", host, "--bind", bind, "--port", str(free_port()))
    logger = logging.getLogger("allomfree.broker")
    logger.addHandler(caplog.handler)
    try:
        with EmbeddedBroker(data / "broker"):
            assert said in caplog.text
            assert unsaid not in caplog.text
    finally:
        logger.removeHandler(caplog.handler)


@pytest.mark.parametrize(
    ("words", "listens"),
    [
        (("--host", "localhost"), "127.0.0.1"),
        (("--host", "127.0.0.1"), "127.0.0.1"),
        (("--host", "::1"), "::1"),
        (("--host", "127.0.0.9"), "127.0.0.9"),  # an address of this machine
        (("--host", "192.0.2.7"), "every interface"),  # one that is not, as behind a router
        (("--host", "pi.local"), "every interface"),
        (("--host", "pi.local", "--bind", "127.0.0.2"), "127.0.0.2"),
        (("--host", "localhost", "--bind", "all"), "every interface"),
        (("--host", "localhost", "--bind", "::"), "every interface"),
    ],
)
@pytest.mark.parametrize("kind", ["mosquitto", "nats"])
def test_it_listens_where_it_was_told(
    cli: Cli, data: Path, kind: str, words: tuple[str, ...], listens: str
) -> None:
    """P6: every interface only where it cannot be known, and then it is said loudly."""
    command = ("broker-config", kind, *words, "--data-dir", data)
    told = cli(*command).stdout
    assert ("ATTENTION: it listens on EVERY interface" in told) == (listens == "every interface")
    again = json.loads(cli(*command[:2], "--data-dir", data, "--json").stdout)
    assert again["listens_on"] == listens
    config = (data / "broker" / f"{kind}.conf").read_text()
    address = f"[{listens}]" if ":" in listens else listens
    wanted = {"mosquitto": f"listener 8883 {listens}\n", "nats": f'listen: "{address}:8883"'}
    assert (wanted[kind] in config) == (listens != "every interface")


def test_files_of_another_version_are_brought_up_to_date(cli: Cli, data: Path) -> None:
    """NATS's before it starts, because `run` starts it; its limits are set then, too (A6)."""
    configured(cli, data, "--host", "localhost", "--port", str(free_port()))
    directory = data / "broker"
    (directory / "users.conf").write_text("authorization { users: [] }\n")
    assert BrokerDirectory.load(directory).altered() == ["users.conf"]
    with EmbeddedBroker(directory):
        now = BrokerDirectory.load(directory)
        assert now.altered() == []
        assert limit_nats(now)


def test_a_port_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "port").write_text("")
    with pytest.raises(SettingsError, match="does not hold a port number"):
        EmbeddedBroker(tmp_path)


def test_the_namespace_stays(cli: Cli, data: Path, home: Path) -> None:
    configured(cli, data, "--host", "pi.local", "--namespace", "home")
    configured(cli, data)
    assert BrokerDirectory.load(data / "broker").plan.namespace == "home"
    (home / "heat.toml").write_text(manifest_text())
    opened = json.loads(cli("open", home / "heat.toml", "--data-dir", data, "--json").stdout)
    assert f"/home/{opened['campaign']}" in opened["join"]


def test_another_authority_reaches_our_own_and_the_others_are_told_of(
    cli: Cli, data: Path, home: Path
) -> None:
    configured(cli, data, "--host", "localhost")
    ours = [data / "broker" / "credentials" / name / "ca.crt" for name in OURS]
    made_here = ours[0].read_bytes()
    chain, key = Files.made(home).server("localhost")
    given = ("--server-cert", chain, "--server-key", key, "--server-ca", home / "ca.pem")
    assert "must trust another authority now" in configured(cli, data, *given)
    assert {file.read_bytes() for file in ours} == {(home / "ca.pem").read_bytes()}
    assert "must trust" not in configured(cli, data)
    assert "must trust another authority now" in configured(cli, data, "--own-cert")
    assert {file.read_bytes() for file in ours} == {made_here}


# One process for each name; all begin when the pipe is closed.
MANY = """
import os, sys
from collector.commands import main
data, *names = sys.argv[1:]
waiting, start = os.pipe()
children = []
for name in names:
    children.append(os.fork())
    if children[-1] == 0:
        os.close(start)
        os.read(waiting, 1)
        main(["enrol", name, "--data-dir", data])
os.close(start)
sys.exit(any([os.waitpid(child, 0)[1] for child in children]))
"""


@pytest.mark.slow
def test_many_enrol_at_once(cli: Cli, data: Path) -> None:
    configured(cli, data, "--host", "pi.local")
    names = [f"device-{number}" for number in range(4)]
    command = [sys.executable, "-c", MANY, str(data), *names]
    subprocess.run(command, env=environment(), stdout=subprocess.DEVNULL, timeout=120, check=True)
    assert set(names) <= set(users_of(data / "broker"))
