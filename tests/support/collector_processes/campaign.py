"""A campaign in which every device has a bit of its own: each counter must be exactly 0 or 1."""

from __future__ import annotations

import subprocess
import time
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from collector.data_dir import DeviceKey, open_store, read_store
from collector.records import Campaign
from collector.store import Store
from protocol_spec import (
    DEFAULT_NAMESPACE,
    Manifest,
    Outcome,
    Presence,
    Report,
    State,
    Topics,
    decode_report,
    digest8,
    make_report,
    receipt_tag,
)
from protocol_spec.programs.system import random_client_id
from tests.support.campaigns import manifest
from tests.support.collector_processes.driver import Options
from tests.support.collector_processes.wire import Message, Watcher
from tests.support.edge_processes import wait_until

ATTRIBUTE = "bit"


def own_bits(devices: int, **options: object) -> Manifest:
    """One attribute, answered in unary, with as many values as there are devices."""
    names = ", ".join(f'"v{i}"' for i in range(devices))
    table = f'[[attributes]]\nname = "{ATTRIBUTE}"\nquestion = "?"\nprotocol = "L-OSUE"\n'
    return manifest(attributes=f"{table}values = [{names}]\n", **options)


@dataclass(frozen=True, slots=True)
class Counted:
    """What the collector's database says of one round."""

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


@dataclass(frozen=True)
class Collection:
    """A collector's data directory with one open campaign, and the devices that report to it.

    Several can share a broker, each in a namespace of its own.
    """

    data: Path
    manifest: Manifest
    devices: int
    namespace: str = DEFAULT_NAMESPACE

    @classmethod
    def opened(
        cls, data: Path, devices: int, *, namespace: str = DEFAULT_NAMESPACE, **options: object
    ) -> Collection:
        made = own_bits(devices, **options)
        with closing(open_store(data)) as store:
            store.open_campaign(made, int(time.time()))
        return cls(data, made, devices, namespace)

    @classmethod
    def shared(cls, data: Path, devices: int, **options: object) -> Collection:
        """In a namespace of its own, at a broker that others use, too."""
        return cls.opened(data, devices, namespace=own_namespace(), **options)

    def close(self) -> None:
        """Read no more."""
        self.store.close()
        del self.__dict__["store"]

    def options(self, broker: Reachable, **changed: Any) -> Options:
        """How the driver runs a collector for it."""
        return Options(str(self.data), broker.url, self.namespace, **changed)

    def flags(self, broker: Reachable) -> tuple[str, ...]:
        """The same for a collector's command line."""
        return ("--broker", broker.url, "--namespace", self.namespace)

    @property
    def topics(self) -> Topics:
        return Topics(self.manifest.campaign, self.namespace)

    @property
    def clock(self) -> Path:
        return self.data / "clock"

    def set_clock(self, at: float) -> None:
        draft = self.data / "clock.new"
        draft.write_text(str(at))
        draft.rename(self.clock)

    def report(self, device: int, number: int = 0, *, bit: int | None = None) -> Message:
        """A clean report: the device's own bit and no other, nothing randomised."""
        body = self.manifest.body_formats[0].encode(device if bit is None else bit)
        payload = make_report(self.manifest, number, 0, body).encode()
        return self.topics.report(f"device-{device}"), payload

    def reports(self, number: int = 0) -> list[Message]:
        return [self.report(device, number) for device in range(self.devices)]

    def key(self) -> DeviceKey:
        return DeviceKey(self.data / "device.key", make=False)

    @cached_property
    def store(self) -> Store:
        """For reading, open as long as the test runs; it never stands in the collector's way."""
        return read_store(self.data)

    def campaign(self) -> Campaign:
        return self.store.campaign(self.manifest.campaign)

    def traces(self, number: int = 0) -> set[bytes]:
        """What would betray a report of a round in a file: its tag and its bits, side by side."""
        found = set()
        for device, (_, payload) in enumerate(self.reports(number)):
            report = decode_report(payload)
            assert isinstance(report, Report)
            tag = receipt_tag(self.manifest, number, f"device-{device}")
            found.add(tag.lstrip(b"\0") + report.body)  # SQLite stores no leading zeros
        return found

    def betrayed(self, number: int = 0) -> int:
        """How many reports of a round can be found in the files.

        Another process reads them: closing a file here would give up the locks of `store`, and a
        collector that starts then would cut the index short that `store` has in its memory.
        """
        command = ["cat", *map(str, self.data.glob("collector.db*"))]
        files = subprocess.run(command, capture_output=True, check=False).stdout
        return sum(trace in files for trace in self.traces(number))

    def look(self, number: int = 0) -> Counted:
        store, campaign = self.store, self.campaign().id
        tally = store.tallies(campaign, number).get(0)
        last = store.last_sealed(campaign)
        return Counted(
            0 if tally is None else tally.n,
            [] if tally is None else tally.counts.tolist(),
            store.outcomes(),
            store.received(),
            len(list(store.receipt_tags(campaign, number))),
            last is not None and last >= number,
            [result.encode() for result in store.results(campaign)],
            len(store.unpublished()),
        )

    def wait_for(self, counted: int, number: int = 0) -> None:
        """Until so many reports of a round are counted."""
        wait_until(lambda: self.counted(number) == counted, timeout=60)

    def counted(self, number: int = 0) -> int:
        """Reports of a round, a quick look."""
        tally = self.store.tallies(self.campaign().id, number).get(0)
        return 0 if tally is None else tally.n


def wait_until_open(collection: Collection, port: int) -> None:
    """A collector that says it is online has asked the broker for reports before."""
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
