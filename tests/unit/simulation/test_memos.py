"""Several rounds as statistics: exact laws, checked against every course a tiny fleet can take."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest

from protocol_spec import Calibration, as_drawn, calibrate
from simulation.model.memos import Memos
from tests.support.protocol.statistics import LIMIT
from tests.support.simulation.laws import Law, Vector, fit_z, one_report, together, vectors

SEED, RUNS, ROUNDS = 20262, 60_000, 2
K = 2

# A course of one place in the fleet: [n of each round, count of value 0 in each round, devices that
# sent 0, 1 and 2 reports].
Course = tuple[float, Vector]


def reports(c: Calibration, memo: int) -> Iterator[tuple[float, int]]:
    """Whether a report supports value 0, by whether the memo does."""
    p = c.p2 if memo else c.q2
    yield from ((p, 1), (1.0 - p, 0))


def courses(c: Calibration, value: int, dropout: float, churn: float) -> Law:
    """Everything that can happen at one place over two rounds."""
    law: dict[Vector, float] = {}
    keep = c.p1 if value == 0 else c.q1
    first = [(keep, 1), (1.0 - keep, 0)]  # a memo that supports value 0, or does not
    takes_part = [(1.0 - dropout, 1), (dropout, 0)]
    for (p, memo), (q, here), (r, left) in product(first, takes_part, [(churn, 1), (1 - churn, 0)]):
        later = first if left else [(1.0, memo)]
        for (s, memo_2), (t, here_2) in product(later, takes_part):
            for (a, y), (b, y_2) in product(reports(c, memo), reports(c, memo_2)):
                sent = [0, 0, 0]
                for m in (here, here_2) if left else (here + here_2,):
                    sent[m] += 1
                course = (here, here_2, here * y, here_2 * y_2, *sent)
                law[course] = law.get(course, 0.0) + p * q * r * s * t * a * b
    return law


@pytest.mark.parametrize("protocol", ["L-GRR", "L-OSUE"])
@pytest.mark.parametrize(
    ("dropout", "churn"), [((0.0, 0.0), 0.0), ((0.3, 0.3), 0.0), ((0.2, 0.6), 0.4)]
)
def test_rounds_and_participation_have_their_joint_law(
    protocol: str, dropout: tuple[float, float], churn: float
) -> None:
    c = as_drawn(calibrate(protocol, k=K, eps_inf=3.0, eps_1=1.5))
    truth = [1, 2]
    law = together(courses(c, v, dropout[v], churn) for v, n in enumerate(truth) for _ in range(n))
    rng = np.random.default_rng(SEED)
    fleet = Memos(rng, c, np.tile(truth, (RUNS, 1)), dropout=dropout, churn=churn)
    first, second = fleet.round(), fleet.round()
    columns = [first.n, second.n, first.counts[:, 0], second.counts[:, 0], *fleet.participation.T]
    law = {course: p for course, p in law.items() if p > 0.0}
    assert abs(fit_z(vectors(np.stack(columns, axis=1)), law)) < LIMIT, f"seed {SEED}"


@pytest.mark.parametrize("protocol", ["L-GRR", "L-OSUE"])
def test_all_values_of_a_later_round_have_their_joint_law(protocol: str) -> None:
    c = as_drawn(calibrate(protocol, k=3, eps_inf=3.0, eps_1=1.5))
    truth, dropout = [1, 2, 0], (0.3, 0.5, 0.5)
    laws = []
    for v, n in enumerate(truth):
        present = {(1, *bits): p * (1 - dropout[v]) for bits, p in one_report(c, v).items()}
        laws += [{(0, 0, 0, 0): dropout[v], **present}] * n
    fleet = Memos(np.random.default_rng(SEED), c, np.tile(truth, (RUNS, 1)), dropout=dropout)
    fleet.round()
    n_2, counts = fleet.round()
    found = vectors(np.column_stack([n_2, counts]))
    assert abs(fit_z(found, together(laws))) < LIMIT, f"seed {SEED}"


@pytest.mark.parametrize("protocol", ["L-GRR", "L-OSUE"])
def test_pooling_meets_the_floor_that_memos_set(protocol: str) -> None:
    """Ten rounds of one memo are far from ten independent rounds, by exactly as much as stated."""
    c = as_drawn(calibrate(protocol, k=5, eps_inf=2.0, eps_1=0.6))
    truth, runs, rounds = np.array([400, 300, 200, 100, 0]), 4_000, 10
    fleet = Memos(np.random.default_rng(SEED), c, np.tile(truth, (runs, 1)))
    total = np.sum([fleet.round().counts for _ in range(rounds)], axis=0)
    raw = (total / (rounds * 1_000) - c.qs) / c.gap
    for v, f in enumerate(truth / 1_000):
        ratio = raw[:, v].var() / c.pooled_variance(1_000, rounds, f)
        assert abs(ratio - 1.0) < LIMIT * np.sqrt(2.0 / runs), f"seed {SEED}"


@pytest.mark.parametrize("protocol", ["L-GRR", "L-OSUE"])
def test_memory_grows_with_values_and_not_with_devices(protocol: str) -> None:
    c = as_drawn(calibrate(protocol, k=41, eps_inf=2.0, eps_1=0.6))

    def peak(devices: int) -> int:
        tracemalloc.start()
        fleet = Memos(np.random.default_rng(SEED), c, np.full(41, devices // 41), dropout=0.2)
        for _ in range(5):
            fleet.round()
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(1_000)  # what is imported and cached at the first call
    assert peak(100_000_000) < 1.1 * peak(1_000)
    assert peak(100_000_000) < 1 << 20
