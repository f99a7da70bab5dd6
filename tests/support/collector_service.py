"""A service on a store, with a broker in memory and a clock that the test holds in its hands."""

from __future__ import annotations

from collections.abc import Iterable, Set
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from collector.device_key import DeviceKey
from collector.links import Message
from collector.records import Campaign
from collector.service import Service
from collector.store import Store
from collector.timing import Clock
from protocol_spec import (
    ReceiptPage,
    Request,
    RequestKind,
    Result,
    State,
    Topics,
    decode_receipts,
    decode_state,
    digest8,
    receipt_page,
)
from protocol_spec.programs.memory_broker import MemoryBroker, MemoryLink
from protocol_spec.programs.settings import BrokerUnreachable
from protocol_spec.topics import from_all_devices
from tests.support.collector_fakes import FIRST, message

CLIENT = "collector"


@dataclass
class ManualTime:
    """Nothing waits; time passes by hand."""

    now: float = FIRST + 60.0
    ahead: float = 0.0

    def clock(self) -> Clock:
        return Clock(lambda: self.now, self._steady, self.pass_time, self._steady)

    def _steady(self) -> float:
        return self.now - self.ahead - FIRST

    def set_ahead(self, seconds: float) -> None:
        """Somebody sets the clock; no time passes."""
        self.now += seconds
        self.ahead += seconds

    def pass_time(self, seconds: float) -> None:
        self.now += seconds


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


def service_in_memory(
    store: Store, key: DeviceKey, *, broker: MemoryBroker | None = None, **options: Any
) -> ServiceInMemory:
    """A service that has not begun, whose session the broker knows from before."""
    broker, time, emitted = broker or MemoryBroker(), ManualTime(), list[Result]()
    before = broker.connect(CLIENT)
    before.subscribe(from_all_devices())
    before.close()
    service = Service(
        store,
        key,
        broker.connector(CLIENT),
        clock=time.clock(),
        emit=lambda _campaign, result: emitted.append(result),
        **options,
    )
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
