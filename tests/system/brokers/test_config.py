"""`broker-config`: run again it keeps what must be kept; it takes certificates made elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import Result
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from collector.brokers.authority import (
    AUTHORITY_DAYS,
    SERVER_DAYS,
    Authority,
    days_left,
    names_of,
)
from collector.brokers.config import AUDITOR, COLLECTOR, PROBE, RENEW_DAYS, Pair
from collector.brokers.directory import BrokerDirectory
from edge_client.settings import resolve
from testbed.processes import free_port
from tests.support.brokers import BOTH, ConfiguredBroker, Files, Setup, broker_config, users_of
from tests.support.command_line import Cli
from tests.support.edge_processes import environment

LOCAL = {"localhost", "127.0.0.1", "::1"}
MOSQUITTO, NATS = Setup("mosquitto", "password"), Setup("nats", "password")


@pytest.fixture
def files(home: Path) -> Files:
    return Files.made(home)


def done(result: Result) -> Result:
    assert result.exit_code == 0, result.stderr
    return result


def contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def unchanged(cli: Cli, data: Path, *words: object) -> str:
    """A command that must be refused: what it says, with every file as it was."""
    before = contents(data)
    refused = cli(*words)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert contents(data) == before
    return refused.stderr


@pytest.mark.parametrize("setup", BOTH)
def test_run_again_it_writes_the_same(cli: Cli, setup: Setup, data: Path) -> None:
    done(cli(*broker_config(setup, data, "--host", "pi.example", "--host", "192.0.2.7")))
    done(cli("enrol", "kitchen", "garden", "--data-dir", data))
    done(cli("revoke", "garden", "--data-dir", data))
    before = contents(data / "broker")
    shown = done(cli(*broker_config(setup, data), "--json"))  # also without naming the hosts
    after = contents(data / "broker")
    crl = data / "broker" / "tls" / "revoked.crl"  # signed anew, with the same in it
    assert {**after, crl: b""} == {**before, crl: b""}
    facts = json.loads(shown.stdout)
    assert (facts["enrolled"], facts["broker"]) == (1, "mqtts://pi.example:8883")
    assert users_of(data / "broker").keys() == {COLLECTOR, AUDITOR, PROBE, "kitchen", "garden"}


def test_the_brokers_certificate_is_for_its_hosts(cli: Cli, data: Path) -> None:
    """And for this machine; renewed when they change or it has had two thirds of its time."""
    tls = data / "broker" / "tls"
    done(cli(*broker_config(MOSQUITTO, data, "--host", "pi.example")))
    assert names_of(tls / "server.crt") == {"pi.example", *LOCAL}
    assert SERVER_DAYS - 1 <= days_left(tls / "server.crt") <= SERVER_DAYS
    assert AUTHORITY_DAYS - 1 <= days_left(tls / "ca.crt") <= AUTHORITY_DAYS
    first, authority = (tls / "server.crt").read_bytes(), (tls / "ca.crt").read_bytes()
    done(cli(*broker_config(MOSQUITTO, data, "--host", "pi.example", "--host", "192.0.2.7")))
    assert names_of(tls / "server.crt") == {"pi.example", "192.0.2.7", *LOCAL}
    assert (tls / "server.crt").read_bytes() != first
    assert (tls / "ca.crt").read_bytes() == authority, "what devices trust stays"


@pytest.mark.parametrize(("left", "renewed"), [(RENEW_DAYS + 1, False), (RENEW_DAYS - 1, True)])
def test_a_certificate_is_renewed_in_time(cli: Cli, data: Path, left: int, renewed: bool) -> None:
    words = broker_config(MOSQUITTO, data, "--host", "pi.example")
    done(cli(*words))
    tls = data / "broker" / "tls"
    server = Pair(tls / "server.crt", tls / "server.key")
    hosts = BrokerDirectory.load(data / "broker").plan.certified
    Authority(tls).issue_server(server, hosts, days=left)
    before = server.certificate.read_bytes()
    done(cli(*words))
    assert (server.certificate.read_bytes() != before) == renewed


def test_what_devices_hold_cannot_be_changed(cli: Cli, data: Path) -> None:
    words = ("--host", "pi.example")
    done(cli(*broker_config(MOSQUITTO, data, *words)))
    done(cli("enrol", "kitchen", "--data-dir", data))
    kept = "and devices may be enrolled there; nothing was changed"
    told = unchanged(cli, data, *broker_config(NATS, data, *words))
    assert f"is configured for kind mosquitto, not nats, {kept}" in told
    told = unchanged(cli, data, *broker_config(Setup("mosquitto", "certificate"), data, *words))
    assert f"is configured for auth password, not certificate, {kept}" in told
    told = unchanged(cli, data, *broker_config(MOSQUITTO, data, *words, "--namespace", "other"))
    assert f"is configured for namespace allomfree, not other, {kept}" in told


def test_a_host_must_be_named_the_first_time(cli: Cli, data: Path) -> None:
    refused = cli(*broker_config(MOSQUITTO, data))
    assert refused.exit_code == 2
    assert "--host is not given; nothing was written" in refused.stderr
    assert not data.exists()


# --- a certificate made elsewhere -----------------------------------------------------------------


def test_a_certificate_made_elsewhere(cli: Cli, data: Path, files: Files) -> None:
    """Devices are given its authority to trust, or nothing where the system knows it."""
    chain, key = files.server("pi.example")
    given = ("--server-cert", chain, "--server-key", key)
    words = broker_config(NATS, data, "--host", "pi.example", *given)
    done(cli(*words, "--server-ca", files.directory / "ca.pem"))
    done(cli("enrol", "kitchen", "--data-dir", data))
    broker = data / "broker"
    assert (broker / "tls" / "server.crt").read_bytes() == chain.read_bytes()
    assert (broker / "tls" / "server.key").read_bytes() == key.read_bytes()
    trusted = broker / "credentials" / "kitchen" / "ca.crt"
    assert trusted.read_bytes() == (files.directory / "ca.pem").read_bytes()
    plan = BrokerDirectory.load(broker).plan
    assert str(plan.local_url) == "mqtts://pi.example:8883", "it is not for localhost"
    done(cli(*words))
    done(cli("enrol", "garden", "--data-dir", data))
    config = broker / "credentials" / "garden" / "edge.toml"
    assert resolve({}, config=config, environ={}).ca_file is None
    assert not config.with_name("ca.crt").exists()


@pytest.mark.slow
@pytest.mark.parametrize("setup", BOTH)
def test_a_broker_serves_a_certificate_made_elsewhere(
    cli: Cli, setup: Setup, data: Path, files: Files
) -> None:
    chain, key = files.server("localhost")
    ca = files.directory / "ca.pem"
    given = ("--server-cert", chain, "--server-key", key, "--server-ca", ca)
    done(
        cli(*broker_config(setup, data, "--host", "localhost", *given, "--port", str(free_port())))
    )
    with ConfiguredBroker(setup, data / "broker", "kitchen") as broker:
        guest = broker.guest("kitchen", context=broker.context("kitchen", authority=ca))
        assert guest.enter()
        guest.leave()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("--server-cert", "server.pem"), "--server-cert and --server-key belong together"),
        (("--server-key", "server.key"), "--server-cert and --server-key belong together"),
        (("--server-ca", "ca.pem"), "--server-cert and --server-key belong together"),
        (("--server-cert", "server.pem", "--server-key", "other.key"), "KEY_VALUES_MISMATCH"),
        (("--server-cert", "server.pem", "--server-key", "locked.key"), "without a passphrase"),
        (("--server-cert", "server.pem", "--server-key", "no.key"), "No such file or directory"),
        (("--server-cert", "server.key", "--server-key", "server.key"), "do not work together"),
    ],
)
def test_a_certificate_and_a_key_that_cannot_serve(
    cli: Cli, data: Path, files: Files, given: tuple[str, ...], told: str
) -> None:
    """Nor is anybody asked for a passphrase: a configuration may be written by a script."""
    _, key = files.server("elsewhere.example")
    key.rename(files.directory / "other.key")
    _, key = files.server("pi.example")
    locked = load_pem_private_key(key.read_bytes(), None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"a passphrase"),
    )
    (files.directory / "locked.key").write_bytes(locked)
    done(cli(*broker_config(NATS, data, "--host", "pi.example")))
    flags = [word if word.startswith("-") else str(files.directory / word) for word in given]
    assert told in unchanged(cli, data, *broker_config(NATS, data, "--host", "pi.example", *flags))


# --- without the extra ----------------------------------------------------------------------------

BLOCKED = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(name=name)
sys.meta_path.insert(0, Missing())
from collector.commands import main
main()
"""


def without(*blocked: str, words: tuple[str | Path, ...]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BLOCKED.format(blocked=blocked), *map(str, words)]
    return subprocess.run(
        command, text=True, capture_output=True, check=False, timeout=60, env=environment()
    )


@pytest.mark.parametrize(
    ("setup", "blocked"),
    [(NATS, "bcrypt"), (NATS, "cryptography"), (MOSQUITTO, "cryptography")],
    ids=str,
)
def test_what_is_not_installed_is_named(setup: Setup, blocked: str, data: Path) -> None:
    words = broker_config(setup, data, "--host", "pi.example")
    refused = without(blocked, words=words)
    assert refused.returncode == 2
    assert refused.stderr == (
        f"error: {blocked} is not installed; nothing was changed. "
        f"Run: {sys.executable} -m pip install '.[broker]', in a copy of the source\n"
    )
    assert not (data / "broker" / "broker.json").exists()


def test_mosquitto_with_a_certificate_of_ones_own_needs_no_extra(data: Path, files: Files) -> None:
    chain, key = files.server("pi.example")
    given = ("--server-cert", chain, "--server-key", key)
    words = broker_config(MOSQUITTO, data, "--host", "pi.example", *given)
    ran = without("bcrypt", "cryptography", words=words)
    assert ran.returncode == 0, ran.stderr
    ran = without("bcrypt", "cryptography", words=("enrol", "kitchen", "--data-dir", data))
    assert ran.returncode == 0, ran.stderr
