"""What a broker's configuration says, whichever broker's files it becomes."""

from __future__ import annotations

import ipaddress
import os
import pwd
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from collector.brokers.access import Access, Role, access
from collector.settings import StreamAddress
from protocol_spec.programs.address import BrokerUrl
from protocol_spec.programs.errors import SettingsError

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
