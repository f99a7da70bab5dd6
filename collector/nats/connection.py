"""One connection to a NATS server, run in the caller's thread; a new connection is a new object."""

from __future__ import annotations

import json
import ssl
import time
from typing import Any, Final

from collector.nats.frames import LARGEST_MESSAGE, LONGEST_LINE, BadFrame, Frame
from collector.nats.wire import Wire
from collector.settings import StreamAddress
from protocol_spec.programs.address import Credentials
from protocol_spec.programs.errors import BrokerUnreachable
from protocol_spec.programs.output import shown

# For everything until reports can be pulled, however slow the server is: whoever connects does
# nothing else meanwhile, and must neither lose the lead (10 s) nor be shut out (15 s) by that.
BEGIN_SECONDS: Final = 6.0
ANSWERS: Final = 64  # kept at once: more than are ever asked for
HELLO: Final = {
    "verbose": False, "pedantic": False, "headers": True, "no_responders": True,
    "lang": "python", "version": "1", "name": "allomfree-collector", "protocol": 1,
}  # fmt: skip


class NatsConnection:
    """Sends, receives and keeps alive; what the messages mean is the caller's business."""

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
        """Send what was collected, and close."""
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
        info = told(first) if first.kind == b"INFO" else None
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
        """Collect; the next `turn` or `flush` sends."""
        if self._wire is not None:
            self._wire.send(data)

    def flush(self) -> None:
        """Send what was collected, as far as the network takes it."""
        if self._wire is not None:
            self._wire.flush()

    def publish(self, subject: str, body: bytes = b"", reply: str = "") -> None:
        """A message, perhaps with the place for an answer."""
        self.send(f"PUB {subject} {reply} {len(body)}\r\n".encode() + body + b"\r\n")

    def subscribe(self, subject: str) -> None:
        """Ask for what is published there."""
        self._questions += 1
        self.send(f"SUB {subject} s{self._questions}\r\n".encode())

    def ask(self, subject: str, body: object = None) -> int:
        """Ask a question, with JSON; the number under which `answer` finds the answer."""
        self._questions += 1
        text = b"" if body is None else json.dumps(body).encode()
        self.publish(subject, text, f"{self._answers_at.decode()}{self._questions}")
        return self._questions

    def answer(self, number: int) -> Frame | None:
        """The answer to a question, once; None while it is not there."""
        return self._answers.pop(number, None)

    def demand(self, subject: str, body: object = None) -> dict[str, Any]:
        """Ask, and wait for the answer; for the beginning, when nothing else arrives."""
        number = self.ask(subject, body)
        while self.lost is None and time.monotonic() < self._limit:
            self.turn(0.1, 1)
            frame = self.answer(number)
            if frame is not None and frame.status == 503:
                raise self._failed("JetStream is switched off there, or has no leader now")
            if frame is not None:
                return told(frame) or {}
        raise self._failed(self.lost or "it did not answer a question in time")

    # --- one turn of the network ---------------------------------------------------------------

    def turn(self, timeout_seconds: float, most: int) -> list[Frame]:
        """Wait for the network, then read; at most so many messages that answer no question."""
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
        """Messages that are here already; what else is here is dealt with."""
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
        """Whether it is a message, and no answer; lines and answers are dealt with."""
        kind, subject, *_ = frame
        if kind == b"MSG" and not subject.startswith(self._answers_at):
            return True
        if kind != b"MSG":
            self._hear(frame)
            return False
        number = subject[len(self._answers_at) :]
        if not number.isdigit() or len(number) > 18 or int(number) > self._questions:
            raise BadFrame("an answer to a question that nobody asked")
        if len(self._answers) < ANSWERS:
            self._answers[int(number)] = frame
        return False

    def _hear(self, frame: Frame) -> None:
        if frame.kind == b"PING":
            self.send(b"PONG\r\n")
        elif frame.kind == b"PONG":
            self._is_open = True
        elif frame.kind == b"-ERR":
            self._lose(_refused(frame.payload.decode("utf-8", "replace").strip("' ")))

    def _keep_alive(self, wire: Wire) -> None:
        """Ask a server that has been silent; after another such time without a byte it is gone."""
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


def told(frame: Frame) -> dict[str, Any] | None:
    """What a server says in JSON; None if it is none, or more than anybody asked for."""
    try:
        found = json.loads(frame.payload) if len(frame.payload) <= LONGEST_LINE else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _refused(text: str) -> str:
    lower, said = text.lower(), shown(text)
    if "authorization" in lower or "authentication" in lower:
        return f"it refused the user ({said}). Check --username, --password-file or --cert-file"
    if "permissions violation" in lower:
        return (
            f"its user lacks a right ({said}); nothing was lost. Workers need what broker-config "
            "nats --stream-port writes for the collector's user"
        )
    return f"the server ended the connection ({said})"
