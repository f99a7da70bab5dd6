"""Real brokers on ports of their own, a fast publisher, and a minimal collector.

NATS comes from a wheel and is always there; mosquitto only where it is installed.
"""

from __future__ import annotations

import os
import socket
import ssl
import struct
import threading
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Final, Self

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from collector.brokers.config import Pair
from protocol_spec import (
    Manifest,
    Presence,
    ReceiptPage,
    Rejected,
    State,
    Topics,
    decode_report,
    digest8,
    parse_from_device,
    receipt_page,
    receipt_tag,
)
from protocol_spec.programs.settings import parse_broker
from protocol_spec.programs.system import random_client_id
from testbed.processes import Process, TestbedError, free_port, is_open, need_program

START_SECONDS: Final = 30.0
# mosquitto started by root would become another user, who may not read our files.
AS_OURSELVES = "user root\n" if os.geteuid() == 0 else ""


class Broker(Process, ABC):
    """A broker on a port of its own, with its data in a directory of its own; killed at the end."""

    poll_seconds = 0.02
    tls: ClassVar[bool] = False
    environment: ClassVar[Mapping[str, str]] = {}  # in addition to our own

    def __init__(self, directory: Path, port: int | None = None) -> None:
        super().__init__("the broker", [], directory / "log")
        self.directory = directory
        self.port = port or free_port()

    @property
    def url(self) -> str:
        return f"mqtt{'s' if self.tls else ''}://127.0.0.1:{self.port}"

    @property
    def ports(self) -> list[int]:
        return [self.port]

    @property
    def ca_file(self) -> Path | None:
        """The authority that clients must trust; None without TLS."""
        return self.directory / "ca.crt" if self.tls else None

    @property
    def server_files(self) -> Pair:
        """The broker's certificate and key, if it has TLS."""
        return Pair(self.directory / "server.crt", self.directory / "server.key")

    @abstractmethod
    def configured_command(self) -> list[str]:
        """Write the configuration; the command that starts the broker in the foreground."""

    def start(self) -> None:
        """Return once it accepts connections."""
        self.directory.mkdir(parents=True, exist_ok=True)
        if self.tls and not self.server_files.certificate.exists():
            # Only here: a benchmark's reader must not carry the certificates' library.
            from collector.brokers.authority import Authority  # noqa: PLC0415

            Authority(self.directory).issue_server(self.server_files, ["127.0.0.1", "localhost"])
        settings = (f"{name}={value}" for name, value in self.environment.items())
        self.command = ["env", *settings, *self.configured_command()]
        super().start()
        try:
            self.wait_for("it to listen", lambda: all(map(is_open, self.ports)), START_SECONDS)
        except TestbedError:
            self.kill()
            raise

    def __exit__(self, *_: object) -> None:
        if self.is_running:
            self.kill()


class Nats(Broker):
    """nats-server with its MQTT listener, JetStream synced once a second as the product has it."""

    server_name = "testbed"
    extra = ""
    listener = ""
    clients = ""  # further settings of NATS's own port
    sync = ', sync_interval: "1s"'

    @cached_property
    def stream_port(self) -> int:
        """The port from which workers pull reports."""
        return free_port()

    @property
    def ports(self) -> list[int]:
        """NATS opens its own port after the one for MQTT."""
        return [self.port, self.stream_port]

    def configured_command(self) -> list[str]:
        config = self.directory / "nats.conf"
        config.write_text(self.configuration())
        return [need_program("nats-server"), "-c", str(config)]

    def configuration(self) -> str:
        pair = self.server_files
        tls = f'tls {{ cert_file: "{pair.certificate}", key_file: "{pair.key}" }}'
        return f"""
            server_name: {self.server_name}
            listen: 127.0.0.1:{self.stream_port}
            {self.clients}
            jetstream {{ store_dir: "{self.directory}/js"{self.sync} }}
            mqtt {{ listen: 127.0.0.1:{self.port}, max_ack_pending: 20000, {self.listener}
              {tls if self.tls else ""} }}
            {self.extra}
            """


class Mosquitto(Broker):
    """mosquitto without access control."""

    extra = "allow_anonymous true\n"

    def configured_command(self) -> list[str]:
        program = need_program("mosquitto")
        config = self.directory / "mosquitto.conf"
        pair = self.server_files
        tls = f"certfile {pair.certificate}\nkeyfile {pair.key}\n{AS_OURSELVES}"
        listener = f"listener {self.port} 127.0.0.1\n{tls if self.tls else ''}"
        config.write_text(f"{listener}{self.extra}")
        return [program, "-c", str(config)]


def with_tls(kind: type[Broker]) -> type[Broker]:
    """The same broker, which accepts TLS connections only."""
    return type(f"{kind.__name__}WithTls", (kind,), {"tls": True})


BROKERS: dict[str, type[Broker]] = {"nats": Nats, "mosquitto": Mosquitto}


# The publisher sends the messages of many devices through one connection, so the broker must let it
# publish on every device's topic. It is plain MQTT 3.1.1 over a socket, because a client library
# takes several times as long for a message as the broker does.

WINDOW: Final = 1_000  # messages that may wait for the broker's answer
GROUP: Final = 100  # messages of one write to the socket; WINDOW is a multiple of it
ANSWER_SECONDS: Final = 60.0
KEEPALIVE_SECONDS: Final = 600

Message = tuple[str, bytes]  # topic and payload
Progress = Callable[[int], None]

_CONNECT, _PUBLISH_QOS_1, _SUBSCRIBE = 0x10, 0x32, 0x82
_DISCONNECT: Final = b"\xe0\0"
_ACCEPTED: Final = b"\x20\x02\0\0"  # a CONNACK without a session from before
_ANSWER_BYTES: Final = 4  # of a PUBACK


def make_session(
    url: str, client_id: str, topic_filter: str, *, ca_file: Path | None = None
) -> None:
    """A persistent session that collects messages while nobody reads."""
    with connected(url, client_id, clean=False, ca_file=ca_file) as sock:
        sock.sendall(mqtt_packet(_SUBSCRIBE, b"\0\1" + mqtt_text(topic_filter) + b"\1"))
        sock.recv(5)
        sock.sendall(_DISCONNECT)


def publish(
    url: str,
    messages: Iterable[Message],
    progress: Progress = lambda _: None,
    *,
    retain: bool = False,
    ca_file: Path | None = None,
    answer_seconds: float = ANSWER_SECONDS,
) -> int:
    """Publish with QoS 1; returns the number of messages once the broker has acknowledged all.

    PUBACKs all have the same length, so counting their bytes is enough. Those of a whole window fit
    into a socket's buffer, so the broker never blocks on us while we write.
    """
    sent = received = 0
    left, kind = iter(messages), _PUBLISH_QOS_1 | retain
    with connected(url, ca_file=ca_file, answer_seconds=answer_seconds) as sock:

        def wait_until_unanswered(most: int) -> None:
            nonlocal received
            while sent - received // _ANSWER_BYTES > most:
                answers = len(sock.recv(1 << 16))
                if not answers:
                    raise ConnectionError("the broker closed the connection")
                received += answers

        while group := list(islice(left, GROUP)):
            wait_until_unanswered(WINDOW - len(group))
            packets = [
                mqtt_packet(kind, mqtt_text(topic) + struct.pack(">H", n % 65_535 + 1) + payload)
                for n, (topic, payload) in enumerate(group, start=sent)
            ]
            sock.sendall(b"".join(packets))
            sent += len(group)
            progress(len(group))
        wait_until_unanswered(0)
        sock.sendall(_DISCONNECT)
    return sent


@contextmanager
def connected(
    url: str,
    client_id: str = "",  # empty: the broker makes one up
    *,
    clean: bool = True,
    ca_file: Path | None = None,
    answer_seconds: float = ANSWER_SECONDS,
) -> Iterator[socket.socket]:
    """A connection that the broker has accepted; any failure on it is a TestbedError."""
    broker = parse_broker(url)
    head = mqtt_text("MQTT") + struct.pack(">BBH", 4, 2 if clean else 0, KEEPALIVE_SECONDS)
    try:
        with ExitStack() as stack:
            sock = socket.create_connection((broker.host, broker.port), answer_seconds)
            stack.callback(sock.close)
            if broker.tls:
                context = ssl.create_default_context(cafile=ca_file)
                sock = stack.enter_context(context.wrap_socket(sock, server_hostname=broker.host))
            sock.sendall(mqtt_packet(_CONNECT, head + mqtt_text(client_id)))
            if sock.recv(4) != _ACCEPTED:
                raise ConnectionError("the broker refused the connection")
            yield sock
    except OSError as error:
        raise TestbedError(f"publishing to {url} failed: {error}") from None


def mqtt_text(value: str | bytes) -> bytes:
    encoded = value if isinstance(value, bytes) else value.encode()
    return struct.pack(">H", len(encoded)) + encoded


def mqtt_packet(first: int, body: bytes) -> bytes:
    """With its first byte, which holds kind and flags."""
    size, head = len(body), bytearray([first])
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    return bytes([*head, size]) + body


def leave(client: mqtt.Client) -> None:
    """Disconnect a threaded paho client, wait for its thread, and drop the callbacks: paho closes
    its sockets when nothing refers to the client any more."""
    with suppress(OSError):
        client.disconnect()
    stop(client)
    client.on_connect = client.on_message = client.on_subscribe = None


def stop(client: mqtt.Client) -> None:
    """Wait for the thread. If it ends just now, paho's `loop_stop` finds None in its place."""
    with suppress(AttributeError):
        client.loop_stop()


class Tally:
    """A minimal collector where only the agent is of interest: it counts reports per device and
    round and gives receipts. It keeps every payload, so that a test can ask whether two different
    byte strings ever came for one round."""

    def __init__(
        self,
        port: int,
        manifest: Manifest,
        *,
        receipts: bool = True,
        keep_session: bool = False,
    ) -> None:
        self.manifest = manifest
        self.topics = Topics(manifest.campaign)
        self.receipts = receipts
        self.payloads: dict[tuple[str, int], set[bytes]] = defaultdict(set)
        self.deliveries: list[tuple[str, bytes]] = []
        self._heard = threading.Condition()
        self._ready = threading.Event()
        self._client = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            "tally" if keep_session else random_client_id("tally"),
            clean_session=not keep_session,
            protocol=MQTTProtocolVersion.MQTTv311,
        )
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = lambda *_: self._ready.set()
        self._client.on_message = self._on_message
        self._port = port

    def __enter__(self) -> Self:
        self._client.connect("127.0.0.1", self._port)
        self._client.loop_start()
        if not self._ready.wait(ANSWER_SECONDS):
            raise TestbedError("the broker did not answer the subscription")
        self._client.publish(self.topics.manifest, self.manifest.to_bytes(), 1, True)
        return self

    def __exit__(self, *_: object) -> None:
        leave(self._client)

    def close_campaign(self) -> None:
        state = State(digest8(self.manifest), Presence.CLOSED, None)
        self._client.publish(self.topics.state, state.encode(), 1, True)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        self._client.publish(topic, payload, 1, retain).wait_for_publish(ANSWER_SECONDS)

    def send(self, topic: str, payload: bytes) -> None:
        """QoS 0, for floods."""
        self._client.publish(topic, payload)

    def wait_for(self, reports: int, timeout: float = 60.0) -> None:
        """Until that many different (device, round) pairs have arrived."""
        with self._heard:
            if not self._heard.wait_for(lambda: len(self.payloads) >= reports, timeout):
                raise TestbedError(f"{len(self.payloads)} of {reports} reports in {timeout} s")

    def _on_connect(self, client: mqtt.Client, *_: Any) -> None:
        client.subscribe(self.topics.all_reports, 1)

    def _on_message(self, _client: Any, _data: Any, message: mqtt.MQTTMessage) -> None:
        origin = parse_from_device(message.topic)
        report = decode_report(bytes(message.payload))
        if origin is None or isinstance(report, Rejected):
            return
        with self._heard:
            self.deliveries.append((origin.device, bytes(message.payload)))
            self.payloads[origin.device, report.round].add(bytes(message.payload))
            self._heard.notify_all()
        if self.receipts:
            self._give_receipts(report.round, receipt_page(self.manifest, origin.device))

    def _give_receipts(self, number: int, page: int) -> None:
        devices = [device for device, r in self.payloads if r == number]
        mine = (device for device in devices if receipt_page(self.manifest, device) == page)
        tags = frozenset(receipt_tag(self.manifest, number, device) for device in mine)
        receipt = ReceiptPage(digest8(self.manifest), number, page, tags)
        self._client.publish(self.topics.receipt(number, page), receipt.encode(), 1, True)
