"""What a broker's configuration says, apart from how one broker or another writes it down."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from collector.brokers.access import Access, Role, access
from protocol_spec.common.address import BrokerUrl

Kind = Literal["mosquitto", "nats"]
Auth = Literal["password", "certificate"]

KINDS: Final[tuple[Kind, ...]] = ("mosquitto", "nats")
AUTHS: Final[tuple[Auth, ...]] = ("password", "certificate")
PORT: Final = 8883
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

    @property
    def url(self) -> BrokerUrl:
        """What devices connect to."""
        return BrokerUrl(True, self.hosts[0], self.port)

    @property
    def local_url(self) -> BrokerUrl:
        """What the broker's own machine connects to, without asking a name server."""
        return BrokerUrl(True, "localhost", self.port) if self.own_certificate else self.url

    def access(self, user: User) -> Access:
        """What a user may do."""
        return access(user.role, user.name, self.namespace, home_assistant=self.home_assistant)
