"""Several workers in one process: PostgreSQL, a broker in memory, and clocks set by the test."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import psycopg

from collector.device_key import DeviceKey
from collector.links import Message, Will
from collector.links.mqtt import SharedSubscription
from collector.store.postgres import PostgresStore
from collector.timing import Clock, Timing
from collector.workers.service import Connections, SharedService
from protocol_spec import DEFAULT_NAMESPACE, ReceiptPage, Result, Topics, decode_receipts
from protocol_spec.programs.memory_broker import MemoryBroker, MemoryLink
from tests.support.collector_fakes import FIRST, three_questions
from tests.support.collector_service import watch
from tests.support.postgres import new_schema

TIMING = Timing()


@dataclass
class Time:
    """One time for all; the wall clocks of machines may be set as they like."""

    now: float = FIRST + 60.0
    passed: Callable[[], None] = lambda: None

    def clock(self, ahead: float = 0.0) -> Clock:
        return Clock(lambda: self.now + ahead, self.steady, self.pass_time, self.steady)

    def steady(self) -> float:
        return self.now - FIRST

    def pass_time(self, seconds: float) -> None:
        self.set(self.now + seconds)

    def set(self, now: float) -> None:
        self.now = now
        self.passed()


@dataclass
class InMemory:
    """A worker, its store and what it does at named points."""

    service: SharedService
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
        self.time = Time()
        self._address = new_schema(self.time.now)
        self._admin = psycopg.connect(self._address.url, autocommit=True)
        self.time.passed = self._set_clock
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

    def _set_clock(self) -> None:
        self._admin.execute("UPDATE clock SET now = %s", (self.time.now,))

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

        def source() -> SharedSubscription:
            links.append(self.broker.connect(f"worker-{name}"))
            return SharedSubscription(links[-1], DEFAULT_NAMESPACE)

        publishers: list[MemoryLink] = []

        def publisher(will: Will | None) -> MemoryLink:
            known = store.leader_session() if self.one_publisher else f"leader-{name}"
            publishers.append(self.broker.connect(known, will=will))
            return publishers[-1]

        points: dict[str, Callable[[], None]] = {}
        service = SharedService(
            store,
            self._key,
            Connections(source, publisher, whole=False),
            name=name,
            clock=clock or self.time.clock(ahead),
            timing=TIMING,
            emit=lambda _campaign, result: self.emitted.append((name, result)),
            trace=lambda point: points.pop(point, _nothing)(),
        )
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


def _nothing() -> None:
    return


def other(workers: Workers, name: str) -> str:
    """The other one of two."""
    (found,) = workers.all.keys() - {name}
    return found
