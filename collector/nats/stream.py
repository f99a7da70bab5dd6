"""The reports as NATS stores them: one durable consumer on the server's own stream of MQTT.

NATS answers a device's publish when the message is in the stream `$MQTT_msgs`, so what a device was
told is taken is there; a stream of our own would be filled beside that, without such a promise. A
consumer is shared by all workers: each pulls a batch, and what is not acknowledged within
`ACK_SECONDS` goes to another.

Drained: the stream's last number is noted, and when the consumer has been acknowledged beyond it,
or has nothing more to deliver or to be acknowledged, all that the broker took before is committed,
by whichever worker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from collector.mqtt import BATCH, Message
from collector.nats.connection import NatsConnection, told
from collector.nats.consumer import (
    ACK_SECONDS,
    IN_FLIGHT,
    NO_CONSUMER,
    PREFIX,
    SECOND,
    STREAM,
    code_of,
    consumer_fault,
    consumer_name,
    consumer_settings,
    filters_of,
    number_of,
    stream_fault,
    subjects_of_devices,
)
from collector.nats.frames import Frame
from protocol_spec.programs.errors import BrokerUnreachable
from protocol_spec.programs.packets import CUT_BYTES

PULL_SECONDS: Final = 15.0  # the server lets a question for messages stand so long
PULL_BYTES: Final = 1 << 22
LATE_SECONDS: Final = 5.0  # an answer that is later than this does not come
PAUSE_SECONDS: Final = 1.0  # before asking a server again that cannot answer now
_new: Final = tuple.__new__  # makes a named tuple in a third of the time
_ACK_END: Final = b" 0\r\n\r\n"  # an acknowledgement says nothing
_ACK_NEXT: Final = _ACK_END + b"PUB "

log = logging.getLogger("allomfree.collector")


class ReportStream:
    """Pulls batches; one question for messages stands at the server at any time."""

    def __init__(
        self,
        connection: NatsConnection,
        namespace: str,
        reply: str,
        monotonic: Callable[[], float],
        ack_seconds: int = ACK_SECONDS,
    ) -> None:
        self.drained = 0.0
        self._connection = connection
        self._namespace = namespace
        self._consumer = consumer_name(namespace)
        self._settings = consumer_settings(namespace)
        self._former = subjects_of_devices(namespace)
        self._kinds = tuple(f".{name.rpartition('.')[2]}".encode() for name in self._former)
        self._reply = reply
        self._monotonic = monotonic
        self._ack_seconds = ack_seconds  # of a consumer that is made now
        self._trouble: str | None = None
        self._retired = False
        self._pulls = 0
        self._wanted = 0
        self._pulled_at = -PULL_SECONDS - LATE_SECONDS
        self._paused_until = 0.0
        self._count = 0
        self._replies: dict[int, bytes] = {}
        self._proof = _Proof(connection, self._consumer, monotonic)

    def open(self) -> None:
        """Find the stream and the consumer, or make the consumer; `BrokerUnreachable` if not."""
        self._connection.subscribe(f"{self._reply}.>")
        info = self._connection.demand(f"$JS.API.STREAM.INFO.{STREAM}")
        self._require(stream_fault(info))
        settings = {
            **self._settings,
            "durable_name": self._consumer,
            "deliver_policy": "all",
            "replay_policy": "instant",
            "ack_wait": self._ack_seconds * SECOND,
            "max_ack_pending": IN_FLIGHT,
        }
        subject = f"{STREAM}.{self._consumer}"
        info = self._connection.demand(f"$JS.API.CONSUMER.INFO.{subject}")
        if code_of(info) == NO_CONSUMER:
            body = {"stream_name": STREAM, "config": settings, "action": "create"}
            info = self._connection.demand(f"$JS.API.CONSUMER.CREATE.{subject}", body)
            log.info("made the consumer %s of the stream %s", self._consumer, STREAM)
        elif filters_of(info.get("config")) == self._former:  # as it was made before
            body = {"stream_name": STREAM, "action": "update"}
            body["config"] = info["config"] | {"filter_subjects": self._settings["filter_subjects"]}
            info = self._connection.demand(f"$JS.API.CONSUMER.CREATE.{subject}", body)
            log.info("changed the consumer %s: it has one filter now", self._consumer)
        self._require(consumer_fault(info, self._namespace))

    @property
    def name(self) -> str:
        """The server's address."""
        return str(self._connection.address)

    @property
    def lost(self) -> str | None:
        """Why the connection has ended."""
        return self._trouble or self._connection.lost

    def step(self, timeout_seconds: float) -> list[Message]:
        """Up to a batch of what the stream holds; the next is asked for already."""
        self._pull()
        frames = self._connection.turn(timeout_seconds, BATCH)
        messages = self._read(frames)
        self._proof.listen()
        self.drained = max(self.drained, self._proof.proven)
        self._pull()
        self._connection.flush()
        return messages

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """Every message by itself: others may hold older ones."""
        replies = self._replies
        self._acknowledge([r for m in messages if (r := replies.pop(m.mid, None)) is not None])
        self._connection.flush()

    def _acknowledge(self, replies: Sequence[bytes]) -> None:
        if replies:
            self._connection.send(b"PUB " + _ACK_NEXT.join(replies) + _ACK_END)

    def mark(self, moment: float) -> None:
        """Note the stream's end, or ask how far the consumer is."""
        self._proof.mark(moment)

    def retire(self, moment: float) -> None:  # noqa: ARG002 - the stream is everybody's
        """Pull no more."""
        self._retired = True

    def close(self, *, stay: bool = True) -> None:  # noqa: ARG002 - nothing is kept for one worker
        """The consumer stays, for every worker."""
        self._connection.close()

    # --- pulling -------------------------------------------------------------------------------

    def _pull(self) -> None:
        if self._retired:
            return
        now = self._monotonic()
        answered = self._wanted <= 0 and now >= self._paused_until
        if not answered and now < self._pulled_at + PULL_SECONDS + LATE_SECONDS:
            return
        self._pulls += 1
        self._wanted, self._pulled_at = BATCH, now
        largest = 2 * self._connection.largest_message
        body = (
            b'{"batch":%d,"expires":%d,"max_bytes":%d}'
            % (BATCH, PULL_SECONDS * SECOND, max(PULL_BYTES, largest))
        )  # fmt: skip
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{self._consumer}"
        self._connection.publish(subject, body, f"{self._reply}.next.{self._pulls}")

    def _read(self, frames: Iterable[Frame]) -> list[Message]:
        """What devices sent; what nobody asked for is acknowledged."""
        messages, replies, kinds = [], self._replies, self._kinds
        for frame in frames:
            _, subject, reply, _, payload = frame
            if not reply:
                self._hear(frame)
                continue
            self._wanted -= 1
            if not subject.endswith(kinds):
                self._acknowledge([reply])
                continue
            self._count += 1
            replies[self._count] = reply
            row = (_topic(subject), payload[:CUT_BYTES], False, self._count)
            messages.append(_new(Message, row))
        return messages

    def _hear(self, frame: Frame) -> None:
        """The server ends a question: in time, or because something is the matter."""
        if frame.subject != f"{self._reply}.next.{self._pulls}".encode():
            return
        self._wanted = 0
        said = frame.headers[:200].partition(b"\r\n")[0].decode("utf-8", "replace")
        if frame.status == 409 and ("Deleted" in said or "Push Based" in said):
            self._trouble = f"somebody deleted or changed the consumer {self._consumer}"
        elif frame.status == 503:
            self._trouble = "nobody serves the stream now"
        elif frame.status not in (404, 408) and "Batch Completed" not in said:
            self._paused_until = self._monotonic() + PAUSE_SECONDS

    def _require(self, fault: str | None) -> None:
        if fault is not None:
            self._connection.close()
            raise BrokerUnreachable(f"the stream at {self.name} cannot be used: {fault}")


class _Proof:
    """How far the consumer must be, and whether it is."""

    def __init__(
        self, connection: NatsConnection, consumer: str, monotonic: Callable[[], float]
    ) -> None:
        self.proven = 0.0
        self._connection = connection
        self._consumer = consumer
        self._monotonic = monotonic
        self._moment: float | None = None  # that is being proven
        self._last: int | None = None  # the stream's last number at that moment, or after it
        self._question: int | None = None
        self._asked_at = 0.0

    def mark(self, moment: float) -> None:
        """Begin with this moment unless an earlier one is being proven."""
        if self._moment is None:
            self._moment, self._last = moment, None
        late = self._monotonic() > self._asked_at + LATE_SECONDS
        if self._question is None or late:
            self._ask()

    def _ask(self) -> None:
        self._asked_at = self._monotonic()
        if self._last is None:
            self._question = self._connection.ask(f"$JS.API.STREAM.INFO.{STREAM}")
        else:
            subject = f"$JS.API.CONSUMER.INFO.{STREAM}.{self._consumer}"
            self._question = self._connection.ask(subject)

    def listen(self) -> None:
        """Take an answer, if one is there."""
        frame = None if self._question is None else self._connection.answer(self._question)
        if frame is None:
            return
        self._question = None
        info = told(frame) or {}
        if self._last is None:
            self._last = number_of(info, "state", "last_seq")
            if self._last is not None:
                self._ask()
        elif _is_reached(info, self._last):
            self.proven, self._moment = self._moment or 0.0, None


def _is_reached(info: dict[str, Any], last: int) -> bool:
    floor = number_of(info, "ack_floor", "stream_seq")
    idle = info.get("num_pending") == 0 and info.get("num_ack_pending") == 0
    return idle or (floor is not None and floor >= last)


def _topic(subject: bytes) -> str | None:
    """The topic that a device published to; NATS writes a dot in it as //, nothing as /."""
    try:
        name = subject.decode().removeprefix(PREFIX)
    except UnicodeDecodeError:
        return None
    if "/" in name:
        levels = name.split(".")
        return "/".join("" if level == "/" else level.replace("//", ".") for level in levels)
    return name.replace(".", "/")
