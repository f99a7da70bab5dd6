"""Collectors in processes of their own, campaigns to count, and devices at a real broker.

Run as a program it is a service with quick timing, until SIGTERM or until it kills itself -9 at a
given step.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Protocol, Self, cast

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from collector.brokers.embedded import EmbeddedBroker
from collector.data_dir import (
    DATABASE,
    DeviceKey,
    device_key,
    open_shared,
    open_store,
    read_store,
    session_name,
)
from collector.health import Heartbeat
from collector.links import Connect, Link, Links, Will
from collector.links.mqtt import PahoConnector, Subscription
from collector.links.stream import StreamConnector
from collector.records import Campaign
from collector.service import Options as ServiceOptions
from collector.service import Service, service_for
from collector.settings import StreamAddress, resolve
from collector.store import Store, Worker
from collector.store.sqlite import SqliteStore
from collector.timing import Clock, Timing
from protocol_spec import (
    DEFAULT_NAMESPACE,
    Manifest,
    Outcome,
    Presence,
    ReceiptPage,
    Report,
    State,
    Topics,
    decode_receipts,
    decode_report,
    digest8,
    make_report,
    receipt_tag,
)
from protocol_spec.programs import output
from protocol_spec.programs.settings import Credentials, parse_broker
from protocol_spec.programs.system import random_client_id
from testbed.brokers import Broker, Nats, leave, mqtt_text, publish
from tests.support.campaigns import manifest
from tests.support.databases import new_schema
from tests.support.network import CONNACK, CONNECT, PUBLISH, Wire, frame, paho
from tests.support.processes import Logged, run_command, wait_until

Message = tuple[str, bytes]
ASK_AGAIN_SECONDS = 5.0


# --- devices and onlookers at a real broker, made of plain paho -----------------------------------


def _client() -> mqtt.Client:
    return mqtt.Client(
        CallbackAPIVersion.VERSION2, "", clean_session=True, protocol=MQTTProtocolVersion.MQTTv311
    )


class Watcher:
    """Sees what is published under some topics: first what is retained, then the rest."""

    def __init__(self, port: int, *filters: str) -> None:
        self.latest: dict[str, bytes] = {}
        self.history: list[Message] = []
        self._port = port
        self._filters = filters
        self._heard = threading.Condition()
        self._subscribed = threading.Event()
        self._client = _client()
        self._client.on_message = self._on_message
        self._client.on_connect = lambda client, *_: self._ask(client)
        self._client.on_subscribe = lambda *_: self._subscribed.set()
        self._client.reconnect_delay_set(1, 1)

    def __enter__(self) -> Self:
        self._client.connect("127.0.0.1", self._port)
        self._client.loop_start()
        assert self._subscribed.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        leave(self._client)

    def wait_for(self, done: Callable[[], bool], timeout: float = 60.0) -> None:
        """Wait until the condition holds. Retained messages are requested again now and then: NATS
        may take a subscription after it has handed a message on and before it keeps it."""
        limit = time.monotonic() + timeout
        with self._heard:
            while not self._heard.wait_for(done, min(ASK_AGAIN_SECONDS, timeout)):
                assert time.monotonic() < limit, sorted(self.latest)
                self._ask(self._client)

    def wait_for_topic(self, topic: str, payload: bytes | None = None) -> bytes:
        """Until a topic was published, with these bytes if they are given."""
        self.wait_for(lambda: topic in self.latest and payload in (None, self.latest[topic]))
        return self.latest[topic]

    def _ask(self, client: mqtt.Client) -> None:
        client.subscribe([(name, 1) for name in self._filters])

    def _on_message(self, _client: Any, _data: Any, message: mqtt.MQTTMessage) -> None:
        topic, payload = message.topic, bytes(message.payload)
        with self._heard:
            if not message.retain or self.latest.get(topic) != payload:  # else it was asked for
                self.history.append((topic, payload))
            self.latest[topic] = payload
            self._heard.notify_all()


def retained(port: int, *filters: str) -> dict[str, bytes]:
    """What a broker keeps under these topics; a message of our own, sent after asking, ends it."""
    mark = "allomfree-test/mark"
    with Watcher(port, *filters, mark) as watcher:
        publish(f"mqtt://127.0.0.1:{port}", [(mark, b"end")])
        watcher.wait_for_topic(mark)
        return {topic: payload for topic, payload in watcher.latest.items() if topic != mark}


def connect_raw(sock: socket.socket) -> Wire:
    """MQTT 3.1.1 by hand, for what paho would not send."""
    sock.sendall(frame(CONNECT, mqtt_text("MQTT") + bytes([4, 2, 0, 60]) + mqtt_text("raw")))
    wire = Wire(sock)
    answer = wire.read()
    assert answer is not None
    assert answer.kind == CONNACK
    return wire


def publication(wire: Wire, message: Message, mid: int) -> bytes:
    """A message from a scripted broker to the collector with QoS 1, as bytes."""
    topic, payload = message
    tail = b"\0" if wire.version == 5 else b""
    return frame(PUBLISH, mqtt_text(topic) + mid.to_bytes(2) + tail + payload, flags=2)


# --- the command line -----------------------------------------------------------------------------


COLLECTOR = (sys.executable, "-m", "collector")


def collector(*words: str | Path, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    return run_command([*COLLECTOR, *map(str, words)], timeout)


def facts(*words: str | Path) -> Any:
    """What a command prints with --json."""
    done = collector(*words, "--json")
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


class CollectorProcess(Logged):
    """`allomfree-collector run`."""

    def __init__(
        self, data: Path, *flags: str, extra_environment: Mapping[str, str] | None = None
    ) -> None:
        quietly = ("run", "--quiet", "--listen", "off", "--data-dir", str(data))
        super().__init__([*COLLECTOR, *quietly, *flags], extra_environment)


# --- a service that may kill itself at a step -----------------------------------------------------


IN_MEMORY: Final = "batch in memory"
IN_TRANSACTION: Final = "inside the transaction"
COMMITTED: Final = "batch committed"
ACKNOWLEDGED: Final = "batch acknowledged"
SEALING: Final = "sealing"
IN_SEALING: Final = "inside sealing"
LOG_NOT_WIPED: Final = "sealed, the log not wiped"
SEALED: Final = "sealed"
STATEMENTS: Final = {
    "INSERT INTO outcome_total": IN_TRANSACTION,
    "INSERT INTO device": IN_SEALING,
    "PRAGMA wal_checkpoint": LOG_NOT_WIPED,
}
QUICK: Final = Timing(
    step_seconds=0.1,
    upkeep_every_seconds=0.1,
    receipts_every_seconds=0.2,
    reconnect_seconds=0.2,
    reconnect_longest_seconds=1.0,
    storage_retry_seconds=0.2,
)
TIMING: Final = replace(
    QUICK,
    settle_seconds=2.0,
    calm_seconds=0.2,
    probe_every_seconds=1.0,
    stuck_seconds=3.0,
    jump_seconds=math.inf,  # tests set the clock as they need it
    flood_seconds=4.0,
)
WORKER_TIMING: Final = replace(QUICK, beat_every_seconds=0.2, lease_seconds=2.0, fence_seconds=3.0)


@dataclass(frozen=True, slots=True)
class Options:
    """Of one run. `clock` names a file that holds the collector's time of day; with `embedded` it
    starts its own broker, whatever address is given; with `jump_seconds` it doubts a clock that is
    set ahead by more, which nothing confirms; with `store` it is one of several workers, which
    pulls from `stream` if that is given."""

    data: str
    broker: str
    namespace: str
    die_at: str | None = None
    nth: int = 1
    clock: str | None = None
    receipts: bool = True
    keepalive: int = 60
    reconnect_longest: float = 1.0
    embedded: bool = False
    jump_seconds: float | None = None
    store: str | None = None
    stream: str | None = None


class CollectorRun(Logged):
    """A collector that runs, or ran: the program below with these options."""

    def __init__(self, options: Options) -> None:
        super().__init__([sys.executable, "-m", __name__, json.dumps(asdict(options))])


class Launcher:
    """Starts any number of collectors, also at once; all are killed at the end of a test."""

    def __init__(self) -> None:
        self.runs = ExitStack()

    def start(self, options: Options) -> CollectorRun:
        """Start a collector; whether it is connected, the broker shows."""
        return self.runs.enter_context(CollectorRun(options))


# --- the program ----------------------------------------------------------------------------------


def _main(options: Options) -> None:
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopping.append(number))
    output.set_up_logging("info")
    run = _run_service if options.store is None else _run_worker
    run(options, lambda: bool(stopping))


def _run_worker(options: Options, stop: Callable[[], bool]) -> None:
    """As `allomfree-collector run` runs it, but with quick timing."""
    names = ("store", "broker", "namespace", "stream")
    given = {name: value for name in names if (value := getattr(options, name))}
    settings = resolve({"data_dir": Path(options.data), **given}, environ={})
    with closing(open_store(settings.data_dir, settings.store)) as store:
        key = device_key(settings, store)
        service = service_for(settings, store, key, lambda *_: None, timing=WORKER_TIMING)
        heartbeat = Heartbeat(settings.data_dir, every_seconds=0.2)
        service.run(stop, lambda: heartbeat.beat(service.status))


def _run_service(options: Options, stop: Callable[[], bool]) -> None:
    data, tripwire = Path(options.data), Tripwire(options)
    broker = EmbeddedBroker(data / "broker") if options.embedded else None
    if broker is not None:
        broker.start()
        options = replace(options, broker=str(broker.url))
    store = SqliteStore(data / DATABASE, connect=tripwire.connect)
    clock = Clock(confirmed=lambda: False)
    if options.clock:
        file = Path(options.clock)
        clock = replace(clock, now=lambda: float(file.read_text()))
    timing = replace(
        TIMING,
        reconnect_longest_seconds=options.reconnect_longest,
        jump_seconds=options.jump_seconds or TIMING.jump_seconds,
    )
    connect = _connector(options)
    links = Links(
        lambda will: Subscription(connect(will), options.namespace, clock=clock, timing=timing),
        restart_broker=broker.restart if broker is not None else lambda: None,
    )
    chosen = ServiceOptions(
        namespace=options.namespace, clock=clock, timing=timing, trace=tripwire.pass_by
    )
    service = Service(store, DeviceKey(data / "device.key"), links, chosen)
    heartbeat = Heartbeat(data, every_seconds=0.2)

    def each_turn() -> None:
        if broker is not None:
            broker.supervise()
        heartbeat.beat(service.status)

    service.run(stop, each_turn)
    store.close()
    if broker is not None:
        broker.stop()


def _connector(options: Options) -> Connect:
    name = session_name(Path(options.data))
    connect = PahoConnector(
        parse_broker(options.broker), Credentials(), client_id=name, keepalive=options.keepalive
    )

    def without_receipts(will: Will | None) -> Link:
        return cast(Link, WithoutReceipts(connect(will)))

    return connect if options.receipts else without_receipts


class WithoutReceipts:
    """A connection that swallows receipts."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def publish(self, topic: str, payload: bytes, *, retain: bool = True) -> int:
        swallowed = "/receipt/" in topic
        return 0 if swallowed else self._link.publish(topic, payload, retain=retain)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)


class Tripwire:
    """Kills its own process when a step is passed for the nth time."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._passed: list[str] = []

    def connect(self, *place: Any, **how: Any) -> sqlite3.Connection:
        """Trace the statements of a connection: steps inside its transactions are among them."""
        db: sqlite3.Connection = sqlite3.connect(*place, **how)
        db.set_trace_callback(self._execute)
        return db

    def pass_by(self, step: str) -> None:
        self._passed.append(step)
        if step == SEALING:  # the log is also wiped when a file is opened: that is not a sealing
            self._passed = [p for p in self._passed if p != LOG_NOT_WIPED]
        counts = step != LOG_NOT_WIPED or SEALING in self._passed
        is_nth = self._passed.count(step) == self._options.nth
        if counts and step == self._options.die_at and is_nth:
            os.kill(os.getpid(), signal.SIGKILL)

    def _execute(self, statement: str) -> None:
        for beginning, step in STATEMENTS.items():
            if statement.startswith(beginning):
                self.pass_by(step)


# --- a campaign in which every device has a bit of its own: each counter must be exactly 0 or 1 ---


ATTRIBUTE = "bit"


def own_bits(devices: int, **options: object) -> Manifest:
    """One attribute, answered in unary, with as many values as there are devices."""
    names = ", ".join(f'"v{i}"' for i in range(devices))
    table = f'[[attributes]]\nname = "{ATTRIBUTE}"\nquestion = "?"\nprotocol = "L-OSUE"\n'
    return manifest(attributes=f"{table}values = [{names}]\n", **options)


@dataclass(frozen=True, slots=True)
class Counted:
    """What the collector's database holds of one round."""

    n: int
    counts: list[int]
    outcomes: dict[Outcome, int]
    received: int
    rows: int
    sealed: bool
    results: list[bytes]
    unpublished: int


class Reachable(Protocol):
    """A broker, or something between it and the collector."""

    @property
    def url(self) -> str: ...


def own_namespace() -> str:
    """A first level of topics that no other test uses."""
    return random_client_id("test")


class Collection:
    """A collector's data directory with one open campaign, and the devices that report to it.

    Several can share a broker, each in a namespace of its own.
    """

    def __init__(
        self, data: Path, manifest: Manifest, devices: int, namespace: str = DEFAULT_NAMESPACE
    ) -> None:
        self.data = data
        self.manifest = manifest
        self.devices = devices
        self.namespace = namespace
        self.topics = Topics(manifest.campaign, namespace)
        self.clock = data / "clock"

    @classmethod
    def opened(
        cls, data: Path, devices: int, *, namespace: str = DEFAULT_NAMESPACE, **options: object
    ) -> Collection:
        return cls.of(data, own_bits(devices, **options), devices, namespace)

    @classmethod
    def shared(cls, data: Path, devices: int, **options: object) -> Collection:
        """In a namespace of its own, at a broker that others use, too."""
        return cls.opened(data, devices, namespace=own_namespace(), **options)

    @classmethod
    def of(cls, data: Path, manifest: Manifest, devices: int, namespace: str) -> Collection:
        """With a campaign of another manifest."""
        with closing(open_store(data)) as store:
            store.open_campaign(manifest, int(time.time()))
        return cls(data, manifest, devices, namespace)

    def close(self) -> None:
        """Read no more."""
        self.store.close()
        del self.__dict__["store"]

    def options(self, broker: Reachable, **changed: Any) -> Options:
        """How the launcher runs a collector for it."""
        return Options(str(self.data), broker.url, self.namespace, **changed)

    def flags(self, broker: Reachable) -> tuple[str, ...]:
        """The same for a collector's command line."""
        return ("--broker", broker.url, "--namespace", self.namespace)

    def set_clock(self, at: float) -> None:
        draft = self.data / "clock.new"
        draft.write_text(str(at))
        draft.rename(self.clock)

    def pass_deadline(self, number: int = 0) -> None:
        self.set_clock(self.manifest.rounds.deadline(number) + 1)

    def report(self, device: int, number: int = 0, *, bit: int | None = None) -> Message:
        """A clean report: the device's own bit and no other, nothing randomised."""
        body = self.manifest.body_formats[0].encode(device if bit is None else bit)
        payload = make_report(self.manifest, number, 0, body).encode()
        return self.topics.report(f"device-{device}"), payload

    def reports(self, number: int = 0) -> list[Message]:
        return [self.report(device, number) for device in range(self.devices)]

    @cached_property
    def store(self) -> Store:
        """For reading, open as long as the test runs; it never stands in the collector's way."""
        return read_store(self.data)

    def campaign(self) -> Campaign:
        return self.store.campaign(self.manifest.campaign)

    def betrayed(self, number: int = 0) -> int:
        """How many reports of a round can be found in the files: their tag next to their bits.

        Another process reads them: closing a file here would give up the locks of `store`, and a
        collector that starts then would cut the index short that `store` has in its memory.
        """
        command = ["cat", *map(str, self.data.glob("collector.db*"))]
        files, found = subprocess.run(command, capture_output=True, check=False).stdout, 0
        for device, (_, payload) in enumerate(self.reports(number)):
            report = decode_report(payload)
            assert isinstance(report, Report)
            tag = receipt_tag(self.manifest, number, f"device-{device}")
            found += tag.lstrip(b"\0") + report.body in files  # SQLite stores no leading zeros
        return found

    def look(self, number: int = 0) -> Counted:
        store, campaign = self.store, self.campaign().id
        last = store.last_sealed(campaign)
        return Counted(
            self.counted(number),
            self.counts(number),
            store.outcomes(),
            store.received(),
            len(list(store.receipt_tags(campaign, number))),
            last is not None and last >= number,
            [result.encode() for result in store.results(campaign)],
            len(store.unpublished()),
        )

    def counted(self, number: int = 0) -> int:
        """Reports of a round, a quick look."""
        tally = self.store.tallies(self.campaign().id, number).get(0)
        return 0 if tally is None else tally.n

    def counts(self, number: int = 0) -> list[int]:
        tally = self.store.tallies(self.campaign().id, number).get(0)
        return [] if tally is None else tally.counts.tolist()

    def wait_for(self, counted: int, number: int = 0) -> None:
        """Until that many reports of a round are counted."""
        wait_until(lambda: self.counted(number) == counted, timeout=60)

    def wait_until_sealed(self) -> None:
        store, campaign = self.store, self.campaign().id
        wait_until(lambda: store.last_sealed(campaign) is not None, timeout=90)


def wait_until_open(collection: Collection, port: int) -> None:
    """A collector that publishes it is online has subscribed to reports before."""
    online = State(digest8(collection.manifest), Presence.ONLINE, None).encode()
    with Watcher(port, collection.topics.state) as watcher:
        watcher.wait_for_topic(collection.topics.state, online)


def assert_each_once(counted: Counted, devices: int) -> None:
    """The oracle: a loss shows as a 0, a report counted twice as a 2."""
    assert counted.counts, "nothing was counted"
    assert 0 not in counted.counts, f"a report was lost: {counted.counts}"
    assert counted.counts == [1] * devices, f"counted twice: {counted.counts}"
    assert counted.n == devices
    assert counted.outcomes[Outcome.ACCEPTED] == devices
    assert_one_outcome_each(counted)


def assert_one_outcome_each(counted: Counted) -> None:
    assert sum(counted.outcomes.values()) == counted.received


class Site(Collection):
    """A campaign whose round 0 is sealed in a while, round 1 has begun, and several workers."""

    def __init__(
        self, place: Path, broker: Broker, launcher: Launcher, devices: int, *, rest: int = 20
    ) -> None:
        """`rest` seconds are left of round 0."""
        first = int(time.time()) - 610
        asked = own_bits(devices, first=first, period=600, grace=10 + rest, count=2)
        super().__init__(place, asked, devices, own_namespace())
        self.broker = broker
        self._launcher = launcher
        self._address = new_schema()
        self.store.open_campaign(asked, int(time.time()))
        place.mkdir(parents=True, exist_ok=True)
        DeviceKey(place / "device.key")
        if isinstance(broker, Nats):  # make the consumer as an operator may who is impatient
            paho(broker)(random_client_id("first"), False).close()  # which has the stream made
            here = StreamAddress(False, "127.0.0.1", broker.stream_port)
            StreamConnector(lambda: [here], Credentials(), self.namespace, ack_seconds=2)().close()

    @cached_property
    def store(self) -> Store:
        return open_shared(self._address)

    def start(self, name: str) -> CollectorRun:
        """A worker that reads: its data directory is its own, the device key everybody's."""
        data = self.data / name
        data.mkdir(mode=0o700, exist_ok=True)
        shutil.copy(self.data / "device.key", data / "device.key")
        nats = isinstance(self.broker, Nats)
        stream = f"nats://127.0.0.1:{self.broker.stream_port}" if nats else None  # type: ignore[attr-defined]
        options = self.options(self.broker, store=self._address.url, stream=stream)
        run = self._launcher.start(replace(options, data=str(data)))
        run.wait_for("this is worker")
        return run

    def worker_of(self, run: CollectorRun) -> int:
        """The number it has now."""
        return int(run.log.split("this is worker ")[-1].split()[0].strip(",;."))

    def live(self) -> list[Worker]:
        return [worker for worker in self.store.workers() if not worker.fenced]

    def wait_for_leader(self, *, not_this: int | None = None) -> int:
        """The number of the worker that leads and has connected."""
        found: list[int] = []

        def leads() -> bool:
            found[:] = [w.number for w in self.store.workers() if w.leads]
            return bool(found) and found[0] != not_this

        wait_until(leads, timeout=60)
        return found[0]

    def tags(self, number: int = 0) -> set[bytes]:
        """Every tag on the pages of a round that the broker keeps."""
        kept = retained(self.broker.port, f"{self.topics.receipt_root}{number}/+")
        pages = (decode_receipts(data) for data in kept.values())
        return {tag for page in pages if isinstance(page, ReceiptPage) for tag in page.tags}


if __name__ == "__main__":
    _main(Options(**json.loads(sys.argv[1])))
