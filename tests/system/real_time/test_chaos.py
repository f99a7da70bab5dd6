"""Short runs of the chaos command: everything fails, and nothing is lost or doubled."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from faults.run import Size, run
from tests.support.needs import is_there, need
from tests.support.overlap import all_at_once

SIZE: Final = Size(minutes=0.4, devices=60, period_seconds=5)
SEEDS: Final = [("embedded", False, 1), ("nats", True, 2), ("mosquitto", True, 3)]
MAY_LACK: Final = "mosquitto"


@pytest.mark.slow
def test_short_seeds(tmp_path: Path) -> None:
    """Side by side: they wait for rounds, and for what is delivered again after half a minute."""

    def short_seed(case: tuple[str, bool, int]) -> None:
        kind, tls, seed = case
        told: list[str] = []
        happened, found = run(tmp_path / kind, kind, SIZE, seed, told.append, tls=tls)
        assert found.faults == [], told
        assert happened.total() >= 4, told
        assert found.owed > SIZE.devices, told

    all_at_once(short_seed, [case for case in SEEDS if case[0] != MAY_LACK or is_there(MAY_LACK)])
    need(MAY_LACK)
