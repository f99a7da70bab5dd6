"""The table of docs/scaling.md measures a real round."""

from __future__ import annotations

from pathlib import Path

from collector.data_dir import read_store
from protocol_spec import Outcome
from simulation.scaling import measure


def test_every_report_of_the_round_is_counted_and_every_step_costs(tmp_path: Path) -> None:
    cost = measure(500, tmp_path / "data")
    store = read_store(tmp_path / "data")
    assert store.outcomes() == {Outcome.ACCEPTED: 500}
    assert store.last_sealed(1) == 0
    store.close()
    assert min(cost.steps()) > 0.0
    assert cost.disk_bytes > 500 * 20
    assert cost.row().startswith("| 500 | ")
