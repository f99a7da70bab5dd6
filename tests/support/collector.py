"""The collector in this process: campaigns, reports, a service with a clock, several workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import psycopg

from collector.data_dir import DeviceKey
from collector.ingest import OpenCampaigns
from collector.links import Connect, Links, Message, Will
from collector.links.mqtt import Subscription
from collector.records import Campaign, Candidate, Counts
from collector.rounds import sealing
from collector.service import Options, Service
from collector.store import Store
from collector.store.postgres import PostgresStore
from collector.timing import Clock, Timing
from protocol_spec import (
    DEFAULT_NAMESPACE,
    BodyFormat,
    Manifest,
    Randomiser,
    ReceiptPage,
    Report,
    Request,
    RequestKind,
    Result,
    State,
    Topics,
    decode_receipts,
    decode_state,
    digest8,
    make_report,
    receipt_page,
)
from protocol_spec.programs.memory_broker import MemoryBroker, MemoryLink
from protocol_spec.programs.settings import BrokerUnreachable
from protocol_spec.topics import from_all_devices
from tests.support.campaigns import manifest, second_manifest
from tests.support.databases import new_schema

FIRST: Final = 1_800_000_000
HOUR: Final = 3600
FUEL, TOWN, COLOUR = 0, 1, 2
ATTRIBUTES: Final = f"""
[[attributes]]
name = "fuel"
question = "What heats your home?"
values = ["wood", "gas", "oil", "pump"]
[[attributes]]
name = "town"
question = "Where do you live?"
protocol = "L-GRR"
values = [{", ".join(f'"t{i}"' for i in range(300))}]
[[attributes]]
name = "colour"
question = "Which colour?"
protocol = "L-OSUE"
values = [{", ".join(f'"c{i}"' for i in range(11))}]
"""


def three_questions(**options: Any) -> Manifest:
    """Hourly rounds from FIRST; L-GRR bodies of one and of two bytes, and L-OSUE with padding."""
    return manifest(**{"first": FIRST, "grace": HOUR, "attributes": ATTRIBUTES, **options})


def answer(campaign: Campaign, attribute: int, number: int) -> bytes:
    """A sound body: the number-th of all there are, wrapping around."""
    form = campaign.manifest.body_formats[attribute]
    return form.from_number(number % (1 << form.k if form.unary else form.k))


def candidate(
    campaign: Campaign,
    device: int,
    number: int = 0,
    attribute: int = FUEL,
    body: bytes | int = 0,
) -> Candidate:
    """A report as admission hands it to the store."""
    if isinstance(body, int):
        body = answer(campaign, attribute, body)
    return Candidate(campaign.id, number, device, attribute, device % 16, device, body)


def recount(bodies: Iterable[bytes], form: BodyFormat) -> list[int]:
    """The slow and obvious count."""
    counts = [0] * form.k
    for body in bodies:
        for value in form.supported(body):
            counts[value] += 1
    return counts


def counts_of(store: Store, campaign: Campaign, number: int) -> dict[int, list[int]]:
    """Counts of a round by attribute, attributes without reports left out."""
    tallies = store.tallies(campaign.id, number)
    return {attribute: t.counts.tolist() for attribute, t in tallies.items() if t.n}


def payload(
    manifest: Manifest, number: int = 0, attribute: int = FUEL, body: bytes = b"\0"
) -> bytes:
    """A report's wire bytes; what is no whole answer is sent as it is."""
    if (
        attribute < len(manifest.mechanisms)
        and len(body) == manifest.mechanisms[attribute].answer_bytes
    ):
        return make_report(manifest, number, attribute, body).encode()
    return Report(digest8(manifest), number, attribute, body).encode()


def message(manifest: Manifest, device: str = "kitchen-7", **fields: Any) -> Message:
    """A good message, unless the fields say otherwise."""
    return Message(Topics(manifest.campaign).report(device), payload(manifest, **fields))


def open_campaigns(campaign: Campaign, key: DeviceKey, *revoked: str) -> OpenCampaigns:
    return OpenCampaigns({campaign.name: campaign}, frozenset(revoked), key, "allomfree")


def seal(store: Store, campaign: Campaign, number: int) -> list[bytes]:
    """Seal at the round's deadline; the messages that were made."""
    at = campaign.manifest.rounds.deadline(number)
    return [result.encode() for result in sealing.seal(store, campaign, number, at)]


def everywhere(directory: Path) -> bytes:
    """All bytes of the database, its log and its index."""
    return b"".join(path.read_bytes() for path in sorted(directory.glob("collector.db*")))


def random_counts(form: BodyFormat, n: int, seed: int) -> tuple[list[bytes], Counts]:
    """n sound bodies, and how many support each value."""
    draw = np.random.default_rng(seed)
    if form.unary:
        bits = draw.integers(0, 2, (n, form.k), dtype=np.uint8)
        table = np.packbits(bits, axis=1)
        return [row.tobytes() for row in table], bits.sum(axis=0, dtype=np.int64)
    values = draw.integers(0, form.k, n)
    return [form.from_number(int(v)) for v in values], np.bincount(values, minlength=form.k)


# --- a service on a store, with a broker in memory and a clock that the test sets -----------------


CLIENT = "collector"


@dataclass
class ManualTime:
    """Nothing waits; time passes by hand. `passed` is called whenever it does."""

    now: float = FIRST + 60.0
    passed: Callable[[], object] = lambda: None

    def clock(self, ahead: float = 0.0) -> Clock:
        """Of a machine whose time of day is ahead."""

        def steady() -> float:
            return self.now - FIRST

        return Clock(lambda: self.now + ahead, steady, self.pass_time, steady, lambda: True)

    def pass_time(self, seconds: float) -> None:
        self.set(self.now + seconds)

    def set(self, now: float) -> None:
        self.now = now
        self.passed()


@dataclass
class ServiceInMemory:
    """Everything around a service without a network."""

    service: Service
    store: Store
    broker: MemoryBroker
    time: ManualTime
    watcher: MemoryLink
    emitted: list[Result]
    published: list[tuple[str, bytes]] = field(default_factory=list)

    def turns(self, count: int = 1, apart: float = 1.0) -> None:
        """Let it work, and hear what it publishes."""
        for _ in range(count):
            self.service.turn(0.0)
            self.time.pass_time(apart)
            self._listen()

    def _listen(self) -> None:
        """Hear what was published; reconnect when the broker was stopped."""
        heard = self.watcher.step(0.0)
        self.published += [(m.topic or "", m.payload) for m in heard if not m.retained]
        if self.watcher.lost:
            with suppress(BrokerUnreachable):
                self.watcher = watch(self.broker)

    def send(self, messages: Iterable[Message]) -> None:
        """What devices publish."""
        for sent in messages:
            self.broker.publish(sent.topic or "", sent.payload)

    def kept(self) -> int:
        """How many messages the broker keeps for the service: not acknowledged."""
        return len(self.broker.kept(CLIENT))


def watch(broker: MemoryBroker) -> MemoryLink:
    """Somebody who hears everything that is not from devices."""
    link = broker.connect("watcher", persistent=False)
    link.subscribe(["+/+/+/pub/#", "+/+/+/down/#"], qos=0)
    return link


def links_to(connect: Connect, clock: Clock) -> Links:
    """One connection for everything, as a worker alone has it."""
    return Links(lambda will: Subscription(connect(will), DEFAULT_NAMESPACE, clock=clock))


def service_in_memory(
    store: Store, key: DeviceKey, *, broker: MemoryBroker | None = None, **options: Any
) -> ServiceInMemory:
    """A service that has not begun, whose session the broker knows from before."""
    broker, time, emitted = broker or MemoryBroker(), ManualTime(), list[Result]()
    before = broker.connect(CLIENT)
    before.subscribe([from_all_devices()])
    before.close()
    made = Options(
        clock=time.clock(), emit=lambda _campaign, result: emitted.append(result), **options
    )
    service = Service(store, key, links_to(broker.connector(CLIENT), made.clock), made)
    return ServiceInMemory(service, store, broker, time, watch(broker), emitted)


def reports(campaign: Campaign, devices: range, number: int = 0) -> list[Message]:
    return [message(campaign.manifest, f"d{i}", number=number, body=b"\1") for i in devices]


def forget(campaign: Campaign, device: str, **changed: bytes) -> Message:
    request = Request(digest8(campaign.manifest), RequestKind.FORGET, b"8 bytes.")
    data = changed.get("payload", request.encode())
    return Message(Topics(campaign.name).request(device), data)


def state(work: ServiceInMemory, topics: Topics) -> State:
    decoded = decode_state(work.broker.retained[topics.state])
    assert isinstance(decoded, State)
    return decoded


def page_of(work: ServiceInMemory, campaign: Campaign, device: str) -> ReceiptPage:
    page = receipt_page(campaign.manifest, device)
    data = work.broker.retained[Topics(campaign.name).receipt(0, page)]
    decoded = decode_receipts(data)
    assert isinstance(decoded, ReceiptPage)
    return decoded


def tags_on(work: ServiceInMemory, campaign: Campaign, page: int) -> Set[bytes]:
    data = work.broker.retained.get(Topics(campaign.name).receipt(0, page))
    decoded = None if data is None else decode_receipts(data)
    return decoded.tags if isinstance(decoded, ReceiptPage) else frozenset()


# --- campaigns with every mechanism, and devices that answer them ---------------------------------


FUEL_INDEX, TOWN_INDEX = 0, 2  # attributes of `QUESTIONS`
QUESTIONS: Final = f"""
[[attributes]]
name = "fuel"
question = "What heats your home?"
values = ["wood", "gas", "oil", "pump"]
[[attributes]]
name = "power"
question = "How much power?"
edges = [0.0, 1.0, 2.0, 4.0, 8.0]
unit = "kW"
[[attributes]]
name = "town"
question = "Where do you live?"
values = [{", ".join(f'"t{i}"' for i in range(300))}]
"""


def asked(reporting: str, **options: Any) -> Manifest:
    """Hourly rounds from FIRST, with any mechanism."""
    usual: dict[str, Any] = {"first": FIRST, "count": 8, "attributes": QUESTIONS, "eps_inf": 4.0}
    usual |= {"slug": reporting, "eps_1": 1.0 if reporting == "nested" else 2.0}
    return second_manifest(reporting=reporting, **{**usual, **options})


@dataclass
class Device:
    """A device that keeps its memos, as an agent does."""

    manifest: Manifest
    name: str
    attribute: int
    memos: dict[int, bytes] = field(default_factory=dict)
    sent: dict[int, int] = field(default_factory=dict)
    drawn: Randomiser | None = None  # one that devices share, or its own

    def answer(self, index: int) -> bytes:
        """The answer of one round; nothing is kept where the mechanism keeps nothing."""
        mechanism = self.manifest.mechanisms[self.attribute]
        drawn = self.drawn = self.drawn or mechanism.randomiser(self.name)
        key = drawn.key(index)
        if key not in self.memos or not mechanism.memos:
            self.memos[key], self.sent[key] = drawn.memoize(key), 0
        self.sent[key] += 1
        return drawn.report(self.memos[key], self.sent[key] - 1)

    def message(self, number: int, index: int) -> Message:
        """A report of the value with this index."""
        report = make_report(self.manifest, number, self.attribute, self.answer(index))
        return Message(Topics(self.manifest.campaign).report(self.name), report.encode())


# --- several workers: PostgreSQL, a broker in memory, and clocks set by the test ------------------


TIMING = Timing()


@dataclass
class InMemory:
    """A worker, its store and what it does at named points."""

    service: Service
    store: PostgresStore
    link: Callable[[], MemoryLink]
    publishers: list[MemoryLink]
    at: dict[str, Callable[[], None]] = field(default_factory=dict)
    paused: bool = False


class Workers:
    """Workers on one store, that take turns unless they are paused; time is the database's."""

    def __init__(
        self,
        key: DeviceKey,
        *,
        broker: MemoryBroker | None = None,
        store: type[PostgresStore] = PostgresStore,
    ) -> None:
        self.time = ManualTime()
        self._address = new_schema(self.time.now)
        self._admin = psycopg.connect(self._address.url, autocommit=True)
        self.time.passed = lambda: self._admin.execute(
            "UPDATE clock SET now = %s", (self.time.now,)
        )
        self.broker = broker or MemoryBroker()
        self.emitted: list[tuple[str, Result]] = []
        self.published: list[tuple[str, bytes]] = []
        self.all: dict[str, InMemory] = {}
        self.one_publisher = True  # whether leaders connect under one name
        self._key = key
        self._store = store
        self._watcher = watch(self.broker)
        self._opened: list[PostgresStore] = []
        self.reading = self._open()
        self.campaign = self.reading.open_campaign(three_questions(), FIRST)

    def _open(self) -> PostgresStore:
        self._opened.append(self._store(self._address))
        return self._opened[-1]

    def close(self) -> None:
        for store in self._opened:
            store.close()
        self._admin.close()

    def start(self, name: str, *, ahead: float = 0.0, clock: Clock | None = None) -> InMemory:
        """A worker on a machine whose clock is ahead, or another one."""
        store = self._open()
        links: list[MemoryLink] = []

        def source(_will: Will | None) -> Subscription:
            links.append(self.broker.connect(f"worker-{name}"))
            return Subscription(links[-1], DEFAULT_NAMESPACE, shared=True, clock=own)

        publishers: list[MemoryLink] = []

        def publisher(will: Will | None) -> MemoryLink:
            known = store.leader_session() if self.one_publisher else f"leader-{name}"
            publishers.append(self.broker.connect(known, will=will))
            return publishers[-1]

        points: dict[str, Callable[[], None]] = {}
        own = clock or self.time.clock(ahead)
        options = Options(
            name,
            clock=own,
            timing=TIMING,
            emit=lambda _campaign, result: self.emitted.append((name, result)),
            trace=lambda point: points.pop(point, lambda: None)(),
        )
        service = Service(store, self._key, Links(source, publisher), options)
        self.all[name] = InMemory(service, store, lambda: links[-1], publishers, points)
        return self.all[name]

    def turns(self, count: int = 1, apart: float = 1.0) -> None:
        """Everybody who is not paused takes a turn, then time passes."""
        for _ in range(count):
            for worker in self.all.values():
                if not worker.paused:
                    worker.service.turn(0.0)
            self.time.pass_time(apart)
            heard = self._watcher.step(0.0)
            self.published += [(m.topic or "", m.payload) for m in heard if not m.retained]

    def until(self, done: Callable[[], bool], most: int = 200) -> None:
        """Turns until something is so."""
        for _ in range(most):
            if done():
                return
            self.turns()
        raise AssertionError("it did not come about")

    def send(self, messages: Iterable[Message]) -> None:
        """What devices publish."""
        for sent in messages:
            self.broker.publish(sent.topic or "", sent.payload)

    def leader(self) -> str:
        """Who says that it leads."""
        (name,) = [n for n, worker in self.all.items() if worker.service.status.leads]
        return name

    def near_deadline(self, number: int = 0) -> None:
        """Just before a round's deadline, with everybody back from the long wait."""
        self.time.set(self.campaign.manifest.rounds.deadline(number) - 6.0)
        self.turns(5)

    def pass_deadline(self) -> None:
        """Seconds later, in which nobody did anything."""
        self.time.pass_time(2.0)

    def sealed(self) -> int | None:
        return self.reading.last_sealed(self.campaign.id)

    def counted(self, number: int = 0) -> int:
        return sum(t.n for t in self.reading.tallies(self.campaign.id, number).values())

    def tags(self, number: int = 0) -> set[bytes]:
        """Every tag on the pages of a round that the broker has."""
        topics, found = Topics(self.campaign.name), set[bytes]()
        for page in range(self.campaign.manifest.receipt_pages):
            decoded = decode_receipts(self.broker.retained.get(topics.receipt(number, page), b""))
            if isinstance(decoded, ReceiptPage):
                found |= decoded.tags
        return found


Site = Callable[..., Workers]


def other(workers: Workers, name: str) -> str:
    """The other one of two."""
    (found,) = workers.all.keys() - {name}
    return found
