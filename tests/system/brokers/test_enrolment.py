"""What `enrol` hands out: files of their owner's only, names checked, nothing twice."""

from __future__ import annotations

import json
import os
import stat
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from collector.brokers.config import AUDITOR, COLLECTOR, PROBE
from collector.brokers.directory import BrokerDirectory
from collector.data_dir import session_name
from edge_client.settings import resolve
from protocol_spec.programs.settings import parse_broker
from protocol_spec.topics import is_device
from tests.support.brokers import BOTH, Setup, broker_config, users_of
from tests.support.command_line import Cli

OURS = {COLLECTOR, AUDITOR, PROBE}


@pytest.fixture
def umask() -> Iterator[None]:
    """One that takes nothing away."""
    before = os.umask(0)
    yield
    os.umask(before)


def configured(cli: Cli, setup: Setup, data: Path) -> Path:
    done = cli(*broker_config(setup, data, "--host", "broker.example"))
    assert done.exit_code == 0, done.stderr
    return data / "broker"


def enrolled(cli: Cli, data: Path, *words: object, **options: Any) -> list[str]:
    done = cli("enrol", *words, "--data-dir", data, "--json", **options)
    assert done.exit_code == 0, done.stderr
    return [row["device"] for row in json.loads(done.stdout)["enrolled"]]


def refused(cli: Cli, data: Path, *words: object, **options: Any) -> str:
    """Enrolment that must fail: the message, with nobody let in and no file left."""
    files = sorted((data / "broker").rglob("*"))
    before = (data / "broker" / "broker.json").read_bytes()
    done = cli("enrol", *words, "--data-dir", data, **options)
    assert (done.exit_code, done.stdout) == (2, "")
    assert (data / "broker" / "broker.json").read_bytes() == before
    assert sorted((data / "broker").rglob("*")) == files
    return done.stderr


@pytest.mark.parametrize("setup", BOTH)
def test_a_bundle_is_all_a_device_needs(cli: Cli, setup: Setup, data: Path) -> None:
    broker = configured(cli, setup, data)
    assert enrolled(cli, data, "kitchen") == ["kitchen"]
    bundle = broker / "credentials" / "kitchen"
    secret = {"password"} if setup.auth == "password" else {"client.crt", "client.key"}
    assert {file.name for file in bundle.iterdir()} == {"edge.toml", "ca.crt", *secret}
    on_device = Path("/etc/allomfree")
    settings = resolve({}, config=bundle / "edge.toml", environ={})
    assert settings.username == "kitchen"
    assert settings.ca_file == on_device / "ca.crt"
    if setup.auth == "password":
        assert (settings.password_file, settings.cert_file) == (on_device / "password", None)
        password = (bundle / "password").read_text().strip()
        assert len(password) * 6 >= 128
        assert password not in (broker / "broker.json").read_text(), "kept only as a hash"
    else:
        assert settings.cert_file == on_device / "client.crt"
        assert settings.key_file == on_device / "client.key"
        certificate = x509.load_pem_x509_certificate((bundle / "client.crt").read_bytes())
        (name,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        assert name.value == "kitchen"
        assert users_of(broker)["kitchen"]["serial"] == certificate.serial_number


@pytest.mark.parametrize("setup", BOTH)
def test_files_are_their_owners_only_whatever_the_umask(
    cli: Cli, setup: Setup, data: Path, umask: None
) -> None:
    configured(cli, setup, data)
    enrolled(cli, data, "kitchen")
    session_name(data)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (data, *data.rglob("*"))}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}
    assert not [path for path in modes if path.name.endswith(".new")]


@pytest.mark.parametrize("setup", BOTH[:1])
def test_names(cli: Cli, setup: Setup, data: Path, home: Path) -> None:
    """Made up, from a file, from standard input, and given; never one that is none."""
    broker = configured(cli, setup, data)
    made_up = enrolled(cli, data, "--count", 3)
    assert len({*made_up}) == 3
    assert all(is_device(name) and len(bytes.fromhex(name)) >= 8 for name in made_up)
    (home / "names").write_text("porch\n\n  cellar \n")
    assert enrolled(cli, data, "--from", home / "names", "garden") == ["garden", "porch", "cellar"]
    assert enrolled(cli, data, "--from", "-", answer="roof\n") == ["roof"]
    assert users_of(broker).keys() == OURS | {*made_up, "garden", "porch", "cellar", "roof"}
    for wrong in ("Kitchen", "a b", "a/b", "+", "#", "a" * 33, "../up", "é", COLLECTOR):
        assert "invalid device name" in refused(cli, data, "fine", wrong)
    assert "is named twice" in refused(cli, data, "fine", "fine")
    assert "garden cannot be enrolled: it is already enrolled" in refused(
        cli, data, "fine", "garden"
    )
    assert f"{PROBE} cannot be enrolled" in refused(cli, data, PROBE)
    assert "no device is named; nothing was enrolled" in refused(cli, data)
    assert cli("revoke", "roof", "--data-dir", data).exit_code == 0
    assert "it was revoked, see revoke --undo" in refused(cli, data, "roof")


def test_there_must_be_a_broker(cli: Cli, data: Path) -> None:
    done = cli("enrol", "kitchen", "--data-dir", data)
    assert done.exit_code == 2
    assert "no broker is configured in" in done.stderr
    assert f"broker-config --data-dir {data} mosquitto --host HOST" in done.stderr


def test_a_damaged_list_is_not_written_over(cli: Cli, data: Path) -> None:
    broker = configured(cli, Setup("mosquitto", "password"), data)
    for damage in ("", "{", "[]", '{"plan": {}}', '{"plan": {"hosts": []}, "users": []}'):
        (broker / "broker.json").write_text(damage)
        for words in (("enrol", "kitchen"), broker_config(Setup("mosquitto", "password"), data)):
            done = cli(*words, "--data-dir", data)
            assert done.exit_code == 1
            assert "Restore it from a backup" in done.stderr
        assert (broker / "broker.json").read_text() == damage


@pytest.mark.parametrize("setup", BOTH)
def test_a_crash_between_two_files_is_mended_by_the_next_change(
    cli: Cli, setup: Setup, data: Path
) -> None:
    """broker.json was written, what follows from it was not."""
    broker = configured(cli, setup, data)
    follows = {
        "nats": ["users.conf"],
        "mosquitto": ["acl"] if setup.auth == "certificate" else ["acl", "passwords"],
    }[setup.kind]
    old = {name: (broker / name).read_bytes() for name in follows}
    enrolled(cli, data, "kitchen", "garden")
    assert cli("revoke", "garden", "--data-dir", data).exit_code == 0
    new = {name: (broker / name).read_bytes() for name in follows}
    assert new != old
    for name, content in old.items():
        (broker / name).write_bytes(content)
        (broker / f".{name}.new").write_bytes(b"half of it")
    again = cli(*broker_config(setup, data))
    assert again.exit_code == 0, again.stderr
    assert {name: (broker / name).read_bytes() for name in follows} == new
    assert not list(broker.rglob(".*.new"))


def test_the_collectors_own_bundle(cli: Cli, data: Path) -> None:
    """For a collector that runs elsewhere: where the broker is, and how to be let in."""
    broker = configured(cli, Setup("nats", "certificate"), data)
    bundle = broker / "credentials" / COLLECTOR
    table = tomllib.loads((bundle / "collector.toml").read_text())
    assert parse_broker(table.pop("broker")) == BrokerDirectory.load(broker).plan.url
    assert table.pop("username") == COLLECTOR
    assert table.pop("namespace") == "allomfree"
    assert {Path(file).exists() for file in table.values()} == {True}


def test_the_sessions_name_is_made_once(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    assert session_name(here) == session_name(here) != session_name(there)
