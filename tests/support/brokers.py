"""Brokers as `broker-config` writes them, clients of plain paho, shared brokers, and certificates.

Nothing here uses the product's own probe or link: what judges the access list must not share its
mistakes.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import ssl
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Self

import paho.mqtt.client as mqtt
import pytest
import trustme
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from collector.brokers.auditor import limit_nats
from collector.brokers.config import Auth, BrokerPlan, Kind
from collector.brokers.directory import BrokerDirectory
from protocol_spec.programs.invitation import read_invitation
from protocol_spec.programs.settings import Credentials
from testbed.brokers import AS_OURSELVES, BROKERS, Broker, Mosquitto, Nats, leave, stop
from testbed.processes import find_program, free_port
from tests.support.harness import need

V311: Final = MQTTProtocolVersion.MQTTv311
V5: Final = MQTTProtocolVersion.MQTTv5
# mosquitto started by root would become another user, who may not read the test's files.
RUN_AS: Final = "root" if os.geteuid() == 0 else None
CAMPAIGN: Final = "heat-0123abcd"
ROOT: Final = f"allomfree/v1/{CAMPAIGN}"
PATIENCE: Final = 20.0

NEEDS_MOSQUITTO: Final = pytest.mark.needs("mosquitto")


@dataclass(frozen=True, slots=True)
class Setup:
    """A kind of broker, how its clients authenticate, and their MQTT version."""

    kind: Kind
    auth: Auth
    version: MQTTProtocolVersion = V311

    def __str__(self) -> str:
        older = "" if self.kind == "nats" else f"-{5 if self.version == V5 else 311}"
        return f"{self.kind}-{self.auth}{older}"


def setups(*chosen: Setup) -> list[Any]:
    """Parameters for a test; those of mosquitto are skipped if it is not installed."""
    marks = {"nats": (), "mosquitto": (NEEDS_MOSQUITTO,)}
    return [pytest.param(setup, id=str(setup), marks=marks[setup.kind]) for setup in chosen]


BOTH: Final = setups(
    Setup("nats", "password"),
    Setup("nats", "certificate"),
    Setup("mosquitto", "password", V5),
    Setup("mosquitto", "certificate", V5),
)
PASSWORDS: Final = BOTH[::2]
CERTIFICATES: Final = BOTH[1::2]
NATS: Final = BOTH[:2]
EVERY: Final = [
    *BOTH,
    *setups(Setup("mosquitto", "password", V311), Setup("mosquitto", "certificate", V311)),
]


def plan(setup: Setup, directory: Path, **options: Any) -> BrokerPlan:
    """A broker on this machine, on a port of its own."""
    known: dict[str, Any] = {"hosts": ("localhost",), "port": free_port(), "bind": "127.0.0.1"}
    known |= {"run_as": RUN_AS, "auth": setup.auth, **options}
    return BrokerPlan(setup.kind, "allomfree", root=directory, **known)


def credentials_of(configured: BrokerDirectory, name: str) -> Credentials:
    """A device's, from its invitation; or one of the directory's own."""
    file = configured.path / "invitations" / f"{name}.invitation"
    if not file.exists():
        return configured.credentials(name)
    return read_invitation(file).store(configured.path.with_name("carried") / name)


class ConfiguredBroker(Broker):
    """A configured broker; the files are those of the product, unless a test spoils them."""

    def __init__(self, setup: Setup, directory: Path, *names: str, limited: bool = True) -> None:
        self.setup = setup
        self._limited = limited
        if not BrokerDirectory.exists(directory):
            BrokerDirectory.configure(directory, plan(setup, directory))
        super().__init__(directory, BrokerDirectory.load(directory).plan.port)
        if names:
            self.configured.enrol(names)

    def start(self) -> None:
        """Start it as the product does: a client sets NATS's limits."""
        super().start()
        if self.setup.kind == "nats" and self._limited:
            limit_nats(self.configured)

    @property
    def configured(self) -> BrokerDirectory:
        return BrokerDirectory.load(self.directory)

    @property
    def config(self) -> Path:
        return self.directory / f"{self.setup.kind}.conf"

    def configured_command(self) -> list[str]:
        program = find_program({"nats": "nats-server"}.get(self.setup.kind, self.setup.kind))
        assert program, f"{self.setup.kind} is not installed"
        return [program, "-c", str(self.config)]

    def spoil(self, file: str, old: str, new: str) -> None:
        """Change one of the broker's files behind the product's back, before it starts."""
        path = self.directory / file
        text = path.read_text()
        assert old in text, text
        path.write_text(text.replace(old, new))

    def hurry(self) -> Self:
        """Let NATS find out in one second instead of five that it cannot retain a message."""
        if self.setup.kind == "nats":
            self.spoil("nats.conf", "mqtt {", 'mqtt {\n  js_api_timeout: "1s"')
        return self

    def credentials(self, name: str) -> Credentials:
        return credentials_of(self.configured, name)

    def context(self, name: str | None, authority: Path | None = None) -> ssl.SSLContext:
        """What a name needs for TLS, trusting our authority if none is given."""
        trusted = authority or self.directory / "tls" / "ca.crt"
        context = ssl.create_default_context(cafile=str(trusted))
        if name is not None and self.setup.auth == "certificate":
            known = self.credentials(name)
            assert known.cert_file
            context.load_cert_chain(known.cert_file, known.key_file)
        return context

    def client(self, name: str | None, /, **options: Any) -> BrokerClient:
        """A client with the credential of a name, not yet connected; None has none."""
        password = None if name is None else self.credentials(name).password
        options = {"name": name, "password": password} | options
        if "context" not in options:
            options["context"] = self.context(name)
        return BrokerClient(self.port, options.pop("version", self.setup.version), **options)

    def admits(self, name: str) -> bool:
        """Whether a client with this credential can connect."""
        client = self.client(name)
        connected = client.connect()
        client.disconnect()
        return connected


class BrokerClient:
    """A client that remembers what it received and how the broker answered."""

    def __init__(
        self,
        port: int,
        version: MQTTProtocolVersion,
        *,
        name: str | None,
        password: str | None,
        context: ssl.SSLContext | None,
        client_id: str = "",
        clean: bool = True,
        will: tuple[str, bytes] | None = None,
        host: str = "localhost",
    ) -> None:
        self.received: list[tuple[str, bytes]] = []
        self.lost = False
        self.session_present = False
        self._address = host, port
        self._changed = threading.Condition()
        self._answers: dict[str, bool] = {}
        self._options: dict[str, Any] = {}
        if version == V5:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = 0 if clean else 3600
            self._options = {"clean_start": clean, "properties": properties}
        older: dict[str, Any] = {} if version == V5 else {"clean_session": clean}
        self._client = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            client_id or f"test-{os.urandom(8).hex()}",
            protocol=version,
            reconnect_on_failure=False,
            **older,
        )
        if name is not None:
            self._client.username_pw_set(name, password)
        if context is not None:
            self._client.tls_set_context(context)
        if will is not None:
            self._client.will_set(*will, qos=1, retain=True)
        self._client.on_connect = self._on_connect
        self._client.on_disconnect = self._on_disconnect
        self._client.on_subscribe = self._on_subscribe
        self._client.on_unsubscribe = lambda _c, _d, mid, *_: self._note(f"unsub {mid}", True)
        self._client.on_publish = self._on_publish
        self._client.on_message = self._on_message

    def __enter__(self) -> Self:
        assert self.connect(), "the broker refused the connection"
        return self

    def __exit__(self, *_: object) -> None:
        self.disconnect()

    def connect(self) -> bool:
        """Whether the broker accepted us. With TLS 1.3 a refused certificate is noticed only after
        the handshake, as the end of the connection."""
        try:
            self._client.connect(*self._address, **self._options)
        except OSError:
            return False
        self._client.loop_start()
        if not self._answer("connected"):
            stop(self._client)
            return False
        return True

    def disconnect(self) -> None:
        leave(self._client)

    def drop(self) -> None:
        """Cut the connection without a DISCONNECT, so that the broker sends the last will."""
        sock = self._client.socket()
        assert isinstance(sock, socket.socket)
        sock.shutdown(socket.SHUT_RDWR)
        stop(self._client)

    def subscribe(self, *filters: str, qos: int = 0) -> list[bool]:
        """What the broker granted, which need not mean much. A message has been handed to
        subscribers of QoS 0 when its publisher has the broker's answer: so nothing that is
        published afterwards overtakes it."""
        granted = []
        for name in filters:
            code, mid = self._client.subscribe(name, qos)
            assert code == mqtt.MQTT_ERR_SUCCESS
            granted.append(bool(self._answer(f"sub {mid}")))
        return granted

    def unsubscribe(self, *filters: str) -> None:
        _, mid = self._client.unsubscribe(list(filters))
        self._answer(f"unsub {mid}")

    def publish(self, topic: str, payload: bytes = b"", *, retain: bool = False) -> bytes:
        """Publish a payload, a unique one if none is given, and wait for the broker's answer."""
        payload = payload or os.urandom(8).hex().encode()
        mid = self._client.publish(topic, payload, 1, retain).mid
        self._answer(f"pub {mid}")
        return payload

    def receives(self, payload: bytes) -> bool:
        """Whether it arrives in time, on this connection."""
        with self._changed:
            self._changed.wait_for(lambda: self.lost or payload in self.payloads, PATIENCE)
        return payload in self.payloads

    @property
    def payloads(self) -> set[bytes]:
        return {payload for _, payload in list(self.received)}

    @property
    def topics(self) -> set[str]:
        return {topic for topic, _ in list(self.received)}

    def wait_for(self, done: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(done, PATIENCE), self.received

    def _answer(self, key: str) -> bool | None:
        """The broker's answer; None if the connection ended instead."""
        self.wait_for(lambda: self.lost or key in self._answers)
        return self._answers.pop(key, None)

    def _note(self, key: str, value: bool) -> None:
        with self._changed:
            self._answers[key] = value
            self._changed.notify_all()

    def _on_connect(self, _c: Any, _d: Any, flags: Any, code: Any, _p: Any) -> None:
        self.session_present = bool(flags.session_present)
        self._note("connected", not code.is_failure)

    def _on_disconnect(self, *_: Any) -> None:
        with self._changed:
            self.lost = True
            self._changed.notify_all()

    def _on_subscribe(self, _c: Any, _d: Any, mid: int, codes: Any, _p: Any) -> None:
        self._note(f"sub {mid}", not any(code.is_failure for code in codes))

    def _on_publish(self, _c: Any, _d: Any, mid: int, code: Any, _p: Any) -> None:
        self._note(f"pub {mid}", not code.is_failure)

    def _on_message(self, _c: Any, _d: Any, message: mqtt.MQTTMessage) -> None:
        with self._changed:
            self.received.append((message.topic, bytes(message.payload)))
            self._changed.notify_all()


def broker_config(setup: Setup, data: Path, *more: str | Path) -> tuple[str | Path, ...]:
    """The command for a broker on this machine, as a person types it."""
    words = ("broker-config", setup.kind, "--auth", setup.auth, "--data-dir", data)
    as_whom = ("--run-as", RUN_AS) if RUN_AS else ()
    return (*words, "--bind", "127.0.0.1", *as_whom, *more)


def users_of(directory: Path) -> dict[str, dict[str, Any]]:
    stored = json.loads((directory / "broker.json").read_text())
    return {user["name"]: user for user in stored["users"]}


# --- brokers that are started once per worker; tests use namespaces of their own ------------------


class QuickNats(Nats):
    """Delivers again after a second, not half a minute, what was not acknowledged.

    On a busy machine that may be something a collector is just about to acknowledge.
    """

    listener = 'ack_wait: "1s"'


KINDS: Final[dict[str, type[Broker]]] = {
    "nats": Nats,
    "quick nats": QuickNats,
    "mosquitto": Mosquitto,
}


def new_broker(name: str, place: Path) -> Broker:
    """A broker, not started yet."""
    if name == "mosquitto":
        need("mosquitto")
    return KINDS[name](place)


class SharedBrokers:
    """Started when first asked for; nobody may stop them."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._running: dict[str, Broker] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def get(self, name: str) -> Broker:
        if name not in self._running:
            made = new_broker(name, self._place / name)
            self._running[name] = self._stack.enter_context(made)
        return self._running[name]


# --- certificates: good ones, and one for each way of being wrong ---------------------------------


# What a client says of each: broker's certificate for localhost, except where that is the fault.
FAULTS = {
    "wrong name": "Hostname mismatch, certificate is not valid for 'localhost'",
    "wrong address": "IP address mismatch, certificate is not valid for '127.0.0.1'",
    "self-signed": "self-signed certificate",
    "another authority": "unable to get local issuer certificate",
    "expired": "certificate has expired",
}


@dataclass
class Files:
    directory: Path
    ca: trustme.CA

    @classmethod
    def made(cls, directory: Path) -> Self:
        """An authority of one's own; what to trust is `ca.pem`."""
        made = cls(directory, trustme.CA())
        made.pem("ca.pem", made.ca.cert_pem)
        return made

    def pem(self, name: str, *blobs: trustme.Blob) -> Path:
        path = self.directory / name
        path.write_bytes(b"".join(blob.bytes() for blob in blobs))
        return path

    def server(
        self, *names: str, ca: trustme.CA | None = None, days: int = 30
    ) -> tuple[Path, Path]:
        """Certificate chain and key for a broker of that name."""
        until = datetime.now(UTC) + timedelta(days=days)
        issued = (ca or self.ca).issue_cert(
            *names, not_before=until - timedelta(60), not_after=until
        )
        chain = self.pem("server.pem", *issued.cert_chain_pems)
        return chain, self.pem("server.key", issued.private_key_pem)

    def client(self, name: str) -> tuple[Path, Path]:
        issued = self.ca.issue_cert(name, common_name=name)
        chain = self.pem("client.pem", *issued.cert_chain_pems)
        return chain, self.pem("client.key", issued.private_key_pem)

    def self_signed(self) -> tuple[Path, Path]:
        alone = trustme.CA()
        return self.pem("server.pem", alone.cert_pem), self.pem("server.key", alone.private_key_pem)

    def faulty(self, fault: str) -> tuple[Path, Path]:
        if fault == "self-signed":
            return self.self_signed()
        name = "elsewhere.example" if fault == "wrong name" else "localhost"
        ca = trustme.CA() if fault == "another authority" else self.ca
        return self.server(name, ca=ca, days=-1 if fault == "expired" else 30)


# --- Brokers with one certificate and at most one user, for tests of the agent's connection.


@contextmanager
def tls_broker(
    kind: str,
    files: Files,
    server: tuple[Path, Path],
    directory: Path,
    *,
    client_certificates: bool = False,
    password: str | None = None,
) -> Iterator[Broker]:
    """A real broker with this certificate; with a password it admits nobody but `device`."""
    (chain, key), ca = server, files.directory / "ca.pem"
    broker = BROKERS[kind](directory)
    if isinstance(broker, Mosquitto):
        need("mosquitto")
        broker.extra = (
            f"cafile {ca}\ncertfile {chain}\nkeyfile {key}\n"
            f"require_certificate {str(client_certificates).lower()}\n{AS_OURSELVES}"
            f"allow_anonymous {str(password is None).lower()}\n"
        )
        if password is not None:
            broker.extra += f"password_file {mosquitto_users(directory, 'device', password)}\n"
    elif isinstance(broker, Nats):
        verify = f'ca_file: "{ca}", verify: true' if client_certificates else ""
        broker.listener = f'tls {{ cert_file: "{chain}", key_file: "{key}", {verify} }}'
        if password is not None:
            user = f'{{ user: device, password: "{password}" }}'
            broker.extra = f"authorization {{ users: [ {user} ] }}"
    with broker as running:
        yield running


def mosquitto_users(directory: Path, user: str, password: str) -> Path:
    """A password file with one user."""
    salt = os.urandom(12)
    hashed = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, 101)
    words = "$".join(b64encode(part).decode() for part in (salt, hashed))
    directory.mkdir(parents=True, exist_ok=True)
    users = directory / "users"
    users.write_text(f"{user}:$7$101${words}\n")
    users.chmod(0o600)
    return users
