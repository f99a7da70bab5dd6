"""Credentials are shown to the broker they are for, and to no other (P2)."""

from __future__ import annotations

import hashlib
import os
import re
import ssl
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import pytest

from edge_client import Credentials, EdgeClient
from protocol_spec import Manifest, Topics
from testbed.brokers import AS_OURSELVES, Broker, Mosquitto, Nats
from tests.support.brokers import FAULTS, Files
from tests.support.campaigns import manifest, manifest_text, second_manifest
from tests.support.edge import QUICK, tick_until
from tests.support.edge_processes import AgentProcess, edge
from tests.support.harness import ROOT, need
from tests.support.network import DISCONNECT, PUBLISH, SUBSCRIBE, Peer, Wire

USER: Final = "k7f3-0b2q"
PASSWORD: Final = "correct-horse"  # noqa: S105 - of brokers that live for a second


def offer() -> Manifest:
    """A campaign that no other test has."""
    return second_manifest(slug=f"t-{os.urandom(4).hex()}")


class Stranger:
    """A broker that notes all that it is sent, and offers a campaign to whoever asks."""

    def __init__(self, offered: Manifest) -> None:
        self.offered = offered
        self.connects: list[bytes] = []
        self.topics: list[str] = []

    def __call__(self, wire: Wire) -> None:
        packet = wire.read()
        assert packet is not None
        wire.version = packet.body[6]
        self.connects.append(packet.body)
        wire.connack()
        while (packet := wire.read()) is not None and packet.kind != DISCONNECT:
            if packet.kind == SUBSCRIBE:
                wire.suback(packet)
                wire.publish(Topics(self.offered.campaign).manifest, self.offered.to_bytes())
            elif packet.kind == PUBLISH:
                self.topics.append(wire.published(packet).topic)
                wire.puback(wire.published(packet).mid)

    def saw_no_secret(self) -> None:
        assert self.connects
        for secret in (USER, PASSWORD):
            assert not any(secret.encode() in seen for seen in self.connects)
            assert not any(secret in topic for topic in self.topics)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """As an earlier version wrote it: it does not say which broker the password is for."""
    (tmp_path / "password").write_text(PASSWORD)
    file = tmp_path / "edge.toml"
    file.write_text(
        f'state_dir = "{tmp_path / "state"}"\nusername = "{USER}"\n'
        f'password_file = "{tmp_path / "password"}"\n'
    )
    return file


def name_broker(config: Path, url: str) -> None:
    config.write_text(f'credentials_for = "{url}"\n{config.read_text()}')


def add_source(config: Path) -> None:
    config.write_text(f'{config.read_text()}[sources.fuel]\nvalue = "wood"\n')


def test_an_invitation_from_elsewhere_is_fetched_without_them(config: Path) -> None:
    asked = offer()
    name_broker(config, "mqtts://broker.example")
    stranger = Stranger(asked)
    with Peer(stranger) as peer:
        address = f"{peer.url}/allomfree/{asked.campaign}"
        done = edge("join", address, "--preview", "--config", config)
    assert done.returncode == 0, done.stderr
    assert "they are not shown to this one" in " ".join(done.stdout.split())
    assert USER not in done.stdout
    stranger.saw_no_secret()


def test_nobody_said_which_broker_they_are_for(config: Path) -> None:
    """An old configuration: nothing is sent, and the line to add is shown."""
    asked = offer()
    stranger = Stranger(asked)
    with Peer(stranger) as peer:
        address = f"{peer.url}/allomfree/{asked.campaign}"
        done = edge("join", address, "--preview", "--config", config)
        assert done.returncode == 2
        assert f'credentials_for = "{peer.url}"' in done.stderr
        assert "nothing was drawn or sent" in done.stderr
    assert stranger.connects == []


def test_run_report_doctor_and_forget_show_them_to_no_other(config: Path) -> None:
    asked = offer()
    name_broker(config, "mqtts://broker.example")
    add_source(config)
    stranger = Stranger(asked)
    with Peer(stranger) as peer:
        address = f"{peer.url}/allomfree/{asked.campaign}"
        joined = edge("join", address, "--yes", "--config", config)
        assert joined.returncode == 0, joined.stderr
        edge("report", "--timeout", "1", "--config", config)
        doctor = edge("doctor", "--config", config).stdout
        assert "yours are shown to mqtts://broker.example:8883 and no other" in doctor
        with AgentProcess(config) as agent:
            agent.wait_for("connected to")
        assert edge("forget", "--yes", "--timeout", "0.2", "--config", config).returncode == 0
    assert len(stranger.connects) >= 5
    assert stranger.topics
    stranger.saw_no_secret()


def test_a_broker_joined_without_them_never_gets_them(config: Path, tmp_path: Path) -> None:
    """Not even when the owner takes the setting back, or adds a password later."""
    asked = offer()
    stranger = Stranger(asked)
    with Peer(stranger) as peer:
        with EdgeClient(tmp_path / "state") as client:
            address = f"{peer.url}/allomfree/{asked.campaign}"
            client.join(address)
        add_source(config)
        edge("report", "--timeout", "1", "--config", config)
        doctor = edge("doctor", "--config", config).stdout
        assert "yours are shown to no broker" in doctor
    assert len(stranger.connects) >= 3
    stranger.saw_no_secret()


@contextmanager
def guarded(kind: str, directory: Path) -> Iterator[Broker]:
    """A real broker that lets only the one device in, with its password."""
    broker: Broker
    if kind == "nats":
        broker = Nats(directory)
        user = f'{{ user: "{USER}", password: "{PASSWORD}" }}'
        broker.extra = f"authorization {{ users: [ {user} ] }}"
    else:
        need("mosquitto")
        broker, salt = Mosquitto(directory), os.urandom(12)
        hashed = hashlib.pbkdf2_hmac("sha512", PASSWORD.encode(), salt, 101)
        words = "$".join(b64encode(part).decode() for part in (salt, hashed))
        directory.mkdir(parents=True)
        users = directory / "users"
        users.write_text(f"{USER}:$7$101${words}\n")
        users.chmod(0o600)
        broker.extra = f"allow_anonymous false\npassword_file {users}\n{AS_OURSELVES}"
    with broker:
        yield broker


@pytest.mark.parametrize("kind", ["nats", "mosquitto"])
def test_the_right_broker_gets_them_and_another_one_does_not(
    kind: str, config: Path, tmp_path: Path
) -> None:
    """Both at once, in one agent; the right one was joined with the password."""
    asked, elsewhere = offer(), offer()
    stranger = Stranger(elsewhere)
    add_source(config)
    with guarded(kind, tmp_path / kind) as broker, Peer(stranger) as peer:
        refused = edge("doctor", "--config", config).stdout
        assert "yours are shown to no broker" in refused
        named = ("--credentials-for", broker.url)
        absent = edge(
            "join", f"{broker.url}/{asked.campaign}", "--timeout", "0.2", "--config", config, *named
        )
        assert f"has no campaign {asked.campaign}" in absent.stderr  # so it was let in
        secrets = Credentials(USER, PASSWORD)
        with EdgeClient(tmp_path / "state", credentials=secrets) as client:
            invitation = client.invitation(manifest=asked, broker=broker.url)
            client.join(invitation)
            assert client.find().device == USER
            joined = client.join(f"{peer.url}/allomfree/{elsewhere.campaign}")
            assert joined.device != USER
        with AgentProcess(config) as agent:
            agent.wait_for(f"connected to {broker.url}")
            agent.wait_for(f"connected to {peer.url}")
    stranger.saw_no_secret()


# --- TLS and passwords against real brokers: the right ones work, each wrong one says why not.


# paho does not close the socket of a failed handshake; it ends when nothing refers to it any more.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

TLS_PASSWORD = "correct horse"  # noqa: S105 - of a broker that lives for a second


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files.made(tmp_path_factory.mktemp("tls"))


@contextmanager
def tls_broker(
    kind: str,
    files: Files,
    server: tuple[Path, Path],
    directory: Path,
    *,
    client_certificates: bool = False,
) -> Iterator[Broker]:
    broker: Broker
    chain, key = server
    ca = files.directory / "ca.pem"
    if kind == "mosquitto":
        need("mosquitto")
        broker = Mosquitto(directory / kind)
        broker.extra = (
            f"cafile {ca}\ncertfile {chain}\nkeyfile {key}\n"
            f"require_certificate {str(client_certificates).lower()}\n"
            f"allow_anonymous true\n{AS_OURSELVES}"
        )
    else:
        broker = Nats(directory / kind)
        verify = f'ca_file: "{ca}", verify: true' if client_certificates else ""
        broker.listener = f'tls {{ cert_file: "{chain}", key_file: "{key}", {verify} }}'
    with broker:
        yield broker


def attempt(
    broker: Broker, state: Path, credentials: Credentials | None = None, host: str = "localhost"
) -> str:
    """What becomes of a report: TAKEN by the broker, or why not, as the owner is told."""
    points: list[str] = []
    with EdgeClient(state, credentials=credentials, timing=QUICK, trace=points.append) as client:
        url = f"mqtts://{host}:{broker.port}"
        asked = manifest()
        invitation = client.invitation(manifest=asked, broker=url)
        client.join(invitation, device="device")
        client.agent.draw(client.find(), lambda _: "gas")
        with closing(client.runner(lambda _: "gas")) as runner:
            tick_until(runner, lambda: "acknowledged" in points or bool(runner.delivery.trouble()))
            return runner.delivery.trouble() or TAKEN


def ca(files: Files) -> str:
    return str(files.directory / "ca.pem")


KINDS = pytest.mark.parametrize("kind", ["mosquitto", "nats"])
TAKEN = "taken"


@KINDS
def test_the_right_authority(kind: str, files: Files, tmp_path: Path) -> None:
    with tls_broker(kind, files, files.server("localhost"), tmp_path) as broker:
        assert attempt(broker, tmp_path / "ours", Credentials(ca_file=ca(files))) == TAKEN
        assert "its certificate is not trusted" in attempt(broker, tmp_path / "the system's")


@KINDS
@pytest.mark.parametrize(("fault", "says"), FAULTS.items())
def test_a_certificate_that_is_not_trusted(
    kind: str, fault: str, says: str, files: Files, tmp_path: Path
) -> None:
    host = "127.0.0.1" if fault == "wrong address" else "localhost"
    with tls_broker(kind, files, files.faulty(fault), tmp_path) as broker:
        said = attempt(broker, tmp_path / "state", Credentials(ca_file=ca(files)), host)
    assert said.startswith(f"the broker mqtts://{host}")
    assert "its certificate is not trusted" in said
    assert says in said


@KINDS
def test_mutual_tls(kind: str, files: Files, tmp_path: Path) -> None:
    chain, key = map(str, files.client("device"))
    server = files.server("localhost")
    with tls_broker(kind, files, server, tmp_path, client_certificates=True) as broker:
        mine = Credentials(ca_file=ca(files), cert_file=chain, key_file=key)
        assert attempt(broker, tmp_path / "with", mine) == TAKEN
        said = attempt(broker, tmp_path / "without", Credentials(ca_file=ca(files)))
        assert said.startswith(f"the broker mqtts://localhost:{broker.port} cannot be used")
        assert "--cert-file" in said


@KINDS
def test_user_and_password(kind: str, files: Files, tmp_path: Path) -> None:
    with tls_broker(kind, files, files.server("localhost"), tmp_path) as broker:
        broker.stop()
        only_with_password(broker)
        broker.start()
        right = Credentials("device", TLS_PASSWORD, ca(files))
        assert attempt(broker, tmp_path / "right", right) == TAKEN
        wrong = Credentials("device", "battery staple", ca(files))
        said = attempt(broker, tmp_path / "wrong", wrong)
        assert "it refused the connection (Not authorized)" in said
        assert "Check --username, --password-file" in said
        assert "battery staple" not in said


def test_all_of_it_by_flags(files: Files, tmp_path: Path) -> None:
    """As an owner types it: authority, client certificate, user name and password file."""
    chain, key = files.client("device")
    password, state = tmp_path / "password", tmp_path / "state"
    password.write_text(TLS_PASSWORD + "\n")
    flags = ("--ca-file", ca(files), "--username", "device", "--password-file", password)
    server = files.server("localhost")
    with tls_broker("nats", files, server, tmp_path, client_certificates=True) as broker:
        broker.stop()
        only_with_password(broker)
        broker.start()
        url = f"mqtts://localhost:{broker.port}"
        with EdgeClient(state) as client:
            asked = manifest()
            invitation = client.invitation(manifest=asked, broker=url)
            client.join(invitation)
        look = ("doctor", "--state-dir", state, "--credentials-for", url, *flags)
        assert "--cert-file" in edge(*look).stdout
        assert (
            f"{url} answers (encrypted)"
            in edge(*look, "--cert-file", chain, "--key-file", key).stdout
        )


def only_with_password(broker: Broker) -> None:
    """Let nobody in but the one device; to be read at the next start."""
    if isinstance(broker, Nats):
        user = f'{{ user: device, password: "{TLS_PASSWORD}" }}'
        broker.extra = f"authorization {{ users: [ {user} ] }}"
    elif isinstance(broker, Mosquitto):
        salt = os.urandom(12)
        hashed = hashlib.pbkdf2_hmac("sha512", TLS_PASSWORD.encode(), salt, 101)
        words = (b64encode(part).decode() for part in (salt, hashed))
        users = broker.directory / "users"
        users.write_text(f"device:$7$101${'$'.join(words)}\n")
        users.chmod(0o600)
        denied = broker.extra.replace("allow_anonymous true", "allow_anonymous false")
        broker.extra = f"{denied}password_file {users}\n"


def test_a_broker_that_does_not_speak_tls(nats: Nats, tmp_path: Path) -> None:
    said = attempt(nats, tmp_path / "state")
    assert said.startswith(f"the broker mqtts://localhost:{nats.port} cannot be used")


def test_plain_text_leaves_this_machine_only_when_asked_for(tmp_path: Path) -> None:
    asked = tmp_path / "campaign.toml"
    asked.write_text(manifest_text())
    words: tuple[str | Path, ...] = ("join", "--yes", "--state-dir", tmp_path / "state")
    words = (*words, "--manifest", asked, "--broker")
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
