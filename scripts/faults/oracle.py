"""What was lost, counted twice or changed: every count is compared with what the devices know.

A bulk device's report must be counted if the device has a receipt for it, or if the broker took it
before the deadline and has not forgotten anything since. In every other case it may be. It must
never be counted twice, and nothing that nobody sent may be counted.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

import numpy as np

from collector.data_dir import DATABASE, DeviceKey
from collector.records import Campaign, Tally
from collector.rounds.results import round_result
from collector.store import Store
from faults.devices import Agents, BulkDevices
from protocol_spec import Manifest, Rejected, decode_report

Row = tuple[int, int, bytes]  # round, device, body


@dataclass(slots=True)
class Loss:
    """The broker forgot everything; what it took before, and until the collector had subscribed
    again, it may not have kept. What had been sealed by then (by campaign: the last round) was
    counted or lost before."""

    sealed: Mapping[int, int]
    until: float | None = None


@dataclass(slots=True)
class Verdict:
    counted: int = 0
    owed: int = 0
    unsure: int = 0  # neither receipt nor acknowledgement: counted or not, both are right
    faults: list[str] = field(default_factory=list)


def judge_bulk(
    found: Verdict, store: Store, campaign: Campaign, bulk: BulkDevices, losses: Sequence[Loss]
) -> None:
    """Every round of a bulk campaign, from the counts it was sealed with; and its published
    histogram, which must be that of a recount of the devices' own values."""
    nothing = Tally(0, np.zeros(campaign.manifest.body_formats[0].k, dtype=np.int64))
    results = {result.round: result for result in store.results(campaign.id, 0)}
    for number in range(campaign.manifest.rounds.count):
        tally = store.tallies(campaign.id, number).get(0, nothing)
        counts, owed = tally.counts.tolist(), _owed(campaign, bulk, number, losses)
        found.counted += tally.n
        found.owed += len(owed)
        found.unsure += bulk.devices - len(owed)
        where = f"{campaign.name}, round {number}"
        for device, count in enumerate(counts[: bulk.devices]):
            if count > 1:
                found.faults.append(f"{where}: {bulk.names[device]} was counted {count} times")
            elif count == 0 and device in owed:
                found.faults.append(f"{where}: {bulk.names[device]} was lost")
        if any(counts[bulk.devices :]):
            found.faults.append(f"{where}: something was counted that nobody sent")
        if tally.n != sum(counts):
            found.faults.append(f"{where}: {tally.n} reports, and counts of {sum(counts)}")
        result = results.get(number)
        if result is None or result.withheld:
            continue
        again = [int(device in owed or count > 0) for device, count in enumerate(counts)]
        recount = Tally(sum(again), np.array(again, tally.counts.dtype))
        heard = result.heard, result.returned
        if round_result(campaign, number, 0, recount, result.outcomes, heard) != result:
            found.faults.append(f"{where}: the result is not that of a recount")


def _owed(campaign: Campaign, bulk: BulkDevices, number: int, losses: Sequence[Loss]) -> set[int]:
    """Devices whose report must have been counted."""
    lost = [loss.until for loss in losses if number > loss.sealed.get(campaign.id, -1)]
    since = max((inf if until is None else until for until in lost), default=0.0)
    found = {device for n, device in bulk.counted if n == number}
    return found | {
        d for (n, d), taken in bulk.acknowledged.items() if n == number and taken > since
    }


def judge_agents(
    data: Path, campaign: Campaign, agents: Iterable[Agents], odd: Iterable[Agents]
) -> Verdict:
    """Every report that agents drew, byte for byte. Those whose clock was wrong may have dropped
    some at a deadline that had not come; what is counted of theirs must still be theirs."""
    manifest, key = campaign.manifest, DeviceKey(data / "device.key", make=False)
    drawn = Counter(_rows(manifest, key, agents))
    allowed = Counter(_rows(manifest, key, odd))
    with closing(sqlite3.connect(data / DATABASE)) as db:
        sql = "SELECT round, device, body FROM report WHERE campaign = ?"
        stored = Counter[Row](db.execute(sql, (campaign.id,)))
    lost, extra = drawn - stored, stored - drawn - allowed
    found = Verdict(counted=stored.total(), owed=drawn.total(), unsure=allowed.total())
    where = f"{campaign.name}, round"
    found.faults += [f"{where} {n}: an agent's report was lost" for n, _, _ in lost]
    found.faults += [f"{where} {n}: counted twice, or not what was sent" for n, _, _ in extra]
    places = Counter((number, device) for number, device, _ in (allowed + drawn).elements())
    found.faults += [f"{where} {n}: an agent drew twice" for (n, _), t in places.items() if t > 1]
    return found


def _rows(manifest: Manifest, key: DeviceKey, agents: Iterable[Agents]) -> Iterator[Row]:
    for process in agents:
        for name, rows in process.drawn().items():
            for row in rows:
                report = decode_report(row.payload)
                body = b"" if isinstance(report, Rejected) else report.body
                yield row.round, key.number(manifest, name), body
