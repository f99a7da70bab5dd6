"""NATS's own stream as a source of reports: one durable consumer that all workers share.

NATS answers a device's publish when the message is in the stream `$MQTT_msgs`, so whatever a device
was told is taken is there; a stream of our own would be filled next to that, without such a
promise. Each worker pulls a batch, and what is not acknowledged within `ACK_SECONDS` goes to
another.

Drained: the stream's last number is noted, and when the consumer has been acknowledged beyond it,
or has nothing more to deliver or to be acknowledged, all that the broker took before is committed,
by whichever worker.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import Any, Final

from collector.links import BATCH, Message
from collector.links.nats import Frame, NatsConnection, read_json
from collector.settings import StreamAddress
from protocol_spec.programs.cli import Finding
from protocol_spec.programs.output import shown
from protocol_spec.programs.packets import CUT_BYTES
from protocol_spec.programs.settings import BrokerUnreachable, Credentials
from protocol_spec.programs.system import random_client_id
from protocol_spec.topics import from_all_devices

STREAM: Final = "$MQTT_msgs"
PREFIX: Final = "$MQTT.msgs."
ACK_SECONDS: Final = 30
IN_FLIGHT: Final = 16 * BATCH  # delivered to some worker and not acknowledged yet
SECOND: Final = 10**9  # in nanoseconds
PULL_SECONDS: Final = 15.0  # until a pull request expires at the server
PULL_BYTES: Final = 1 << 22
LATE_SECONDS: Final = 5.0  # an answer that is later than this is not waited for
PAUSE_SECONDS: Final = 1.0  # before asking a server again that cannot answer now
_NO_CONSUMER: Final = 10014
_NO_STREAM: Final = 10059
_STREAM_INFO: Final = f"$JS.API.STREAM.INFO.{STREAM}"
_new: Final = tuple.__new__  # makes a named tuple in a third of the time
_ACK_END: Final = b" 0\r\n\r\n"  # an acknowledgement has no payload
_ACK_NEXT: Final = _ACK_END + b"PUB "

log = logging.getLogger("allomfree.collector")


# --- stream and consumer --------------------------------------------------------------------------


def consumer_name(namespace: str) -> str:
    """The durable consumer that the workers of a namespace share."""
    return f"{namespace}-collectors"


def _on_consumer(action: str, namespace: str) -> str:
    """The subject of a request about the consumer."""
    return f"$JS.API.CONSUMER.{action}.{STREAM}.{consumer_name(namespace)}"


def inbox(namespace: str) -> str:
    """The prefix of the subjects on which workers receive replies."""
    return f"_INBOX_{namespace}"


def required_subjects(namespace: str) -> tuple[list[str], list[str]]:
    """Subjects that a worker's user must be allowed to publish to, and to subscribe to."""
    of_consumer = [_on_consumer(action, namespace) for action in ("CREATE", "INFO", "MSG.NEXT")]
    acknowledged = f"$JS.ACK.{STREAM}.{consumer_name(namespace)}.>"
    return [_STREAM_INFO, *of_consumer, acknowledged], [f"{inbox(namespace)}.>"]


def subject_of_devices(namespace: str) -> str:
    """What devices publish, as NATS names it."""
    return PREFIX + from_all_devices(namespace).replace("/", ".").replace("+", "*")


def consumer_settings(namespace: str) -> dict[str, Any]:
    """What the consumer must be like; the rest an operator may change.

    One filter, though it lets through more than devices send: with two, and many devices, NATS
    searches all subjects for every message beyond its first block of 8 MB.
    """
    wanted = [subject_of_devices(namespace)]
    return {"ack_policy": "explicit", "max_deliver": -1, "filter_subjects": wanted}


def stream_fault(info: dict[str, Any]) -> str | None:
    """Why a stream cannot be used, from the server's description of it."""
    code = _code_of(info)
    if code == _NO_STREAM:
        return (
            f"it has no stream {STREAM}. NATS makes it for the first MQTT client of the same "
            "account: has the leader connected, and is its MQTT port switched on?"
        )
    if code:
        return _refused(info, "stream")
    config = info.get("config")
    if (config.get("subjects") if isinstance(config, dict) else None) != [f"{PREFIX}>"]:
        return (
            f"its stream {STREAM} belongs to somebody else: it does not hold what MQTT clients "
            "publish. Use the account that devices use"
        )
    return None


def consumer_fault(info: dict[str, Any], namespace: str) -> str | None:
    """Why a consumer cannot be used, from the server's description of it."""
    if _code_of(info):
        return _refused(info, "consumer")
    found = info.get("config")
    known = found if isinstance(found, dict) else {}
    if known.get("filter_subject") and not known.get("filter_subjects"):
        known = known | {"filter_subjects": [known["filter_subject"]]}
    wanted = consumer_settings(namespace)
    other = [name for name, value in wanted.items() if known.get(name) != value]
    if known.get("deliver_subject"):
        other.append("deliver_subject")
    if not other:
        return None
    return (
        f"its consumer {consumer_name(namespace)} belongs to somebody else, or was changed: "
        f"{', '.join(other)}. Nothing was changed; delete it if nobody needs it, and it is made "
        "again, or choose another --namespace"
    )


def _refused(info: dict[str, Any], what: str) -> str:
    """The error that the server returned."""
    error = info["error"]
    text = shown(str(error.get("description", "") if isinstance(error, dict) else error))
    return f"it refused the {what} ({text})"


def _code_of(info: dict[str, Any]) -> int:
    """The code of an error; 0 without one."""
    if info.get("error") is None:
        return 0
    return _number_of(info, "error", "err_code") or 1


def _number_of(info: object, *names: str) -> int | None:
    """A number in a server's answer; None without it."""
    for name in names:
        info = info.get(name) if isinstance(info, dict) else None
    return info if isinstance(info, int) else None


def inspect_stream(address: StreamAddress, credentials: Credentials, namespace: str) -> Finding:
    """Whether workers can share the reports of this server, for `doctor`: changes nothing."""
    replies = f"{inbox(namespace)}.{random_client_id('d')}"
    connection = NatsConnection(address, credentials, inbox=replies)
    name, info = consumer_name(namespace), dict[str, Any]()
    try:
        connection.connect()
        with closing(connection):
            connection.subscribe(f"{replies}.>")
            fault = stream_fault(connection.demand(_STREAM_INFO))
            if fault is None:
                info = connection.demand(_on_consumer("INFO", namespace))
    except BrokerUnreachable as error:
        return Finding("stream", False, str(error))
    if fault is None and _code_of(info) == _NO_CONSUMER:
        return Finding("stream", True, f"{address} answers; the first worker makes {name}")
    fault = fault or consumer_fault(info, namespace)
    if fault is not None:
        return Finding("stream", False, f"{address} cannot be used by workers: {fault}")
    waiting, unacknowledged = (info.get(key) for key in ("num_pending", "num_ack_pending"))
    text = f"{waiting} reports wait and {unacknowledged} are not acknowledged yet"
    return Finding("stream", True, f"{address} answers; of {name}, {text}")


# --- the source ---------------------------------------------------------------------------------


class ReportStream:
    """Pulls batches; one pull request is pending at the server at any time."""

    link: Final = None  # only MQTT clients publish

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
        self._moment: float | None = None  # up to which it is being proven that all is committed
        self._last: int | None = None  # the stream's last number at that moment, or after it
        self._question: int | None = None
        self._asked_at = 0.0

    def open(self) -> None:
        """Find the stream, and find or make the consumer. Raises `BrokerUnreachable`."""
        connection, namespace = self._connection, self._namespace
        connection.subscribe(f"{self._reply}.>")
        self._require(stream_fault(connection.demand(_STREAM_INFO)))
        info = connection.demand(_on_consumer("INFO", namespace))
        if _code_of(info) == _NO_CONSUMER:
            settings = {
                **consumer_settings(namespace),
                "durable_name": consumer_name(namespace),
                "deliver_policy": "all",
                "replay_policy": "instant",
                "ack_wait": self._ack_seconds * SECOND,
                "max_ack_pending": IN_FLIGHT,
            }
            body = {"stream_name": STREAM, "config": settings, "action": "create"}
            info = connection.demand(_on_consumer("CREATE", namespace), body)
            log.info("made the consumer %s of the stream %s", consumer_name(namespace), STREAM)
        self._require(consumer_fault(info, namespace))

    def _require(self, fault: str | None) -> None:
        if fault is not None:
            self._connection.close()
            raise BrokerUnreachable(f"the stream at {self.name} cannot be used: {fault}")

    @property
    def name(self) -> str:
        return str(self._connection.address)

    @property
    def lost(self) -> str | None:
        return self._trouble or self._connection.lost

    def step(self, timeout_seconds: float) -> list[Message]:
        """Up to a batch of what the stream holds; the next one is requested already."""
        self._pull()
        messages = self._read(self._connection.turn(timeout_seconds, BATCH))
        self._take_answer()
        self._pull()
        self._connection.flush()
        return messages

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """Each message by itself: other workers may hold older ones."""
        replies = self._replies
        self._acknowledge([r for m in messages if (r := replies.pop(m.mid, None)) is not None])
        self._connection.flush()

    def _acknowledge(self, replies: Sequence[bytes]) -> None:
        if replies:
            self._connection.send(b"PUB " + _ACK_NEXT.join(replies) + _ACK_END)

    def retire(self, moment: float) -> None:  # noqa: ARG002 - the stream is everybody's
        self._retired = True

    def close(self, *, stay: bool = True) -> None:  # noqa: ARG002 - nothing is kept for one worker
        self._connection.close()

    # --- pulling -------------------------------------------------------------------------------

    def _pull(self) -> None:
        now = self._monotonic()
        answered = self._wanted <= 0 and now >= self._paused_until
        late = now >= self._pulled_at + PULL_SECONDS + LATE_SECONDS
        if self._retired or not (answered or late):
            return
        self._pulls += 1
        self._wanted, self._pulled_at = BATCH, now
        most = max(PULL_BYTES, 2 * self._connection.largest_message)
        terms = (BATCH, PULL_SECONDS * SECOND, most)
        self._connection.publish(
            _on_consumer("MSG.NEXT", self._namespace),
            b'{"batch":%d,"expires":%d,"max_bytes":%d}' % terms,
            f"{self._reply}.next.{self._pulls}",
        )

    def _read(self, frames: Iterable[Frame]) -> list[Message]:
        """What devices sent."""
        messages, replies = [], self._replies
        for frame in frames:
            _, subject, reply, _, payload = frame
            if not reply:
                self._hear_status(frame)
                continue
            self._wanted -= 1
            self._count += 1
            replies[self._count] = reply
            row = (_topic(subject), payload[:CUT_BYTES], False, self._count)
            messages.append(_new(Message, row))
        return messages

    def _hear_status(self, frame: Frame) -> None:
        """The server ends a pull request: it has expired, or something is wrong."""
        if frame.subject != f"{self._reply}.next.{self._pulls}".encode():
            return
        self._wanted = 0
        text = frame.headers[:200].partition(b"\r\n")[0].decode("utf-8", "replace")
        if frame.status == 409 and ("Deleted" in text or "Push Based" in text):
            name = consumer_name(self._namespace)
            self._trouble = f"somebody deleted or changed the consumer {name}"
        elif frame.status == 503:
            self._trouble = "no server serves the stream now"
        elif frame.status not in (404, 408) and "Batch Completed" not in text:
            self._paused_until = self._monotonic() + PAUSE_SECONDS

    # --- proving that it is drained ------------------------------------------------------------

    def mark(self, moment: float) -> None:
        """Begin with this moment, unless an earlier one is still being proven."""
        if self._moment is None:
            self._moment, self._last = moment, None
        if self._question is None or self._monotonic() > self._asked_at + LATE_SECONDS:
            self._ask()

    def _ask(self) -> None:
        self._asked_at = self._monotonic()
        subject = _STREAM_INFO if self._last is None else _on_consumer("INFO", self._namespace)
        self._question = self._connection.ask(subject)

    def _take_answer(self) -> None:
        frame = None if self._question is None else self._connection.answer(self._question)
        if frame is None:
            return
        self._question = None
        info = read_json(frame) or {}
        if self._last is None:
            self._last = _number_of(info, "state", "last_seq")
            if self._last is not None:
                self._ask()
            return
        floor = _number_of(info, "ack_floor", "stream_seq")
        idle = info.get("num_pending") == 0 and info.get("num_ack_pending") == 0
        if idle or (floor is not None and floor >= self._last):
            self.drained, self._moment = max(self.drained, self._moment or 0.0), None


def _topic(subject: bytes) -> str | None:
    """The topic that a device published to; NATS writes a dot as //, an empty level as /."""
    try:
        name = subject.decode().removeprefix(PREFIX)
    except UnicodeDecodeError:
        return None
    if "/" in name:
        levels = name.split(".")
        return "/".join("" if level == "/" else level.replace("//", ".") for level in levels)
    return name.replace(".", "/")


class StreamConnector:
    """Connects to one server of a cluster after the other."""

    def __init__(
        self,
        addresses: Callable[[], Sequence[StreamAddress]],
        credentials: Credentials,
        namespace: str,
        *,
        keepalive: int = 60,
        ack_seconds: int = ACK_SECONDS,
    ) -> None:
        self._addresses = addresses
        self._credentials = credentials
        self._namespace = namespace
        self._keepalive = keepalive
        self._ack_seconds = ack_seconds
        self._attempts = 0

    def __call__(self) -> ReportStream:
        """A new connection. Raises `BrokerUnreachable` saying why there is none."""
        addresses = self._addresses()
        if not addresses:
            raise BrokerUnreachable(
                "NATS has not yet reported the port at which workers pull reports"
            )
        address = addresses[self._attempts % len(addresses)]
        self._attempts += 1
        replies = f"{inbox(self._namespace)}.{random_client_id('w')}"
        connection = NatsConnection(
            address, self._credentials, inbox=replies, keepalive=self._keepalive
        )
        connection.connect()
        source = ReportStream(
            connection, self._namespace, replies, time.monotonic, self._ack_seconds
        )
        source.open()
        self._attempts -= 1  # the same server again, as long as it is good
        return source
