"""MQTT: one connection (paho), and a subscription on it as a source of reports.

The only module of the collector that knows paho. A `PahoLink` is one connection, run in the
caller's thread; a new connection is a new link. So a message can only be acknowledged on the
connection that delivered it (I7), there is no network thread to die unnoticed, and not reading on
when the store cannot follow makes the broker wait instead of filling memory (I13). Messages do not
pass through paho at all: `BufferedClient` cuts them out of what was read.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Sequence, Sized
from functools import partial
from typing import Any, Final

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from collector.links import BATCH, WINDOW, Link, Message, Will
from collector.timing import DEFAULT_TIMING, SYSTEM_CLOCK, Clock, Timing
from protocol_spec.programs.mqtt import MQTT_5, BufferedClient, ClientLink, Version
from protocol_spec.programs.packets import acknowledgement
from protocol_spec.programs.settings import BrokerUnreachable, BrokerUrl, Credentials
from protocol_spec.topics import from_all_devices, marker

GATHER_TARGET_MESSAGES: Final = 200  # committed at once; beyond, the cost of each hardly falls
GATHER_PAUSE_SECONDS: Final = 0.01
MAX_GATHER_PAUSES: Final = 2
MAX_BATCHES_WITHOUT_GATHERING: Final = 255


class Gathering:
    """Reads on for a moment when few messages have arrived, as long as that brings more.

    A commit, with its sync of the disk, costs the same for one report as for a hundred. Receipts go
    out every few seconds, so no device notices the wait. It is given up where it brings nothing:
    when hardly anybody sends, and when a broker lets so few messages be unacknowledged that it is
    the one who waits, for us. Now and then it is tried again.
    """

    def __init__(self, sleep: Callable[[float], None]) -> None:
        self._sleep = sleep
        self._rest = 0  # batches to go until it is tried again
        self._last_rest = 0

    def gather(self, arrived: Sized, read: Callable[[], object]) -> None:
        """Have `read` add to a batch that is neither empty nor large enough."""
        if not 0 < len(arrived) < GATHER_TARGET_MESSAGES:
            return
        if self._rest:
            self._rest -= 1
            return
        for _ in range(MAX_GATHER_PAUSES):
            before = len(arrived)
            self._sleep(GATHER_PAUSE_SECONDS)
            read()
            if len(arrived) == before:
                longer = 2 * self._last_rest + 1
                self._rest = self._last_rest = min(longer, MAX_BATCHES_WITHOUT_GATHERING)
                return
            if len(arrived) >= GATHER_TARGET_MESSAGES:
                break
        self._last_rest = 0


SESSION_SECONDS: Final = 30 * 86_400


class PahoLink(ClientLink):
    """One connection, its session kept by the broker."""

    def __init__(
        self,
        broker: BrokerUrl,
        credentials: Credentials,
        *,
        client_id: str,
        keepalive: int = 60,
        version: Version = MQTT_5,
        will: Will | None = None,
        persistent: bool = True,
        session_seconds: int = SESSION_SECONDS,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.session_present = False
        self.redelivers_later = False
        self.granted = 0
        self.denied = 0
        self.sharing: str | None = None
        self._will = will
        self._arrived: list[Message] = []
        self._gathering = Gathering(sleep)
        super().__init__(
            broker,
            credentials,
            client_id=client_id,
            keepalive=keepalive,
            version=version,
            window=WINDOW,
            session_seconds=session_seconds if persistent else 0,
        )

    def connect(self) -> None:
        """Connect and wait for CONNACK. Raises `BrokerUnreachable` saying why not."""
        self.start()
        while not self.ready:
            self._read(0.1)
            if self.lost is not None and not self.ready:
                raise BrokerUnreachable(self.lost)

    def subscribe(self, filters: Iterable[str], *, qos: int = 1) -> None:
        for name in filters:
            self._client.subscribe(name, qos=qos)

    def unsubscribe(self, filters: Iterable[str]) -> None:
        for name in filters:
            self._client.unsubscribe(name)

    def step(self, timeout_seconds: float) -> list[Message]:
        """Wait for the network, and a moment for more; return what is there, at most a batch."""
        self._read(0.0 if self._arrived else timeout_seconds)
        self._gathering.gather(self._arrived, lambda: self._read(0.0))
        arrived, self._arrived = self._arrived, []
        return arrived

    def acknowledge(self, messages: Sequence[Message]) -> None:
        sock = self._client.buffered
        if sock is None or self.lost is not None:
            return
        sock.send(acknowledgement([message.mid for message in messages if message.mid]))
        try:
            sock.flush()
        except OSError as error:
            self.lost = error.strerror or "the connection broke"

    @property
    def name(self) -> str:
        return str(self.broker)

    def publish(self, topic: str, payload: bytes, *, retain: bool = True) -> int:
        return super().publish(topic, payload, retain=retain)

    def is_unanswered(self, number: int) -> bool:
        return number in self._unanswered

    def close(self) -> None:
        """Disconnect, after all that was published; the broker keeps the session."""
        if self._client.socket() is not None:
            self._client.disconnect()  # closes the buffered socket, which sends what it holds

    def leave(self) -> None:
        """Disconnect for good: the session ends, with all it held."""
        properties: Properties | None = None
        if self.version == MQTT_5:
            properties = Properties(PacketTypes.DISCONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = 0
        if self._client.socket() is not None:
            self._client.disconnect(properties=properties)

    def _read(self, timeout_seconds: float) -> None:
        self._turn(timeout_seconds, self._arrived, BATCH - len(self._arrived))

    def _connect_properties(self) -> Properties:
        """How long the session lives and how much may come at once, which only MQTT 5 can say."""
        properties = super()._connect_properties()
        properties.SessionExpiryInterval = self._session_seconds
        properties.ReceiveMaximum = 5 * BATCH
        return properties

    def _new_client(self) -> BufferedClient:
        client = super()._new_client()
        if self._will is not None:
            client.will_set(self._will.topic, self._will.payload, qos=1, retain=True)
        client.on_subscribe = self._on_subscribe
        return client

    def _on_connect(
        self, _client: Any, _data: Any, flags: Any, code: ReasonCode, properties: Any
    ) -> None:
        super()._on_connect(_client, _data, flags, code, properties)
        self.session_present = bool(flags.session_present)
        # NATS, which speaks 3.1.1, waits for its `ack_wait` first; brokers of MQTT 5 do not.
        self.redelivers_later = self.version != MQTT_5
        if self.version != MQTT_5:
            self.sharing = "it speaks MQTT 3.1.1 only"
        elif not getattr(properties, "SharedSubscriptionAvailable", 1):
            self.sharing = "it says that they are not available"

    def _on_subscribe(
        self, _client: Any, _data: Any, _mid: int, codes: list[ReasonCode], _properties: Any
    ) -> None:
        refused = [str(code) for code in codes if code.is_failure]
        self.granted += len(codes) - len(refused)
        self.denied += len(refused)
        if refused:
            self.lost = f"the broker refused a subscription ({refused[0]})"

    def _refusal(self, topic: str, reason: str) -> str:
        return f"{topic}: {reason}"


class PahoConnector:
    """Connects to one broker under one name, again and again."""

    def __init__(
        self, broker: BrokerUrl, credentials: Credentials, *, client_id: str, **options: int
    ) -> None:
        """`options` are keepalive and session_seconds of `PahoLink`."""
        self._connect = partial(PahoLink, broker, credentials, client_id=client_id, **options)  # type: ignore[arg-type]
        self._version: Version = MQTT_5

    def __call__(self, will: Will | None) -> PahoLink:
        """A new connection. What the broker answered to MQTT 5 once is not asked again."""
        link = self._connect(version=self._version, will=will)
        link.connect()
        self._version = link.version
        return link


# --- a subscription as a source ----------------------------------------------------------------

GROUP: Final = "allomfree"
NONCE_BYTES: Final = 16
BACKLOG_MESSAGES: Final = 500  # at once: more than live traffic brings
# How long the broker keeps a worker's part for its return. A broker may go on dealing reports to a
# session whose worker is gone, and devices have to send those again: so not for days.
SHARED_SESSION_SECONDS: Final = 3_600
NOT_SHARED: Final = (
    "the broker {} cannot be used by several workers: it has no shared subscriptions ({}). Nothing "
    "was lost. If it is NATS, name its own port with --stream tls://HOST:4222; otherwise switch "
    "them on, or use a broker of MQTT 5 that has them"
)
_OUTSTANDING: Final = 64  # markers on their way


def filters(namespace: str, *, shared: bool) -> tuple[str, ...]:
    """What a worker subscribes to: its part of the reports and requests, and the markers, which
    among the reports of all would reach any worker."""
    if not shared:
        return (from_all_devices(namespace),)
    return f"$share/{GROUP}/{from_all_devices(namespace)}", marker(namespace)


class Subscription:
    """The reports that a broker keeps for one session: all of them, or, if `shared`, those that it
    deals out to this worker's session of a group.

    Silence does not show that the broker holds no more: a network, a disk or a long queue may stand
    still for longer than anyone would wait. So the collector publishes to itself: a marker with a
    number that nobody can guess goes through the very queue that brings reports. When it is back
    and its batch is committed, everything that the broker took before it has been counted (F1).

    Brokers differ in one thing. mosquitto keeps one queue per session, and redelivers first what a
    connection left unacknowledged. NATS redelivers it only after its `ack_wait`, behind newer
    messages. There a marker is proof only if it was sent after all redelivery:
    `Timing.settle_seconds` after the last moment that may have caused one, and not while the broker
    hands over a backlog, which makes it postpone redelivery. Only time spent reading counts: it
    stands still while a batch is unacknowledged because the storage refuses it, and while the whole
    process does.
    """

    def __init__(
        self,
        link: Link,
        namespace: str,
        *,
        shared: bool = False,
        clock: Clock = SYSTEM_CLOCK,
        timing: Timing = DEFAULT_TIMING,
        nonce: Callable[[], bytes] = lambda: secrets.token_bytes(NONCE_BYTES),
    ) -> None:
        if shared and link.sharing is not None:
            link.close()
            raise BrokerUnreachable(NOT_SHARED.format(link.name, link.sharing))
        self.drained = 0.0
        self.link = link
        self._shared = shared
        self._clock = clock
        self._timing = timing
        self._nonce = nonce
        self._topic = marker(namespace)
        self._filters = filters(namespace, shared=shared)
        self._sent: dict[bytes, tuple[float, float]] = {}  # nonce: moment, and `_reading` then
        self._unacknowledged = 0
        self._reading = 0.0  # seconds
        self._last_step = clock.monotonic()
        again = link.redelivers_later and link.session_present
        self._settled_at = timing.settle_seconds if again else 0.0
        link.subscribe(self._filters)

    @property
    def name(self) -> str:
        return self.link.name

    @property
    def lost(self) -> str | None:
        return self.link.lost

    def step(self, timeout_seconds: float) -> list[Message]:
        now = self._clock.monotonic()
        if not self._unacknowledged:
            self._reading += min(now - self._last_step, self._timing.longest_tick_seconds)
        self._last_step = now
        messages = self.link.step(timeout_seconds)
        self._unacknowledged += len(messages)
        if len(messages) >= BACKLOG_MESSAGES and self._reading < self._settled_at:
            calm = self._reading + self._timing.calm_seconds  # redelivery is postponed by it
            self._settled_at = max(self._settled_at, calm)
        if self._shared:
            self.link.answers()  # to markers; they prove nothing
        return messages

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """A marker among them proves that all before it is committed."""
        self.link.acknowledge(messages)
        self._unacknowledged -= len(messages)
        for message in messages if self._sent else ():
            if message.topic == self._topic and not message.retained:
                moment, sent = self._sent.pop(message.payload, (0.0, 0.0))
                if sent >= self._settled_at:
                    self.drained = max(self.drained, moment)

    def mark(self, moment: float) -> None:
        """Send a marker, once the broker has confirmed the subscriptions and redelivery is over."""
        confirmed = self.link.granted >= len(self._filters)
        if not confirmed or not self.link.free or self._reading < self._settled_at:
            return
        if len(self._sent) >= _OUTSTANDING:  # some are lost, or the queue is long: thin them out
            self._sent = dict(list(self._sent.items())[::2])
        nonce = self._nonce()
        self._sent[nonce] = moment, self._reading
        self.link.publish(self._topic, nonce, retain=False)

    def retire(self, moment: float) -> None:
        """Leave the group, and send a marker behind what it dealt to us."""
        self.link.unsubscribe(name for name in self._filters if name.startswith("$share/"))
        self.mark(moment)

    def close(self, *, stay: bool = True) -> None:
        if stay:
            self.link.close()
        else:
            self.link.leave()
