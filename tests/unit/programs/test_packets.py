"""MQTT packets cut out of a buffer: as paho makes them, in pieces, and malformed."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import paho.mqtt.client as mqtt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from protocol_spec.programs.mqtt import MQTT_5, BufferedClient, TlsClient
from protocol_spec.programs.packets import (
    CUT_BYTES,
    LARGEST_PACKET,
    PIECE_BYTES,
    READ_BYTES,
    RECORD_BYTES,
    UNSENT_BYTES,
    BadPacket,
    BufferedSocket,
    Message,
    Tls,
    acknowledgement,
    cut_messages,
    packet_span,
    read_publish,
)
from protocol_spec.programs.packets import PUBLISH as PUBLISH_BYTE
from testbed.brokers import mqtt_text
from tests.support.brokers import Files
from tests.support.network import PUBLISH, SUBACK, frame

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
def messages(
    draw: st.DrawFn,
    versions: st.SearchStrategy[bool] = st.booleans(),  # noqa: B008
) -> tuple[Message, bytes, bool]:
    """A message, its bytes and whether they are of MQTT 5."""
    v5, qos = draw(versions), draw(st.integers(0, 1))
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
    assert packet[0] & 0xF0 == PUBLISH_BYTE
    assert read_all(packet, v5=v5) == ([message], b"")


@pytest.mark.parametrize("v5", [False, True])
@pytest.mark.parametrize("size", [3, 120, 200, 16_400])
def test_cut_anywhere_it_is_incomplete(v5: bool, size: int) -> None:
    message = Message("allomfree/v1/c-00000000/up/d/report", bytes(size), False, 7)
    packet = by_paho(message, qos=1, v5=v5)
    for cut in range(len(packet)):
        assert packet_span(packet[:cut], 0) is None
        assert read_all(packet + packet[:cut], v5=v5) == ([message], packet[:cut])


@pytest.mark.parametrize("tail", [b"", b"\x01", b"\x80", bytes(100)])
def test_a_length_of_five_bytes_is_refused_and_the_largest_of_four_awaited(tail: bytes) -> None:
    with pytest.raises(BadPacket):
        packet_span(b"\x30\xff\xff\xff\xff" + tail, 0)
    assert packet_span(b"\x30\xff\xff\xff\x7f" + tail, 0) is None


@given(st.binary(max_size=200), st.booleans())
def test_garbage_is_read_or_refused(noise: bytes, v5: bool) -> None:
    """It ends, and with nothing but the errors that the link expects."""
    with suppress(BadPacket, IndexError):
        found, rest = read_all(noise, v5=v5)
        assert sum(len(message.payload) for message in found) + len(rest) <= len(noise)


@pytest.mark.parametrize(
    ("body", "v5"),
    [
        (b"", False),
        (b"\0", False),
        (b"\0\x05abc", False),
        (mqtt_text("topic"), False),
        (mqtt_text("topic") + b"\0", False),
        (mqtt_text("topic") + b"\0\1", True),
        (mqtt_text("topic") + b"\0\1\x05abc", True),
        (mqtt_text("topic") + b"\0\1\xff\xff", True),
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
    packet = frame(3, mqtt_text(name) + b"\0\x09" + b"payload", flags=3)
    (message,), rest = read_all(packet, v5=False)
    assert message == Message(None, b"payload", True, 9)
    assert rest == b""


@given(st.booleans(), st.data())
def test_many_at_once_are_what_each_is_by_itself(v5: bool, data: st.DataObject) -> None:
    """Up to the first that is not whole, or is not an ordinary message; none is left out."""
    sent = data.draw(st.lists(messages(st.just(v5)), max_size=5))
    whole = b"".join(packet for _, packet, _ in sent)
    buffer = whole[: data.draw(st.integers(0, len(whole)))]
    most = data.draw(st.integers(0, 6))
    arrived: list[Message] = []
    end = cut_messages(buffer, 0, most, arrived, v5=v5)
    assert (arrived, b"") == read_all(buffer[:end], v5=v5)
    if len(arrived) < min(most, len(sent)):
        span, following = packet_span(buffer, end), sent[len(arrived)][0]
        large = span is not None and span[1] - span[0] >= 1 << 14
        assert span is None or following.retained or not following.mid or large


@pytest.mark.parametrize("v5", [False, True])
def test_a_message_shorter_than_its_parts_is_refused_among_many(v5: bool) -> None:
    good = by_paho(Message("t", b"x", False, 7), qos=1, v5=v5)
    bad = frame(3, b"\0\3t" + b"\0\7", flags=2)
    arrived: list[Message] = []
    with pytest.raises(BadPacket):
        cut_messages(good + bad + good, 0, 9, arrived, v5=v5)
    assert arrived == [Message("t", b"x", False, 7)]


@given(st.lists(st.integers(1, 65_535)))
def test_acknowledgements_are_packets_one_after_the_other(mids: list[int]) -> None:
    assert acknowledgement(mids) == b"".join(b"\x40\2" + mid.to_bytes(2) for mid in mids)


# --- A1, A5: the buffered socket takes all that is there, and never more than it may hold.


@contextmanager
def pair() -> Iterator[tuple[BufferedSocket, socket.socket]]:
    """A buffered socket, and its peer."""
    here, there = socket.socketpair()
    with here, there:
        here.setblocking(False)
        yield BufferedSocket(here), there


def pour(there: socket.socket, data: bytes) -> threading.Thread:
    """Send as fast as the other side takes it, until it takes no more or closes."""

    def send() -> None:
        with suppress(OSError):
            there.sendall(data)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


def front(kind: int, length: int) -> bytes:
    """The fixed header of a packet with a body of that length."""
    return frame(kind, bytes(length))[:-length]


def test_nothing_is_read_while_packets_wait_to_be_handled() -> None:
    packet = frame(PUBLISH, mqtt_text("t") + b"\0")
    with pair() as (sock, there):
        pouring = pour(there, packet * (4 * READ_BYTES // len(packet)))
        while len(sock.buffer) < READ_BYTES:
            assert sock.wait(20)
            sock.fill()
        for _ in range(20):
            sock.fill()
            assert len(sock.buffer) == READ_BYTES
        there.shutdown(socket.SHUT_RDWR)
        pouring.join(20)


@pytest.mark.parametrize("v5", [False, True])
def test_the_largest_packet_arrives_whole(v5: bool) -> None:
    packet = front(PUBLISH, LARGEST_PACKET - 4) + bytes(LARGEST_PACKET - 4)
    with pair() as (sock, there):
        pouring = pour(there, packet * 2)
        for _ in range(2):
            while (span := sock.span(v5=v5)) is None:
                sock.wait(20)
                sock.fill()
                assert len(sock.buffer) - sock.at <= LARGEST_PACKET + READ_BYTES
            assert span[1] - sock.at == len(packet)
            sock.at = span[1]
        pouring.join(20)


@pytest.mark.parametrize(
    ("sent", "refusal"),
    [
        pytest.param((PUBLISH, LARGEST_PACKET), "a message of", id="too long where MQTT 5 says so"),
        *(((kind, 5000), r"of 500[0-9] bytes") for kind in (SUBACK, 4, 2, 11, 14)),
        *(((kind, 9), f"kind {kind}") for kind in (0, 1, 5, 6, 7, 8, 10, 12, 15)),
    ],
)
def test_a_packet_is_refused_by_its_first_bytes(sent: tuple[int, int], refusal: str) -> None:
    """If it is too long for its kind, or of a kind that nobody asked for."""
    with pair() as (sock, there):
        there.sendall(front(*sent))
        sock.fill()
        with pytest.raises(BadPacket, match=refusal):
            sock.span(v5=True)


@pytest.mark.parametrize("length", [LARGEST_PACKET, 3 * LARGEST_PACKET, 20 * LARGEST_PACKET])
def test_a_larger_message_is_cut_off_in_mqtt_3_1_1(length: int) -> None:
    """Topic and number are kept, so that it can be refused and acknowledged."""
    head = mqtt_text("some/topic") + b"\1\2"
    later = frame(PUBLISH, mqtt_text("later") + b"\3\4", flags=2)
    found: list[Message] = []
    with pair() as (sock, there):
        start = bytearray(front(PUBLISH, length))
        start[0] |= 2
        pouring = pour(there, bytes(start) + head + bytes(length - len(head)) + later)
        while len(found) < 2:
            if (span := sock.span(v5=False)) is None:
                assert sock.wait(20)
                sock.fill()
                continue
            found.append(read_publish(sock.buffer, sock.at, *span, v5=False))
            sock.at = span[1]
            assert len(sock.buffer) <= READ_BYTES
        pouring.join(20)
    assert [(m.topic, m.mid) for m in found] == [("some/topic", 0x102), ("later", 0x304)]
    assert len(found[0].payload) == CUT_BYTES - len(start) - len(head)


def test_a_packet_in_single_bytes_is_not_copied_for_each() -> None:
    with pair() as (sock, there):
        there.sendall(front(PUBLISH, 5000))
        sock.fill()
        assert sock.span(v5=True) is None
        kept = sock.buffer
        for _ in range(4999):
            there.sendall(b"\0")
            sock.fill()
            assert sock.buffer is kept
        there.sendall(b"\0")
        sock.fill()
        assert sock.span(v5=True) is not None


def test_nothing_is_read_from_a_broker_that_reads_nothing() -> None:
    with pair() as (sock, there):
        sock.send(bytes(2 * UNSENT_BYTES))
        sock.flush()
        assert sock.is_congested
        there.sendall(b"\xd0\0")
        assert not sock.wait(0.0)
        while sock.is_congested:
            there.recv(1 << 20)
            sock.flush()
        assert sock.wait(20)


# --- A1: TLS over the buffered socket, many records at once; and how it begins and ends.


RECORDS = 100  # that fit into any socket
PACKET = frame(PUBLISH, mqtt_text("t") + b"\0")
Contexts = tuple[ssl.SSLContext, ssl.SSLContext]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files.made(tmp_path_factory.mktemp("tls"))


def server_context(files: Files) -> ssl.SSLContext:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*files.server("127.0.0.1"))
    return server


@pytest.fixture(scope="module")
def contexts(files: Files) -> Contexts:
    """Of a client and of a server."""
    client = ssl.create_default_context(cafile=str(Path(files.directory) / "ca.pem"))
    return client, server_context(files)


@contextmanager
def tls_pair(contexts: Contexts) -> Iterator[tuple[BufferedSocket, ssl.SSLSocket]]:
    """A buffered socket over TLS, and its peer."""
    client, server = contexts
    here, there = socket.socketpair()
    with here, there, ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(server.wrap_socket, there, server_side=True)
        here.setblocking(False)
        tls = Tls(client, "127.0.0.1")
        tls.agree(here, 20)
        with accepting.result(20) as accepted:
            yield BufferedSocket(here, tls), accepted


def fill_until(sock: BufferedSocket, length: int) -> None:
    """Until that much was read, or the connection has ended."""
    limit = time.monotonic() + 20
    while len(sock.buffer) < length and not sock.has_ended and time.monotonic() < limit:
        sock.wait(1)
        sock.fill()


def test_many_records_are_one_read(contexts: Contexts) -> None:
    """A broker sends nearly every message as a record of its own."""
    with tls_pair(contexts) as (sock, peer):
        for _ in range(RECORDS):
            peer.sendall(PACKET)
        assert sock.wait(20)
        sock.fill()
        assert sock.buffer == RECORDS * PACKET


def answer_at_once(there: socket.socket, context: ssl.SSLContext, greeting: bytes) -> None:
    """A server that ends the handshake and sends a greeting together (TLS 1.2)."""
    arrived, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(arrived, outgoing, server_side=True)
    while True:
        arrived.write(there.recv(RECORD_BYTES))
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            there.sendall(outgoing.read())
        else:
            tls.write(greeting)
            there.sendall(outgoing.read())
            return


def test_what_comes_with_the_handshake_is_read(contexts: Contexts, files: Files) -> None:
    older = server_context(files)
    older.maximum_version = ssl.TLSVersion.TLSv1_2
    here, there = socket.socketpair()
    with here, there, ThreadPoolExecutor(1) as pool:
        answering = pool.submit(answer_at_once, there, older, PACKET)
        here.setblocking(False)
        tls = Tls(contexts[0], "127.0.0.1")
        tls.agree(here, 20)
        answering.result(20)
        sock = BufferedSocket(here, tls)
        assert sock.wait(0)
        assert sock.buffer == PACKET


def test_a_record_in_pieces_is_read_when_it_is_whole(contexts: Contexts) -> None:
    """And no bound is passed by more than a record, however much there is."""
    sent = bytes(range(256)) * (4 * READ_BYTES // 256)
    with tls_pair(contexts) as (sock, peer), ThreadPoolExecutor(1) as pool:
        sending = pool.submit(peer.sendall, sent)
        seen = bytearray()
        while len(seen) < len(sent) and sock.wait(20):
            sock.fill()
            assert len(sock.buffer) <= READ_BYTES + RECORD_BYTES
            seen += sock.buffer[sock.at :]
            sock.at = len(sock.buffer)
        sending.result(20)
        assert seen == sent


def test_what_the_network_does_not_take_at_once_is_sent_later(contexts: Contexts) -> None:
    sent = bytes(range(256)) * (1 << 14)
    with tls_pair(contexts) as (sock, peer):
        sock.send(sent)
        sock.flush()
        seen = bytearray()
        while len(seen) < len(sent):
            seen += peer.recv(PIECE_BYTES)
            sock.flush()
        assert seen == sent


def test_what_was_collected_is_sent_before_closing(contexts: Contexts) -> None:
    with tls_pair(contexts) as (sock, peer):
        sock.send(b"\xe0\0")
        sock.close()
        assert peer.recv(9) == b"\xe0\0"
        assert peer.recv(9) == b""


@pytest.mark.parametrize("announced", [True, False])
def test_the_end_is_noticed_and_what_came_before_is_read(
    contexts: Contexts, announced: bool
) -> None:
    with tls_pair(contexts) as (sock, peer):
        peer.sendall(PACKET)
        if announced:
            peer.setblocking(False)
            with suppress(ssl.SSLWantReadError):
                peer.unwrap()
        else:
            peer.shutdown(socket.SHUT_WR)
        fill_until(sock, 1 << 30)
        assert sock.has_ended
        assert sock.buffer == PACKET


def test_bytes_that_are_not_tls_end_the_connection(contexts: Contexts) -> None:
    with tls_pair(contexts) as (sock, peer):
        fill_until(sock, 0)
        with socket.socket(fileno=peer.detach()) as bare:
            bare.sendall(bytes(100))
            with pytest.raises(ssl.SSLError):
                fill_until(sock, 1)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_only_a_session_that_nobody_saw_is_resumed(files: Files, version: ssl.TLSVersion) -> None:
    """That of TLS 1.2 passes in plain text, and would show which connections are one device's."""
    client = ssl.create_default_context(cafile=str(Path(files.directory) / "ca.pem"))
    client.maximum_version = version
    here, there = socket.socketpair()
    with here, there, ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(server_context(files).wrap_socket, there, server_side=True)
        here.setblocking(False)
        tls = Tls(client, "127.0.0.1")
        tls.agree(here, 20)
        with accepting.result(20) as peer:
            peer.sendall(b"x")
            here.settimeout(20)
            while not tls.opened(here.recv(RECORD_BYTES)):
                pass  # only the session, so far
        assert (tls.session is not None) == (version is ssl.TLSVersion.TLSv1_3)


def test_both_sides_see_that_a_certificate_is_not_trusted(contexts: Contexts) -> None:
    client, server = contexts
    here, there = socket.socketpair()
    with here, there, ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(server.wrap_socket, there, server_side=True)
        here.setblocking(False)
        with pytest.raises(ssl.SSLCertVerificationError, match=r"127\.0\.0\.2"):
            Tls(client, "127.0.0.2").agree(here, 20)
        with pytest.raises(ssl.SSLError, match="alert"):
            accepting.result(20)


def test_an_end_in_the_middle_of_the_handshake_is_an_error(contexts: Contexts) -> None:
    here, there = socket.socketpair()
    with here, there:
        here.setblocking(False)
        there.shutdown(socket.SHUT_WR)
        with pytest.raises((ssl.SSLEOFError, ssl.SSLZeroReturnError)):
            Tls(contexts[0], "127.0.0.1").agree(here, 20)


def test_a_handshake_in_small_pieces_is_limited_in_time(contexts: Contexts) -> None:
    """Each piece comes in time, and it would go on for minutes."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            sock, _ = listener.accept()
            with sock, suppress(OSError):
                sock.sendall(b"\x16\x03\x03\x3f\xff")
                while not ended.wait(0.05):
                    sock.sendall(b"\x0b")

        dripping = threading.Thread(target=drip)
        dripping.start()
        client = BufferedClient("test", MQTT_5)
        client.connect_timeout = 0.5
        client.tls = TlsClient(contexts[0])
        began = time.monotonic()
        with pytest.raises(OSError, match=r"did not answer in time|SSL"):
            client.connect("127.0.0.1", listener.getsockname()[1])
        ended.set()
        dripping.join(20)
    assert time.monotonic() - began < 30
