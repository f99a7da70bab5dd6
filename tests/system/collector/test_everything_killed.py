"""Collector, broker and agents killed -9 at random moments: what a device believes is what counts.

The oracle is the memory of the devices themselves: the collector must hold exactly the reports
that they drew, each once and with their bytes. The same check fails where an agent takes the
broker's acknowledgement for delivery and the broker forgets.
"""

from __future__ import annotations

import math
import random
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from protocol_spec import Manifest, Report, decode_report
from testbed.brokers import Broker, Mosquitto
from tests.support.collector_processes.campaign import Collection, assert_one_outcome_each
from tests.support.collector_processes.driver import CollectorRun, Launcher
from tests.support.collector_processes.fleet import Fleet
from tests.support.collector_processes.wire import Watcher
from tests.support.edge_processes import environment, wait_until
from tests.support.harness import ROOT

Row = tuple[int, int, bytes]

SEED = 20
KILLS = 24
START = "import edge_client.daemon, edge_client.link"


def round_seconds() -> int:
    """Two, or as long as it takes that agents which are killed all the time also start and draw."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", START], check=True, env=environment(), cwd=ROOT)
    return max(2, math.ceil(4 * (time.monotonic() - began)))


def believed(collection: Collection, fleets: list[Fleet]) -> list[Row]:
    """(round, device, bits) of every report that its device drew and holds for counted."""
    key, found = collection.key(), []
    for fleet in fleets:
        for name, rows in fleet.outbox().items():
            assert {row.fate for row in rows} == {"counted"}
            device = key.number(collection.manifest, name)
            found += [(row.round, device, _body(row.payload)) for row in rows]
    return sorted(found)


def _body(payload: bytes) -> bytes:
    report = decode_report(payload)
    assert isinstance(report, Report)
    return report.body


def counted(collection: Collection) -> list[Row]:
    """The same from the collector's database."""
    with closing(sqlite3.connect(collection.data / "collector.db")) as db:
        return sorted(db.execute("SELECT round, device, body FROM report").fetchall())


def assert_nothing_lost_or_doubled(collection: Collection, fleets: list[Fleet]) -> None:
    wanted, held = believed(collection, fleets), counted(collection)
    assert not set(wanted) - set(held), "a report was lost"
    assert held == wanted
    campaign, form = collection.campaign().id, collection.manifest.body_formats[0]
    for number in {number for number, _, _ in wanted}:
        bodies = [body for n, _, body in wanted if n == number]
        bits = Counter(value for body in bodies for value in form.supported(body))
        tally = collection.store.tallies(campaign, number)[0]
        assert tally.n == len(bodies)
        assert tally.counts.tolist() == [bits[value] for value in range(form.k)]
    assert_one_outcome_each(collection.look())


class Victims:
    """A collector, a broker and two fleets, any of which can be killed and comes back."""

    def __init__(
        self, collection: Collection, broker: Broker, launcher: Launcher, fleets: list[Fleet]
    ) -> None:
        self._options = collection.options(broker)
        self._broker = broker
        self._launcher = launcher
        self._fleets = fleets
        self._collector: CollectorRun = launcher.start(self._options)

    def kill(self, victim: int) -> None:
        if victim == 0:
            self._collector.kill()
            self._collector = self._launcher.start(self._options)
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
def test_everything_killed_at_random(own_nats: Broker, launcher: Launcher, tmp_path: Path) -> None:
    moments, period = random.Random(SEED), round_seconds()
    collection = Collection.opened(tmp_path / "data", 8, period=period, count=8, grace=86_400)
    fleets = two_fleets(tmp_path, collection.manifest, own_nats)
    victims = Victims(collection, own_nats, launcher, fleets)
    with running(fleets):
        for _ in range(KILLS):
            time.sleep(moments.uniform(0.0, 0.45 * period))  # the moment is the point: any will do
            victims.kill(moments.randrange(4))
        wait_until(lambda: time.time() > collection.manifest.rounds.closes(7), timeout=10 * period)
        wait_until(lambda: all(fleet.has_delivered for fleet in fleets), timeout=90)
    assert_nothing_lost_or_doubled(collection, fleets)
    assert len(counted(collection)) > 8, f"several rounds, seed {SEED}"


def past_a_broker_that_forgets(
    broker: Broker, launcher: Launcher, place: Path, *, naive: bool
) -> None:
    """Reports are acknowledged while the collector is away; then the broker loses its memory."""
    collection = Collection.opened(place / "data", 8, count=1)
    fleets = two_fleets(place, collection.manifest, broker, naive=naive)
    options = collection.options(broker, receipts=not naive)
    with Watcher(broker.port, collection.topics.state) as watcher:
        first = launcher.start(options)
        watcher.wait_for_topic(collection.topics.state)
    first.kill()
    with Watcher(broker.port, collection.topics.all_reports) as reports, running(fleets):
        reports.wait_for(lambda: len(reports.latest) == 8)
        if naive:
            wait_until(lambda: all(fleet.has_delivered for fleet in fleets), timeout=60)
        broker.kill()
        broker.start()
        with Watcher(broker.port, collection.topics.state) as watcher:
            second = launcher.start(options)
            watcher.wait_for_topic(collection.topics.state)
            wait_until(lambda: all(fleet.has_delivered for fleet in fleets), timeout=60)
        second.terminate()
    assert_nothing_lost_or_doubled(collection, fleets)


@pytest.mark.slow
def test_a_broker_that_forgets(
    own_mosquitto: Mosquitto, launcher: Launcher, tmp_path: Path
) -> None:
    past_a_broker_that_forgets(own_mosquitto, launcher, tmp_path, naive=False)


@pytest.mark.slow
def test_without_receipts_it_loses(
    own_mosquitto: Mosquitto, launcher: Launcher, tmp_path: Path
) -> None:
    """The negative control: the same check on the same faults, and it fails."""
    with pytest.raises(AssertionError, match="a report was lost"):
        past_a_broker_that_forgets(own_mosquitto, launcher, tmp_path, naive=True)
