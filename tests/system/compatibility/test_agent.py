"""An agent's state directory of the previous release opens, and goes on where it was."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from protocol_spec import Rejected, Topics, decode_report, digest8
from testbed.brokers import Nats
from tests.support.collector_processes.wire import Watcher
from tests.support.installed import Checkout
from tests.support.previous import Previous, moment, rows

pytestmark = pytest.mark.slow

VALUES = ("--value", "fuel=wood", "--value", "heat=35")


class Today:
    """Today's agent on the files of the previous release, at a broker that never forgets to ack."""

    def __init__(self, directory: Path, broker: str) -> None:
        self.previous = Previous.unpacked(directory)
        self.fleet = self.previous.manifest("fleet")
        self.database = directory / "agent/state.db"
        (directory / "home").mkdir()
        self.programs = Checkout(directory / "home")
        self.place = ("--config", "/dev/null", "--state-dir", directory / "agent")
        with closing(sqlite3.connect(self.database)) as db, db:  # the broker has another port now
            db.execute("UPDATE campaign SET broker = ?", [broker])

    def edge(self, *words: object, at: int) -> str:
        return self.programs.run("edge", *words, *self.place, clock=moment(at))

    def report(self, at: int) -> None:
        """Report as cron would; nobody gives a receipt."""
        self.edge("report", *VALUES, "--timeout", 2, at=at)

    def table(self, name: str) -> list[tuple[Any, ...]]:
        return rows(self.database, f"SELECT * FROM {name}")  # noqa: S608 - a name of ours

    @property
    def topic(self) -> str:
        [device] = rows(self.database, "SELECT device FROM campaign WHERE name LIKE 'fleet%'")
        return Topics(self.fleet.campaign).report(device[0])


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Nats]:
    with Nats(tmp_path / "nats") as running:
        yield running


@pytest.fixture
def today(tmp_path: Path, broker: Nats) -> Today:
    return Today(tmp_path, broker.url)


@pytest.fixture
def heard(broker: Nats) -> Iterator[Watcher]:
    with Watcher(broker.port, "allomfree/v1/+/up/#") as watcher:
        yield watcher


def test_the_queued_report_is_sent_again_byte_for_byte(today: Today, heard: Watcher) -> None:
    query = "SELECT payload FROM outbox WHERE fate = 'queued'"
    [(queued,)] = rows(today.database, query)
    today.report(at=5)
    assert heard.wait_for_topic(today.topic) == queued
    today.report(at=5)
    assert set(heard.history) == {(today.topic, queued)}, "nothing else, also not of the paused one"


def test_the_next_round_is_drawn_from_the_same_memo(today: Today, heard: Watcher) -> None:
    memo, ledger = today.table("memo"), today.table("ledger")
    old = {payload for (payload,) in rows(today.database, "SELECT payload FROM outbox")}
    today.report(at=6)
    heard.wait_for(lambda: any(payload not in old for _, payload in heard.history))
    [(topic, payload)] = {message for message in heard.history if message[1] not in old}
    report = decode_report(payload)
    assert not isinstance(report, Rejected)
    assert (topic, report.digest8) == (today.topic, digest8(today.fleet))
    assert report.round == 6
    assert [row[:4] for row in today.table("memo")] == [row[:4] for row in memo]
    assert today.table("memo")[0][4] == memo[0][4] + 1, "one more report of it"
    assert today.table("ledger") == ledger, "a memo is charged once"


def test_statement_and_pause_are_as_they_were(today: Today) -> None:
    shown = today.edge("status", at=5)
    assert today.previous.facts["campaigns"]["fleet"] in shown
    assert "paused" in shown
    [spent] = {epsilon for _, _, _, _, epsilon, _ in today.table("ledger")}
    assert spent == today.fleet.eps_inf
    today.edge("resume", today.previous.facts["campaigns"]["ended"], at=5)
    assert {row[6] for row in today.table("campaign")} == {"joined"}
