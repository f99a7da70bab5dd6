"""The simulator's benchmark: the loop it is compared with does the same work, rightly."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks import simulate
from benchmarks.peer_environment import peers
from benchmarks.simulate import loop_report, measure
from protocol_spec import calibrate
from tests.support import benchmark_fakes as fakes

SEED = 3


@pytest.mark.parametrize("protocol", ["L-OSUE", "L-GRR"])
def test_the_loop_draws_what_the_protocol_says(protocol: str) -> None:
    n, held = 4_000, 2
    calibration = calibrate(protocol, k=5, eps_inf=4.0, eps_1=2.4)
    rng = np.random.default_rng(SEED)
    counts = sum(loop_report(rng, calibration, held) for _ in range(n))
    for value, count in enumerate(np.asarray(counts)):
        chance = calibration.ps if value == held else calibration.qs
        z = (count - n * chance) / math.sqrt(n * chance * (1 - chance))
        assert abs(z) < 4, f"value {value}, seed {SEED}"


@pytest.mark.slow
def test_every_depth_in_a_process_of_its_own(tmp_path: Path) -> None:
    with peers(fakes.interpreter(tmp_path)) as driver:
        rows = {row.what: row for row in measure(1_000_000, 2_000, 1, driver)}
    for protocol in simulate.PROTOCOLS:
        for depth in ("statistics", "reports"):
            assert rows[f"{depth}, {protocol}: one round"].unit == "ms"
            peak = rows[f"{depth}, {protocol}: memory at the peak"].value
            assert peak is not None
            assert 0 <= peak < 100
        assert rows[f"reports, {protocol}: a loop over users / ours"].value is not None
        assert rows[f"reports, {protocol}: multi-freq-ldpy / ours"].at_least == 20.0
