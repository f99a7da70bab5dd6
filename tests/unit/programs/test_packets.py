"""MQTT packets cut out of a buffer: as paho makes them, in pieces, and as nobody should."""

from __future__ import annotations

import socket
from typing import Final

import paho.mqtt.client as mqtt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from protocol_spec.programs.packets import (
    PUBLISH,
    BadPacket,
    Message,
    acknowledgement,
    cut_messages,
    packet_span,
    read_publish,
)
from tests.support.network import PUBACK, Wire, frame, text

LONGEST: Final = 268_435_455

topics = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="+#"), min_size=1
)
sizes = st.sampled_from([0, 1, 20, 100, 127, 128, 16_383, 16_384, 70_000])
payloads = st.one_of(st.binary(max_size=60), sizes.map(bytes))


@st.composite
def properties(draw: st.DrawFn) -> Properties:
    """What a broker may add to a message in MQTT 5."""
    made = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    if draw(st.booleans()):
        made.MessageExpiryInterval = draw(st.integers(0, 2**32 - 1))
    if draw(st.booleans()):
        made.ContentType = draw(st.text("abc", max_size=200))
    for _ in range(draw(st.integers(0, 3))):
        made.UserProperty = ("key", draw(st.text("xyz", max_size=100)))
    if draw(st.booleans()):
        made.SubscriptionIdentifier = draw(st.integers(1, LONGEST))
    return made


def by_paho(message: Message, *, qos: int, v5: bool, extra: Properties | None = None) -> bytes:
    """The PUBLISH packet that paho makes of a message."""
    sent: list[bytes] = []
    version = MQTTProtocolVersion.MQTTv5 if v5 else MQTTProtocolVersion.MQTTv311
    client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=version)
    client._packet_queue = lambda _, packet, *__: sent.append(packet)  # type: ignore[assignment, method-assign]
    with socket.socket() as pretended:
        client._sock = pretended
        topic, mid = (message.topic or "").encode(), message.mid
        client._send_publish(mid, topic, message.payload, qos, message.retained, properties=extra)
        client._sock = None
    return bytes(sent[0])


@st.composite
def messages(draw: st.DrawFn) -> tuple[Message, bytes, bool]:
    """A message, its bytes and the version they are in."""
    v5, qos = draw(st.booleans()), draw(st.integers(0, 1))
    mid = draw(st.integers(1, 65_535)) if qos else 0
    message = Message(draw(topics), draw(payloads), draw(st.booleans()), mid)
    extra = draw(properties()) if v5 else None
    return message, by_paho(message, qos=qos, v5=v5, extra=extra), v5


def read_all(buffer: bytes, *, v5: bool) -> tuple[list[Message], bytes]:
    """Every whole message in a buffer, and what is left."""
    found, at = [], 0
    while (span := packet_span(buffer, at)) is not None:
        found.append(read_publish(buffer, at, *span, v5=v5))
        at = span[1]
    return found, buffer[at:]


@given(messages())
def test_what_paho_sends_is_read(made: tuple[Message, bytes, bool]) -> None:
    message, packet, v5 = made
    assert packet[0] & 0xF0 == PUBLISH
    assert read_all(packet, v5=v5) == ([message], b"")


@given(st.lists(messages(), max_size=5), st.booleans())
def test_packets_one_after_the_other(made: list[tuple[Message, bytes, bool]], v5: bool) -> None:
    ours = [(message, packet) for message, packet, version in made if version == v5]
    joined = b"".join(packet for _, packet in ours)
    assert read_all(joined, v5=v5) == ([message for message, _ in ours], b"")


@pytest.mark.parametrize("v5", [False, True])
@pytest.mark.parametrize("size", [3, 120, 200, 16_400])
def test_cut_anywhere_it_is_incomplete(v5: bool, size: int) -> None:
    message = Message("allomfree/v1/c-00000000/up/d/report", bytes(size), False, 7)
    packet = by_paho(message, qos=1, v5=v5)
    for cut in range(len(packet)):
        assert packet_span(packet[:cut], 0) is None
        assert read_all(packet + packet[:cut], v5=v5) == ([message], packet[:cut])


@pytest.mark.parametrize(
    ("length", "size"),
    [(b"\x00", 0), (b"\x7f", 127), (b"\x80\x01", 128), (b"\xff\x7f", 16_383),
     (b"\x80\x80\x01", 16_384), (b"\xff\xff\x7f", 2_097_151), (b"\x80\x80\x80\x01", 2_097_152)],
)  # fmt: skip
def test_lengths_of_the_standard(length: bytes, size: int) -> None:
    buffer = b"x\x30" + length + bytes(size)
    assert packet_span(buffer, 1) == (2 + len(length), len(buffer))
    assert size == 0 or packet_span(buffer[:-1], 1) is None


@pytest.mark.parametrize("tail", [b"", b"\x01", b"\x80", bytes(100)])
def test_a_length_of_five_bytes_is_no_mqtt(tail: bytes) -> None:
    with pytest.raises(BadPacket):
        packet_span(b"\x30\xff\xff\xff\xff" + tail, 0)


def test_the_largest_length_waits_for_its_bytes() -> None:
    assert packet_span(b"\x30\xff\xff\xff\x7f" + bytes(1000), 0) is None


@given(st.binary(max_size=200), st.booleans())
def test_garbage_is_read_or_refused(noise: bytes, v5: bool) -> None:
    """It ends, and with nothing but the errors that the link expects."""
    at = 0
    try:
        while (span := packet_span(noise, at)) is not None:
            assert at < span[0] <= span[1] <= len(noise)
            message = read_publish(noise, at, *span, v5=v5)
            assert len(message.payload) <= span[1] - span[0]
            at = span[1]
    except (BadPacket, IndexError):
        pass


@pytest.mark.parametrize(
    ("body", "v5"),
    [
        (b"", False),
        (b"\0", False),
        (b"\0\x05abc", False),
        (text("topic"), False),
        (text("topic") + b"\0", False),
        (text("topic") + b"\0\1", True),
        (text("topic") + b"\0\1\x05abc", True),
        (text("topic") + b"\0\1\xff\xff", True),
    ],
)
def test_a_message_shorter_than_its_parts(body: bytes, v5: bool) -> None:
    """Also where other packets follow, whose bytes must not be taken for its own."""
    packet = frame(3, body, flags=2)
    for tail in (b"", frame(3, bytes(100))):
        span = packet_span(packet + tail, 0)
        assert span
        with pytest.raises((BadPacket, IndexError)):
            read_publish(packet + tail, 0, *span, v5=v5)


@pytest.mark.parametrize("name", [b"\xff\xfe", b"\xed\xa0\x80", b"a\xc3"])
def test_a_topic_that_is_no_text(name: bytes) -> None:
    packet = frame(3, text(name) + b"\0\x09" + b"payload", flags=3)
    (message,), rest = read_all(packet, v5=False)
    assert message == Message(None, b"payload", True, 9)
    assert rest == b""


@given(st.lists(st.integers(1, 65_535), max_size=50))
def test_acknowledgements_are_what_a_broker_reads(mids: list[int]) -> None:
    here, there = socket.socketpair()
    with here, there:
        here.sendall(acknowledgement(mids))
        here.shutdown(socket.SHUT_WR)
        wire = Wire(there)
        read = []
        while (packet := wire.read()) is not None:
            assert (packet.kind, packet.flags) == (PUBACK, 0)
            read.append(int.from_bytes(packet.body))
        wire.close()
    assert read == mids


@given(
    st.lists(
        st.tuples(topics, payloads, st.booleans(), st.integers(0, 1), st.integers(1, 65_535)),
        max_size=5,
    ),
    st.booleans(),
    st.data(),
)
def test_many_at_once_are_what_each_is_by_itself(
    sent: list[tuple[str, bytes, bool, int, int]], v5: bool, data: st.DataObject
) -> None:
    """Up to the first that is not whole, or is not an ordinary message; none is left out."""
    made = [
        by_paho(
            Message(topic, payload, retained, mid),
            qos=qos,
            v5=v5,
            extra=data.draw(properties()) if v5 else None,
        )
        for topic, payload, retained, qos, mid in sent
    ]
    whole = b"".join(made)
    buffer = whole[: data.draw(st.integers(0, len(whole)))]
    most = data.draw(st.integers(0, 6))
    arrived: list[Message] = []
    end = cut_messages(buffer, 0, most, arrived, v5=v5)
    expected, at = [], 0
    while at < end:
        span = packet_span(buffer, at)
        assert span is not None
        expected.append(read_publish(buffer, at, *span, v5=v5))
        at = span[1]
    assert (at, arrived) == (end, expected)
    if len(arrived) < min(most, len(sent)):
        span, following = packet_span(buffer, end), sent[len(arrived)]
        assert span is None or following[2] or not following[3] or span[1] - span[0] >= 1 << 14


@pytest.mark.parametrize("v5", [False, True])
def test_a_message_shorter_than_its_parts_is_refused_among_many(v5: bool) -> None:
    good = frame(3, text("t") + b"\0\7" + (b"\0" if v5 else b"") + b"x", flags=2)
    bad = frame(3, b"\0\3t" + b"\0\7", flags=2)
    arrived: list[Message] = []
    with pytest.raises(BadPacket):
        cut_messages(good + bad + good, 0, 9, arrived, v5=v5)
    assert arrived == [Message("t", b"x", False, 7)]


@given(st.lists(st.integers(1, 65_535)))
def test_acknowledgements_are_packets_one_after_the_other(mids: list[int]) -> None:
    assert acknowledgement(mids) == b"".join(b"\x40\2" + mid.to_bytes(2) for mid in mids)
