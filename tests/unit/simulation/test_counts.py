"""Counts without devices have exactly the joint distribution that devices would give."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

from protocol_spec import Calibration, ParameterError, as_drawn, calibrate
from protocol_spec.mechanisms import Memoized
from simulation.campaigns import as_reports, as_statistics
from simulation.counts import (
    answers,
    counted_fleet,
    memoized_fleet,
    one_round,
    sample_groups,
    subsets,
)
from simulation.devices import Fleet, OneByOne, bulk
from simulation.population import Behaviour, drifting
from tests.support.protocol.statistics import LIMIT, binomial_z
from tests.support.simulation import (
    Distribution,
    Vector,
    campaign,
    fit_z,
    one_report,
    question,
    same_z,
    together,
)

SEED, RUNS = 20261, 60_000


def drawn(protocol: str, k: int, eps_inf: float = 3.0, eps_1: float = 1.5) -> Calibration:
    return as_drawn(calibrate(protocol, k=k, eps_inf=eps_inf, eps_1=eps_1))


@pytest.mark.parametrize("protocol", ["L-GRR", "L-OSUE", "L-SUE", "L-SS"])
def test_all_counts_of_a_round_have_their_joint_distribution(protocol: str) -> None:
    c, truth = drawn(protocol, 3, 2.0, 1.2), [2, 0, 1]
    if protocol == "L-SS":  # of two values
        c, truth = drawn(protocol, 4, 2.0, 0.3), [2, 0, 1, 0]
        assert c.size == 2
    expected = together(one_report(c, v) for v, n in enumerate(truth) for _ in range(n))
    counts = one_round(np.random.default_rng(SEED), c, np.tile(truth, (RUNS, 1)))
    assert abs(fit_z(counts, expected)) < LIMIT, f"seed {SEED}"


def test_groups_are_drawn_without_replacement() -> None:
    populations = [np.array([3, 1, 0]), np.array([2, 2])]
    sizes = np.tile([2, 4], (RUNS, 1))
    some, everyone = sample_groups(np.random.default_rng(SEED), populations, sizes)
    assert abs(fit_z(some, {(2, 0, 0): 0.5, (1, 1, 0): 0.5})) < LIMIT, f"seed {SEED}"
    assert (everyone == [2, 2]).all()


# --- several rounds, checked against everything that can happen to a tiny fleet ------------------


def courses(c: Calibration, value: int, dropout: float, churn: float) -> Distribution:
    """Everything that can happen at one place over two rounds: n and the count of value 0 of each
    round, and devices that sent 0, 1 and 2 reports."""
    found: dict[Vector, float] = {}
    keep = c.p1 if value == 0 else c.q1
    first = [(keep, 1), (1.0 - keep, 0)]  # a memo that supports value 0, or does not
    takes_part = [(1.0 - dropout, 1), (dropout, 0)]
    report = {memo: [(p, 1), (1.0 - p, 0)] for memo, p in ((1, c.p2), (0, c.q2))}
    for (p, memo), (q, here), (r, left) in product(first, takes_part, [(churn, 1), (1 - churn, 0)]):
        later = first if left else [(1.0, memo)]
        for (s, memo_2), (t, here_2) in product(later, takes_part):
            for (a, y), (b, y_2) in product(report[memo], report[memo_2]):
                sent = [0, 0, 0]
                for m in (here, here_2) if left else (here + here_2,):
                    sent[m] += 1
                course = (here, here_2, here * y, here_2 * y_2, *sent)
                found[course] = found.get(course, 0.0) + p * q * r * s * t * a * b
    return found


@pytest.mark.parametrize("protocol", ["L-GRR", "L-OSUE"])
@pytest.mark.parametrize(
    ("dropout", "churn"), [((0.0, 0.0), 0.0), ((0.3, 0.3), 0.0), ((0.2, 0.6), 0.4)]
)
def test_rounds_and_participation_have_their_joint_distribution(
    protocol: str, dropout: tuple[float, float], churn: float
) -> None:
    c, truth = drawn(protocol, 2), [1, 2]
    expected = together(
        courses(c, v, dropout[v], churn) for v, n in enumerate(truth) for _ in range(n)
    )
    rng = np.random.default_rng(SEED)
    fleet = memoized_fleet(rng, c, np.tile(truth, (RUNS, 1)), dropout=dropout, churn=churn)
    first, second = fleet.round(), fleet.round()
    columns = [first.n, second.n, first.counts[:, 0], second.counts[:, 0], *fleet.participation.T]
    expected = {course: p for course, p in expected.items() if p > 0.0}
    assert abs(fit_z(np.stack(columns, axis=1), expected)) < LIMIT, f"seed {SEED}"


@pytest.mark.parametrize("protocol", ["L-GRR", "L-OSUE"])
def test_all_values_of_a_later_round_have_their_joint_distribution(protocol: str) -> None:
    c, truth, dropout = drawn(protocol, 3), [1, 2, 0], (0.3, 0.5, 0.5)
    parts = []
    for v, n in enumerate(truth):
        present = {(1, *bits): p * (1 - dropout[v]) for bits, p in one_report(c, v).items()}
        parts += [{(0, 0, 0, 0): dropout[v], **present}] * n
    rng = np.random.default_rng(SEED)
    fleet = memoized_fleet(rng, c, np.tile(truth, (RUNS, 1)), dropout=dropout)
    fleet.round()
    n_2, counts, _ = fleet.round()
    assert abs(fit_z(np.column_stack([n_2, counts]), together(parts))) < LIMIT, f"seed {SEED}"


@pytest.mark.parametrize("protocol", ["L-GRR", "L-OSUE", "L-SS"])
def test_pooling_meets_the_floor_that_memos_set(protocol: str) -> None:
    """Ten rounds of one memo are far from ten independent rounds, by exactly as much as stated."""
    c = drawn(protocol, 5, 2.0, 0.6)
    truth, runs, rounds = np.array([400, 300, 200, 100, 0]), 4_000, 10
    fleet = memoized_fleet(np.random.default_rng(SEED), c, np.tile(truth, (runs, 1)))
    total = np.sum([fleet.round().counts for _ in range(rounds)], axis=0)
    raw = (total / (rounds * 1_000) - c.qs) / c.gap
    for v, f in enumerate(truth / 1_000):
        ratio = raw[:, v].var() / c.pooled_variance(1_000, rounds, f)
        assert abs(ratio - 1.0) < LIMIT * np.sqrt(2.0 / runs), f"seed {SEED}"


@pytest.mark.parametrize("protocol", ["L-GRR", "L-OSUE"])
def test_memory_grows_with_values_and_not_with_devices(protocol: str) -> None:
    c = drawn(protocol, 41, 2.0, 0.6)

    def peak(devices: int) -> int:
        tracemalloc.start()
        held = np.full(41, devices // 41)
        fleet = memoized_fleet(np.random.default_rng(SEED), c, held, dropout=0.2)
        for _ in range(5):
            fleet.round()
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(1_000)  # what is imported and cached at the first call
    assert peak(100_000_000) < min(1.1 * peak(1_000), 1 << 20)


# --- once and nested, against fleets of single devices -------------------------------------------

DEVICES, ROUNDS, VALUES, HELD = 40_000, 4, 3, 1
UNRULY: dict[str, Any] = {"dropout": 0.3, "churn": 0.25}
ALONE = np.tile(np.eye(VALUES, dtype=np.int64)[HELD], (DEVICES, 1))  # fleets of one device each


def courses_of(made: Fleet) -> Counter[Vector]:
    """What each place sent, round by round: the level, and the values it supports; 0 if silent."""
    mechanism = made.manifest.mechanisms[0]
    table = np.zeros((ROUNDS, DEVICES), dtype=np.int64)
    for batch in made.batches():
        for t in range(ROUNDS):
            reports = batch.reports()
            found = [mechanism.supported(body.tobytes(), "") for body in reports.bodies]
            bits = [sum(1 << v for v in mechanism.counted.supported(s.body)) for s in found]
            levels = np.array([s.channel + 1 for s in found])
            table[t, reports.places] = levels << VALUES | np.array(bits)
    return Counter(map(tuple, table.T.tolist()))


def codes_of(n: np.ndarray, counts: np.ndarray) -> list[int]:
    """The same of fleets of one device: `n[run, level]`, `counts[run, level, v]`."""
    level = (n * np.arange(1, n.shape[-1] + 1)).sum(axis=-1)
    codes = level << VALUES | (counts.sum(axis=-2) << np.arange(VALUES)).sum(axis=-1)
    return [int(code) for code in codes]


@pytest.mark.parametrize("protocol", ["GRR", "OUE"])
def test_a_nested_result_has_the_distribution_of_latest_reports(protocol: str) -> None:
    """Devices that missed rounds stand at the level of their own last report."""
    asked = campaign("nested", question(VALUES, protocol=protocol), eps_inf=1.5)
    mechanism, theirs = asked.mechanisms[0], Counter[int]()
    made = Fleet(asked, (ALONE.sum(axis=0),), Behaviour(dropout=0.4), SEED, ROUNDS)
    for batch in made.batches():
        for _ in range(ROUNDS):
            batch.reports()
        for body in (batch.latest() or ALONE)[0]:
            channel, answer = mechanism.supported(body.tobytes(), "")
            bits = sum(1 << v for v in mechanism.counted.supported(answer))
            theirs[channel + 1 << VALUES | bits] += 1
    fleet = counted_fleet(np.random.default_rng(SEED), mechanism, ALONE, dropout=0.4)
    for _ in range(ROUNDS):
        n, counts, _ = fleet.round()
    ours = Counter(code for code in codes_of(n, counts) if code)
    assert len(theirs) >= 4 * 3  # levels and what they support
    assert abs(same_z(ours, theirs)) < LIMIT, f"seed {SEED}"
    assert abs(binomial_z(ours.total(), DEVICES, 1 - 0.4**ROUNDS)) < LIMIT, f"seed {SEED}"


def test_a_nested_device_that_left_is_still_in_the_result() -> None:
    asked = campaign("nested", question(VALUES), eps_inf=1.5)
    held = np.array([300, 200, 100])
    made = Fleet(asked, (held,), Behaviour(churn=0.5), SEED, ROUNDS)
    counted = as_statistics(asked, (held,), made.behaviour, rounds=ROUNDS, seed=SEED)
    for simulated in (as_reports(made), counted):
        mine = simulated.attributes[0]
        assert (mine.sent == 600).all()
        assert mine.n[0] == 600
        assert mine.n[-1] == mine.participation.sum() > 1_000


@pytest.mark.parametrize(("size", "of"), [(1, 3), (2, 4), (3, 4)])
def test_random_sets_are_all_as_likely(size: int, of: int) -> None:
    sets = list(combinations(range(of), size))
    expected = {tuple(int(i in each) for i in range(of)): 1 / len(sets) for each in sets}
    drawn = subsets(np.random.default_rng(SEED), np.ones(RUNS, dtype=np.int64), size, of)
    assert abs(fit_z(drawn, expected)) < LIMIT, f"seed {SEED}"


def test_an_answer_of_several_values_has_the_value_held_or_is_blind() -> None:
    """Two of four values; both kinds of sets by hand."""
    k, size, gap = 4, 2, 0.5
    keep = gap * (k - 1) / (k - size)
    expected: Distribution = {}
    for each in combinations(range(k), size):
        chance = (1 - keep) / 6 + keep * (1 in each) / 3
        expected[tuple(int(v in each) for v in range(k))] = chance
    held = np.tile([0, 1, 0, 0], (RUNS, 1))
    drawn = answers(np.random.default_rng(SEED), held, gap, size)
    assert abs(fit_z(drawn, expected)) < LIMIT, f"seed {SEED}"


@pytest.mark.parametrize("each", [1, 2])
def test_answers_have_the_distribution_of_devices_that_answer_once(each: int) -> None:
    """All rounds jointly, with values that change and drift, drop-out and churn."""
    attributes = question(VALUES, protocol="GRR")
    asked = campaign("once", attributes, eps_inf=1.5 * each, count=5, each=each)
    start, target = np.eye(VALUES)[HELD], np.array([0.1, 0.2, 0.7])
    rates = {"changes": 0.5, **UNRULY}
    held = (ALONE.sum(axis=0),)
    theirs = courses_of(Fleet(asked, held, Behaviour(**rates), SEED, ROUNDS, drift=(target,)))
    given = counted_fleet(np.random.default_rng(SEED), asked.mechanisms[0], ALONE, **rates)
    columns = []
    for t in range(ROUNDS):
        n, counts, _ = given.round(drifting(start, target, t, 5))
        columns.append(codes_of(n[:, np.newaxis], counts[:, np.newaxis]))
    assert abs(same_z(Counter(zip(*columns)), theirs)) < LIMIT, f"seed {SEED}"


def test_a_new_mechanism_is_simulated_report_by_report() -> None:
    """Even one that resembles another: it may draw in its own way."""

    class New(Memoized):
        pass

    new = New(calibrate("L-GRR", k=VALUES, eps_inf=1.5, eps_1=0.5), 1)
    assert type(bulk(new)) is OneByOne
    with pytest.raises(ParameterError, match="use reports"):
        counted_fleet(np.random.default_rng(SEED), new, ALONE)
