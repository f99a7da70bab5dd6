"""Ways of reporting as counts alone: the law of single devices, and the limits of it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from protocol_spec.ways import NestedWay, OnceWay
from simulation.depths.reports import as_reports
from simulation.depths.statistics import as_statistics
from simulation.errors import SimulationError
from simulation.model.answers import Answers
from simulation.model.behaviour import Behaviour
from simulation.model.fleet import Fleet
from simulation.model.levels import Levels
from simulation.model.population import drifting
from tests.support.protocol.statistics import LIMIT
from tests.support.simulation.laws import same_z
from tests.support.simulation.ways import campaign, questions

SEED, DEVICES, ROUNDS = 20265, 40_000, 4
K, HELD = 3, 1
UNRULY: dict[str, Any] = {"dropout": 0.3, "churn": 0.25}
Course = tuple[int, ...]


def alone() -> np.ndarray:
    """As many fleets of one device each, all with the same value."""
    return np.tile(np.eye(K, dtype=np.int64)[HELD], (DEVICES, 1))


def courses_of(made: Fleet) -> Counter[Course]:
    """What each place sent, round by round: the level, and the values it supports; 0 if silent."""
    way = made.manifest.ways[0]
    table = np.zeros((ROUNDS, DEVICES), dtype=np.int64)
    for batch in made.batches():
        for t in range(ROUNDS):
            reports = batch.reports()
            level = reports.bodies[:, 0].astype(np.int64) if isinstance(way, NestedWay) else 1
            support = [way.supported(body.tobytes(), "").body for body in reports.bodies]
            bits = np.array([sum(1 << v for v in way.counted.supported(body)) for body in support])
            table[t, reports.places] = level << K | bits
    return Counter(map(tuple, table.T.tolist()))


def code_of(n: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The same of fleets of one device: `n[run, level]`, `counts[run, level, v]`."""
    level = (n * np.arange(1, n.shape[-1] + 1)).sum(axis=-1)
    code: np.ndarray = level << K | (counts.sum(axis=-2) << np.arange(K)).sum(axis=-1)
    return code


@pytest.mark.parametrize("unruly", [False, True])
@pytest.mark.parametrize("protocol", ["GRR", "OUE"])
def test_nested_counts_have_the_law_of_nested_devices(protocol: str, unruly: bool) -> None:
    """All rounds jointly, device by device."""
    made = campaign("nested", attributes=questions(K, protocol), eps_inf=1.5)
    rates: dict[str, Any] = UNRULY if unruly else {}
    theirs = courses_of(Fleet(made, (alone().sum(axis=0),), Behaviour(**rates), SEED, ROUNDS))
    way = made.ways[0]
    assert isinstance(way, NestedWay)
    levels = Levels(np.random.default_rng(SEED), way, alone(), **rates)
    ours = Counter(zip(*(code_of(*levels.round()).tolist() for _ in range(ROUNDS))))
    assert abs(same_z(ours, theirs)) < LIMIT, f"seed {SEED}"
    everyone = DEVICES if not unruly else levels.participation.sum()
    assert levels.participation.sum() == everyone
    assert not unruly or everyone > DEVICES  # those that were replaced are counted too


@pytest.mark.parametrize("each", [1, 2])
def test_answers_have_the_law_of_devices_that_answer_once(each: int) -> None:
    """All rounds jointly, with values that change and drift, drop-out and churn."""
    attributes = questions(K, "GRR")
    made = campaign("once", attributes=attributes, eps_inf=1.5 * each, count=5, each=each)
    start, target = np.eye(K)[HELD], np.array([0.1, 0.2, 0.7])
    behaviour = Behaviour(changes=0.5, **UNRULY)
    held = (alone().sum(axis=0),)
    fleet = Fleet(made, held, behaviour, SEED, ROUNDS, drift=(target,))
    theirs = courses_of(fleet)
    way = made.ways[0]
    assert isinstance(way, OnceWay)
    answers = Answers(np.random.default_rng(SEED), way, alone(), changes=0.5, **UNRULY)
    columns = []
    for t in range(ROUNDS):
        n, counts = answers.round(drifting(start, target, t, 5))
        columns.append(code_of(n[:, np.newaxis], counts[:, np.newaxis]).tolist())
    assert abs(same_z(Counter(zip(*columns)), theirs)) < LIMIT, f"seed {SEED}"


@pytest.mark.parametrize("reporting", ["once", "hashed", "nested"])
def test_both_depths_give_estimates_within_their_errors(reporting: str) -> None:
    made = campaign(reporting, attributes=questions(12), count=8)  # type: ignore[arg-type]
    truth = (np.array([900, 500, 300, 100, *[25] * 8]),)
    behaviour = Behaviour(dropout=0.2)
    deep = as_reports(Fleet(made, truth, behaviour, SEED, 8))
    flat = as_statistics(made, truth, behaviour, rounds=8, seed=SEED)
    for found in (deep, flat):
        scores = [row["z"] for row in found.rows()]
        assert len(scores) == 9 * 12
        assert max(map(abs, scores)) < LIMIT
        # As if rounds were one and the same, which those of one memo nearly are.
        assert np.mean(np.square(scores)) < 1 + LIMIT * np.sqrt(2 / 12)


def test_statistics_of_values_that_change_are_those_of_answers_alone() -> None:
    truth, behaviour = (np.array([50, 50, 50]),), Behaviour(changes=0.1)
    once = campaign("once", attributes=questions(K))
    found = as_statistics(once, truth, behaviour, rounds=9, seed=1).attributes[0]
    assert (found.truth.sum(axis=1) == 150).all()
    assert (found.truth[0] != found.truth[8]).any()
    for reporting in ("memoized", "hashed", "nested"):
        other = campaign(reporting, attributes=questions(K))
        with pytest.raises(SimulationError, match="--changes needs single devices"):
            as_statistics(other, truth, behaviour, rounds=1, seed=1)
