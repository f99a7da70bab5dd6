"""A campaign in which every device has a bit of its own: each counter must be exactly 0 or 1."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from collector.data_dir import open_store, read_store
from collector.device_key import DeviceKey
from collector.records import Campaign
from protocol_spec import (
    Manifest,
    Outcome,
    Presence,
    Report,
    State,
    Topics,
    decode_report,
    digest8,
    receipt_tag,
)
from tests.support.campaigns import manifest
from tests.support.collector_processes.wire import Message, Watcher

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


@dataclass(frozen=True, slots=True)
class Desk:
    """A collector's data directory with one open campaign, and the devices that report to it."""

    data: Path
    manifest: Manifest
    devices: int

    @classmethod
    def opened(cls, data: Path, devices: int, **options: object) -> Desk:
        made = own_bits(devices, **options)
        store = open_store(data)
        store.open_campaign(made, int(time.time()))
        store.close()
        return cls(data, made, devices)

    @property
    def topics(self) -> Topics:
        return Topics(self.manifest.campaign)

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
        payload = Report(digest8(self.manifest), number, 0, body).encode()
        return self.topics.report(f"device-{device}"), payload

    def reports(self, number: int = 0) -> list[Message]:
        return [self.report(device, number) for device in range(self.devices)]

    def key(self) -> DeviceKey:
        return DeviceKey(self.data / "device.key", make=False)

    def campaign(self) -> Campaign:
        store = read_store(self.data)
        try:
            return store.campaign(None)
        finally:
            store.close()

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
        """How many reports of a round can be found in the files."""
        files = b"".join(path.read_bytes() for path in self.data.glob("collector.db*"))
        return sum(trace in files for trace in self.traces(number))

    def look(self, number: int = 0) -> Counted:
        store = read_store(self.data)
        try:
            campaign = store.campaign(None).id
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
        finally:
            store.close()


def wait_until_open(desk: Desk, port: int) -> None:
    """A collector that says it is online has asked the broker for reports before."""
    online = State(digest8(desk.manifest), Presence.ONLINE, None).encode()
    with Watcher(port, desk.topics.state) as watcher:
        watcher.wait_for_topic(desk.topics.state, online)


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
