"""B' is byte-identical over 200 restarts with kill -9."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path

import pytest

from testbed.brokers import Nats
from tests.support.edge_processes.killable import KillableAgents, Run
from tests.support.edge_processes.loops import fresh_manifest

RESTARTS = 200
POINTS = (
    "report drawn",
    "before the mark",
    "memo found",
    "report committed",
    "sending",
    "sent",
    "acknowledged",
)


@pytest.mark.slow
def test_the_memos_survive(agents: KillableAgents, nats: Nats, tmp_path: Path) -> None:
    """Two values in turn, each round killed at another step: two memos, two charges, for ever."""
    names = ", ".join(f'"v{i:02}"' for i in range(64))
    table = f'[[attributes]]\nname = "a"\nquestion = "?"\nprotocol = "L-OSUE"\nvalues = [{names}]'
    asked = fresh_manifest(attributes=table, grace=10_000_000, max_values=2)
    run = Run(str(tmp_path / "device"), asked.to_bytes().hex(), nats.url, "device", {})
    first = replace(run, values={"a": "v01"}, round=0, timeout=0)
    agents.run(first)
    memos = agents.run(replace(first, values={"a": "v02"}, round=1)).after.memos
    assert len(memos) == 2
    for number, point in enumerate(islice(cycle(POINTS), RESTARTS), start=2):
        wanted = {"a": f"v{1 + number // 7 % 2:02}"}
        killed = agents.run(replace(run, values=wanted, round=number, die_at=point))
        assert killed.before.memos == memos
    last = agents.run(replace(run, values={"a": "v01"}, round=RESTARTS + 2, timeout=0))
    assert last.after.memos == memos
    assert last.after.charges == [asked.eps_inf] * 2
