"""The links below the service: what NATS sends is bounded (A5), and messages are gathered."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import repeat
from queue import Queue
from typing import Any

import pytest

from collector.links.mqtt import (
    GATHER_PAUSE_SECONDS,
    GATHER_TARGET_MESSAGES,
    MAX_BATCHES_WITHOUT_GATHERING,
    MAX_GATHER_PAUSES,
    Gathering,
    PahoLink,
)
from collector.links.nats import (
    ANSWERS,
    BEGIN_SECONDS,
    LARGEST_MESSAGE,
    LENGTHS,
    LONGEST_LINE,
    READ_BYTES,
    SHORT_MESSAGE,
    BadFrame,
    Frame,
    NatsConnection,
    Patterns,
    cut,
)
from collector.settings import StreamAddress
from collector.timing import DEFAULT_TIMING
from protocol_spec.programs.settings import BrokerUnreachable, Credentials, parse_broker
from tests.support.network import Peer, Wire

STATUS = b"NATS/1.0 409 Message Size Exceeds MaxBytes\r\nNats-Pending-Messages: 95\r\n\r\n"
SENT = (
    b'INFO {"x":1}\r\n'
    b"PING\r\n"
    b"HMSG $MQTT.msgs.a.b s1 $JS.ACK.x 25 29\r\nNATS/1.0\r\nNmqtt-Pub:1\r\n\r\npay0\r\n"
    b"MSG _INBOX.a.1 s1 4\r\n\r\n\r\n\r\n"
    b"MSG a s2 reply 0\r\n\r\n"
    b"HMSG _INBOX.b s2 %d %d\r\n%s\r\n"
    b"-ERR 'Authorization Violation'\r\n" % (len(STATUS), len(STATUS), STATUS)
)
MEANT = [
    Frame(b"INFO", payload=b'{"x":1}'),
    Frame(b"PING"),
    Frame(b"MSG", b"$MQTT.msgs.a.b", b"$JS.ACK.x", b"NATS/1.0\r\nNmqtt-Pub:1\r\n\r\n", b"pay0"),
    Frame(b"MSG", b"_INBOX.a.1", payload=b"\r\n\r\n"),
    Frame(b"MSG", b"a", b"reply"),
    Frame(b"MSG", b"_INBOX.b", headers=STATUS),
    Frame(b"-ERR", payload=b"'Authorization Violation'"),
]


def read_frames(sent: bytes, at: int, most: int) -> tuple[list[Frame], int]:
    return cut(sent, at, most, {})


# --- messages of one length, one behind the other ------------------------------------------------
def delivered(number: int, payload: bytes) -> tuple[bytes, Frame]:
    """A message as a stream delivers it: as it is sent, and what is meant."""
    head = b"NATS/1.0\r\nNmqtt-Pub:1\r\n\r\n"
    subject, reply = b"$MQTT.msgs.up.d%d" % number, b"$JS.ACK.x.%d" % number
    line = b"HMSG %b s1 %b %d %d\r\n" % (subject, reply, len(head), len(head) + len(payload))
    return line + head + payload + b"\r\n", Frame(b"MSG", subject, reply, head, payload)


def together(payloads: Iterable[bytes]) -> tuple[bytes, list[Frame]]:
    pairs = [delivered(number, payload) for number, payload in enumerate(payloads)]
    return b"".join(sent for sent, _ in pairs), [frame for _, frame in pairs]


TRAP = delivered(9, b"12345678")[0]
STREAMS = {
    "every kind": (SENT, MEANT),
    "whatever is in them": together(
        [*[b"a\r\nb"] * 5, b"", b"\xff\0\r\n\n", TRAP, b"a\r\nb", TRAP, *[b""] * 3]
    ),
    "of one length": together([b"four"] * 9),
}


@pytest.mark.parametrize("case", STREAMS)
def test_frames_are_cut_apart(case: str) -> None:
    """As a whole, in any two parts, and no more than asked for."""
    sent, meant = STREAMS[case]
    assert read_frames(sent, 0, 100) == (meant, len(sent))
    for middle in range(len(sent)):
        first, at = read_frames(sent[:middle], 0, 100)
        second, end = read_frames(sent, at, 100)
        assert (first + second, end) == (meant, len(sent)), middle
    first, at = read_frames(sent, 0, 4)
    assert first == meant[:4]
    assert read_frames(sent, at, 100) == (meant[4:], len(sent))


def test_a_status_is_read_from_the_headers() -> None:
    assert [frame.status for frame in MEANT] == [0, 0, 0, 0, 0, 409, 0]


def test_more_lengths_than_are_remembered() -> None:
    """Whoever sends messages of many lengths makes little work and takes no memory."""
    lengths, patterns = [SHORT_MESSAGE, *range(3 * LENGTHS), 2 * SHORT_MESSAGE], Patterns()
    sent, meant = together(bytes(length) for length in lengths * 2)
    assert cut(sent, 0, 10_000, patterns) == (meant, len(sent))
    assert len(patterns) == LENGTHS
    assert max(len(pattern.pattern) for pattern in patterns.values()) < 200


@pytest.mark.parametrize(
    ("sent", "offence"),
    [
        (b"x" * LONGEST_LINE, "a line of more than"),
        (b"GET / HTTP/1.1\r\n", "a line that no NATS server"),
        (b"MSG a s1 99999999999\r\n", "no number"),
        (b"MSG a s1 -1\r\n", "no number"),
        (b"MSG a s1 %d\r\n" % (LARGEST_MESSAGE + 1), "where 8388608 are allowed"),
        (b"HMSG a s1 9 8\r\n", "a message of 8 bytes"),
        (b"MSG a\r\n", "makes no sense"),
        (b"MSG a s1 b c 4\r\n", "makes no sense"),
        (b"MSG a s1 2\r\nabcd", "does not end where it says"),
    ],
)
def test_what_is_no_frame_is_an_offence(sent: bytes, offence: str) -> None:
    with pytest.raises(BadFrame, match=offence):
        read_frames(sent, 0, 10)


# --- a connection to NATS -------------------------------------------------------------------------
class Server:
    """A scripted peer: says hello; then the test writes and reads its socket."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])

    def accept(self) -> None:
        self.sock, _ = self._listener.accept()
        self.sock.sendall(b'INFO {"max_payload": 1048576}\r\n')
        self.sock.settimeout(20)
        heard = b""
        while not heard.endswith(b"PING\r\n"):
            heard += self.sock.recv(4096)
        self.sock.sendall(b"PONG\r\n")

    def close(self) -> None:
        self.sock.close()
        self._listener.close()


@contextmanager
def connected(**options: Any) -> Iterator[tuple[NatsConnection, Server]]:
    server = Server()
    thread = threading.Thread(target=server.accept)
    thread.start()
    made = NatsConnection(
        StreamAddress(False, "127.0.0.1", server.port),
        Credentials("somebody", "secret"),
        inbox="_INBOX_x",
        **options,
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
    left = DEFAULT_TIMING.lease_seconds * (0.9 - 1 / 4)  # at least, by a careful leader's clock
    assert left > BEGIN_SECONDS, "connecting costs nobody the lead"
    assert DEFAULT_TIMING.fence_seconds - DEFAULT_TIMING.beat_every_seconds > BEGIN_SECONDS


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


# --- waiting a moment for more messages -----------------------------------------------------------
@dataclass
class Line:
    """A connection on which so many messages arrive during each pause."""

    during_pauses: Iterator[int]
    arrived: list[int] = field(default_factory=list)
    paused: list[float] = field(default_factory=list)
    gathering: Gathering = field(init=False)

    def __post_init__(self) -> None:
        self.gathering = Gathering(self.paused.append)

    def batch(self, first: int) -> int:
        """How many are handed over, if so many were there at first."""
        self.arrived = [0] * first
        self.gathering.gather(self.arrived, lambda: self.arrived.extend(self._more()))
        return len(self.arrived)

    def _more(self) -> Iterable[int]:
        return [0] * next(self.during_pauses)


def test_messages_that_come_one_by_one_are_gathered() -> None:
    line = Line(repeat(3))
    assert [line.batch(1) for _ in range(10)] == [1 + 3 * MAX_GATHER_PAUSES] * 10
    assert line.paused == [GATHER_PAUSE_SECONDS] * MAX_GATHER_PAUSES * 10


def test_nothing_is_waited_for_when_nothing_came_or_enough_did() -> None:
    line = Line(repeat(GATHER_TARGET_MESSAGES))
    assert [line.batch(0), line.batch(GATHER_TARGET_MESSAGES), line.batch(4_000)] == [
        0,
        GATHER_TARGET_MESSAGES,
        4_000,
    ]
    assert not line.paused
    assert line.batch(1) == 1 + GATHER_TARGET_MESSAGES
    assert line.paused == [GATHER_PAUSE_SECONDS], "it ends when there are enough"


def test_waiting_in_vain_becomes_rare() -> None:
    """A broker that waits for us is not made to wait at every batch."""
    line = Line(repeat(0))
    batches = 10 * MAX_BATCHES_WITHOUT_GATHERING
    assert {line.batch(20) for _ in range(batches)} == {20}
    assert len(line.paused) < 20


def test_it_is_tried_again_and_goes_on_when_it_brings_something() -> None:
    line = Line(iter([0] + [5] * 1_000))
    assert line.batch(1) == 1  # in vain
    assert line.batch(1) == 1  # not tried
    assert [line.batch(1) for _ in range(5)] == [1 + 5 * MAX_GATHER_PAUSES] * 5


def test_a_link_hands_over_what_came_while_it_paused() -> None:
    wires: Queue[Wire] = Queue()

    def broker(wire: Wire) -> None:
        if wire.expect_connect():
            wire.connack()
            wires.put(wire)
            while wire.read() is not None:
                pass

    with Peer(broker) as peer:
        link = PahoLink(
            parse_broker(peer.url), Credentials(), client_id="test",
            sleep=lambda _: wire.publish("some/topic", b"later"),
        )  # fmt: skip
        link.connect()
        wire = wires.get(timeout=10)
        wire.publish("some/topic", b"first")
        payloads = [message.payload for message in link.step(10.0)]
        link.close()
    assert payloads == [b"first"] + [b"later"] * MAX_GATHER_PAUSES
