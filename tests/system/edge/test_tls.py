"""TLS and passwords against real brokers: the right ones work, each wrong one says why not."""

from __future__ import annotations

import hashlib
import os
import re
import ssl
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edge_client import Credentials, EdgeClient
from tests.support.brokers import AS_OURSELVES, Broker, Mosquitto, Nats
from tests.support.campaigns import manifest, manifest_text
from tests.support.certificates import FAULTS, Files
from tests.support.edge_processes.processes import edge
from tests.support.needs import need
from tests.support.places import ROOT

PASSWORD = "correct horse"  # noqa: S105 - of a broker that lives for a second


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files.made(tmp_path)


@contextmanager
def tls_broker(
    kind: str, files: Files, server: tuple[Path, Path], *, client_certificates: bool = False
) -> Iterator[Broker]:
    broker: Broker
    chain, key = server
    ca = files.directory / "ca.pem"
    if kind == "mosquitto":
        need("mosquitto")
        broker = Mosquitto(files.directory / kind)
        broker.extra = (
            f"cafile {ca}\ncertfile {chain}\nkeyfile {key}\n"
            f"require_certificate {str(client_certificates).lower()}\n"
            f"allow_anonymous true\n{AS_OURSELVES}"
        )
    else:
        broker = Nats(files.directory / kind)
        verify = f'ca_file: "{ca}", verify: true' if client_certificates else ""
        broker.listener = f'tls {{ cert_file: "{chain}", key_file: "{key}", {verify} }}'
    with broker:
        yield broker


def report(broker: Broker, state: Path, *flags: str | Path, host: str = "localhost") -> str:
    """What `allomfree-edge report` says of its one campaign, on a broker without collector."""
    with EdgeClient(state) as client:
        url = f"mqtts://{host}:{broker.port}"
        client.join(client.invitation(manifest=manifest(), broker=url), device="device")
    done = edge("report", "--value", "fuel=gas", "--timeout", "2", "--state-dir", state, *flags)
    assert not done.stderr or "Traceback" not in done.stderr
    return done.stdout


KINDS = pytest.mark.parametrize("kind", ["mosquitto", "nats"])
TAKEN = "sent, no receipt yet"


@pytest.mark.slow
@KINDS
def test_the_right_authority(kind: str, files: Files, tmp_path: Path) -> None:
    with tls_broker(kind, files, files.server("localhost")) as broker:
        ours = report(broker, tmp_path / "state", "--ca-file", tmp_path / "ca.pem")
        assert TAKEN in ours
        systems = report(broker, tmp_path / "other")
        assert "its certificate is not trusted" in systems


@KINDS
@pytest.mark.parametrize(("fault", "says"), FAULTS.items())
def test_a_certificate_that_is_not_trusted(
    kind: str, fault: str, says: str, files: Files, tmp_path: Path
) -> None:
    host = "127.0.0.1" if fault == "wrong address" else "localhost"
    with tls_broker(kind, files, files.faulty(fault)) as broker:
        said = report(broker, tmp_path / "state", "--ca-file", tmp_path / "ca.pem", host=host)
    assert f"queued: the broker mqtts://{host}" in said
    assert "its certificate is not trusted" in said
    assert says in said


@pytest.mark.slow
@KINDS
def test_mutual_tls(kind: str, files: Files, tmp_path: Path) -> None:
    chain, key = files.client("device")
    authority = ("--ca-file", tmp_path / "ca.pem")
    server = files.server("localhost")
    with tls_broker(kind, files, server, client_certificates=True) as broker:
        mine = ("--cert-file", chain, "--key-file", key)
        assert TAKEN in report(broker, tmp_path / "with", *authority, *mine)
        said = report(broker, tmp_path / "without", *authority)
        assert f"queued: the broker mqtts://localhost:{broker.port} cannot be used" in said
        assert "--cert-file" in said


@pytest.mark.slow
@KINDS
def test_user_and_password(kind: str, files: Files, tmp_path: Path) -> None:
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text(PASSWORD + "\n")
    wrong.write_text("battery staple\n")
    flags = ("--ca-file", tmp_path / "ca.pem", "--username", "device", "--password-file")
    with tls_broker(kind, files, files.server("localhost")) as broker:
        broker.stop()
        only_with_password(broker)
        broker.start()
        assert TAKEN in report(broker, tmp_path / "state-1", *flags, right)
        said = report(broker, tmp_path / "state-2", *flags, wrong)
        assert "it refused the connection (Not authorized)" in said
        assert "Check --username, --password-file" in said
        assert "battery staple" not in said


def only_with_password(broker: Broker) -> None:
    """Let nobody in but the one device; to be read at the next start."""
    if isinstance(broker, Nats):
        user = f'{{ user: device, password: "{PASSWORD}" }}'
        broker.extra = f"authorization {{ users: [ {user} ] }}"
    elif isinstance(broker, Mosquitto):
        salt = os.urandom(12)
        hashed = hashlib.pbkdf2_hmac("sha512", PASSWORD.encode(), salt, 101)
        words = (b64encode(part).decode() for part in (salt, hashed))
        users = broker.directory / "users"
        users.write_text(f"device:$7$101${'$'.join(words)}\n")
        users.chmod(0o600)
        denied = broker.extra.replace("allow_anonymous true", "allow_anonymous false")
        broker.extra = f"{denied}password_file {users}\n"


def test_a_broker_that_does_not_speak_tls(nats: Nats, tmp_path: Path) -> None:
    said = report(nats, tmp_path / "state")
    assert f"queued: the broker mqtts://localhost:{nats.port} cannot be used" in said


def test_plain_text_leaves_this_machine_only_when_asked_for(tmp_path: Path) -> None:
    asked = tmp_path / "campaign.toml"
    asked.write_text(manifest_text())
    words = ("join", "--yes", "--state-dir", tmp_path / "state", "--manifest", asked, "--broker")
    refused = edge(*words, "mqtt://192.0.2.1")
    assert refused.returncode == 2
    assert "is not encrypted and not this machine; nothing was sent" in refused.stderr
    assert edge(*words, "mqtt://192.0.2.1", "--allow-plaintext").returncode == 0


def test_nothing_switches_verification_off() -> None:
    context = Credentials().tls_context()
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    for module in (ROOT / "edge_client").rglob("*.py"):
        source = module.read_text()
        assert not re.search(r"CERT_NONE|CERT_OPTIONAL|insecure|unverified|check_hostname", source)
