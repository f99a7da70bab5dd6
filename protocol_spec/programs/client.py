"""paho over the buffered socket: one turn of the network, the same for both programs.

paho makes and answers packets; this reads them. Messages are cut out of the buffer without passing
through paho, every other packet is measured first, and any byte received is a sign of life. (paho
counts only what it reads itself, so under load it would take a busy broker for a dead one.)
"""

from __future__ import annotations

import os
import socket
import ssl
import struct
import time
from contextlib import suppress
from typing import Any, Final

from protocol_spec.programs.buffered import BufferedSocket
from protocol_spec.programs.lazily import put_off
from protocol_spec.programs.packets import (
    CONNACK,
    PINGREQ,
    PINGRESP,
    PUBLISH,
    BadPacket,
    Message,
    check_control,
    cut_messages,
    read_publish,
)
from protocol_spec.programs.tls import Tls

with put_off("urllib.request"):
    import paho.mqtt.client as mqtt
    from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
    from paho.mqtt.exception import MQTTException

Version = MQTTProtocolVersion
MQTT_5: Final = Version.MQTTv5
MQTT_311: Final = Version.MQTTv311
CONNECT_SECONDS: Final = 10.0

# What paho and the readers above raise for packets that are none.
_MALFORMED: Final = (
    BadPacket, MQTTException, LookupError, ValueError, AssertionError, TypeError, struct.error
)  # fmt: skip


class ConnectionBroken(Exception):
    """There is no point in going on with this connection, and why.

    An offence is the broker's: it sent what is not MQTT, or more than anybody asked for.
    """

    def __init__(self, reason: str, *, offence: bool = False) -> None:
        super().__init__(reason)
        self.offence = offence


class BufferedClient(mqtt.Client):
    """One connection, whose caller takes one turn after the other."""

    def __init__(self, client_id: str, version: Version, **options: Any) -> None:
        super().__init__(
            CallbackAPIVersion.VERSION2, client_id=client_id, protocol=version, **options
        )
        self.connect_timeout = CONNECT_SECONDS
        self.buffered: BufferedSocket | None = None
        self.tls_context: ssl.SSLContext | None = None
        self._v5 = version == MQTT_5
        self._is_open = False  # the broker has answered CONNECT, one way or the other
        self._asked_at: float | None = None  # when a PINGREQ was sent that nothing followed yet

    def turn(self, timeout_seconds: float, arrived: list[Message], most: int) -> None:
        """Wait for the network, then read what is there, at most so many packets.

        Raises `ConnectionBroken` when it has ended, after adding what had arrived before.
        """
        sock = self.buffered
        if sock is None or self.socket() is None:
            raise ConnectionBroken(mqtt.error_string(mqtt.MQTT_ERR_NO_CONN))
        try:
            self._exchange(sock, timeout_seconds, arrived, most)
        except OSError as error:
            raise self._broken(error.strerror or "the connection broke") from None
        except _MALFORMED as error:
            reason = str(error) if isinstance(error, BadPacket) else "a packet without sense"
            reason = f"the broker broke the rules of MQTT: it sent {reason}"
            raise self._broken(reason, offence=True) from None

    def flush(self) -> None:
        """Send what was collected now; if that fails, the next turn says so."""
        if self.buffered is not None:
            with suppress(OSError):
                self.buffered.flush()

    def _exchange(
        self, sock: BufferedSocket, timeout_seconds: float, arrived: list[Message], most: int
    ) -> None:
        if self.want_write():
            self.loop_write()
        sock.flush()
        if sock.wait(timeout_seconds) and not sock.is_congested:
            sock.fill()
            self._take(sock, arrived, most)
        self._keep_alive(sock)

    def _take(self, sock: BufferedSocket, arrived: list[Message], most: int) -> None:
        """Cut out messages; hand everything else to paho."""
        left = most
        while left > 0:
            before = len(arrived)
            if self._is_open:
                sock.at = cut_messages(sock.buffer, sock.at, left, arrived, v5=self._v5)
                left -= len(arrived) - before
            if left <= 0 or not self._take_one(sock, arrived):
                return
            left -= 1

    def _take_one(self, sock: BufferedSocket, arrived: list[Message]) -> bool:
        """The packet at hand, of any kind; whether it was complete."""
        span = sock.span(v5=self._v5)
        if span is None:
            if sock.has_ended:
                self._hand_over(sock, sock.at)  # which has paho notice
            return False
        kind = sock.buffer[sock.at] & 0xF0
        if kind == PUBLISH and self._is_open:
            arrived.append(read_publish(sock.buffer, sock.at, *span, v5=self._v5))
            sock.at = span[1]
            return True
        check_control(kind, span[1] - sock.at)
        if kind == PINGRESP:
            sock.at = span[1]
            return True
        if (kind == CONNACK) == self._is_open:
            raise BadPacket("a packet before its CONNACK, or a second one")
        self._hand_over(sock, span[1])
        self._is_open = True
        return True

    def _hand_over(self, sock: BufferedSocket, end: int) -> None:
        sock.expose(end)
        code = self.loop_read()
        if code != mqtt.MQTT_ERR_SUCCESS or self.socket() is None:
            raise ConnectionBroken(mqtt.error_string(code or mqtt.MQTT_ERR_CONN_LOST))

    def _keep_alive(self, sock: BufferedSocket) -> None:
        """Ask a broker that has been silent, or has heard nothing, for a keepalive; after another
        without a byte it is gone."""
        now = time.monotonic()
        if self._asked_at is None or sock.heard_at >= self._asked_at:
            self._asked_at = None
            if self.is_connected() and now - min(sock.heard_at, sock.sent_at) >= self.keepalive:
                self._asked_at = now
                sock.send(PINGREQ)
                sock.flush()
        elif now - self._asked_at >= self.keepalive:
            raise self._broken("Keep alive timeout")

    def _broken(self, reason: str, *, offence: bool = False) -> ConnectionBroken:
        if self.buffered is not None:
            self.buffered.abandon()
        return ConnectionBroken(reason, offence=offence)

    def _get_proxy(self) -> Any:
        """Where PySocks is installed, paho asks urllib for one: only if the environment has one."""
        named = any(name.lower() == "mqtt_proxy" for name in os.environ)
        return super()._get_proxy() if named else None

    def _create_socket(self) -> Any:
        """paho's one extension point for another kind of transport."""
        sock = super()._create_socket()
        if not isinstance(sock, socket.socket):
            return sock
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffered = BufferedSocket(sock, self._agreed(sock))
        return self.buffered

    def _agreed(self, sock: socket.socket) -> Tls | None:
        """TLS, where it is asked for; a socket on which it fails is closed."""
        if self.tls_context is None:
            return None
        sock.setblocking(False)
        try:
            tls = Tls(self.tls_context, self.host)
            tls.agree(sock, self.connect_timeout)
        except BaseException:
            sock.close()
            raise
        return tls
