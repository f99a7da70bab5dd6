"""Counts without devices have exactly the joint distribution that devices would give."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

from protocol_spec import Calibration, as_drawn, calibrate
from protocol_spec.mechanisms import Nested, Once
from simulation.counts import OnceFleet, memoized_fleet, nested_fleet, one_round, sample_groups
from simulation.depths import as_statistics
from simulation.fleet import Fleet
from simulation.population import Behaviour, drifting
from tests.support.protocol.statistics import LIMIT
from tests.support.simulation import (
    Law,
    Vector,
    campaign,
    fit_z,
    one_report,
    questions,
    same_z,
    together,
    vectors,
)

SEED, RUNS = 20261, 60_000


def drawn(protocol: str, k: int) -> Calibration:
    return as_drawn(calibrate(protocol, k=k, eps_inf=2.0, eps_1=1.2))


@pytest.mark.parametrize("protocol", ["L-GRR", "L-OSUE", "L-SUE"])
def test_all_counts_of_a_round_have_their_joint_law(protocol: str) -> None:
    c, truth = drawn(protocol, 3), [2, 0, 1]
    law = together(one_report(c, v) for v, n in enumerate(truth) for _ in range(n))
    counts = one_round(np.random.default_rng(SEED), c, np.tile(truth, (RUNS, 1)))
    assert abs(fit_z(vectors(counts), law)) < LIMIT, f"seed {SEED}"


def test_groups_are_drawn_without_replacement() -> None:
    populations = [np.array([3, 1, 0]), np.array([2, 2])]
    sizes = np.tile([2, 4], (RUNS, 1))
    some, everyone = sample_groups(np.random.default_rng(SEED), populations, sizes)
    law: Law = {(2, 0, 0): 0.5, (1, 1, 0): 0.5}
    assert abs(fit_z(vectors(some), law)) < LIMIT, f"seed {SEED}"
    assert (everyone == [2, 2]).all()


# --- several rounds, checked against everything that can happen to a tiny fleet ------------------

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
    fleet = memoized_fleet(rng, c, np.tile(truth, (RUNS, 1)), dropout=dropout, churn=churn)
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
    fleet = memoized_fleet(
        np.random.default_rng(SEED),
        c,
        np.tile(truth, (RUNS, 1)),
        dropout=dropout,
    )
    fleet.round()
    n_2, counts = fleet.round()
    found = vectors(np.column_stack([n_2, counts]))
    assert abs(fit_z(found, together(laws))) < LIMIT, f"seed {SEED}"


@pytest.mark.parametrize("protocol", ["L-GRR", "L-OSUE"])
def test_pooling_meets_the_floor_that_memos_set(protocol: str) -> None:
    """Ten rounds of one memo are far from ten independent rounds, by exactly as much as stated."""
    c = as_drawn(calibrate(protocol, k=5, eps_inf=2.0, eps_1=0.6))
    truth, runs, rounds = np.array([400, 300, 200, 100, 0]), 4_000, 10
    fleet = memoized_fleet(np.random.default_rng(SEED), c, np.tile(truth, (runs, 1)))
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
        fleet = memoized_fleet(
            np.random.default_rng(SEED), c, np.full(41, devices // 41), dropout=0.2
        )
        for _ in range(5):
            fleet.round()
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(1_000)  # what is imported and cached at the first call
    assert peak(100_000_000) < 1.1 * peak(1_000)
    assert peak(100_000_000) < 1 << 20


# --- once and nested -----------------------------------------------------------------------------

DEVICES, ROUNDS, VALUES, HELD = 40_000, 4, 3, 1
UNRULY: dict[str, Any] = {"dropout": 0.3, "churn": 0.25}


def alone() -> np.ndarray:
    """As many fleets of one device each, all with the same value."""
    return np.tile(np.eye(VALUES, dtype=np.int64)[HELD], (DEVICES, 1))


def courses_of(made: Fleet) -> Counter[Vector]:
    """What each place sent, round by round: the level, and the values it supports; 0 if silent."""
    way = made.manifest.mechanisms[0]
    table = np.zeros((ROUNDS, DEVICES), dtype=np.int64)
    for batch in made.batches():
        for t in range(ROUNDS):
            reports = batch.reports()
            level = reports.bodies[:, 0].astype(np.int64) if isinstance(way, Nested) else 1
            support = [way.supported(body.tobytes(), "").body for body in reports.bodies]
            bits = np.array([sum(1 << v for v in way.counted.supported(body)) for body in support])
            table[t, reports.places] = level << VALUES | bits
    return Counter(map(tuple, table.T.tolist()))


def code_of(n: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The same of fleets of one device: `n[run, level]`, `counts[run, level, v]`."""
    level = (n * np.arange(1, n.shape[-1] + 1)).sum(axis=-1)
    code: np.ndarray = level << VALUES | (counts.sum(axis=-2) << np.arange(VALUES)).sum(axis=-1)
    return code


@pytest.mark.parametrize("unruly", [False, True])
@pytest.mark.parametrize("protocol", ["GRR", "OUE"])
def test_nested_counts_have_the_law_of_nested_devices(protocol: str, unruly: bool) -> None:
    """All rounds jointly, device by device."""
    made = campaign("nested", attributes=questions(VALUES, protocol), eps_inf=1.5)
    rates: dict[str, Any] = UNRULY if unruly else {}
    theirs = courses_of(
        Fleet(
            made,
            (alone().sum(axis=0),),
            Behaviour(**rates),
            SEED,
            ROUNDS,
        )
    )
    way = made.mechanisms[0]
    assert isinstance(way, Nested)
    levels = nested_fleet(np.random.default_rng(SEED), way, alone(), **rates)
    ours = Counter(zip(*(code_of(*levels.round()).tolist() for _ in range(ROUNDS))))
    assert abs(same_z(ours, theirs)) < LIMIT, f"seed {SEED}"
    everyone = levels.participation.sum()  # those that were replaced are counted too
    assert everyone > DEVICES if unruly else everyone == DEVICES


@pytest.mark.parametrize("each", [1, 2])
def test_answers_have_the_law_of_devices_that_answer_once(each: int) -> None:
    """All rounds jointly, with values that change and drift, drop-out and churn."""
    attributes = questions(VALUES, "GRR")
    made = campaign("once", attributes=attributes, eps_inf=1.5 * each, count=5, each=each)
    start, target = np.eye(VALUES)[HELD], np.array([0.1, 0.2, 0.7])
    behaviour = Behaviour(changes=0.5, **UNRULY)
    held = (alone().sum(axis=0),)
    fleet = Fleet(
        made,
        held,
        behaviour,
        SEED,
        ROUNDS,
        drift=(target,),
    )
    theirs = courses_of(fleet)
    way = made.mechanisms[0]
    assert isinstance(way, Once)
    answers = OnceFleet(np.random.default_rng(SEED), way, alone(), changes=0.5, **UNRULY)
    columns = []
    for t in range(ROUNDS):
        n, counts = answers.round(drifting(start, target, t, 5))
        columns.append(code_of(n[:, np.newaxis], counts[:, np.newaxis]).tolist())
    assert abs(same_z(Counter(zip(*columns)), theirs)) < LIMIT, f"seed {SEED}"


def test_statistics_of_values_that_change_are_those_of_answers_alone() -> None:
    truth, behaviour = (np.array([50, 50, 50]),), Behaviour(changes=0.1)
    once = campaign("once", attributes=questions(VALUES))
    found = as_statistics(once, truth, behaviour, rounds=9, seed=1).attributes[0]
    assert (found.truth.sum(axis=1) == 150).all()
    assert (found.truth[0] != found.truth[8]).any()
