"""The client protocol of NATS: frames, a bounded socket, and one connection.

Hand-made, because it costs a few microseconds a report where the usual client costs eighty, and
because every length is checked before anything grows: no byte beyond the limits of a line and of a
message is waited for (A5).
"""

from __future__ import annotations

import json
import re
import select
import socket
import ssl
import time
from contextlib import suppress
from typing import Any, Final, NamedTuple

from collector.settings import StreamAddress
from protocol_spec.programs.output import shown
from protocol_spec.programs.settings import BrokerUnreachable, Credentials

LONGEST_LINE: Final = 1 << 16  # INFO of a large cluster is the longest
LARGEST_MESSAGE: Final = 1 << 23  # with its headers; NATS's own default is a megabyte
_CRLF: Final = b"\r\n"
SHORT_MESSAGE: Final = 1 << 14  # up to which messages of one length are cut out together
LENGTHS: Final = 64  # for which that is done
# The first line of a message as a stream delivers it; any other is parsed word by word.
_NAME: Final = rb"[^ \r\n]{1,4096}"
_DELIVERED: Final = re.compile(
    rb"HMSG (%b) %b (%b) ([0-9]{1,9}) ([0-9]{1,9})\r\n" % (_NAME, _NAME, _NAME)
)
_VERBS: Final = (b"PING", b"PONG", b"+OK", b"INFO", b"-ERR")


class BadFrame(ValueError):
    """The server sent something that is not NATS, or more than was asked for."""


class Frame(NamedTuple):
    """A message (`kind` is MSG), or a line: its first word, and the rest of it as payload."""

    kind: bytes
    subject: bytes = b""
    reply: bytes = b""
    headers: bytes = b""
    payload: bytes = b""

    @property
    def status(self) -> int:
        """What the server sends instead of a message: 404, 408, 409, 503; 0 for a message."""
        words = self.headers[:32].split(b" ", 2)
        code = words[1][:3] if len(words) > 1 and words[0] == b"NATS/1.0" else b""
        return int(code) if code.isdigit() else 0


_new: Final = tuple.__new__  # makes a named tuple in a third of the time

# By the numbers of bytes of headers and in all, as written: how a whole message looks.
Patterns = dict[tuple[bytes, bytes], re.Pattern[bytes]]


def cut(buffer: bytes, at: int, most: int, patterns: Patterns) -> tuple[list[Frame], int]:
    """At most `most` whole frames from a position on, and where the next one begins.

    Patterns are learnt, up to `LENGTHS` of them, and save most of the work.
    """
    frames: list[Frame] = []
    while len(frames) < most:
        usual = _DELIVERED.match(buffer, at, at + LONGEST_LINE)
        if usual is not None:
            subject, reply, head, total = usual.groups()
            pattern = _pattern(head, total, patterns)
            before = len(frames)
            while pattern is not None and len(frames) < most:  # as reports of a campaign are
                found = pattern.match(buffer, at)
                if found is None:
                    break
                frames.append(_new(Frame, found.groups()))
                at = found.end()
            if len(frames) > before:
                continue
            frame, after = _whole(buffer, usual.end(), subject, reply, int(head), int(total))
        else:
            frame, after = _other(buffer, at)
        if frame is None:
            break
        frames.append(frame)
        at = after
    return frames, at


def _pattern(head: bytes, total: bytes, patterns: Patterns) -> re.Pattern[bytes] | None:
    """The parts of a message of that length, in the order of a `Frame`; None if it is too long, or
    if too many other lengths came before."""
    size, rest = int(head), int(total) - int(head)
    known = patterns.get((head, total))
    if known is None and len(patterns) < LENGTHS and 0 <= rest <= SHORT_MESSAGE - size:
        line = rb"H(MSG) (%b) %b (%b) %b %b\r\n" % (_NAME, _NAME, _NAME, head, total)
        known = re.compile(line + rb"(.{%d})(.{%d})\r\n" % (size, rest), re.DOTALL)
        patterns[head, total] = known
    return known


def _other(buffer: bytes, at: int) -> tuple[Frame | None, int]:
    """A line, or a message whose first line is not the usual one."""
    end = buffer.find(_CRLF, at, at + LONGEST_LINE)
    if end < 0:
        if len(buffer) - at >= LONGEST_LINE:
            raise BadFrame(f"a line of more than {LONGEST_LINE} bytes")
        return None, at
    if buffer[at : at + 5] == b"HMSG " or buffer[at : at + 4] == b"MSG ":
        return _message(buffer, at, end)
    kind, _, rest = buffer[at:end].partition(b" ")
    if kind.upper() not in _VERBS:
        raise BadFrame("a line that no NATS server sends")
    return Frame(kind.upper(), payload=rest), end + 2


def _message(buffer: bytes, at: int, end: int) -> tuple[Frame | None, int]:
    """A message and where it ends, or None while it is incomplete."""
    has_headers = buffer[at] == 0x48
    words = buffer[at:end].split(b" ")
    numbers = words[-2:] if has_headers else [b"0", words[-1]]
    if len(words) not in ((5, 6) if has_headers else (4, 5)):
        raise BadFrame("a message whose first line makes no sense")
    if not all(number.isdigit() and len(number) < 10 for number in numbers):
        raise BadFrame("a message whose length is no number")
    reply = words[3] if len(words) == (6 if has_headers else 5) else b""
    return _whole(buffer, end + 2, words[1], reply, int(numbers[0]), int(numbers[1]))


def _whole(
    buffer: bytes, start: int, subject: bytes, reply: bytes, head: int, total: int
) -> tuple[Frame | None, int]:
    """A message whose headers begin at `start`, with `head` bytes of them and `total` in all."""
    if head > total or total > LARGEST_MESSAGE:
        raise BadFrame(f"a message of {total} bytes, where {LARGEST_MESSAGE} are allowed")
    stop = start + total
    if len(buffer) < stop + 2:
        return None, start
    if buffer[stop : stop + 2] != _CRLF:
        raise BadFrame("a message that does not end where it says")
    body = start + head
    row = (b"MSG", subject, reply, buffer[start:body], buffer[body:stop])
    return _new(Frame, row), stop + 2


# --- the socket ---------------------------------------------------------------------------------

READ_BYTES: Final = 1 << 20  # that wait to be cut apart, unless one message is larger
UNSENT_BYTES: Final = 1 << 22  # beyond which nothing more is read
GOODBYE_SECONDS: Final = 2.0
_PIECE: Final = 1 << 17
_NOT_NOW: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_BROKE: Final = "the connection broke"


class Wire:
    """A socket that reads ahead within bounds and writes once per batch."""

    def __init__(self, host: str, port: int, limit: float) -> None:
        """Until `begin`, everything blocks until this time of the monotonic clock at most."""
        self.ended = ""  # why nothing more is sent or comes; what is here can still be read
        self.heard_at = time.monotonic()
        self._limit = limit
        self._sock: socket.socket = socket.create_connection((host, port), self._left())
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        self._at = 0
        self._out = bytearray()
        self._patterns: Patterns = {}

    def first_line(self) -> Frame:
        """The server's first line, byte by byte: what follows it may be TLS."""
        line = bytearray()
        while not line.endswith(b"\r\n"):
            self._sock.settimeout(self._left())
            byte = self._sock.recv(1)
            if not byte or len(line) >= LONGEST_LINE:
                raise BadFrame("no first line")
            line += byte
        (frame,), _ = cut(bytes(line), 0, 1, {})
        return frame

    def secure(self, context: ssl.SSLContext, host: str) -> None:
        self._sock.settimeout(self._left())
        self._sock = context.wrap_socket(self._sock, server_hostname=host)

    def begin(self) -> None:
        """Never block from now on."""
        self._sock.setblocking(False)

    def send(self, data: bytes) -> None:
        """Buffer; `flush` sends."""
        if not self.ended:
            self._out += data

    def flush(self) -> None:
        """Send what is buffered, as far as the network takes it."""
        try:
            while self._out:
                sent = self._sock.send(self._out)
                del self._out[:sent]
        except _NOT_NOW:
            return
        except OSError as error:
            self._end(error.strerror or _BROKE)

    def wait(self, timeout_seconds: float) -> bool:
        """Block until something can be read, or sent if something is buffered; whether it can."""
        if len(self._out) > UNSENT_BYTES:
            return False
        if isinstance(self._sock, ssl.SSLSocket) and self._sock.pending():
            return True
        poller = select.poll()
        poller.register(self._sock, select.POLLIN | (select.POLLOUT if self._out else 0))
        return bool(poller.poll(max(0, round(timeout_seconds * 1000))))

    def fill(self) -> None:
        """Read what the network has, up to the limit."""
        unread = self._buffer[self._at :]
        room = READ_BYTES + (LARGEST_MESSAGE if len(unread) >= READ_BYTES else 0) - len(unread)
        parts = [unread]
        try:
            while room > 0:
                part = self._sock.recv(min(_PIECE, room))
                if not part:
                    self._end("the server closed the connection")
                    break
                parts.append(part)
                room -= len(part)
        except _NOT_NOW:
            pass
        except OSError as error:
            self._end(error.strerror or _BROKE)
        if len(parts) > 1:
            self.heard_at = time.monotonic()
        self._buffer, self._at = b"".join(parts), 0

    def take(self, most: int) -> list[Frame]:
        """At most `most` frames of what was read. Raises `BadFrame`."""
        frames, self._at = cut(self._buffer, self._at, most, self._patterns)
        return frames

    def close(self) -> None:
        """Send what is buffered, and close."""
        with suppress(OSError):
            self._sock.settimeout(GOODBYE_SECONDS)
            self._sock.sendall(self._out)
        self.abandon()

    def abandon(self) -> None:
        """Close without sending."""
        self._out.clear()
        self._sock.close()

    def _left(self) -> float:
        left = self._limit - time.monotonic()
        if left <= 0.0:
            raise TimeoutError("timed out")
        return left

    def _end(self, reason: str) -> None:
        self.ended = self.ended or reason
        self._out.clear()


# --- the connection -----------------------------------------------------------------------------

# For everything until reports can be pulled, however slow the server is: a worker that connects
# does nothing else, and must neither lose the lease (10 s) nor be fenced (15 s) by that.
BEGIN_SECONDS: Final = 6.0
ANSWERS: Final = 64  # kept at once: more than are ever asked for
HELLO: Final = {
    "verbose": False, "pedantic": False, "headers": True, "no_responders": True,
    "lang": "python", "version": "1", "name": "allomfree-collector", "protocol": 1,
}  # fmt: skip


class NatsConnection:
    """One connection to a server, run in the caller's thread: TLS, login, requests, keepalive."""

    def __init__(
        self,
        address: StreamAddress,
        credentials: Credentials,
        *,
        inbox: str,
        keepalive: int = 60,
        begin_seconds: float = BEGIN_SECONDS,
    ) -> None:
        self.address = address
        self.lost: str | None = None
        self.largest_message = 0
        self._credentials = credentials
        self._answers_at = f"{inbox}.answer.".encode()
        self._silence_seconds = keepalive * 3 // 4
        self._wire: Wire | None = None
        self._asked_at: float | None = None  # when a PING was sent that nothing followed yet
        self._questions = 0
        self._answers: dict[int, Frame] = {}
        self._is_open = False
        self._begin_seconds = begin_seconds
        self._limit = 0.0  # of the beginning

    # --- beginning and end ---------------------------------------------------------------------

    def connect(self) -> None:
        """Connect and log in. Raises `BrokerUnreachable` saying why not."""
        self._limit = time.monotonic() + self._begin_seconds
        try:
            self._wire = Wire(self.address.host, self.address.port, self._limit)
            self._greet(self._wire)
        except ssl.SSLCertVerificationError as error:
            raise self._failed(
                f"its certificate is not trusted: {error.verify_message}. If its authority is not "
                "one of the system's, name it with --ca-file"
            ) from None
        except BrokerUnreachable:
            raise
        except (OSError, UnicodeError) as error:
            text = getattr(error, "strerror", None) or getattr(error, "reason", None) or error
            raise self._failed(str(text)) from None
        except BadFrame as error:
            raise self._failed(f"it does not speak NATS: it sent {error}") from None
        self._log_in(self._wire)

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None
        self._lose("closed")

    def _failed(self, reason: str) -> BrokerUnreachable:
        if self._wire is not None:
            self._wire.abandon()
            self._wire = None
        return BrokerUnreachable(f"the stream at {self.address} cannot be used: {reason}")

    def _greet(self, wire: Wire) -> None:
        """TLS if the address says so, and never anything readable before it."""
        first = wire.first_line()
        info = read_json(first) if first.kind == b"INFO" else None
        if info is None:
            raise BadFrame("no INFO")
        largest = info.get("max_payload")
        if not isinstance(largest, int) or not 0 < largest <= LARGEST_MESSAGE - LONGEST_LINE:
            raise self._failed(
                "it allows messages larger than 8 MB; set max_payload: 1MB in its configuration"
            )
        self.largest_message = largest
        offered = info.get("tls_required") or info.get("tls_available")
        if self.address.tls and not offered:
            raise self._failed("it offers no TLS; nothing was sent. Give it a certificate")
        if not self.address.tls and info.get("tls_required"):
            raise self._failed("it insists on TLS; write its address with tls://")
        if self.address.tls:
            wire.secure(self._credentials.tls_context(), self.address.host)
        wire.begin()

    def _log_in(self, wire: Wire) -> None:
        hello: dict[str, Any] = dict(HELLO)
        if self._credentials.username is not None:
            hello |= {"user": self._credentials.username, "pass": self._credentials.password or ""}
        wire.send(b"CONNECT " + json.dumps(hello).encode() + b"\r\nPING\r\n")
        while not self._is_open and self.lost is None and time.monotonic() < self._limit:
            self.turn(0.1, 1)
        if not self._is_open:
            raise self._failed(self.lost or "it did not answer in time")

    # --- sending -------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        if self._wire is not None:
            self._wire.send(data)

    def flush(self) -> None:
        if self._wire is not None:
            self._wire.flush()

    def publish(self, subject: str, body: bytes = b"", reply: str = "") -> None:
        self.send(f"PUB {subject} {reply} {len(body)}\r\n".encode() + body + b"\r\n")

    def subscribe(self, subject: str) -> None:
        self._questions += 1
        self.send(f"SUB {subject} s{self._questions}\r\n".encode())

    def ask(self, subject: str, body: object = None) -> int:
        """Send a request, with JSON; the number under which `answer` finds the reply."""
        self._questions += 1
        text = b"" if body is None else json.dumps(body).encode()
        self.publish(subject, text, f"{self._answers_at.decode()}{self._questions}")
        return self._questions

    def answer(self, number: int) -> Frame | None:
        """The reply to a request, once; None until it arrives."""
        return self._answers.pop(number, None)

    def demand(self, subject: str, body: object = None) -> dict[str, Any]:
        """Send a request and wait for the reply, before any report is pulled."""
        number = self.ask(subject, body)
        while self.lost is None and time.monotonic() < self._limit:
            self.turn(0.1, 1)
            frame = self.answer(number)
            if frame is not None and frame.status == 503:
                raise self._failed("JetStream is switched off there, or has no leader now")
            if frame is not None:
                return read_json(frame) or {}
        raise self._failed(self.lost or "it did not answer a request in time")

    # --- one turn of the network ---------------------------------------------------------------

    def turn(self, timeout_seconds: float, most: int) -> list[Frame]:
        """Wait for the network, then read at most `most` messages; replies wait for `answer`."""
        wire = self._wire
        if wire is None:
            return []
        wire.flush()
        found = self._take(wire, most)
        if not found and self.lost is None and wire.wait(timeout_seconds):
            wire.fill()
            found = self._take(wire, most)
            if wire.ended and not found:  # what it said before comes first
                self._lose(wire.ended)
        self._keep_alive(wire)
        return found

    def _take(self, wire: Wire, most: int) -> list[Frame]:
        """Messages in the buffer; everything else in it is handled."""
        found: list[Frame] = []
        try:
            while len(found) < most:
                frames = wire.take(most - len(found))
                found += [each for each in frames if self._is_wanted(each)]
                if not frames:
                    break
        except BadFrame as error:
            self._lose(f"the server broke the rules of NATS: it sent {error}")
        return found

    def _is_wanted(self, frame: Frame) -> bool:
        """Whether it is a message and no reply; lines and replies are handled."""
        kind, subject, *_ = frame
        if kind == b"MSG":
            if not subject.startswith(self._answers_at):
                return True
            number = subject[len(self._answers_at) :]
            if not number.isdigit() or len(number) > 18 or int(number) > self._questions:
                raise BadFrame("a reply to a request that nobody made")
            if len(self._answers) < ANSWERS:
                self._answers[int(number)] = frame
        elif kind == b"PING":
            self.send(b"PONG\r\n")
        elif kind == b"PONG":
            self._is_open = True
        elif kind == b"-ERR":
            self._lose(_refused(frame.payload.decode("utf-8", "replace").strip("' ")))
        return False

    def _keep_alive(self, wire: Wire) -> None:
        """Ping a server that has been silent; after as long again without a byte it is lost."""
        now = time.monotonic()
        if self._asked_at is not None and wire.heard_at >= self._asked_at:
            self._asked_at = None
        if self._asked_at is None and now - wire.heard_at >= self._silence_seconds:
            self._asked_at = now
            wire.send(b"PING\r\n")
        elif self._asked_at is not None and now - self._asked_at >= self._silence_seconds:
            self._lose("the server has not answered for a while")

    def _lose(self, reason: str) -> None:
        self.lost = self.lost or reason


def read_json(frame: Frame) -> dict[str, Any] | None:
    """A JSON object from the server; None if it is none, or longer than was asked for."""
    try:
        found = json.loads(frame.payload) if len(frame.payload) <= LONGEST_LINE else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _refused(text: str) -> str:
    lower, text = text.lower(), shown(text)
    if "authorization" in lower or "authentication" in lower:
        return f"it refused the user ({text}). Check --username, --password-file or --cert-file"
    if "permissions violation" in lower:
        return (
            f"its user lacks a right ({text}); nothing was lost. Workers need what broker-config "
            "nats --stream-port writes for the collector's user"
        )
    return f"the server ended the connection ({text})"
