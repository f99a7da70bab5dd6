"""What a broker's configuration says, whichever broker's files it becomes."""

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
RENEW_DAYS: Final = 240  # a third of the time that a server certificate of ours is valid
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
    """A broker for one namespace, reachable over TLS only, and only with a credential.

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
        """These texts go into files that control access: nothing else may be smuggled in."""
        object.__setattr__(self, "hosts", tuple(host_name(host) for host in self.hosts))
        if self.bind:
            object.__setattr__(self, "bind", _address(self.bind))
        if self.run_as is not None and not _USER.fullmatch(self.run_as):
            raise SettingsError(
                f"invalid user name {self.run_as!r} in --run-as; nothing was written"
            )
        if not str(self.root).isprintable():
            raise SettingsError(f"invalid path {str(self.root)!r}; nothing was written")

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
        """The names and addresses that a certificate of our own is for."""
        return list(dict.fromkeys((*self.hosts, *_LOOPBACK, self.reachable_at)))

    @property
    def local_url(self) -> BrokerUrl:
        """What clients on the broker's own machine connect to, without asking a name server."""
        return BrokerUrl(True, self.reachable_at, self.port) if self.own_certificate else self.url

    def access(self, user: User) -> Access:
        """What a user may do."""
        return access(user.role, user.name, self.namespace, home_assistant=self.home_assistant)


def host_name(text: str) -> str:
    """A host name, or an address in its canonical form."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        if len(text) <= 253 and _NAME.fullmatch(text):
            return text
    raise SettingsError(
        f"invalid host name or address {text!r} in --host; nothing was written. Write it like "
        "broker.example or 192.168.1.10 (a name with other letters in its xn-- form)"
    )


def _address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise SettingsError(f"invalid address {text!r} in --bind; nothing was written") from None
