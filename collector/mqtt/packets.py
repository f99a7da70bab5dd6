"""MQTT packets in a buffer: where they end, and PUBLISH packets read in bulk.

paho reads a packet in three calls and handles each by itself, which costs more than counting what
is in it. Reports are nearly all that a collector receives, so they are cut out of the buffer here;
every other packet is left to paho.
"""

from __future__ import annotations

from typing import Final

from collector.mqtt import Message

PUBLISH: Final = 0x30


class BadPacket(ValueError):
    """The broker sent something that is not MQTT."""


def packet_span(buffer: bytes, at: int) -> tuple[int, int] | None:
    """(start of the body, end of the packet) at a position, or None while it is incomplete."""
    length = shift = 0
    place = at + 1
    while place < len(buffer):
        digit = buffer[place]
        length |= (digit & 127) << shift
        place += 1
        if digit < 128:
            return (place, place + length) if place + length <= len(buffer) else None
        shift += 7
        if shift > 21:
            raise BadPacket("a packet's length has more than four bytes")
    return None


def read_publish(buffer: bytes, at: int, body: int, end: int, *, v5: bool) -> Message:
    """A PUBLISH packet that is complete in the buffer."""
    flags = buffer[at]
    start = body + 2 + (buffer[body] << 8 | buffer[body + 1])
    name = buffer[body + 2 : start]
    mid = 0
    if flags & 0x06:
        mid = buffer[start] << 8 | buffer[start + 1]
        start += 2
    if v5:
        start = _after_properties(buffer, start, end)
    if start > end:
        raise BadPacket("a message is shorter than its parts")
    try:
        topic: str | None = name.decode()
    except UnicodeDecodeError:
        topic = None
    return Message(topic, buffer[start:end], bool(flags & 1), mid)


def acknowledgement(mids: list[int]) -> bytes:
    """PUBACK packets, the same in MQTT 3.1.1 and 5."""
    return b"".join(b"\x40\x02" + mid.to_bytes(2) for mid in mids)


def _after_properties(buffer: bytes, at: int, end: int) -> int:
    span = packet_span(buffer[at - 1 : end], 0)  # a length is coded like that of a packet
    if span is None:
        raise BadPacket("a message's properties are incomplete")
    return at - 1 + span[1]
