"""A1: TLS over the buffered socket, many records at once; and how it begins and ends."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from protocol_spec.programs.mqtt import MQTT_5, BufferedClient
from protocol_spec.programs.packets import (
    PIECE_BYTES,
    READ_BYTES,
    RECORD_BYTES,
    BufferedSocket,
    Tls,
)
from tests.support.brokers import Files
from tests.support.network import PUBLISH, frame, text

RECORDS = 100  # that fit into any socket
PACKET = frame(PUBLISH, text("t") + b"\0")
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


@pytest.fixture(scope="module")
def older(files: Files) -> ssl.SSLContext:
    """A server of TLS 1.2, which has the last word in the handshake."""
    server = server_context(files)
    server.maximum_version = ssl.TLSVersion.TLSv1_2
    return server


@contextmanager
def pair(
    contexts: Contexts,
) -> Iterator[tuple[BufferedSocket, ssl.SSLSocket]]:
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
    """Until so much was read, or the end has come."""
    limit = time.monotonic() + 20
    while len(sock.buffer) < length and not sock.has_ended and time.monotonic() < limit:
        sock.wait(1)
        sock.fill()


def test_many_records_are_one_read(contexts: Contexts) -> None:
    """A broker sends nearly every message as a record of its own."""
    with pair(contexts) as (sock, peer):
        for _ in range(RECORDS):
            peer.sendall(PACKET)
        assert sock.wait(20)
        sock.fill()
        assert sock.buffer == RECORDS * PACKET


def answer_at_once(there: socket.socket, context: ssl.SSLContext, greeting: bytes) -> None:
    """A server whose last word of the handshake and whose greeting come together (TLS 1.2)."""
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


def test_what_comes_with_the_handshake_is_not_overlooked(
    contexts: Contexts, older: ssl.SSLContext
) -> None:
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
    with pair(contexts) as (sock, peer), ThreadPoolExecutor(1) as pool:
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
    with pair(contexts) as (sock, peer):
        sock.send(sent)
        sock.flush()
        seen = bytearray()
        while len(seen) < len(sent):
            seen += peer.recv(PIECE_BYTES)
            sock.flush()
        assert seen == sent


def test_the_goodbye_is_sent_before_the_end(contexts: Contexts) -> None:
    with pair(contexts) as (sock, peer):
        sock.send(b"\xe0\0")
        sock.close()
        assert peer.recv(9) == b"\xe0\0"
        assert peer.recv(9) == b""


def test_the_end_is_noticed_with_a_word_and_without(contexts: Contexts) -> None:
    """What was said before it is not lost."""
    for with_a_word in (True, False):
        with pair(contexts) as (sock, peer):
            peer.sendall(PACKET)
            if with_a_word:
                peer.setblocking(False)
                with suppress(ssl.SSLWantReadError):
                    peer.unwrap()
            else:
                peer.shutdown(socket.SHUT_WR)
            fill_until(sock, 1 << 30)
            assert sock.has_ended
            assert sock.buffer == PACKET


def test_what_is_no_tls_breaks_the_connection(contexts: Contexts) -> None:
    with pair(contexts) as (sock, peer):
        fill_until(sock, 0)
        with socket.socket(fileno=peer.detach()) as bare:
            bare.sendall(bytes(100))
            with pytest.raises(ssl.SSLError):
                fill_until(sock, 1)


def test_both_sides_hear_of_a_certificate_that_is_not_trusted(contexts: Contexts) -> None:
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
        with pytest.raises(ssl.SSLEOFError):
            Tls(contexts[0], "127.0.0.1").agree(here, 20)


def test_a_handshake_in_small_pieces_takes_no_longer_than_allowed(
    contexts: Contexts,
) -> None:
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
        client.tls_context = contexts[0]
        began = time.monotonic()
        with pytest.raises(OSError, match=r"did not answer in time|SSL"):
            client.connect("127.0.0.1", listener.getsockname()[1])
        ended.set()
        dripping.join(20)
    assert time.monotonic() - began < 30
