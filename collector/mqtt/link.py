"""The connection to a real broker: the only module of the collector that knows paho.

One `PahoLink` is one connection, run in the caller's thread; a new connection is a new link. So a
message can only be acknowledged on the connection that delivered it (I7), there is no network
thread to die unnoticed, and reading no further when the store cannot follow makes the broker wait
instead of filling memory (I13). Reports are cut out of the buffered socket without passing through
paho at all.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from collector.mqtt import BATCH, WINDOW, Message, Will
from collector.mqtt.buffered import BufferedSocket
from collector.mqtt.packets import PUBLISH, BadPacket, acknowledgement, packet_span, read_publish
from protocol_spec.programs.address import BrokerUrl, Credentials
from protocol_spec.programs.mqtt import (
    CONNECT_SECONDS,
    MQTT_5,
    MQTT_311,
    Version,
    closed_at_once,
    prepare,
    reach,
    refused,
    unreachable,
    wants_older,
)

LARGEST_PACKET: Final = 1 << 20  # a report has some twenty bytes; a manifest at most 256 KiB
SESSION_SECONDS: Final = 30 * 86_400


class _Client(mqtt.Client):
    """paho with the buffered socket, its one extension point for another kind of transport."""

    buffered: BufferedSocket | None = None

    def _create_socket(self) -> Any:
        sock = super()._create_socket()
        if isinstance(sock, socket.socket):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.buffered = BufferedSocket(sock)
            return self.buffered
        return sock


class PahoLink:
    """One connection, its session kept by the broker. MQTT 5, or 3.1.1 where it must be."""

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
    ) -> None:
        self.broker = broker
        self.version = version
        self.lost: str | None = None
        self.session_present = False
        self.granted = 0
        self.denied = 0
        self.window = WINDOW
        self._credentials = credentials
        self._client_id = client_id
        self._keepalive = keepalive
        self._will = will
        self._persistent = persistent
        self._connack: ReasonCode | None = None
        self._arrived: list[Message] = []
        self._unanswered: set[int] = set()
        self._answered: dict[int, str | None] = {}
        self._client = self._new_client()

    def connect(self) -> None:
        """Connect and wait for the broker's word. Raises `BrokerUnreachable` saying why not."""
        code = self._attempt()
        if code is not None and wants_older(code, self.version):
            self.version = MQTT_311
            self._client = self._new_client()
            self.lost = None
            code = self._attempt()
        if code is None:
            raise unreachable(self.broker, "it did not answer in time")
        if code.is_failure:
            raise unreachable(self.broker, refused(code))

    def subscribe(self, filters: Iterable[str], *, qos: int = 1) -> None:
        """Ask for messages."""
        for name in filters:
            self._client.subscribe(name, qos=qos)

    def step(self, timeout_seconds: float) -> list[Message]:
        """Wait for the network, then read what is there, at most a batch."""
        code = self._turn(timeout_seconds)
        if code != mqtt.MQTT_ERR_SUCCESS and self.lost is None:
            self.lost = mqtt.error_string(code)
        arrived, self._arrived = self._arrived, []
        return arrived

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """Tell the broker that these are ours for good. Only ever after the commit."""
        if self._client.buffered is not None:
            mids = [message.mid for message in messages if message.mid]
            self._client.buffered.send(acknowledgement(mids))
        self._flush()

    @property
    def name(self) -> str:
        """The broker's address."""
        return str(self.broker)

    @property
    def redelivers_at_once(self) -> bool:
        """MQTT 5 does; NATS, which speaks 3.1.1, waits for its `ack_wait` first."""
        return self.version == MQTT_5 or not self.session_present

    @property
    def free(self) -> int:
        """How many more publishes may be unanswered at once."""
        return max(0, self.window - len(self._unanswered))

    def publish(self, topic: str, payload: bytes, *, retain: bool = True) -> int:
        """Hand a message to the broker, QoS 1; its number comes back from `answers`."""
        sent = self._client.publish(topic, payload, qos=1, retain=retain)
        self._unanswered.add(sent.mid)
        return sent.mid

    def answers(self) -> dict[int, str | None]:
        """Publishes the broker has answered since the last call; with its reason if it refused."""
        answered, self._answered = self._answered, {}
        return answered

    def close(self) -> None:
        """Say goodbye, behind all that was published; the session stays at the broker."""
        if self._client.socket() is not None:
            self._client.disconnect()  # closes the buffered socket, which sends what it holds

    # --- one turn of the network ---------------------------------------------------------------

    def _turn(self, timeout_seconds: float) -> int:
        sock = self._client.buffered
        if sock is None or self._client.socket() is None:
            return mqtt.MQTT_ERR_NO_CONN
        wanted = select.POLLIN if self._flush() else select.POLLIN | select.POLLOUT
        try:
            if not sock.readable:
                poller = select.poll()
                poller.register(sock.sock, wanted)
                if not poller.poll(max(0, round(timeout_seconds * 1000))):
                    return self._client.loop_misc()
            code = self._read(sock)
        except (BadPacket, IndexError, OSError) as error:
            self.lost = f"the connection broke ({type(error).__name__})"
            return mqtt.MQTT_ERR_PROTOCOL
        return code or self._client.loop_misc()

    def _read(self, sock: BufferedSocket) -> int:
        """Cut out reports, at most a batch; hand everything else to paho."""
        sock.fill()
        v5 = self.version == MQTT_5
        while len(self._arrived) < BATCH:
            span = packet_span(sock.buffer, sock.at)
            if span is None:
                return self._client.loop_read()  # notices the end of the connection
            if sock.buffer[sock.at] & 0xF0 == PUBLISH:
                self._arrived.append(read_publish(sock.buffer, sock.at, *span, v5=v5))
                sock.at = span[1]
                continue
            sock.expose(span[1])
            code = self._client.loop_read()
            if code != mqtt.MQTT_ERR_SUCCESS or self._client.socket() is None:
                return code
        return mqtt.MQTT_ERR_SUCCESS

    def _flush(self) -> bool:
        try:
            return self._client.buffered is None or self._client.buffered.flush()
        except OSError as error:
            self.lost = error.strerror or "the connection broke"
            return True

    def _attempt(self) -> ReasonCode | None:
        self._connack = None
        reach(
            self._client,
            self.broker,
            self._keepalive,
            **_connect_options(self.version, persistent=self._persistent),
        )
        limit = time.monotonic() + CONNECT_SECONDS
        while time.monotonic() < limit:
            alive = self._turn(0.1) == mqtt.MQTT_ERR_SUCCESS
            if self._connack is not None:
                return self._connack
            if not alive:
                raise unreachable(self.broker, closed_at_once(self.broker, self._credentials))
        return None

    def _new_client(self) -> _Client:
        options: dict[str, Any] = {}
        if self.version != MQTT_5:
            options["clean_session"] = not self._persistent
        client = _Client(
            CallbackAPIVersion.VERSION2,
            client_id=self._client_id,
            protocol=self.version,
            manual_ack=True,
            **options,
        )
        prepare(client, self.broker, self._credentials, WINDOW)
        if self._will is not None:
            client.will_set(self._will.topic, self._will.payload, qos=1, retain=True)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_publish = self._on_publish
        client.on_subscribe = self._on_subscribe
        return client

    def _on_connect(
        self, _client: Any, _data: Any, _flags: Any, code: ReasonCode, properties: Any
    ) -> None:
        self._connack = code
        self.session_present = bool(_flags.session_present)
        self.window = min(WINDOW, getattr(properties, "ReceiveMaximum", WINDOW))

    def _on_disconnect(
        self, _client: Any, _data: Any, _flags: Any, code: ReasonCode, _properties: Any
    ) -> None:
        self.lost = str(code)

    def _on_subscribe(
        self, _client: Any, _data: Any, _mid: int, codes: list[ReasonCode], _properties: Any
    ) -> None:
        refused = [str(code) for code in codes if code.is_failure]
        self.granted += len(codes) - len(refused)
        self.denied += len(refused)
        if refused:
            self.lost = f"the broker refused a subscription ({refused[0]})"

    def _on_publish(
        self, _client: Any, _data: Any, mid: int, code: ReasonCode, _properties: Any
    ) -> None:
        self._unanswered.discard(mid)
        self._answered[mid] = str(code) if code.is_failure else None


def _connect_options(version: Version, *, persistent: bool) -> dict[str, Any]:
    """How long the session lives and how much may come at once, which only MQTT 5 can say."""
    if version != MQTT_5:
        return {}
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.SessionExpiryInterval = SESSION_SECONDS if persistent else 0
    properties.ReceiveMaximum = 5 * BATCH
    properties.MaximumPacketSize = LARGEST_PACKET
    return {"clean_start": not persistent, "properties": properties}


class PahoConnector:
    """Connects to one broker under one name, again and again."""

    def __init__(
        self, broker: BrokerUrl, credentials: Credentials, *, client_id: str, keepalive: int = 60
    ) -> None:
        self._broker = broker
        self._credentials = credentials
        self._client_id = client_id
        self._keepalive = keepalive
        self._version: Version = MQTT_5

    def __call__(self, will: Will | None) -> PahoLink:
        """A new connection. What the broker answered to MQTT 5 once is not asked again."""
        link = PahoLink(
            self._broker,
            self._credentials,
            client_id=self._client_id,
            keepalive=self._keepalive,
            version=self._version,
            will=will,
        )
        link.connect()
        self._version = link.version
        return link
