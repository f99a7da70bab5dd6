"""Who may do what at the broker: least privilege, said once for every kind of broker.

A device writes its reports and requests, under its own name and nowhere else, and reads only what
is for all or for itself. A reader, such as a dashboard, reads what is for all and writes nothing
that anybody counts; its name is none that a device can have, so whatever a broker let it write
would not be counted. The collector cannot write reports, only markers, under a name that no device
can have. The auditor, which only `doctor` and the limits of NATS use, may do everything, but only
below names that no campaign can have: there it shows whether the others are kept to their limits.
(On mosquitto all can also read what every device can, because patterns apply to everyone.)
"""

from __future__ import annotations

import ipaddress
import json
import os
import pwd
import re
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, Literal

from collector.links.stream import needed
from collector.settings import StreamAddress
from protocol_spec.programs.settings import BrokerUrl, SettingsError
from protocol_spec.topics import (
    CANARY_CAMPAIGN,
    canary,
    everything_of,
    for_all,
    from_all_devices,
    from_device,
    marker,
    to_device,
)

COLLECTOR: Final = "Collector"  # capitals: no device can have such a name
AUDITOR: Final = "Auditor"
PROBE: Final = "doctor-probe"
READER: Final = "Reader-"  # what every reader's name begins with
READER_PROBE: Final = f"{READER}doctor"
BIRTH: Final = "homeassistant/status"  # where Home Assistant says that it is there, unless changed
EVERY_CAMPAIGN: Final = ("+",)
NO_CAMPAIGN: Final = f"{CANARY_CAMPAIGN}-closed"  # tried as a campaign that was never opened


class Role(StrEnum):
    """What kind of client a name at the broker is."""

    DEVICE = "device"
    COLLECTOR = "collector"
    AUDITOR = "auditor"
    READER = "reader"


@dataclass(frozen=True, slots=True)
class Access:
    """Topic filters, in MQTT's notation."""

    write: tuple[str, ...]
    read: tuple[str, ...]


def access(role: Role, name: str, namespace: str, *, home_assistant: str | None = None) -> Access:
    """What a name in a role may write and read."""
    if role is Role.DEVICE:
        return device_access(name, namespace)
    if role is Role.AUDITOR:
        tried = (CANARY_CAMPAIGN, NO_CAMPAIGN)
        everything = tuple(everything_of(campaign, namespace) for campaign in tried)
        return Access(everything, everything)
    if role is Role.READER:
        return reader_access(namespace, home_assistant)
    discovery = (f"{home_assistant}/device/+/config",) if home_assistant else ()
    return Access(
        (for_all(namespace), to_device("+", namespace), marker(namespace), *discovery),
        (for_all(namespace), *from_all_devices(namespace)),
    )


def reader_access(namespace: str, home_assistant: str | None = None) -> Access:
    """What a reader may do. Home Assistant also says, below its own prefix, that it is there: some
    brokers refuse it as a whole if they refuse its last will."""
    if not home_assistant:
        return Access((), (for_all(namespace),))
    written = dict.fromkeys((f"{home_assistant}/status", BIRTH))
    return Access(tuple(written), (for_all(namespace), f"{home_assistant}/#"))


def device_access(name: str, namespace: str, campaigns: Sequence[str] = EVERY_CAMPAIGN) -> Access:
    """What a device may write, in these campaigns, and read, in every one. `doctor` tries it on a
    topic of its own, which no collector reads."""
    written = [topic for known in campaigns for topic in from_device(name, namespace, known)]
    written.append(canary("up", name, "try", namespace=namespace))
    return Access(tuple(written), (for_all(namespace), to_device(name, namespace)))


# --- What a broker's configuration says, whichever broker's files it becomes.


Kind = Literal["mosquitto", "nats"]
Auth = Literal["password", "certificate"]

KINDS: Final[tuple[Kind, ...]] = ("mosquitto", "nats")
AUTHS: Final[tuple[Auth, ...]] = ("password", "certificate")
PORT: Final = 8883
STREAM_PORT: Final = 4222
CLUSTER_PORT: Final = 6222
REPLICAS: Final = 3  # of everything, in a cluster: one node may be gone, and nothing is lost
RENEW_DAYS: Final = 240  # a third of the time that a server certificate of ours is valid
_EVERYWHERE: Final = ("", "0.0.0.0", "::")  # noqa: S104 - TLS and users guard it
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_NAME: Final = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9-]{1,63}(?<!-))*\.?")
_USER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
LARGEST_PACKET: Final = 1 << 20  # a page of receipts may have this; a report has some twenty bytes
LARGEST_QUEUE: Final = 1 << 27  # what mosquitto keeps for one session: a million larger reports
LARGEST_STORE: Final = 1 << 30  # what NATS keeps for all sessions together, with its own headers
SESSION_DAYS: Final = 30  # as long as the collector asks for


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, as files."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class ServerCertificate:
    """A certificate made elsewhere; `authority` is what devices must trust, if not the system."""

    files: Pair
    authority: Path | None = None


@dataclass(frozen=True, slots=True)
class User:
    """A name the broker knows, with the hash of its password or its certificate's number."""

    name: str
    role: Role
    password: str | None = None
    serial: int | None = None
    revoked: bool = False


@dataclass(frozen=True, slots=True)
class BrokerPlan:
    """A broker for one namespace, reachable over TLS only, and only with a credential.

    `root` is the directory as the broker sees it, which in a container is not where we write it.
    `campaigns` are those that devices may report to; None where they are not known.
    """

    kind: Kind
    namespace: str
    hosts: tuple[str, ...]
    root: Path
    port: int = PORT
    bind: str = ""
    auth: Auth = "password"
    run_as: str | None = None
    home_assistant: str | None = None
    own_certificate: bool = True
    campaigns: tuple[str, ...] | None = None
    stream_port: int | None = None  # NATS's own, at which workers pull reports; off if None
    nodes: tuple[str, ...] = ()  # of a cluster, one machine each; see cluster.py
    cluster_port: int = CLUSTER_PORT

    def __post_init__(self) -> None:
        """These texts go into files that control access: nothing else may be smuggled in."""
        nodes = tuple(host_name(node, "--cluster") for node in self.nodes)
        object.__setattr__(self, "nodes", nodes)
        object.__setattr__(self, "hosts", tuple(host_name(host) for host in self.hosts))
        _check_nodes(self)
        if self.bind:
            object.__setattr__(self, "bind", _address(self.bind))
        if self.run_as is not None and not _USER.fullmatch(self.run_as):
            raise SettingsError(
                f"invalid user name {self.run_as!r} in --run-as; nothing was written"
            )
        if self.stream_port is not None and self.kind != "nats":
            raise SettingsError(
                "--stream-port is NATS's; nothing was written. Workers share what mosquitto brings "
                "by shared subscriptions, without another port"
            )
        if self.stream_port == self.port:
            raise SettingsError(
                "--stream-port and --port are the same; nothing was written. Choose another"
            )
        if self.nodes and self.cluster_port in (self.port, self.stream_port):
            raise SettingsError(
                f"nodes of a cluster use port {self.cluster_port} among themselves, and it is "
                "given for something else; nothing was written. Choose another"
            )
        if not str(self.root).isprintable():
            raise SettingsError(f"invalid path {str(self.root)!r}; nothing was written")

    @property
    def url(self) -> BrokerUrl:
        """What devices connect to."""
        return BrokerUrl(True, self.hosts[0], self.port)

    @property
    def names_campaigns(self) -> bool:
        """Whether the access list says which campaigns devices may report to. mosquitto's does in
        a line each; NATS's would for each device, and NATS retains nothing for devices anyway."""
        return self.kind == "mosquitto"

    @property
    def everywhere(self) -> bool:
        """Whether it listens on every interface of its machine."""
        return self.bind in _EVERYWHERE

    @property
    def reachable_at(self) -> str:
        """The address by which the broker's own machine reaches it."""
        return "localhost" if self.everywhere else self.bind

    @property
    def certified(self) -> list[str]:
        """The names and addresses that a certificate of our own is for."""
        return list(dict.fromkeys((*self.names, *_LOOPBACK, self.reachable_at)))

    @property
    def names(self) -> tuple[str, ...]:
        """Every name by which a client may reach it."""
        return tuple(dict.fromkeys((*self.hosts, *self.nodes)))

    @property
    def replicas(self) -> int:
        """How many nodes keep what it keeps."""
        return REPLICAS if self.nodes else 1

    @property
    def local_url(self) -> BrokerUrl:
        """What clients on the broker's own machine connect to, without asking a name server."""
        if self.nodes or not self.own_certificate:
            return self.url
        return BrokerUrl(True, self.reachable_at, self.port)

    def streams(self, host: str) -> tuple[StreamAddress, ...] | None:
        """Where workers pull reports, by a name of this broker or by those of all nodes; None if
        they cannot."""
        port = self.stream_port
        if port is None:
            return None
        return tuple(StreamAddress(True, name, port) for name in self.nodes or (host,))

    def access(self, user: User) -> Access:
        """What a user may do."""
        return access(user.role, user.name, self.namespace, home_assistant=self.home_assistant)


def _check_nodes(plan: BrokerPlan) -> None:
    """A majority of the nodes must be able to decide."""
    nodes = plan.nodes
    if not nodes:
        return
    if plan.kind != "nats":
        raise SettingsError(
            "--cluster is NATS's; nothing was written. mosquitto is one server: see broker-config "
            "nats --cluster"
        )
    twice = next((node for node in nodes if nodes.count(node) > 1), None)
    if twice is not None:
        raise SettingsError(f"{twice} is twice in --cluster; nothing was written")
    if len(nodes) < REPLICAS or len(nodes) % 2 == 0:
        raise SettingsError(
            f"a cluster of {len(nodes)} is not possible; nothing was written. Name three machines, "
            "or five: what is acknowledged is on three of them, and a majority must live"
        )


def this_user() -> str | None:
    """Whose files are written: a mosquitto that root starts must become that user, because the one
    it becomes otherwise cannot read them. None where a configuration cannot hold the name."""
    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return None
    return name if _USER.fullmatch(name) else None


def host_name(text: str, option: str = "--host") -> str:
    """A host name, or an address in its canonical form."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        if len(text) <= 253 and _NAME.fullmatch(text):
            return text
    raise SettingsError(
        f"invalid host name or address {text!r} in {option}; nothing was written. Write it like "
        "broker.example or 192.168.1.10 (a name with other letters in its xn-- form)"
    )


def address_of(hosts: Sequence[str]) -> str:
    """Where to listen for devices that use these names: at the one address given, if it is this
    machine's; on this machine only, if nobody else could mean it; else on every interface, because
    what a name leads to here need not be where it leads from elsewhere."""
    if set(hosts) <= set(_LOOPBACK):
        return "127.0.0.1" if hosts[0] == "localhost" else hosts[0]
    return hosts[0] if len(hosts) == 1 and _is_ours(hosts[0]) else ""


def _is_ours(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
        family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
        with socket.socket(family) as probe:
            probe.bind((str(address), 0))
    except (ValueError, OSError):
        return False
    return True


def _address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise SettingsError(f"invalid address {text!r} in --bind; nothing was written") from None


# --- mosquitto's configuration, access list and password file.


_HEAD = "# Written by `allomfree-collector broker-config`, anew at every change: do not edit.\n"


def mosquitto_files(plan: BrokerPlan, users: Sequence[User]) -> dict[str, str]:
    """Every file mosquitto reads, by name."""
    written = {"mosquitto.conf": _config(plan), "acl": _access_list(plan, users)}
    if plan.auth == "password":
        written["passwords"] = _passwords(users)
    return written


def _config(plan: BrokerPlan) -> str:
    lines = [
        f"listener {plan.port} {plan.bind}".rstrip(),
        f"certfile {plan.root}/tls/server.crt",
        f"keyfile {plan.root}/tls/server.key",
        *_proof(plan),
        "allow_anonymous false",
        "# A session belongs to a user: nobody can take another's by naming it.",
        "use_username_as_clientid true",
        f"acl_file {plan.root}/acl",
        "# Limits are for everybody: mosquitto has none for one user or one listener.",
        f"max_packet_size {LARGEST_PACKET}",
        "# What waits for a collector that is away: reports are small, and receipts make losses",
        "# harmless, but an overflow costs everybody a second sending.",
        "max_queued_messages 1000000",
        f"max_queued_bytes {LARGEST_QUEUE}",
        f"persistent_client_expiration {SESSION_DAYS}d",
        "max_inflight_messages 2000",
        "persistence true",
        f"persistence_location {plan.root}/data/",
        "autosave_interval 30",
        f"pid_file {plan.root}/broker.pid",
        f"log_dest file {plan.root}/broker.log",
        "log_type error",
        "log_type warning",
        "log_type notice",
        "connection_messages false",
        "sys_interval 0",
    ]
    if plan.run_as:
        lines.append(f"user {plan.run_as}")
    return _HEAD + "\n".join(lines) + "\n"


def _proof(plan: BrokerPlan) -> list[str]:
    """How clients authenticate."""
    if plan.auth == "password":
        return [f"password_file {plan.root}/passwords"]
    return [
        f"cafile {plan.root}/tls/ca.crt",
        f"crlfile {plan.root}/tls/revoked.crl",
        "require_certificate true",
        "use_identity_as_username true",
    ]


def _access_list(plan: BrokerPlan, users: Sequence[User]) -> str:
    """Patterns serve every device; other roles and revoked devices are named. Campaigns are named
    because mosquitto retains what any writer asks it to, on each topic it may write."""
    sections = [section for user in users for section in _named(plan, user)]
    device = device_access("%u", plan.namespace, _campaigns(plan))
    patterns = [f"pattern write {name}" for name in device.write]
    patterns += [f"pattern read {name}" for name in device.read]
    return _HEAD + "\n\n".join([*sections, "\n".join(patterns)]) + "\n"


def _campaigns(plan: BrokerPlan) -> Sequence[str]:
    return EVERY_CAMPAIGN if plan.campaigns is None else plan.campaigns


def _named(plan: BrokerPlan, user: User) -> Iterator[str]:
    if user.revoked:  # also for a connection that is open already
        yield f"user {user.name}\ntopic deny #"
    elif user.role is not Role.DEVICE:
        allowed = plan.access(user)
        own = device_access(user.name, plan.namespace, _campaigns(plan))  # patterns grant it
        lines = [f"user {user.name}"]
        lines += [f"topic deny {name}" for name in own.write]
        lines += [f"topic write {name}" for name in allowed.write]
        lines += [f"topic read {name}" for name in allowed.read]
        yield "\n".join(lines)


def _passwords(users: Sequence[User]) -> str:
    return "".join(f"{user.name}:{user.password}\n" for user in users if not user.revoked)


# --- NATS's configuration: with users and TLS for a network, or without for this machine only.


LIMITED: Final = ("UPDATE.$MQTT_rmsgs", "PURGE.$MQTT_rmsgs", "UPDATE.$MQTT_msgs")
"""What the auditor may do to the streams in which NATS keeps what MQTT asks for; see limits.py."""

SERVER: Final = "allomfree"
RELOAD_SECONDS: Final = 10.0
_RELOADED: Final = b"Reloaded server configuration"
_NOT_RELOADED: Final = b"Failed to reload server configuration"
_OWN_CLIENTS: Final = "127.0.0.1:-1"  # any port of this machine, as the file of ports says
SYNC_SECONDS: Final = 1
"""How often NATS syncs. What it acknowledged survives its own end, kill -9 included, because the
system holds it; a power cut takes the last second or two, and devices send that again, because they
have no receipt for it. Syncing every message would make each cost twenty times as much."""

GO_RUNTIME: Final = {"GOGC": "400", "GOMEMLIMIT": "256MiB"}
"""For the server of ours: it looks for garbage a fourth as often, while it is small. A live report
costs it 14 % less processor time, and the machine counts 11 % more of them (medians of four runs of
100,000, in turns). Whoever has set these in the environment knows better."""

_NATS_HEAD = "# Written by allomfree-collector, anew at every change: do not edit.\n"


def nats_files(
    plan: BrokerPlan, users: Sequence[User], *, server: str = SERVER, more: str = ""
) -> dict[str, str]:
    """Every file NATS reads, by name. In a cluster each server has a name of its own, and more."""
    tls = [f"cert_file: {_text(plan.root / 'tls/server.crt')}"]
    tls += [f"key_file: {_text(plan.root / 'tls/server.key')}"]
    tls += ["timeout: 20   # seconds: small devices on slow lines need more than NATS's two"]
    if plan.auth == "certificate":
        tls += [f"ca_file: {_text(plan.root / 'tls/ca.crt')}", "verify_and_map: true"]
    secured = ["tls {", *(f"  {line}" for line in tls), "}"]
    kept = [f"stream_replicas: {plan.replicas}"] if plan.nodes else []
    body = _server(plan.root, listener(plan, plan.port), [*kept, *secured], server) + more
    if plan.stream_port is not None:
        body = body.replace(_OWN_CLIENTS, listener(plan, plan.stream_port), 1)
        body += "\n".join(["# for workers, which pull reports", *secured, ""])
    return {"nats.conf": f'{body}include "users.conf"\n', "users.conf": _users(plan, users)}


def listener(plan: BrokerPlan, port: int) -> str:
    """Where it listens, for a port."""
    bind = plan.bind or "0.0.0.0"  # noqa: S104 - TLS and users guard it
    return f"[{bind}]:{port}" if ":" in bind else f"{bind}:{port}"


def on_this_machine(directory: Path, host: str, port: int) -> str:
    """A configuration without users, for a listener that no other machine can reach."""
    return _server(directory, f"{host}:{port}", [])


def _server(root: Path, at: str, mqtt: Sequence[str], name: str = SERVER) -> str:
    lines = [
        f"server_name: {_text(name) if name != SERVER else name}",
        f'listen: "{_OWN_CLIENTS}"',
        f"ports_file_dir: {_text(root)}",
        f"log_file: {_text(root / 'broker.log')}",
        "logfile_size_limit: 10MB",
        f"pid_file: {_text(root / 'broker.pid')}",
        f"max_payload: {LARGEST_PACKET}",
        "max_subscriptions: 1000   # of one connection",
        "jetstream {",
        f"  store_dir: {_text(root / 'jetstream')}",
        f'  sync_interval: "{SYNC_SECONDS}s"   # what a power cut costs; devices send it again',
        "}",
        "mqtt {",
        f"  listen: {_text(at)}",
        "  max_ack_pending: 20000",
        "  reject_qos2_publish: true   # it would store them until they are released",
        "  downgrade_qos2_subscribe: true",
        f'  consumer_inactive_threshold: "{SESSION_DAYS * 24}h"',
        *(f"  {line}" for line in mqtt),
        "}",
    ]
    return _NATS_HEAD + "\n".join(lines) + "\n"


def _users(plan: BrokerPlan, users: Sequence[User]) -> str:
    rows = "\n".join(_user(plan, user) for user in users if not user.revoked)
    return f"{_NATS_HEAD}authorization {{\n  timeout: 30\n  users: [\n{rows}\n  ]\n}}\n"


def _user(plan: BrokerPlan, user: User) -> str:
    allowed = plan.access(user)
    write = [s for name in allowed.write for s in subjects(name)]
    read = [s for name in allowed.read for s in subjects(name)]
    if user.role is Role.AUDITOR:
        write += [f"$JS.API.STREAM.{limited}" for limited in LIMITED]
    types = ["MQTT"]
    if user.role is Role.COLLECTOR and plan.stream_port is not None:
        types.append("STANDARD")
        more_write, more_read = needed(plan.namespace)
        write, read = write + more_write, read + more_read
    if plan.auth == "certificate":
        proof = f"user: {_text(f'CN={user.name}')}"
    else:
        proof = f"user: {_text(user.name)}, password: {_text(user.password or '')}"
    return (
        f"    {{ {proof}, allowed_connection_types: {json.dumps(types)}, permissions: {{\n"
        f"      publish: {{ allow: {json.dumps(write)} }}\n"
        f"      subscribe: {{ allow: {json.dumps(read)} }} }} }}"
    )


def subjects(topic_filter: str) -> list[str]:
    """A topic filter as NATS subjects; `a/#` also means `a` itself."""
    subject = topic_filter.replace("/", ".").replace("+", "*")
    if subject.endswith(".#"):
        return [f"{subject[:-1]}>", subject[:-2]]
    return [subject]


def has_reloaded(log: Path, size: int, seconds: float = RELOAD_SECONDS) -> bool:
    """Whether NATS took its files over: it refuses some changes, and says so only in its log.

    `size` is what the log had before NATS was asked; a smaller one was begun anew.
    """
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        said = _said_since(log, size)
        if _NOT_RELOADED in said:
            return False
        if _RELOADED in said:
            return True
        time.sleep(0.05)
    return False


def _said_since(log: Path, size: int) -> bytes:
    try:
        with log.open("rb") as file:
            file.seek(size if log.stat().st_size >= size else 0)
            return file.read()
    except OSError:
        return b""


def _text(value: object) -> str:
    return json.dumps(str(value))
