"""A schema upgrade that is cut short leaves the old schema or the new one, never a mixture."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from edge_client.store import Store, opening
from tests.support.edge_fakes import FakeClock, daily, draw_rounds, joined_agent, rows


class Interrupted(Exception):
    """The upgrade stops here."""


def add_column(db: sqlite3.Connection) -> None:
    db.execute("ALTER TABLE memo ADD COLUMN colour TEXT")
    db.execute("UPDATE memo SET colour = 'red'")


def add_table_then_stop(db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE half (done INTEGER)")
    raise Interrupted


def add_table(db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE half (done INTEGER)")


@pytest.fixture
def used(state: Path, clock: FakeClock) -> Path:
    agent = joined_agent(state, clock, daily())
    draw_rounds(agent, clock, 3)
    agent.store.close()
    return state


def test_an_upgrade_that_stops_is_undone(used: Path) -> None:
    before, steps = rows(used), (*opening.STEPS, add_column, add_table_then_stop)
    with pytest.raises(Interrupted):
        Store(used, exclusive=True, steps=steps)
    assert rows(used) == before
    Store(used, exclusive=True).close()
    assert rows(used) == before


def test_an_upgrade_that_ends_is_complete(used: Path) -> None:
    before, steps = rows(used), (*opening.STEPS, add_column, add_table)
    Store(used, exclusive=True, steps=steps).close()
    after = rows(used)
    assert after["memo"] == [(*row, "red") for row in before["memo"]]
    assert after["half"] == []
    assert all(after[name] == before[name] for name in before if name != "memo")
    Store(used, exclusive=True, steps=steps).close()  # and is not done twice


DIE = """
import os, sys
from pathlib import Path
from edge_client.store import Store, schema

def die(db):
    db.execute("CREATE TABLE half (done INTEGER)")
    db.execute("DELETE FROM memo")
    os._exit(7)

Store(Path(sys.argv[1]), exclusive=True, steps=(*schema.STEPS, die))
"""


def test_an_upgrade_that_dies_is_undone(used: Path) -> None:
    before = rows(used)
    done = subprocess.run(
        [sys.executable, "-c", DIE, str(used)], check=False, env=os.environ | {"PYTHONPATH": "."}
    )
    assert done.returncode == 7
    assert rows(used) == before
    Store(used, exclusive=True).close()
    assert rows(used) == before


def test_the_file_says_whose_it_is(used: Path) -> None:
    assert (used / "state.db").read_bytes()[68:72] == b"ALOF"
