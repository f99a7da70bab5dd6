"""One round as statistics has the exact joint law of all its counts."""

from __future__ import annotations

import numpy as np
import pytest

from protocol_spec import Calibration, as_drawn, calibrate
from simulation.model.counts import groups, one_round
from tests.support.protocol.statistics import LIMIT, mean_z
from tests.support.simulation.laws import Law, fit_z, one_report, together, vectors

SEED, RUNS = 20261, 60_000


def drawn(protocol: str, k: int) -> Calibration:
    return as_drawn(calibrate(protocol, k=k, eps_inf=2.0, eps_1=1.2))


@pytest.mark.parametrize("protocol", ["L-GRR", "L-OSUE", "L-SUE"])
def test_all_counts_of_a_round_have_their_joint_law(protocol: str) -> None:
    c, truth = drawn(protocol, 3), [2, 0, 1]
    law = together(one_report(c, v) for v, n in enumerate(truth) for _ in range(n))
    counts = one_round(np.random.default_rng(SEED), c, np.tile(truth, (RUNS, 1)))
    assert abs(fit_z(vectors(counts), law)) < LIMIT, f"seed {SEED}"


@pytest.mark.parametrize("protocol", ["L-GRR", "L-OSUE"])
def test_a_large_fleet_is_estimated_without_bias_and_with_the_stated_variance(
    protocol: str,
) -> None:
    c, truth, runs = drawn(protocol, 4), np.array([700_000, 200_000, 100_000, 0]), 4_000
    n = int(truth.sum())
    counts = one_round(np.random.default_rng(SEED), c, np.tile(truth, (runs, 1)))
    raw = (counts / n - c.qs) / c.gap
    for v, f in enumerate(truth / n):
        variance = c.pooled_variance(n, 1, f)
        assert abs(mean_z(raw[:, v].mean(), f, variance, runs)) < LIMIT, f"seed {SEED}"
        ratio = raw[:, v].var() / variance
        assert abs(ratio - 1.0) < LIMIT * np.sqrt(2.0 / runs), f"seed {SEED}"


def test_leading_axes_are_runs() -> None:
    truth = np.arange(24).reshape(2, 3, 4)
    counts = one_round(np.random.default_rng(SEED), drawn("L-GRR", 4), truth)
    assert counts.shape == truth.shape
    assert (counts.sum(axis=-1) == truth.sum(axis=-1)).all()  # a report of GRR is one value


def test_groups_are_drawn_without_replacement() -> None:
    populations = [np.array([3, 1, 0]), np.array([2, 2])]
    sizes = np.tile([2, 4], (RUNS, 1))
    some, everyone = groups(np.random.default_rng(SEED), populations, sizes)
    law: Law = {(2, 0, 0): 0.5, (1, 1, 0): 0.5}
    assert abs(fit_z(vectors(some), law)) < LIMIT, f"seed {SEED}"
    assert (everyone == [2, 2]).all()
