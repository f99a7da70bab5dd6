"""What a broker's configuration says, apart from how one broker or another writes it down."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from collector.brokers.access import Access, Role, access
from protocol_spec.programs.address import BrokerUrl
from protocol_spec.programs.errors import SettingsError

Kind = Literal["mosquitto", "nats"]
Auth = Literal["password", "certificate"]

KINDS: Final[tuple[Kind, ...]] = ("mosquitto", "nats")
AUTHS: Final[tuple[Auth, ...]] = ("password", "certificate")
PORT: Final = 8883
RENEW_DAYS: Final = 240  # a third of the time that a certificate of ours is good for
_EVERYWHERE: Final = ("", "0.0.0.0", "::")  # noqa: S104 - TLS and users guard it
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_NAME: Final = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9-]{1,63}(?<!-))*\.?")
_USER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
LARGEST_PACKET: Final = 1 << 20  # a page of receipts may have this; a report has some twenty bytes


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
    """A broker for one namespace, reachable over TLS and by nobody without a credential.

    `root` is the directory as the broker sees it, which in a container is not where we write it.
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

    def __post_init__(self) -> None:
        """What goes into a broker's files is its access control: nothing odd may get there."""
        object.__setattr__(self, "hosts", tuple(host_name(host) for host in self.hosts))
        if self.bind:
            object.__setattr__(self, "bind", _address(self.bind))
        if self.run_as is not None and not _USER.fullmatch(self.run_as):
            raise SettingsError(f"--run-as {self.run_as!r} is no user's name; nothing was written")
        if not str(self.root).isprintable():
            raise SettingsError(f"{str(self.root)!r} is no usable path; nothing was written")

    @property
    def url(self) -> BrokerUrl:
        """What devices connect to."""
        return BrokerUrl(True, self.hosts[0], self.port)

    @property
    def reachable_at(self) -> str:
        """The address by which the broker's own machine reaches it."""
        return "localhost" if self.bind in _EVERYWHERE else self.bind

    @property
    def certified(self) -> list[str]:
        """What a certificate of our own is for."""
        return list(dict.fromkeys((*self.hosts, *_LOOPBACK, self.reachable_at)))

    @property
    def local_url(self) -> BrokerUrl:
        """What the broker's own machine connects to, without asking a name server."""
        return BrokerUrl(True, self.reachable_at, self.port) if self.own_certificate else self.url

    def access(self, user: User) -> Access:
        """What a user may do."""
        return access(user.role, user.name, self.namespace, home_assistant=self.home_assistant)


def host_name(text: str) -> str:
    """A host's name, or its address in the one way it is written."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        if len(text) <= 253 and _NAME.fullmatch(text):
            return text
    raise SettingsError(
        f"--host {text!r} is no host's name or address; nothing was written. Write it as in "
        "broker.example or 192.168.1.10 (a name with other letters in its xn-- form)"
    )


def _address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise SettingsError(f"--bind {text!r} is no address; nothing was written") from None
