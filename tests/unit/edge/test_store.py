"""The memory's transactions: all of a round or nothing of it, and never a second answer."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from edge_client.agent import Agent, Wait
from edge_client.errors import CampaignProblem, StorageFailure
from edge_client.records import Draw
from edge_client.store import KEPT_FOR_SHOW, Store
from tests.support.edge import DAY, FIRST, Connections, FakeClock, draw, draw_rounds, only, rows


def a_draw(number: int, *, value: int = 0, new_memo: bytes | None = b"\x01") -> Draw:
    deadline = FIRST + (number + 2) * DAY
    return Draw(number, value, b"payload %d" % number, deadline, FIRST, "boot-1", 0.0, new_memo)


def interruptions() -> Iterator[Callable[[], int]]:
    """Stop SQLite once: at its first instruction, at its fourth, and so on."""
    for moment in count(1, 3):
        instructions = count(1)
        yield lambda now=instructions, then=moment: int(next(now) == then)  # type: ignore[misc]


def test_a_round_is_written_as_a_whole_or_not_at_all(
    agent: Agent, state: Path, connections: Connections
) -> None:
    """I1, I2: memo, charge, report and round number have one transaction, wherever it stops."""
    membership, before, attempts = only(agent), rows(state), 0
    database = connections.latest
    for interruption in interruptions():
        database.set_progress_handler(interruption, 1)
        try:
            agent.store.record(membership, a_draw(0))
        except StorageFailure:
            attempts += 1
            if rows(state) != before:  # stopped in the COMMIT itself, which had done its work
                break
        else:
            break
        finally:
            database.set_progress_handler(None, 1)
    after = rows(state)
    assert attempts > 50
    assert [len(after[table]) for table in ("memo", "outbox", "ledger")] == [1, 1, 1]
    assert only(agent).last_round == 0


def test_a_report_exists_only_with_its_memo(
    agent: Agent, state: Path, connections: Connections
) -> None:
    """I1."""
    draw(agent)
    with pytest.raises(sqlite3.IntegrityError):
        connections.execute("INSERT INTO outbox VALUES ('other-00000000', 0, x'', 0, 0, 'queued')")
    (report,), (memo,) = rows(state)["outbox"], rows(state)["memo"]
    assert report[0] == memo[0] == only(agent).name
    assert memo[1] == only(agent).last_value


def test_a_second_memo_for_a_value_is_impossible(agent: Agent, state: Path) -> None:
    """I2."""
    agent.store.record(only(agent), a_draw(0))
    before = rows(state)
    with pytest.raises(sqlite3.IntegrityError):
        agent.store.record(only(agent), a_draw(1, new_memo=b"\x02"))
    assert rows(state) == before


def test_a_second_payload_for_a_round_is_impossible(agent: Agent, state: Path) -> None:
    """I3, with what another object still believes."""
    stale = only(agent)
    agent.store.record(stale, a_draw(0))
    before = rows(state)
    for other in (a_draw(0, new_memo=None), a_draw(0, value=1)):
        with pytest.raises(sqlite3.IntegrityError):
            agent.store.record(stale, replace(other, payload=b"other bits"))
    assert rows(state) == before


def test_an_earlier_round_is_impossible_even_when_its_row_is_pruned(
    agent: Agent, state: Path
) -> None:
    """I3: rounds only go forward."""
    agent.store.record(only(agent), a_draw(100))
    before = rows(state)
    with pytest.raises(AssertionError, match="drawn twice"):
        agent.store.record(only(agent), a_draw(3, new_memo=None))
    assert rows(state) == before


def test_a_row_leaves_the_outbox_only_by_its_fate(agent: Agent, clock: FakeClock) -> None:
    """I5: neither other rounds, pausing, time nor a restart removes a queued report."""
    payloads = draw_rounds(agent, clock, 3)
    name = only(agent).name
    agent.store.set_status(name, "paused", 0)
    agent.store.set_status(name, "joined", 0)
    clock.pass_time(1000 * DAY)
    agent.store.finish(name, {1: "counted"})
    agent.store.finish(name, {1: "missed"})  # too late: it has left already
    queued = agent.store.reports(name, queued_only=True)
    assert [row.payload for row in queued] == [payloads[0], payloads[2]]
    assert [row.fate for row in agent.store.reports(name)] == ["queued", "counted", "queued"]


def test_leaving_withdraws_what_is_queued(agent: Agent, clock: FakeClock) -> None:
    draw_rounds(agent, clock, 2)
    name = only(agent).name
    agent.store.finish(name, {0: "counted"})
    agent.store.set_status(name, "left", 0)
    assert [row.fate for row in agent.store.reports(name)] == ["counted", "withdrawn"]


def test_pruning_spares_queued_rows(agent: Agent, clock: FakeClock) -> None:
    """Old rows go, but a report that still waits stays however old it is."""
    first = draw_rounds(agent, clock, 1)
    name = only(agent).name
    for number in range(1, 3 * KEPT_FOR_SHOW):
        draw_rounds(agent, clock, 1)
        agent.store.finish(name, {number: "counted"})
    draw_rounds(agent, clock, 1)
    kept = agent.store.reports(name)
    assert kept[0].payload == first[0]
    assert [row.fate for row in kept if row.fate == "queued"] == ["queued"] * 2
    assert len(kept) == KEPT_FOR_SHOW + 2


def test_everything_survives_a_restart(agent: Agent, state: Path, clock: FakeClock) -> None:
    draw_rounds(agent, clock, 5)
    before = rows(state)
    agent.store.close()
    with Store(state, exclusive=True) as store:
        assert rows(state) == before
        assert store.sequence == 5


def test_a_pause_from_another_process_is_noticed(agent: Agent, state: Path) -> None:
    """The owner's `pause` opens the same store beside the running agent."""
    seen = agent.store.changed_elsewhere()
    assert agent.store.changed_elsewhere() == seen
    command = [sys.executable, "-m", "edge_client", "pause", "--state-dir", str(state)]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": str(Path.cwd())})
    assert agent.store.changed_elsewhere() != seen
    assert only(agent).status == "paused"
    assert agent.draw(only(agent), lambda _: "wood") is Wait.PAUSED


@pytest.mark.parametrize("status", ["paused", "left"])
def test_a_pause_while_the_value_is_read_stops_the_draw(
    agent: Agent, state: Path, status: str
) -> None:
    def read_slowly(_attribute: str) -> str:
        with Store(state, exclusive=False) as owner:
            owner.set_status(membership.name, status, 0)  # type: ignore[arg-type]
        return "wood"

    membership = only(agent)
    with pytest.raises(CampaignProblem, match="nothing was drawn or sent"):
        agent.draw(membership, read_slowly)
    assert [rows(state)[table] for table in ("memo", "outbox", "ledger")] == [[], [], []]
