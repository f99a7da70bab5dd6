"""`broker-config` and `enrol`: what they write, keep and refuse, for one broker and a cluster."""

from __future__ import annotations

import json
import os
import socket
import ssl
import stat
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.x509 import ExtendedKeyUsage
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from collector.brokers.auditor import limit_nats, limit_requests
from collector.brokers.authority import (
    AUTHORITY_DAYS,
    SERVER_DAYS,
    Authority,
    days_left,
    names_of,
    read_certificate,
)
from collector.brokers.choose import choose_broker, grant_discovery
from collector.brokers.config import AUDITOR, COLLECTOR, PROBE, RENEW_DAYS, Pair
from collector.brokers.directory import BrokerDirectory
from collector.brokers.embedded import PORTS, EmbeddedBroker, is_free
from collector.data_dir import open_store, read_store, session_name
from collector.settings import resolve as collector_settings
from protocol_spec import Manifest, Topics
from protocol_spec.programs.invitation import (
    DeviceInvitation,
    parse_device_invitation,
    read_invitation,
)
from protocol_spec.programs.settings import SettingsError
from protocol_spec.topics import is_device
from testbed.collector import Cluster
from testbed.processes import free_port
from tests.support.brokers import (
    BOTH,
    NEEDS_MOSQUITTO,
    V311,
    BrokerClient,
    ConfiguredBroker,
    Files,
    Setup,
    broker_config,
    credentials_of,
    users_of,
)
from tests.support.campaigns import manifest_text
from tests.support.collector import message as report_message
from tests.support.command_line import Cli
from tests.support.harness import QUICK_DISK, need
from tests.support.processes import environment

LOCAL = {"localhost", "127.0.0.1", "::1"}
MOSQUITTO, NATS = Setup("mosquitto", "password"), Setup("nats", "password")
OURS = {COLLECTOR, AUDITOR, PROBE}


@pytest.fixture
def files(home: Path) -> Files:
    return Files.made(home)


def done(result: Result) -> Result:
    assert result.exit_code == 0, result.stderr
    return result


def configure(cli: Cli, data: Path, *words: str | Path, setup: Setup = NATS) -> str:
    return done(cli(*broker_config(setup, data, *words))).stdout


def contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def refused(cli: Cli, data: Path, *words: object, **options: Any) -> str:
    """A command that must be refused with every file as it was: its error."""
    before = contents(data)
    failed = cli(*words, "--data-dir", data, **options)
    assert (failed.exit_code, failed.stdout) == (2, "")
    assert contents(data) == before
    return failed.stderr


# --- what is asked for -----------------------------------------------------------------------

SMUGGLED = "\nallow_anonymous true"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("mosquitto", "--host", "bücher.example"), "invalid host name"),
        (("mosquitto", "--host", f"pi.local{SMUGGLED}"), "invalid host name"),
        (("mosquitto", "--host", "pi.local", "--run-as", f"root{SMUGGLED}"), "in --run-as"),
        (("mosquitto", "--host", "pi.local", "--bind", f"127.0.0.1{SMUGGLED}"), "in --bind"),
        (("mosquitto", "--host", "pi.local", "--root", f"/srv{SMUGGLED}"), "invalid path"),
        (("mosquitto", "--host", "pi.local", "--home-assistant", "home\nuser x"), "prefix"),
        (("mosquitto",), "--host is not given; nothing was written"),
        (("nats", "--cluster", "a", "b"), "a cluster of 2 is not possible"),
        (("nats", "--cluster", "a", "b", "a"), "a is listed twice in --cluster"),
        (("nats", "--cluster", "a", "b", "no/host"), "in --cluster; nothing was written"),
        (("mosquitto", "--cluster", "a", "b", "c"), "--cluster needs NATS"),
        (("nats", "--cluster", "a", "b", "c", "--bind", "192.0.2.1"), "leave it out"),
        (("nats", "--cluster", "a", "b", "c", "--port", "6222"), "among themselves"),
    ],
)
def test_what_is_refused(cli: Cli, data: Path, words: tuple[str, ...], message: str) -> None:
    """Among it whatever would mean something else in a broker's files."""
    assert message in refused(cli, data, "broker-config", *words)
    assert not data.exists()


@pytest.mark.parametrize(
    ("words", "listens"),
    [
        (("--host", "localhost"), "127.0.0.1"),
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
def test_where_it_listens(
    cli: Cli, data: Path, kind: str, words: tuple[str, ...], listens: str
) -> None:
    """P6: every interface only where it cannot be known, and then with a loud warning."""
    command = ("broker-config", kind, *words, "--data-dir", data)
    everywhere = listens == "every interface"
    assert ("ATTENTION: it listens on EVERY interface" in cli(*command).stdout) == everywhere
    again = json.loads(cli(*command[:2], "--data-dir", data, "--json").stdout)
    assert again["listens_on"] == listens
    config = (data / "broker" / f"{kind}.conf").read_text()
    address = f"[{listens}]" if ":" in listens else listens
    wanted = {"mosquitto": f"listener 8883 {listens}\n", "nats": f'listen: "{address}:8883"'}
    assert (wanted[kind] in config) != everywhere


# --- run again -------------------------------------------------------------------------------


@pytest.mark.parametrize("setup", BOTH)
def test_run_again_it_writes_the_same_and_repairs_what_a_crash_left(
    cli: Cli, setup: Setup, data: Path
) -> None:
    """broker.json was written, what follows from it was not."""
    configure(cli, data, "--host", "pi.example", "--host", "192.0.2.7", setup=setup)
    broker = data / "broker"
    follows = broker / {"nats": "users.conf", "mosquitto": "acl"}[setup.kind]
    old = follows.read_bytes()
    done(cli("enrol", "kitchen", "garden", "--data-dir", data))
    done(cli("revoke", "garden", "--data-dir", data))
    before = contents(broker)
    assert before[follows] != old
    follows.write_bytes(old)
    follows.with_name(f".{follows.name}.new").write_bytes(b"half of it")
    facts = json.loads(configure(cli, data, "--json", setup=setup))  # without naming the hosts
    crl = broker / "tls" / "revoked.crl"  # signed again, with the same in it
    assert {**contents(broker), crl: b""} == {**before, crl: b""}
    assert (facts["enrolled"], facts["broker"]) == (1, "mqtts://pi.example:8883")
    assert users_of(broker).keys() == OURS | {"kitchen", "garden"}


def test_files_of_another_version_are_brought_up_to_date(cli: Cli, data: Path) -> None:
    """NATS's before it starts, because `run` starts it; its limits are set then, too (A6)."""
    configure(cli, data, "--host", "localhost", "--port", str(free_port()))
    directory = data / "broker"
    (directory / "users.conf").write_text("authorization { users: [] }\n")
    assert BrokerDirectory.load(directory).altered() == ["users.conf"]
    with EmbeddedBroker(directory):
        now = BrokerDirectory.load(directory)
        assert now.altered() == []
        assert limit_nats(now)


def test_what_devices_hold_cannot_be_changed(cli: Cli, data: Path, home: Path) -> None:
    words = ("--host", "pi.example")
    configure(cli, data, *words, "--namespace", "home", setup=MOSQUITTO)
    for changed, message in (
        (broker_config(NATS, data, *words), "kind mosquitto, not nats"),
        (broker_config(Setup("mosquitto", "certificate"), data), "auth password, not certificate"),
        (broker_config(MOSQUITTO, data, "--namespace", "other"), "namespace home, not other"),
    ):
        error = refused(cli, data, *changed)
        assert f"is configured for {message}, and devices may be enrolled there" in error
    configure(cli, data, setup=MOSQUITTO)
    (home / "heat.toml").write_text(manifest_text())
    opened = json.loads(cli("open", home / "heat.toml", "--data-dir", data, "--json").stdout)
    assert f"/home/{opened['campaign']}" in opened["join"], "the namespace stays"


def test_home_assistants_prefix_is_kept_until_another_is_given(cli: Cli, data: Path) -> None:
    configure(cli, data, "--host", "pi.local", "--home-assistant", "ha")
    configure(cli, data)
    for flag, used in (
        ({}, "ha"),
        ({"home_assistant": "home"}, "home"),
        ({"home_assistant": "off"}, ""),
    ):
        settings = collector_settings({"data_dir": data, **flag}, environ={})
        grant_discovery(settings)
        assert BrokerDirectory.load(data / "broker").plan.home_assistant == (used or None)
        assert choose_broker(settings)[0].home_assistant == used


# --- the broker's certificate ----------------------------------------------------------------


def test_the_brokers_certificate_is_for_its_hosts_and_renewed_in_time(cli: Cli, data: Path) -> None:
    """And for this machine; renewed when they change, however an address is written."""
    tls = data / "broker" / "tls"
    server = Pair(tls / "server.crt", tls / "server.key")
    configure(cli, data, "--host", "FD00::0:1")
    assert names_of(server.certificate) == {"fd00::1", *LOCAL}
    assert SERVER_DAYS - 1 <= days_left(server.certificate) <= SERVER_DAYS
    assert AUTHORITY_DAYS - 1 <= days_left(tls / "ca.crt") <= AUTHORITY_DAYS
    first, authority = server.certificate.read_bytes(), (tls / "ca.crt").read_bytes()
    configure(cli, data, "--host", "fd00::1")
    assert server.certificate.read_bytes() == first
    configure(cli, data, "--host", "fd00::1", "--host", "192.0.2.7")
    assert names_of(server.certificate) == {"fd00::1", "192.0.2.7", *LOCAL}
    hosts = BrokerDirectory.load(data / "broker").plan.certified
    for left, renewed in ((RENEW_DAYS + 1, False), (RENEW_DAYS - 1, True)):
        Authority(tls).issue_server(server, hosts, days=left)
        before = server.certificate.read_bytes()
        configure(cli, data)
        assert (server.certificate.read_bytes() != before) == renewed
    assert (tls / "ca.crt").read_bytes() == authority, "what devices trust stays"


@pytest.mark.parametrize("setup", BOTH)
def test_a_certificate_made_elsewhere(cli: Cli, setup: Setup, data: Path, files: Files) -> None:
    """It is served; devices are given its authority to trust, or nothing if the system knows it;
    a change of the authority is reported."""
    port = ("--host", "localhost", "--port", str(free_port()))
    configure(cli, data, *port, setup=setup)
    broker = data / "broker"
    ours = [broker / "credentials" / name / "ca.crt" for name in OURS]
    made_here = ours[0].read_bytes()
    chain, key = files.server("localhost")
    ca = files.directory / "ca.pem"
    given = ("--server-cert", chain, "--server-key", key)
    text = configure(cli, data, *given, "--server-ca", ca, setup=setup)
    assert "must trust another authority now" in text
    assert (broker / "tls" / "server.crt").read_bytes() == chain.read_bytes()
    assert (broker / "tls" / "server.key").read_bytes() == key.read_bytes()
    assert {file.read_bytes() for file in ours} == {ca.read_bytes()}
    with ConfiguredBroker(setup, broker, "kitchen") as running:
        trusting = running.context("kitchen", authority=ca)
        with running.client("kitchen", context=trusting):
            pass
    assert invitation(broker, "kitchen").authority == ca.read_text()
    assert "must trust" not in configure(cli, data, setup=setup)
    configure(cli, data, *given, setup=setup)
    done(cli("enrol", "garden", "--data-dir", data))
    assert invitation(broker, "garden").authority == ""
    assert "must trust another authority now" in configure(cli, data, "--own-cert", setup=setup)
    assert {file.read_bytes() for file in ours} == {made_here}


def test_a_certificate_and_a_key_that_cannot_serve(cli: Cli, data: Path, files: Files) -> None:
    _, key = files.server("elsewhere.example")
    other = key.rename(files.directory / "other.key")
    chain, key = files.server("pi.example")
    configure(cli, data, "--host", "pi.example")
    for given, message in (
        (("--server-cert", chain), "--server-cert and --server-key belong together"),
        (("--server-ca", chain), "--server-cert and --server-key belong together"),
        (("--server-cert", chain, "--server-key", other), "KEY_VALUES_MISMATCH"),
        (("--server-cert", chain, "--server-key", "no.key"), "No such file or directory"),
        (("--server-cert", key, "--server-key", key), "do not work together"),
    ):
        assert message in refused(cli, data, *broker_config(NATS, data, *given))


# --- without the extra -----------------------------------------------------------------------


def test_a_missing_library_is_named_where_it_is_needed(data: Path, files: Files) -> None:
    """Mosquitto with a certificate made elsewhere needs none of them."""

    def without(blocked: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
        hidden = "; ".join(f"sys.modules[{name!r}] = None" for name in blocked.split())
        code = f"import sys; {hidden}; from collector.commands import main; main()"
        command = [sys.executable, "-c", code, *map(str, words), "--data-dir", str(data)]
        return subprocess.run(
            command, text=True, capture_output=True, check=False, timeout=60, env=environment()
        )

    for kind, blocked in (("nats", "bcrypt"), ("mosquitto", "cryptography")):
        failed = without(blocked, "broker-config", kind, "--host", "pi.example")
        assert failed.returncode == 2
        assert failed.stderr == (
            f"error: {blocked} is not installed; nothing was changed. "
            f"Run: {sys.executable} -m pip install '.[broker]', in a copy of the source\n"
        )
        assert not (data / "broker" / "broker.json").exists()
    chain, key = files.server("pi.example")
    given = ("--host", "pi.example", "--server-cert", chain, "--server-key", key)
    for words in (("broker-config", "mosquitto", *given), ("enrol", "kitchen")):
        ran = without("bcrypt cryptography", *words)
        assert ran.returncode == 0, ran.stderr


# --- credentials -----------------------------------------------------------------------------


def invitation(broker: Path, name: str) -> DeviceInvitation:
    return read_invitation(broker / "invitations" / f"{name}.invitation")


@pytest.mark.parametrize("setup", BOTH)
def test_an_invitation_is_all_a_device_needs(cli: Cli, setup: Setup, data: Path) -> None:
    """One file of its owner's only, whatever the umask, and the same as a link and a QR code."""
    before = os.umask(0)
    try:
        hosts = ("--host", "broker.example", "--host", "192.168.1.10")
        configure(cli, data, *hosts, setup=setup)
        words = ("kitchen", "--label", "region=north", "--link", "--qr", "--data-dir", data)
        facts = json.loads(done(cli("enrol", *words, "--json")).stdout)
        session_name(data)
    finally:
        os.umask(before)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (data, *data.rglob("*"))}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}
    broker = data / "broker"
    assert {file.name for file in (broker / "credentials").iterdir()} == OURS
    (row,) = facts["enrolled"]
    made = invitation(broker, "kitchen")
    assert made == parse_device_invitation(row["link"]) == read_invitation(Path(row["invitation"]))
    assert Path(row["qr"]).read_text().count("<path") == 2
    assert made.brokers == ("mqtts://broker.example:8883", "mqtts://192.168.1.10:8883")
    assert (made.username, made.link, made.labels) == ("kitchen", "", {"region": "north"})
    assert made.authority == (broker / "tls" / "ca.crt").read_text()
    assert users_of(broker)["kitchen"]["labels"] == made.labels
    with closing(read_store(data)) as store:  # where results are grouped by it
        assert store.labelled("region") == {"kitchen": "north"}
    if setup.auth == "password":
        assert made.password
        assert len(made.password) * 6 >= 128
        assert made.password not in (broker / "broker.json").read_text(), "kept only as a hash"
        return
    certificate = x509.load_pem_x509_certificate(made.certificate.encode())
    (name,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    assert name.value == "kitchen"
    assert users_of(broker)["kitchen"]["serial"] == certificate.serial_number
    assert made.key not in (broker / "broker.json").read_text()


def test_what_an_invitation_invites_to(cli: Cli, data: Path, home: Path) -> None:
    """The one campaign that is open, or the one that is named; else only to the broker."""
    configure(cli, data, "--host", "pi.local")
    (home / "heat.toml").write_text(manifest_text())
    first = Manifest.from_file(home / "heat.toml")
    done(cli("open", home / "heat.toml", "--data-dir", data))
    done(cli("enrol", "kitchen", "--data-dir", data))
    address = "mqtts://pi.local:8883/allomfree"
    assert invitation(data / "broker", "kitchen").link == f"{address}/{first.full_name}"
    (home / "second.toml").write_text(manifest_text(slug="second"))
    done(cli("open", home / "second.toml", "--data-dir", data))
    text = done(cli("enrol", "porch", "--data-dir", data)).stdout
    assert "They name no campaign: the owner also needs its link" in text
    assert invitation(data / "broker", "porch").link == ""
    done(cli("enrol", "roof", "--campaign", "second", "--data-dir", data))
    second = Manifest.from_file(home / "second.toml")
    assert invitation(data / "broker", "roof").link == f"{address}/{second.full_name}"
    done(cli("close", "second", "--yes", "--data-dir", data))
    for words in (("--campaign", "second"), ("--campaign", "third"), ("--label", "region")):
        assert "fine" not in users_of(data / "broker")
        assert cli("enrol", "fine", *words, "--data-dir", data).exit_code


def test_a_label_that_is_no_group_is_named(cli: Cli, data: Path, home: Path) -> None:
    configure(cli, data, "--host", "pi.local")
    groups = '[groups]\nlabel = "region"\nvalues = ["north", "south"]\n'
    (home / "heat.toml").write_text(manifest_text() + groups)
    done(cli("open", home / "heat.toml", "--data-dir", data))
    name = Manifest.from_file(home / "heat.toml").campaign
    for device, words, wrong in (
        ("kitchen", ("--label", "region=north"), False),
        ("porch", ("--label", "region=nroth"), True),
        ("roof", ("--label", "regoin=north"), True),
        ("attic", (), False),
    ):
        text = done(cli("enrol", device, *words, "--data-dir", data)).stdout
        expected = f"{name} counts them as others, because its groups are region = north or south"
        assert (expected in text) is wrong, device


def test_a_readers_credential(cli: Cli, data: Path) -> None:
    configure(cli, data, "--host", "pi.local")
    flags = ("--home-assistant", "ha", "--data-dir", data)
    facts = json.loads(done(cli("enrol", "--reader", "home", *flags, "--json")).stdout)
    (row,) = facts["readers"]
    place = Path(row["credentials"])
    assert (row["reader"], facts["enrolled"], facts["home_assistant"]) == ("Reader-home", [], "ha")
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
        assert "Nothing was enrolled" in refused(cli, data, "enrol", "--reader", wrong)


def test_names(cli: Cli, data: Path, home: Path) -> None:
    """Random, from a file, from standard input, and given; never an invalid one."""

    def enrolled(*words: object, **options: Any) -> list[str]:
        result = done(cli("enrol", *words, "--data-dir", data, "--json", **options))
        return [row["device"] for row in json.loads(result.stdout)["enrolled"]]

    configure(cli, data, "--host", "pi.local")
    random = enrolled("--count", 3)
    assert len({*random}) == 3
    assert all(is_device(name) and len(bytes.fromhex(name)) >= 8 for name in random)
    (home / "names").write_text("porch\n\n  cellar \n")
    assert enrolled("--from", home / "names", "garden") == ["garden", "porch", "cellar"]
    assert enrolled("--from", "-", answer="roof\n") == ["roof"]
    assert users_of(data / "broker").keys() == OURS | {
        *random, "garden", "porch", "cellar", "roof"
    }  # fmt: skip
    for wrong in ("Kitchen", "a b", "a/b", "+", "#", "a" * 33, "../up", "é", COLLECTOR):
        assert "invalid device name" in refused(cli, data, "enrol", "fine", wrong)
    done(cli("revoke", "roof", "--data-dir", data))
    for words, error in (
        (("fine", "fine"), "is named twice"),
        (("fine", "garden"), "garden cannot be enrolled: it is already enrolled"),
        (("roof",), "it was revoked, see revoke --undo"),
        ((PROBE,), f"{PROBE} cannot be enrolled"),
        ((), "no device is named; nothing was enrolled"),
    ):
        assert error in refused(cli, data, "enrol", *words)


def test_a_missing_or_damaged_list_is_not_overwritten(cli: Cli, data: Path) -> None:
    failed = cli("enrol", "kitchen", "--data-dir", data)
    assert failed.exit_code == 2
    assert f"broker-config --data-dir {data} mosquitto --host HOST" in failed.stderr
    configure(cli, data, "--host", "pi.local")
    file = data / "broker" / "broker.json"
    for damage in ("", "{", "[]", '{"plan": {}}', '{"plan": {"hosts": []}, "users": []}'):
        file.write_text(damage)
        for words in (("enrol", "kitchen"), broker_config(NATS, data)):
            failed = cli(*words, "--data-dir", data)
            assert failed.exit_code == 1
            assert "Restore it from a backup" in failed.stderr
        assert file.read_text() == damage


@pytest.mark.slow
def test_many_enrol_at_once(cli: Cli, data: Path) -> None:
    configure(cli, data, "--host", "pi.local")
    names = [f"device-{number}" for number in range(4)]
    command = [sys.executable, "-m", "collector", "enrol", "--data-dir", str(data)]
    running = [
        subprocess.Popen([*command, name], env=environment(), stdout=subprocess.DEVNULL)
        for name in names
    ]
    assert [process.wait(120) for process in running] == [0] * 4
    assert set(names) <= set(users_of(data / "broker"))


# --- the embedded broker's port, and mosquitto's user ----------------------------------------


def test_the_next_free_port_is_taken_logged_and_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as taken:
        if is_free(PORTS[0]):  # MQTT's own, which is taken by us or by somebody else
            taken.enter_context(socket.create_server(("127.0.0.1", PORTS[0])))
        port = EmbeddedBroker(tmp_path).url.port
        assert port in PORTS[1:]
        (warning,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
        assert f"uses port 1883, so the embedded broker gets port {port} and keeps it" in warning
        assert str(tmp_path / "port") in warning
        for each in filter(is_free, PORTS):
            taken.enter_context(socket.create_server(("127.0.0.1", each)))
        with pytest.raises(SettingsError, match=r"the ports 1883 to 1899 .* are all taken"):
            EmbeddedBroker(tmp_path / "other")
        assert not (tmp_path / "other" / "port").exists()
    assert EmbeddedBroker(tmp_path).url.port == port
    (tmp_path / "port").write_text("")
    with pytest.raises(SettingsError, match="does not hold a port number"):
        EmbeddedBroker(tmp_path)


@NEEDS_MOSQUITTO
def test_mosquitto_can_read_its_files_whoever_starts_it(cli: Cli, data: Path) -> None:
    """By root, too: it must not switch to a user who cannot. In a container users differ."""
    words = ("broker-config", "mosquitto", "--host", "localhost", "--port", str(free_port()))
    text = done(cli(*words, "--data-dir", data)).stdout
    assert f"Start it:  mosquitto -c {data}/broker/mosquitto.conf\n" in text
    assert ("mosquitto runs as root, too." in text) == (os.geteuid() == 0)
    with ConfiguredBroker(MOSQUITTO, data / "broker", "kitchen") as broker:
        assert broker.admits("kitchen")
    other = data / "other"
    done(cli(*words, "--root", "/mosquitto", "--data-dir", data, "--broker-dir", other))
    assert "\nuser " not in (other / "mosquitto.conf").read_text()


# --- a cluster of NATS servers ---------------------------------------------------------------

NODES = ("a.example", "b.example", "192.0.2.7")


def configure_cluster(cli: Cli, data: Path, *more: object) -> str:
    words = ("broker-config", "nats", "--cluster", *NODES, "--data-dir", data, *more)
    return done(cli(*words)).stdout


def test_every_node_gets_a_directory_of_its_own(cli: Cli, data: Path) -> None:
    facts = json.loads(configure_cluster(cli, data, "--port", "9883", "--json"))
    assert list(facts["nodes"]) == list(NODES)
    for node, place in facts["nodes"].items():
        text = (Path(place) / "nats.conf").read_text()
        assert f'server_name: "allomfree-{node}"' in text
        assert "stream_replicas: 3" in text
        assert all(f'"tls://{other}:6222"' in text for other in NODES)
        assert "verify: true" in text
        assert str(data) not in text, "it is copied to another machine"
        assert Path(place).stat().st_mode & 0o077 == 0
        assert names_of(Path(place) / "tls" / "server.crt") >= set(NODES)
    assert not (data / "broker" / "nats.conf").exists()
    file = data / "broker" / "credentials" / COLLECTOR / "collector.toml"
    settings = collector_settings({}, config=file, environ={})
    assert [str(each) for each in settings.stream or ()] == [f"tls://{n}:4222" for n in NODES]
    assert str(settings.broker) == "mqtts://a.example:9883"
    before = contents(data / "broker" / "nodes")
    done(cli("broker-config", "nats", "--data-dir", data))
    assert contents(data / "broker" / "nodes") == before


def test_nodes_trust_nobody_but_nodes(cli: Cli, data: Path) -> None:
    """A device's certificate is of another authority than theirs."""
    configure_cluster(cli, data, "--auth", "certificate")
    place = data / "broker" / "nodes" / NODES[0] / "tls"
    route, nodes = read_certificate(place / "route.crt"), read_certificate(place / "routes.crt")
    route.verify_directly_issued_by(nodes)
    uses = route.extensions.get_extension_for_class(ExtendedKeyUsage).value
    assert set(uses) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    assert names_of(place / "route.crt") == {NODES[0]}
    device = read_certificate(data / "broker" / "credentials" / COLLECTOR / "client.crt")
    with pytest.raises(InvalidSignature):
        device.verify_directly_issued_by(nodes)
    assert not list((data / "broker" / "nodes").rglob("ca.key"))


def test_enrolling_changes_all_nodes_and_prints_what_to_copy(cli: Cli, data: Path) -> None:
    configure_cluster(cli, data)
    text = cli("enrol", "kitchen", "--data-dir", data).stdout
    places = [data / "broker" / "nodes" / node for node in NODES]
    assert all(str(place) in text for place in places)
    assert all('"kitchen"' in (place / "users.conf").read_text() for place in places)
    assert "reload=broker.pid" in cli("revoke", "kitchen", "--data-dir", data).stdout
    assert not any('"kitchen"' in (place / "users.conf").read_text() for place in places)
    plan = BrokerDirectory.load(data / "broker").plan
    asked = [json.loads(body) for topic, body in limit_requests(plan) if "UPDATE" in topic]
    assert [body["num_replicas"] for body in asked] == [3, 3], "messages are stored three times"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    need("postgres")
    with tempfile.TemporaryDirectory(dir=QUICK_DISK) as place:
        Path(place).chmod(0o711)
        with Cluster(Path(place) / "site", workers=1) as started:
            yield started


def test_what_one_node_accepted_is_counted_through_another(cluster: Cluster) -> None:
    """The node that accepted it is killed before anybody has read it."""
    cluster.start_workers()
    (worker,) = cluster.workers
    manifest = Manifest.from_toml(manifest_text(first=int(time.time()) - 1))
    with closing(open_store(worker.data, cluster.database.address())) as store:
        store.open_campaign(manifest, int(time.time()))
    cluster.enrol(["kitchen"])
    assert limit_nats(cluster.broker), "the auditor's requests were refused"
    worker.stop()
    node = cluster.nodes[2]
    report = report_message(manifest, "kitchen", body=b"\1")
    password = credentials_of(cluster.broker, "kitchen").password
    trusted = ssl.create_default_context(cafile=str(cluster.authority))
    client = BrokerClient(
        cluster.port, V311, name="kitchen", password=password, context=trusted, host=node.address
    )
    with client:
        client.publish(Topics(manifest.campaign).report("kitchen"), report.payload)
    node.kill()
    worker.start()
    worker.wait_until_received(1)
    with worker.store() as store:
        assert sum(tally.n for tally in store.tallies(1, 0).values()) == 1
    assert BrokerDirectory.load(cluster.broker.path).reload() is False, "one node is down"
    node.start()
    assert cluster.broker.reload()
