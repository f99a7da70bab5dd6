"""What is compared with the peers: the same inputs for both, and a row for every comparison."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.accuracy import BUDGETS
from benchmarks.our_side import Round, Timed, Values, campaign, device_round, simulated_round
from benchmarks.peer_environment import peers
from benchmarks.peers import SPEED_UP, Bench, K, errors, population, rounds, values_of
from protocol_spec import Calibration, calibrate, calibrate_once
from simulation.model.datasets import Dataset, Marginal, load
from tests.support import benchmark_fakes as fakes

SMALL = Dataset(
    "small",
    "Small",
    "two attributes",
    400,
    (Marginal("a", ("x", "y"), (300, 100)), Marginal("b", ("x", "y", "z"), (200, 100, 100))),
)


def seeded_device_round(calibration: Calibration, values: Values, seed: int) -> Timed:
    return device_round(calibration, values, seed, random.Random(seed).randbytes)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with peers(fakes.interpreter(tmp_path)) as driver:
        yield Bench(driver, tmp_path, devices=400, repeats=2)


def test_the_users_are_the_data_set() -> None:
    users = population(SMALL)
    assert users.shape == (400, 2)
    for column, attribute in zip(users.T, SMALL.attributes):
        assert tuple(np.bincount(column)) == attribute.counts
    assert (population(SMALL) == users).all()


def test_values_are_the_same_on_every_call_and_as_frequent_as_in_the_data() -> None:
    counts = next(a.counts for a in load("adult").attributes if a.k == K)
    n, share = 100_000, max(counts) / sum(counts)
    values = values_of(n)
    assert (values_of(n) == values).all()
    commonest = int(np.argmax(counts))
    z = ((values == commonest).mean() - share) / (share * (1 - share) / n) ** 0.5
    assert abs(z) < 4


@pytest.mark.parametrize("a_round", [simulated_round, seeded_device_round])
@pytest.mark.parametrize(
    "calibration",
    [
        calibrate("L-GRR", k=3, eps_inf=4.0, eps_1=2.4),
        calibrate("L-OSUE", k=3, eps_inf=4.0, eps_1=2.4),
        calibrate_once("GRR", k=3, epsilon=2.4),
        calibrate_once("OUE", k=3, epsilon=2.4),
    ],
    ids=lambda c: str(c.protocol),
)
def test_our_side_estimates_what_the_users_hold(a_round: Round, calibration: Calibration) -> None:
    """A z-score by the calibration's own variance. Seed 5, for the devices too."""
    held = np.array([1400, 500, 100])
    timed = a_round(calibration, np.repeat(np.arange(3), held), 5)
    shares = held / held.sum()
    variances = [calibration.variance(held.sum(), f) for f in shares]
    assert np.abs((timed.estimates[0] - shares) / np.sqrt(variances)).max() < 4
    assert timed.both == timed.randomise + timed.aggregate


def test_in_a_campaign_every_user_reports_one_attribute() -> None:
    heard: list[int] = []

    def a_round(calibration: Calibration, values: Values, _seed: int) -> Timed:
        heard.append(len(values))
        return Timed(1.0, 0.5, [np.bincount(values, minlength=calibration.k) / len(values)])

    told = campaign(a_round, population(SMALL), [2, 3], (2.0, 0.6), seed=1)
    assert sum(heard) == SMALL.n
    assert min(heard) > 0
    assert told.randomise > 2.0  # two rounds, and who reports what
    assert told.aggregate == 1.0
    assert [len(e) for e in told.estimates] == [2, 3]


def test_a_round_is_compared_whole_and_by_halves(bench: Bench) -> None:
    rows = {row.what: row for row in rounds(bench)}
    must = "L-OSUE, randomise + aggregate: multi-freq-ldpy / simulator"
    assert rows[must].at_least == SPEED_UP == 20.0
    assert rows[must].note.startswith("400 users, ")
    for half in ("randomise a user", "aggregate a report"):
        for sides in ("simulator", "devices and collector"):
            assert f"L-GRR, {half}: multi-freq-ldpy / {sides}" in rows
    fastest = "L-OSUE, randomise + aggregate: multi-freq-ldpy in a compiled loop / simulator"
    assert rows[fastest].at_least is None
    assert all(row.value is not None and row.value > 0 for row in rows.values())


def test_a_peer_without_noise_errs_less(bench: Bench) -> None:
    """The fake answers truly, so only who was drawn makes it err: every ratio is far above 1."""
    rows = errors(bench, SMALL, runs=4)
    assert len(rows) == 2 * (1 + len(BUDGETS))
    assert all(row.value is not None and row.value > 1 for row in rows)
    judged = [row for row in rows if row.limit is not None]
    assert [row.what for row in judged] == ["Small, error, exact, projected: geometric mean"]
    assert judged[0].verdict == "BROKEN"
    assert all("4 runs of the peer, 2,000 of ours" in row.note for row in rows)
