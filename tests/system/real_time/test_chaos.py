"""Short runs of the chaos command: everything fails, and nothing is lost or counted twice."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from faults.run import collector_size, run
from faults.sites import CollectorSite
from tests.support.harness import all_at_once, is_there, need

DEVICES: Final = 60
SEEDS: Final = [("embedded", False, 1), ("nats", True, 2), ("mosquitto", True, 3)]
MAY_LACK: Final = "mosquitto"


@pytest.mark.slow
def test_short_seeds(tmp_path: Path) -> None:
    """In parallel: they wait for rounds, and for what is delivered again after half a minute."""

    def short_seed(case: tuple[str, bool, int]) -> None:
        kind, tls, seed = case
        lines: list[str] = []
        site = CollectorSite(tmp_path / kind, kind, tls=tls)
        size = collector_size(0.4, DEVICES, period_seconds=5)
        happened, found = run(site, size, seed, lines.append)
        assert found.faults == [], lines
        assert happened.total() >= 4, lines
        assert found.owed > DEVICES, lines

    all_at_once(short_seed, [case for case in SEEDS if case[0] != MAY_LACK or is_there(MAY_LACK)])
    need(MAY_LACK)
