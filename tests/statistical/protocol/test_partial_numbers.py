"""Coverage of numbers among the devices that gave one: mean, distribution function, median."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from protocol_spec import as_drawn, calibrate
from protocol_spec.estimation import Estimate, cdf, estimate, mean, median, midpoints
from tests.support.protocol.simulation import Frequencies, holders, one_round
from tests.support.protocol.statistics import LIMIT, binomial_z

RUNS = 1500
CASES = [  # bins, share without a number, budget, devices
    (6, 0.2, (4.0, 2.0), 500),
    (12, 0.5, (4.0, 2.0), 2000),
    (6, 0.05, (2.0, 0.6), 5000),
    (12, 0.8, (4.0, 2.0), 5000),
    (6, 0.9, (2.0, 0.6), 2000),  # hardly anyone, and much noise: everything is possible
]
LOWEST = -3.0


@dataclass(frozen=True)
class Simulated:
    seed: int
    among: Frequencies
    estimates: list[Estimate]

    def z(self, inside: list[bool]) -> float:
        return binomial_z(sum(inside), len(inside), 0.95)


@pytest.fixture(params=enumerate(CASES, start=4000), ids=str, scope="module")
def run(request: pytest.FixtureRequest) -> Simulated:
    seed, (bins, missing, budget, n) = request.param
    at = np.arange(bins)
    hump = np.exp(-((at - 0.4 * bins) ** 2) / (0.08 * bins * bins)) + 0.05
    among = hump / hump.sum()
    f = np.append(among * (1.0 - missing), missing)
    c = as_drawn(calibrate("ALLOMFREE", k=bins + 1, eps_inf=budget[0], eps_1=budget[1]))
    rng = np.random.default_rng(seed)
    e = estimate(one_round(rng, c, holders(rng, n, f, RUNS)), n, c)
    return Simulated(seed, among, [replace(e, raw=raw) for raw in e.raw])


def test_a_mean(run: Simulated) -> None:
    middle = midpoints(np.linspace(0.0, 1.0, run.among.size + 1).tolist())
    truth = float(run.among @ middle)
    ends = [mean(e, middle).interval() for e in run.estimates]
    z = run.z([low <= truth <= high for low, high in ends])
    assert z > LOWEST, f"z = {z:.2f} with seed {run.seed}"
    certain = all(cdf(e, run.among.size).ratio.is_certain() for e in run.estimates)
    assert z < LIMIT or not certain, f"z = {z:.2f}: needlessly wide, with seed {run.seed}"


def test_a_distribution_function(run: Simulated) -> None:
    truth = np.cumsum(run.among)[:-1]
    bands = [cdf(e, run.among.size).band() for e in run.estimates]
    z = run.z([bool(((low <= truth) & (truth <= high)).all()) for low, high in bands])
    assert z > LOWEST, f"z = {z:.2f} with seed {run.seed}"


def test_a_median(run: Simulated) -> None:
    edges = np.arange(run.among.size + 1.0)
    truth = float(np.interp(0.5, np.concatenate(([0.0], np.cumsum(run.among))), edges))
    found = [median(e, edges.tolist()) for e in run.estimates]
    z = run.z([q.low <= truth <= q.high for q in found])
    assert z > LOWEST, f"z = {z:.2f} with seed {run.seed}"
