"""A short run of the chaos command: everything fails, and nothing is lost or doubled."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.run import Size, run
from tests.support.needs import need

SIZE = Size(minutes=0.4, devices=60, period_seconds=5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "tls", "seed"), [("embedded", False, 1), ("nats", True, 2), ("mosquitto", True, 3)]
)
def test_a_short_seed(kind: str, tls: bool, seed: int, tmp_path: Path) -> None:
    if kind == "mosquitto":
        need("mosquitto")
    told: list[str] = []
    happened, found = run(tmp_path / "site", kind, SIZE, seed, told.append, tls=tls)
    assert found.faults == [], told
    assert happened.total() >= 4, told
    assert found.owed > SIZE.devices, told
