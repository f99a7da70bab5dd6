"""One connection to a broker: what the agent needs of it, the adapter to paho, and which broker is
shown which credentials.

One `Link` is one connection; a new connection is a new `Link`, so an answer can never be taken for
that of an earlier one. It runs in the caller's thread: `step` waits for the network and returns
what arrived, callbacks only collect. There is no network thread that could die unnoticed, and no
lock to take inside a callback.

`PahoLink` is the real one. The contract test runs over it and over `MemoryBroker.link` of
protocol_spec.programs.memory_broker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Final, Protocol

from edge_client.credentials import Remembered
from edge_client.errors import BrokerUnreachable, SettingsError, as_edge_errors
from edge_client.records import Treatment
from protocol_spec.programs.mqtt import CONNECT_SECONDS, MQTT_5, ClientLink, Version
from protocol_spec.programs.packets import Message
from protocol_spec.programs.settings import BrokerUrl, Credentials
from protocol_spec.programs.system import random_client_id

WINDOW: Final = 20
BATCH: Final = 1_000  # packets of one step
LEAVING_SECONDS: Final = 2.0  # for answers to the last publishes


class Link(Protocol):
    """One connection, run step by step in the caller's thread."""

    version: Version

    @property
    def broker(self) -> BrokerUrl: ...

    @property
    def ready(self) -> bool:
        """Whether the broker has accepted the connection, also after its end."""

    @property
    def lost(self) -> str | None:
        """Why there is no connection, or none any more, as a whole sentence; else None."""

    @property
    def free(self) -> int:
        """The number of further messages that may be unacknowledged at once."""

    def start(self) -> None:
        """Reach the broker and ask to be connected; after a `step` it is `ready` or `lost`.

        Raises `BrokerUnreachable` when it cannot even be reached. A broker that is reached but does
        not answer must not keep the caller waiting.
        """

    def subscribe(self, filters: Iterable[str]) -> None:
        """Ask for messages with QoS 0: all that an agent reads is retained or repeated."""

    def unsubscribe(self, filters: Iterable[str]) -> None:
        """Ask for no more of these; what is on its way still comes."""

    def publish(self, topic: str, payload: bytes) -> int:
        """Hand a message to the broker, QoS 1; the returned number comes back from `answers`.

        It never expires: what a broker has taken it keeps until the collector is back (F2), and
        the time left until a deadline would show the device's clock (P5).
        """

    def step(self, timeout_seconds: float) -> list[Message]:
        """Let the network run for up to that long and return what arrived."""

    def answers(self) -> dict[int, str | None]:
        """Publishes the broker has answered since the last call; with its reason if it refused
        (MQTT 5)."""

    def close(self) -> None:
        """Disconnect, as far as the broker still listens; first wait a moment for its answers."""


class MakeLink(Protocol):
    """Makes a link that is not started yet: `PahoLink`, or a `MemoryBroker`'s `link`."""

    def __call__(
        self, broker: BrokerUrl, credentials: Credentials, *, keepalive: int, version: Version
    ) -> Link: ...


def connect(link: Link) -> None:
    """Start a link and wait for the broker's answer. Raises `BrokerUnreachable` saying why not."""
    link.start()
    while not link.ready:
        link.step(0.1)
        if link.lost is not None:
            raise BrokerUnreachable(link.lost)


class PahoLink(ClientLink):
    """A connection over TCP or TLS, in a session that ends with it."""

    def __init__(
        self,
        broker: BrokerUrl,
        credentials: Credentials,
        *,
        keepalive: int = 60,
        version: Version = MQTT_5,
        answer_seconds: float = CONNECT_SECONDS,
    ) -> None:
        super().__init__(
            broker,
            credentials,
            client_id=random_client_id("edge"),
            keepalive=keepalive,
            version=version,
            window=WINDOW,
            answer_seconds=answer_seconds,
        )

    def subscribe(self, filters: Iterable[str]) -> None:
        for name in filters:
            self._client.subscribe(name, qos=0)

    def unsubscribe(self, filters: Iterable[str]) -> None:
        for name in filters:
            self._client.unsubscribe(name)
        self._client.flush()

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> int:
        """Send a PUBLISH without any property."""
        number = super().publish(topic, payload, retain=retain)
        self._client.flush()
        return number

    def step(self, timeout_seconds: float) -> list[Message]:
        arrived: list[Message] = []
        self._turn(timeout_seconds, arrived, BATCH)
        return arrived

    def close(self) -> None:
        """A broker may drop what it has not answered when the connection ends."""
        limit = time.monotonic() + LEAVING_SECONDS
        while self.ready and self.lost is None and self._unanswered and time.monotonic() < limit:
            self.step(0.1)
        self._client.disconnect()
        if self._client.socket() is not None:
            self.step(0.0)


@dataclass(frozen=True, slots=True)
class Connector:
    """The one place where a connection is made: in plain text only if the owner allows it (R18),
    and with credentials only to the brokers they are for (P2).

    `brokers` are those that the credentials are for, as texts; None while nobody has said so.
    `remembered` is what `join` was given for one broker; what is set for it now comes first.
    """

    credentials: Credentials
    allow_plaintext: bool = False
    keepalive: int = 60
    make_link: MakeLink = PahoLink
    brokers: Callable[[], Collection[str] | None] = lambda: None
    remembered: Callable[[BrokerUrl], Remembered | None] = lambda _broker: None

    @as_edge_errors()
    def link(self, broker: BrokerUrl, version: Version = MQTT_5) -> Link:
        """A link, not started yet. Raises `SettingsError` if others could read the traffic."""
        broker.check_plaintext(self.allow_plaintext)
        if self.knows(broker):
            shown = self.credentials
        elif (kept := self.remembered(broker)) is None:
            shown = self.credentials.withheld()
        else:
            ca_file = self.credentials.ca_file or kept.ca_file
            shown = replace(kept.credentials(), ca_file=ca_file)
        return self.make_link(broker, shown, keepalive=self.keepalive, version=version)

    def check_invited(self, broker: BrokerUrl) -> None:
        """Refuse an invited broker while no setting says which one the credentials are for."""
        if self.credentials.identify and self.brokers() is None and not self._remembers(broker):
            raise SettingsError(
                "no setting says which broker your user name, password or certificate is for; "
                f"nothing was drawn or sent. If they are for {broker}, add this to the command: "
                f"--credentials-for {broker}; or this line to the configuration file: "
                f'credentials_for = "{broker}"'
            )

    def knows(self, broker: BrokerUrl) -> bool:
        """Whether there are credentials, and they are for this broker."""
        return self.credentials.identify and str(broker) in (self.brokers() or ())

    def will_know(self, broker: BrokerUrl) -> bool:
        """The same once a campaign is joined there: an owner who has not said which broker the
        credentials are for says so by naming one together with a manifest."""
        return self.knows(broker) or (self.credentials.identify and self.brokers() is None)

    def treatment(self, broker: BrokerUrl) -> Treatment:
        """What becomes of the credentials when a campaign is joined there."""
        if self.will_know(broker) or self._remembers(broker):
            return "shown"
        return "withheld" if self.credentials.identify else "none"

    def username(self, broker: BrokerUrl) -> str | None:
        """This device's name at that broker; None for a random one."""
        if self.will_know(broker):
            return self.credentials.username
        kept = self.remembered(broker)
        return None if kept is None else kept.username

    def _remembers(self, broker: BrokerUrl) -> bool:
        """Whether something that identifies us is remembered for this broker."""
        kept = self.remembered(broker)
        return kept is not None and kept.identifies

    def note(self, broker: BrokerUrl) -> str:
        """That credentials were withheld, to append to an error; or nothing."""
        withheld = self.credentials.identify and not self.knows(broker)
        if not withheld or self._remembers(broker):
            return ""
        names = ", ".join(self.brokers() or ()) or "no broker"
        return f". Your credentials are for {names} and were not shown to it"
