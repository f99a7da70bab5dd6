"""Credentials are shown to the broker they are for, and to no other (P2)."""

from __future__ import annotations

import hashlib
import os
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from edge_client import Credentials, EdgeClient
from protocol_spec import Manifest, Topics
from testbed.brokers import AS_OURSELVES, Broker, Mosquitto, Nats
from tests.support.campaigns import second_manifest
from tests.support.edge_processes.processes import AgentProcess, edge
from tests.support.harness import need
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
