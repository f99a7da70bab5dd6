"""A connection to NATS: it answers, keeps alive, and is bounded whatever the server sends (A5)."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from collector.links.nats import ANSWERS, BEGIN_SECONDS, READ_BYTES, Frame, NatsConnection
from collector.settings import StreamAddress
from collector.timing import USUAL
from protocol_spec.programs.settings import BrokerUnreachable, Credentials

INFO = b'INFO {"max_payload": 1048576}\r\n'


class Server:
    """Says hello, and then what it is told; hears what the client says."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])

    def accept(self) -> None:
        self.sock, _ = self._listener.accept()
        self.sock.sendall(INFO)
        self.sock.settimeout(20)
        heard = b""
        while not heard.endswith(b"PING\r\n"):
            heard += self.sock.recv(4096)
        self.sock.sendall(b"PONG\r\n")

    def close(self) -> None:
        self.sock.close()
        self._listener.close()


@contextmanager
def connected(
    keepalive: int = 60, begin_seconds: float = BEGIN_SECONDS
) -> Iterator[tuple[NatsConnection, Server]]:
    server = Server()
    thread = threading.Thread(target=server.accept)
    thread.start()
    made = NatsConnection(
        StreamAddress(False, "127.0.0.1", server.port),
        Credentials("somebody", "secret"),
        inbox="_INBOX_x",
        keepalive=keepalive,
        begin_seconds=begin_seconds,
    )
    made.connect()
    thread.join(20)
    try:
        yield made, server
    finally:
        made.close()
        server.close()


def turns(connection: NatsConnection, count: int = 1, most: int = 4_000) -> list[Frame]:
    """Until so many messages came, or the connection is over."""
    found: list[Frame] = []
    limit = time.monotonic() + 20
    while len(found) < count and connection.lost is None:
        assert time.monotonic() < limit
        found += connection.turn(0.1, most)
    return found


def test_a_server_that_dribbles_has_one_time_for_everything() -> None:
    """A byte now and then is no reason to wait on: who connects counts nothing meanwhile."""
    listener, over = socket.create_server(("127.0.0.1", 0)), threading.Event()

    def dribble() -> None:
        sock, _ = listener.accept()
        with sock, suppress(OSError):
            while not over.wait(0.02):
                sock.sendall(b"I")

    thread = threading.Thread(target=dribble)
    thread.start()
    here = StreamAddress(False, "127.0.0.1", int(listener.getsockname()[1]))
    made = NatsConnection(here, Credentials(), inbox="_INBOX_x", begin_seconds=0.3)
    try:
        with pytest.raises(BrokerUnreachable, match="timed out"):
            made.connect()
    finally:
        over.set()
        thread.join(20)
        listener.close()


def test_a_server_that_answers_no_question_has_no_more_time() -> None:
    with connected(begin_seconds=1.0) as (connection, _):
        limit = time.monotonic() + 8.0
        with pytest.raises(BrokerUnreachable, match="did not answer a request in time"):
            connection.demand("somewhere")
        assert time.monotonic() < limit, "not ten seconds for each question"


def test_connecting_costs_nobody_the_lead() -> None:
    left = USUAL.lease_seconds * (0.9 - 1 / 4)  # at least, by a careful leader's clock
    assert left > BEGIN_SECONDS
    assert USUAL.fence_seconds - USUAL.beat_every_seconds > BEGIN_SECONDS


def test_a_question_is_answered_among_messages() -> None:
    with connected() as (connection, server):
        number = connection.ask("somewhere", {"a": 1})
        connection.flush()
        assert b'PUB somewhere _INBOX_x.answer.1 8\r\n{"a": 1}\r\n' in server.sock.recv(4096)
        server.sock.sendall(b"MSG a s1 1\r\nx\r\nMSG _INBOX_x.answer.1 s1 2\r\n{}\r\nPING\r\n")
        (message,) = turns(connection)
        assert message.payload == b"x"
        found = connection.answer(number)
        assert found is not None
        assert found.payload == b"{}"
        assert connection.answer(number) is None
        connection.flush()
        assert server.sock.recv(4096) == b"PONG\r\n"


def test_no_more_is_read_than_is_taken() -> None:
    """A server that sends without end waits in its own buffers."""
    with connected() as (connection, server):
        server.sock.setblocking(False)
        piece, sent = b"MSG a s1 1000\r\n" + bytes(1000) + b"\r\n", 0
        endless = piece * 100
        for _ in range(50):
            try:
                while True:
                    sent += server.sock.send(endless[sent % len(endless) :])
            except BlockingIOError:
                pass
            found = connection.turn(0.0, 1_000_000)
            assert len(found) * len(piece) <= READ_BYTES, "however much there is"
        assert sent > 2 * READ_BYTES
        assert connection.lost is None


@pytest.mark.parametrize(
    ("sent", "offence"),
    [
        (b"x" * 70_000, "a line of more than 65536 bytes"),
        (b"MSG a s1 9000000\r\n", "a message of 9000000 bytes"),
        (b"MSG _INBOX_x.answer.9 s1 0\r\n\r\n", "a request that nobody made"),
        (b"MSG _INBOX_x.answer.x s1 0\r\n\r\n", "a request that nobody made"),
        (b"-ERR 'Slow Consumer'\r\n", "the server ended the connection (Slow Consumer)"),
    ],
)
def test_an_offence_ends_the_connection(sent: bytes, offence: str) -> None:
    with connected() as (connection, server):
        server.sock.sendall(sent)
        turns(connection)
        assert offence in str(connection.lost)


def test_answers_that_nobody_fetches_are_bounded() -> None:
    with connected() as (connection, server):
        asked = [connection.ask("a") for _ in range(10 * ANSWERS)]
        for number in asked:
            server.sock.sendall(b"MSG _INBOX_x.answer.%d s1 0\r\n\r\n" % number)
        server.sock.sendall(b"MSG a s1 0\r\n\r\n")
        turns(connection)
        assert sum(connection.answer(number) is not None for number in asked) == ANSWERS


def test_a_silent_server_is_asked_and_then_given_up() -> None:
    with connected(keepalive=2) as (connection, server):
        turns(connection)
        assert connection.lost == "the server has not answered for a while"
        assert server.sock.recv(4096) == b"PING\r\n"


def test_what_was_said_before_the_end_is_heard() -> None:
    with connected() as (connection, server):
        server.sock.sendall(b"MSG a s1 1\r\nx\r\n-ERR 'Authorization Violation'\r\n")
        server.sock.close()
        (message,) = turns(connection)
        assert message.payload == b"x"
        assert "it refused the user (Authorization Violation)" in str(connection.lost)
