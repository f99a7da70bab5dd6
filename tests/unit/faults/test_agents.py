"""What the chaos command knows of its agents: also what they have forgotten meanwhile."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

from faults.agents import Agents
from faults.campaigns import agents_manifest


def test_what_a_device_forgets_stays_known(tmp_path: Path) -> None:
    manifest = agents_manifest(int(time.time()) + 60, 12, 30)
    agents = Agents(tmp_path / "agents", tmp_path / "clock", manifest, ["a", "b"], "")
    agents.join("mqtt://localhost:1")
    add = "INSERT INTO outbox VALUES (?, ?, ?, 0, 0, ?)"
    with closing(sqlite3.connect(tmp_path / "agents" / "a" / "state.db")) as db:
        db.execute(add, (manifest.campaign, 0, b"first", "queued"))
        db.commit()
        agents.look()
        assert not agents.have_delivered
        db.execute("DELETE FROM outbox")
        db.execute(add, (manifest.campaign, 1, b"second", "counted"))
        db.commit()
    assert agents.have_delivered, "what is forgotten waits no longer"
    drawn = {
        name: [(row.round, row.payload) for row in rows] for name, rows in agents.drawn().items()
    }
    assert drawn == {"a": [(0, b"first"), (1, b"second")], "b": []}
