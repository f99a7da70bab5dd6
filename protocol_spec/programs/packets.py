"""MQTT packets in a buffer: where they end, how long they may be, and what a PUBLISH says.

paho reads a packet in three calls and believes any length that is written at its front: a broker
can make it hold a quarter of a gigabyte, or turn each byte of a SUBACK into kilobytes. So packets
are measured here before paho sees a byte of them. Messages are nearly all that arrives; they are
cut out of the buffer here, in bulk, and paho never sees them.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from protocol_spec.limits import MAX_RECEIPT_BYTES

CONNACK: Final = 0x20
PUBLISH: Final = 0x30
PUBLISH_QOS_1: Final = 0x32
PINGREQ: Final = b"\xc0\0"
PINGRESP: Final = 0xD0

LONGEST_TOPIC: Final = 65_535
# The longest message of the protocol, its topic, and what a broker may say about it.
LARGEST_PACKET: Final = MAX_RECEIPT_BYTES + LONGEST_TOPIC + 4096
# Of a message that is longer still, so much is read: its topic, and too much for any message.
CUT_BYTES: Final = 1 << 17
# What a broker may send besides messages to who publishes with QoS 1 and subscribes to one filter
# at a time. Reasons and properties of MQTT 5 are in it.
_LARGEST: Final = {CONNACK: 4096, 0x40: 1024, 0x90: 1024, 0xB0: 1024, PINGRESP: 2, 0xE0: 1024}
_NAMES: Final = {CONNACK: "CONNACK", 0x40: "PUBACK", 0x90: "SUBACK", 0xB0: "UNSUBACK",
                 PINGRESP: "PINGRESP", 0xE0: "DISCONNECT", PUBLISH: "PUBLISH"}  # fmt: skip


class BadPacket(ValueError):
    """The broker sent something that is not MQTT, or that nobody asked for."""


class Message(NamedTuple):
    """What a broker delivered. `topic` is None when it is not UTF-8; `mid` is 0 for QoS 0.

    A tuple, because one is made for every report.
    """

    topic: str | None
    payload: bytes
    retained: bool = False
    mid: int = 0


def packet_span(buffer: bytes, at: int) -> tuple[int, int] | None:
    """(start of the body, end of the packet) at a position, or None while it is incomplete."""
    span = _declared(buffer, at)
    return span if span is not None and span[1] <= len(buffer) else None


def awaited(buffer: bytes, at: int) -> int:
    """How many bytes the packet at a position has, or 0 while that is not known.

    Called for a packet that is incomplete. Raises `BadPacket` if it is not worth waiting for.
    """
    if at >= len(buffer):
        return 0
    kind, span = buffer[at] & 0xF0, _declared(buffer, at)
    size = 0 if span is None else span[1] - at
    if kind != PUBLISH:
        check_control(kind, size)
    return size


def check_control(kind: int, size: int) -> None:
    """Refuse a packet that is no message if nobody asked for its kind, or for so much of it."""
    largest = _LARGEST.get(kind)
    if kind == PUBLISH:
        raise BadPacket("a message before the connection was accepted")
    if largest is None:
        raise BadPacket(f"a packet of kind {kind >> 4}, which no broker has reason to send")
    if size > largest:
        raise BadPacket(f"a {_NAMES[kind]} of {size} bytes, where {largest} are enough")


def read_publish(buffer: bytes, at: int, body: int, end: int, *, v5: bool) -> Message:
    """A PUBLISH packet that is complete in the buffer."""
    flags = buffer[at]
    start = body + 2 + (buffer[body] << 8 | buffer[body + 1])
    name = buffer[body + 2 : start]
    mid = 0
    if flags & 0x06:
        if flags & 0x04:
            raise BadPacket("a message with a quality of service that was not asked for")
        mid = buffer[start] << 8 | buffer[start + 1]
        start += 2
    if v5:
        start = _after_properties(buffer, start, end)
    if start > end:
        raise BadPacket("a message that is shorter than its parts")
    return Message(_text(name), buffer[start:end], bool(flags & 1), mid)


def _text(name: bytes) -> str | None:
    try:
        return name.decode()
    except UnicodeDecodeError:
        return None


def cut_messages(buffer: bytes, at: int, most: int, arrived: list[Message], *, v5: bool) -> int:
    """Add up to so many messages that stand complete in the buffer; the place behind them.

    It ends at the first thing that is not a message with QoS 1, or not yet whole. That is all that
    a report can be, so this loop is as short as it can be; `read_publish` knows the rest.
    """
    last, make = len(buffer), tuple.__new__
    for _ in range(most):
        if last - at < 4 or buffer[at] & 0xF7 != PUBLISH_QOS_1:
            return at
        size, body = buffer[at + 1], at + 2
        if size >= 128:
            size, body = size + (buffer[body] << 7) - 128, at + 3
        end = body + size
        if end > last or (body == at + 3 and buffer[at + 2] >= 128):
            return at
        start = body + 2 + (buffer[body] << 8 | buffer[body + 1])
        payload = start + 2
        if v5 and payload < end and not buffer[payload]:  # no properties
            payload += 1
        elif v5 or payload > end:
            arrived.append(read_publish(buffer, at, body, end, v5=v5))
            at = end
            continue
        mid = buffer[start] << 8 | buffer[start + 1]
        topic = _text(buffer[body + 2 : start])
        arrived.append(make(Message, (topic, buffer[payload:end], False, mid)))
        at = end
    return at


def acknowledgement(mids: list[int]) -> bytes:
    """PUBACK packets, the same in MQTT 3.1.1 and 5."""
    packed = struct.pack(f">{len(mids)}H", *mids)
    packets = bytearray(b"\x40\x02\0\0" * len(mids))
    packets[2::4], packets[3::4] = packed[0::2], packed[1::2]
    return bytes(packets)


def _declared(buffer: bytes, at: int) -> tuple[int, int] | None:
    """(start of the body, end of the packet) as its front says; None if that is incomplete."""
    length = shift = 0
    place = at + 1
    while place < len(buffer):
        digit = buffer[place]
        length |= (digit & 127) << shift
        place += 1
        if digit < 128:
            return place, place + length
        shift += 7
        if shift > 21:
            raise BadPacket("a packet whose length has more than four bytes")
    return None


def _after_properties(buffer: bytes, at: int, end: int) -> int:
    span = packet_span(buffer[at - 1 : end], 0)  # a length is coded like that of a packet
    if span is None:
        raise BadPacket("a message with incomplete properties")
    return at - 1 + span[1]
