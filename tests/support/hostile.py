"""Brokers that try to exhaust a client: what each sends on a connection, once it has CONNECT."""

from __future__ import annotations

import struct
from typing import Final

from tests.support.peer import (
    CONNACK,
    PINGREQ,
    PINGRESP,
    PUBLISH,
    SUBACK,
    SUBSCRIBE,
    Script,
    Wire,
    frame,
    text,
)

MIB: Final = 1 << 20
ENDLESS: Final = b"\xff\xff\xff\x7f"  # 256 MiB, the longest that MQTT can say


def accepted(wire: Wire) -> None:
    """Accept the connection, and wait until it subscribes to something."""
    wire.connack()
    while (packet := wire.read()) is not None and packet.kind != SUBSCRIBE:
        pass


def stream(wire: Wire, mebibytes: int) -> None:
    """Zeros, until the client has enough."""
    for _ in range(mebibytes):
        wire.send(bytes(MIB))


def endless_connack(wire: Wire) -> None:
    wire.send(bytes([CONNACK << 4]) + ENDLESS)
    stream(wire, 48)


def connack_full_of_properties(wire: Wire) -> None:
    pair = b"\x26" + text("k") + text("v")
    properties = pair * 30_000
    size = len(properties)
    length = bytes([size & 127 | 128, size >> 7 & 127 | 128, size >> 14])
    wire.send(frame(CONNACK, b"\0\0" + length + properties))


def large_suback(wire: Wire) -> None:
    accepted(wire)
    wire.send(frame(SUBACK, b"\0\1\0" + bytes(MIB)))


def suback_for_65535(wire: Wire) -> None:
    accepted(wire)
    wire.send(frame(SUBACK, b"\0\1\0" + bytes(65_535)))


def endless_message(wire: Wire) -> None:
    accepted(wire)
    wire.send(bytes([PUBLISH << 4]) + ENDLESS)
    stream(wire, 48)


def endless_acknowledgement(wire: Wire) -> None:
    accepted(wire)
    wire.send(b"\x40" + ENDLESS)
    stream(wire, 48)


def flood_of_nothing(wire: Wire) -> None:
    accepted(wire)
    for _ in range(8):
        wire.send(frame(PINGRESP) * 20_000)


def flood_of_questions(wire: Wire) -> None:
    accepted(wire)
    wire.send(frame(PINGREQ) * 500_000)


def flood_of_welcomes(wire: Wire) -> None:
    accepted(wire)
    for _ in range(1000):
        wire.connack()


def long_topics(wire: Wire) -> None:
    accepted(wire)
    for _ in range(100):
        wire.publish(b"a/" * 32_767, bytes(10))


def many_retained(wire: Wire) -> None:
    accepted(wire)
    tail = b"\0" if wire.version == 5 else b""
    for number in range(300):
        body = text(f"allomfree/v1/pub/{number}") + tail + bytes(200_000)
        wire.send(frame(PUBLISH, body, flags=1))


def dripping_message(wire: Wire) -> None:
    accepted(wire)
    wire.send(bytes([PUBLISH << 4]) + b"\x80\x80\x40")
    for _ in range(300):
        wire.send(b"\0")


def quality_two(wire: Wire) -> None:
    accepted(wire)
    body = text("t") + struct.pack("!H", 7) + b"\0"
    wire.send(frame(PUBLISH, body, flags=4) * 10_000)


ATTACKS: Final[tuple[Script, ...]] = (
    endless_connack,
    connack_full_of_properties,
    large_suback,
    suback_for_65535,
    endless_message,
    endless_acknowledgement,
    flood_of_nothing,
    flood_of_questions,
    flood_of_welcomes,
    long_topics,
    many_retained,
    dripping_message,
    quality_two,
)


class Hostile:
    """Plays one attack after the other, each on a connection of its own, and then behaves."""

    def __init__(self, behave: Script) -> None:
        self.left = list(ATTACKS)
        self._behave = behave

    def __call__(self, wire: Wire) -> None:
        if not wire.expect_connect():
            return
        if self.left:
            self.left.pop(0)(wire)
            wire.hang_up()
        else:
            self._behave(wire)
