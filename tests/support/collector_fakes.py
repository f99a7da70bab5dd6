"""What the collector's tests control: campaigns, reports, time, and a broker made of lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from collector import service
from collector.device_key import DeviceKey
from collector.ingest.admit import Book, Message
from collector.ingest.receipts import ReceiptBook
from collector.mqtt.link import Will
from collector.mqtt.packets import Arrived
from collector.records import Campaign, Candidate, Counts
from collector.rounds import sealing as rounds
from collector.store.sqlite import SqliteStore
from protocol_spec import BodyFormat, Manifest, Report, Topics, digest8
from protocol_spec.programs.address import BrokerUrl
from protocol_spec.programs.errors import BrokerUnreachable
from protocol_spec.programs.mqtt import MQTT_5, Version
from tests.support.campaigns import manifest_text

Engine = Callable[[Path], SqliteStore]

FIRST: Final = 1_800_000_000
HOUR: Final = 3600
NOBODY: Final = BrokerUrl(False, "127.0.0.1", 1)

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


def three_questions(*, min_reports: int = 1, **options: Any) -> Manifest:
    """Hourly rounds from FIRST; L-GRR bodies of one and of two bytes, and L-OSUE with padding."""
    options = {"first": FIRST, "grace": HOUR, "attributes": ATTRIBUTES, **options}
    text = manifest_text(**options)
    return Manifest.from_toml(text.replace("min_reports = 1", f"min_reports = {min_reports}"))


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


def counts_of(store: SqliteStore, campaign: Campaign, number: int) -> dict[int, list[int]]:
    """Counts of a round by attribute, attributes without reports left out."""
    tallies = store.tallies(campaign.id, number)
    return {attribute: t.counts.tolist() for attribute, t in tallies.items() if t.n}


def payload(
    manifest: Manifest, number: int = 0, attribute: int = FUEL, body: bytes = b"\0"
) -> bytes:
    """A report's wire bytes."""
    return Report(digest8(manifest), number, attribute, body).encode()


def message(manifest: Manifest, device: str = "kitchen-7", **fields: Any) -> Message:
    """A good message, unless the fields say otherwise."""
    return Message(Topics(manifest.campaign).report(device), payload(manifest, **fields))


def book_of(campaign: Campaign, key: DeviceKey, *revoked: str) -> Book:
    return Book({campaign.name: campaign}, frozenset(revoked), key, "allomfree")


def seal(store: SqliteStore, campaign: Campaign, number: int) -> list[bytes]:
    """Seal at the round's deadline; the messages that were made."""
    at = campaign.manifest.rounds.deadline(number)
    return [result.encode() for result in rounds.seal(store, campaign, number, at)]


def everywhere(directory: Path) -> bytes:
    """All bytes of the database, its log and its index."""
    return b"".join(path.read_bytes() for path in sorted(directory.glob("collector.db*")))


@dataclass
class FakeTime:
    """Stands for the module `time` in the service: nothing waits, time passes by hand."""

    now: float = FIRST + 60.0
    slept: list[float] = field(default_factory=list)

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now - FIRST

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def pass_time(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class FakeBroker:
    """Delivers what is in `waiting`, batch by batch, and remembers what it was told."""

    waiting: list[list[Arrived]] = field(default_factory=list)
    acknowledged: list[Arrived] = field(default_factory=list)
    published: list[tuple[str, bytes]] = field(default_factory=list)
    retained: dict[str, bytes] = field(default_factory=dict)
    subscribed: list[str] = field(default_factory=list)
    there: bool = True
    session_present: bool = True
    break_now: str | None = None

    def deliver(self, *messages: Message) -> None:
        """One batch more to come."""
        first = 1 + sum(map(len, self.waiting)) + len(self.acknowledged)
        self.waiting.append(
            [Arrived(m.topic, m.payload, m.retained, mid) for mid, m in enumerate(messages, first)]
        )


class FakeLink:
    """A connection to a `FakeBroker`, with the face of `collector.mqtt.link.Link`."""

    def __init__(self, broker: FakeBroker, will: Will | None) -> None:
        self._broker = broker
        self._answers: dict[int, str | None] = {}
        self.will = will
        self.version: Version = MQTT_5
        self.lost: str | None = None
        self.free = 100

    @property
    def session_present(self) -> bool:
        return self._broker.session_present

    def connect(self) -> None:
        if not self._broker.there:
            raise BrokerUnreachable("nobody is there")

    def subscribe(self, filters: Iterable[str]) -> None:
        self._broker.subscribed += filters

    def unsubscribe(self, filters: Iterable[str]) -> None:
        for name in filters:
            if name in self._broker.subscribed:
                self._broker.subscribed.remove(name)

    def step(self, _timeout: float) -> list[Arrived]:
        self.lost, self._broker.break_now = self._broker.break_now, None
        return self._broker.waiting.pop(0) if self._broker.waiting else []

    def acknowledge(self, messages: Sequence[Arrived]) -> None:
        self._broker.acknowledged += messages

    def publish(self, topic: str, payload: bytes, *, retain: bool = True) -> int:
        self._broker.published.append((topic, payload))
        if retain:
            self._broker.retained[topic] = payload
        self._answers[len(self._broker.published)] = None
        return len(self._broker.published)

    def answers(self) -> dict[int, str | None]:
        answered, self._answers = self._answers, {}
        return answered

    def close(self) -> None:
        return


@dataclass
class Bench:
    """A service on a store, with a broker and a clock that the test holds in its hands."""

    service: service.Service
    store: SqliteStore
    broker: FakeBroker
    time: FakeTime
    emitted: list[Any]

    def turns(self, count: int = 1, apart: float = 1.0) -> None:
        for _ in range(count):
            self.service.turn(0.0)
            self.time.pass_time(apart)


def bench(
    monkeypatch: pytest.MonkeyPatch, store: SqliteStore, key: DeviceKey, **options: Any
) -> Bench:
    """Put a service together without a network."""
    broker, clock, emitted = FakeBroker(), FakeTime(), list[Any]()
    monkeypatch.setattr(service, "time", clock)
    monkeypatch.setattr(service, "Link", lambda *_, will, **__: FakeLink(broker, will))
    built = service.Service(
        store,
        key,
        NOBODY,
        clock=clock.time,
        emit=lambda _campaign, result: emitted.append(result),
        **options,
    )
    return Bench(built, store, broker, clock, emitted)


def tags_of(book: ReceiptBook, campaign: Campaign) -> dict[str, bytes]:
    """Every page that would be published now, by topic."""
    return dict(book.take({campaign.id: campaign}, 1000))


def random_counts(form: BodyFormat, n: int, seed: int) -> tuple[list[bytes], Counts]:
    """n sound bodies, and how many support each value."""
    draw = np.random.default_rng(seed)
    if form.unary:
        bits = draw.integers(0, 2, (n, form.k), dtype=np.uint8)
        table = np.packbits(bits, axis=1)
        return [row.tobytes() for row in table], bits.sum(axis=0, dtype=np.int64)
    values = draw.integers(0, form.k, n)
    return [form.from_number(int(v)) for v in values], np.bincount(values, minlength=form.k)
