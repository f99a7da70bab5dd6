"""Collector, broker and agents killed -9 at random moments: what a device believes is what counts.

The oracle is the memory of the devices themselves: the collector must hold exactly the reports
that they drew, each once and with their bytes. The same check fails where an agent takes the
broker's acknowledgement for delivery and the broker forgets.
"""

from __future__ import annotations

import random
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from collector.data_dir import read_store
from protocol_spec import Manifest, Report, decode_report
from tests.support.brokers import Broker, Mosquitto, Nats
from tests.support.collector_processes.campaign import Desk, assert_one_outcome_each
from tests.support.collector_processes.driver import Life, Nursery, Order
from tests.support.collector_processes.fleet import Fleet
from tests.support.collector_processes.wire import Watcher
from tests.support.edge_processes.processes import wait_until

Row = tuple[int, int, bytes]

SEED = 20
KILLS = 24
PERIOD = 2


def believed(desk: Desk, fleets: list[Fleet]) -> list[Row]:
    """(round, device, bits) of every report that its device drew and holds for counted."""
    key, found = desk.key(), []
    for fleet in fleets:
        for name, rows in fleet.outbox().items():
            assert {row.fate for row in rows} == {"counted"}
            device = key.number(desk.manifest, name)
            found += [(row.round, device, _body(row.payload)) for row in rows]
    return sorted(found)


def _body(payload: bytes) -> bytes:
    report = decode_report(payload)
    assert isinstance(report, Report)
    return report.body


def counted(desk: Desk) -> list[Row]:
    """The same from the collector's database."""
    with closing(sqlite3.connect(desk.data / "collector.db")) as db:
        return sorted(db.execute("SELECT round, device, body FROM report").fetchall())


def assert_nothing_lost_or_doubled(desk: Desk, fleets: list[Fleet]) -> None:
    wanted, held = believed(desk, fleets), counted(desk)
    assert not set(wanted) - set(held), "a report was lost"
    assert held == wanted
    store = read_store(desk.data)
    campaign, form = store.campaign(None).id, desk.manifest.body_formats[0]
    for number in {number for number, _, _ in wanted}:
        bodies = [body for n, _, body in wanted if n == number]
        bits = Counter(value for body in bodies for value in form.supported(body))
        tally = store.tallies(campaign, number)[0]
        assert tally.n == len(bodies)
        assert tally.counts.tolist() == [bits[value] for value in range(form.k)]
    store.close()
    assert_one_outcome_each(desk.look())


class Stage:
    """A collector, a broker and two fleets, any of which can be killed and comes back."""

    def __init__(self, desk: Desk, broker: Broker, nursery: Nursery, fleets: list[Fleet]) -> None:
        self._order = Order(str(desk.data), broker.url)
        self._broker = broker
        self._nursery = nursery
        self._fleets = fleets
        self._collector: Life = nursery.start(self._order)

    def kill(self, victim: int) -> None:
        if victim == 0:
            self._collector.kill()
            self._collector = self._nursery.start(self._order)
        elif victim == 1:
            self._broker.kill()
            self._broker.start()
        else:
            fleet = self._fleets[victim - 2]
            fleet.kill()
            fleet.start()


@contextmanager
def running(fleets: list[Fleet]) -> Iterator[None]:
    with ExitStack() as stack:
        for fleet in fleets:
            fleet.start()
            stack.callback(fleet.kill)
        yield


def two_fleets(place: Path, asked: Manifest, broker: Broker, *, naive: bool = False) -> list[Fleet]:
    names = [[f"device-{side}-{i}" for i in range(4)] for side in "ab"]
    return [Fleet(place / n[0], asked, broker.url, n, naive=naive) for n in names]


@pytest.mark.slow
def test_everything_killed_at_random(quick_nats: Nats, nursery: Nursery, tmp_path: Path) -> None:
    moments = random.Random(SEED)
    desk = Desk.opened(tmp_path / "data", 8, period=PERIOD, count=8, grace=86_400)
    fleets = two_fleets(tmp_path, desk.manifest, quick_nats)
    stage = Stage(desk, quick_nats, nursery, fleets)
    with running(fleets):
        for _ in range(KILLS):
            time.sleep(moments.uniform(0.0, 0.9))  # the moment is the point: any will do
            stage.kill(moments.randrange(4))
        wait_until(lambda: time.time() > desk.manifest.rounds.closes(7))
        wait_until(lambda: all(fleet.has_delivered for fleet in fleets), timeout=90)
    assert_nothing_lost_or_doubled(desk, fleets)
    assert len(counted(desk)) > 8, f"several rounds, seed {SEED}"


def past_a_broker_that_forgets(
    broker: Broker, nursery: Nursery, place: Path, *, naive: bool
) -> None:
    """Reports are acknowledged while the collector is away; then the broker loses its memory."""
    desk = Desk.opened(place / "data", 8, count=1)
    fleets = two_fleets(place, desk.manifest, broker, naive=naive)
    order = Order(str(desk.data), broker.url, receipts=not naive)
    with Watcher(broker.port, desk.topics.state) as watcher:
        first = nursery.start(order)
        watcher.wait_for_topic(desk.topics.state)
    first.kill()
    with Watcher(broker.port, desk.topics.all_reports) as reports, running(fleets):
        reports.wait_for(lambda: len(reports.latest) == 8)
        if naive:
            wait_until(lambda: all(fleet.has_delivered for fleet in fleets), timeout=60)
        broker.kill()
        broker.start()
        with Watcher(broker.port, desk.topics.state) as watcher:
            second = nursery.start(order)
            watcher.wait_for_topic(desk.topics.state)
            wait_until(lambda: all(fleet.has_delivered for fleet in fleets), timeout=60)
        second.terminate()
    assert_nothing_lost_or_doubled(desk, fleets)


@pytest.mark.slow
def test_a_broker_that_forgets(mosquitto: Mosquitto, nursery: Nursery, tmp_path: Path) -> None:
    past_a_broker_that_forgets(mosquitto, nursery, tmp_path, naive=False)


@pytest.mark.slow
def test_without_receipts_it_loses(mosquitto: Mosquitto, nursery: Nursery, tmp_path: Path) -> None:
    """The negative control: the same check on the same faults, and it fails."""
    with pytest.raises(AssertionError, match="a report was lost"):
        past_a_broker_that_forgets(mosquitto, nursery, tmp_path, naive=True)
