"""Credentials are shown to the broker they are for, and to no other (P2); TLS verifies (R18)."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from edge_client import Credentials, EdgeClient
from edge_client.link import PahoLink, connect
from protocol_spec import Topics
from protocol_spec.programs.mqtt import MQTT_311
from protocol_spec.programs.settings import parse_broker
from testbed.brokers import Broker, Nats
from tests.support.agents import AgentProcess, edge
from tests.support.brokers import FAULTS, Files, tls_broker
from tests.support.campaigns import manifest, second_manifest
from tests.support.edge import QUICK, tick_until
from tests.support.network import DISCONNECT, PUBLISH, SUBSCRIBE, Peer, Proxy, Wire

# paho does not close the socket of a failed handshake; it ends when nothing refers to it any more.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

PASSWORD: Final = "correct-horse"  # noqa: S105 - of brokers that live for a second
TAKEN: Final = "taken"
KINDS = pytest.mark.parametrize("kind", ["mosquitto", "nats"])


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files.made(tmp_path_factory.mktemp("tls"))


def ca(files: Files) -> str:
    return str(files.directory / "ca.pem")


# --- P2 -------------------------------------------------------------------------------------------


class Stranger:
    """A broker that notes all that it is sent, and offers a campaign to whoever asks."""

    def __init__(self) -> None:
        self.offered = second_manifest(slug=f"t-{os.urandom(4).hex()}")
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

    def saw_no_secret(self) -> bool:
        seen = b" ".join((*self.connects, *(topic.encode() for topic in self.topics)))
        return bool(self.connects) and b"device" not in seen and PASSWORD.encode() not in seen


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "password").write_text(PASSWORD)
    file = tmp_path / "edge.toml"
    file.write_text(
        f'state_dir = "{tmp_path / "state"}"\nusername = "device"\n'
        f'password_file = "{tmp_path / "password"}"\ncredentials_for = "mqtts://broker.example"\n'
        '[sources.fuel]\nvalue = "wood"\n'
    )
    return file


def test_every_command_shows_them_to_no_other_broker(config: Path) -> None:
    stranger = Stranger()
    with Peer(stranger) as peer:
        address = f"{peer.url}/allomfree/{stranger.offered.campaign}"
        preview = edge("join", address, "--preview", "--config", config)
        assert "they are not shown to this one" in " ".join(preview.stdout.split())
        joined = edge("join", address, "--yes", "--config", config)
        assert joined.returncode == 0, joined.stderr
        edge("report", "--timeout", "1", "--config", config)
        doctor = edge("doctor", "--config", config).stdout
        assert "yours are shown to mqtts://broker.example:8883 and no other" in doctor
        with AgentProcess(config) as agent:
            agent.wait_for("connected to")
        assert edge("forget", "--yes", "--timeout", "0.2", "--config", config).returncode == 0
    assert len(stranger.connects) >= 6
    assert stranger.topics
    assert stranger.saw_no_secret()


@KINDS
def test_the_right_broker_gets_them_and_another_one_does_not(
    kind: str, config: Path, files: Files, tmp_path: Path
) -> None:
    """Both at once, in one agent; the right one was joined with the password."""
    asked, stranger = second_manifest(slug=f"t-{os.urandom(4).hex()}"), Stranger()
    server = files.server("localhost")
    with (
        tls_broker(kind, files, server, tmp_path / kind, password=PASSWORD) as broker,
        Peer(stranger) as peer,
    ):
        url = f"mqtts://localhost:{broker.port}"
        text = config.read_text().replace("mqtts://broker.example", url)
        config.write_text(f'ca_file = "{ca(files)}"\n{text}')
        secrets = Credentials("device", PASSWORD, ca(files))
        with EdgeClient(tmp_path / "state", credentials=secrets) as client:
            client.join(client.invitation(manifest=asked, broker=url))
            assert client.find().device == "device"
            joined = client.join(f"{peer.url}/allomfree/{stranger.offered.campaign}")
            assert joined.device != "device"
        with AgentProcess(config) as agent:
            agent.wait_for(f"connected to {url}")
            agent.wait_for(f"connected to {peer.url}")
    assert stranger.saw_no_secret()


# --- R18: against real brokers the right certificates and passwords work, each wrong one says why -


def attempt(
    broker: Broker, state: Path, credentials: Credentials | None = None, host: str = "localhost"
) -> str:
    """What becomes of a report: TAKEN by the broker, or the owner's message why not."""
    points: list[str] = []
    with EdgeClient(state, credentials=credentials, timing=QUICK, trace=points.append) as client:
        url = f"mqtts://{host}:{broker.port}"
        client.join(client.invitation(manifest=manifest(), broker=url), device="device")
        client.agent.draw(client.find(), lambda _: "gas")
        with closing(client.runner(lambda _: "gas")) as runner:
            tick_until(runner, lambda: "acknowledged" in points or bool(runner.delivery.trouble()))
            return runner.delivery.trouble() or TAKEN


@KINDS
def test_the_right_authority_and_password(kind: str, files: Files, tmp_path: Path) -> None:
    server = files.server("localhost")
    with tls_broker(kind, files, server, tmp_path / kind, password=PASSWORD) as broker:
        right = Credentials("device", PASSWORD, ca(files))
        assert attempt(broker, tmp_path / "right", right) == TAKEN
        assert "its certificate is not trusted" in attempt(broker, tmp_path / "the system's")
        wrong = Credentials("device", "battery staple", ca(files))
        message = attempt(broker, tmp_path / "wrong", wrong)
        assert "it refused the connection (Not authorized)" in message
        assert "Check --username, --password-file" in message
        assert "battery staple" not in message


@KINDS
@pytest.mark.parametrize(("fault", "reason"), FAULTS.items())
def test_a_certificate_that_is_not_trusted(
    kind: str, fault: str, reason: str, files: Files, tmp_path: Path
) -> None:
    host = "127.0.0.1" if fault == "wrong address" else "localhost"
    with tls_broker(kind, files, files.faulty(fault), tmp_path / kind) as broker:
        message = attempt(broker, tmp_path / "state", Credentials(ca_file=ca(files)), host)
    assert message.startswith(f"the broker mqtts://{host}")
    assert "its certificate is not trusted" in message
    assert reason in message


@KINDS
def test_mutual_tls(kind: str, files: Files, tmp_path: Path) -> None:
    """Also as an owner types it: authority, client certificate, user name and password file."""
    chain, key = map(str, files.client("device"))
    (password := tmp_path / "password").write_text(PASSWORD + "\n")
    server, state = files.server("localhost"), tmp_path / "with"
    with tls_broker(
        kind, files, server, tmp_path / kind, client_certificates=True, password=PASSWORD
    ) as broker:
        url = f"mqtts://localhost:{broker.port}"
        mine = Credentials("device", PASSWORD, ca(files), chain, key)
        assert attempt(broker, state, mine) == TAKEN
        message = attempt(broker, tmp_path / "without", Credentials(ca_file=ca(files)))
        assert message.startswith(f"the broker {url} cannot be used")
        assert "--cert-file" in message
        flags = ("--ca-file", ca(files), "--username", "device", "--password-file", password)
        doctor = ("doctor", "--state-dir", state, "--credentials-for", url, *flags)
        assert "--cert-file" in edge(*doctor).stdout
        complete = edge(*doctor, "--cert-file", chain, "--key-file", key)
        assert f"{url} answers (encrypted)" in complete.stdout


@KINDS
@pytest.mark.parametrize("certificate", [False, True])
def test_a_process_that_connects_again_resumes_tls(
    kind: str, certificate: bool, files: Files, tmp_path: Path
) -> None:
    """Certificates pass once; each session is used once, and renewed."""
    mine = map(str, files.client("device")) if certificate else (None, None)
    credentials = Credentials(None, None, ca(files), *mine)
    server = files.server("localhost")
    with (
        tls_broker(kind, files, server, tmp_path, client_certificates=certificate) as broker,
        Proxy(broker.port) as proxy,
    ):
        url = parse_broker(f"mqtts://localhost:{proxy.port}")
        passed = list[int]()
        for _ in range(3):
            with closing(PahoLink(url, credentials, version=MQTT_311)) as link:
                connect(link)
                passed.append(sum(c.sent + c.received for c in proxy.connections) - sum(passed))
    assert passed[1] == passed[2] < passed[0] - 400, passed


def test_a_broker_that_does_not_speak_tls(nats: Nats, tmp_path: Path) -> None:
    message = attempt(nats, tmp_path / "state")
    assert message.startswith(f"the broker mqtts://localhost:{nats.port} cannot be used")
