"""The pieces of the authors' experiment: exact on small cases, and right in the mean."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from paper.gains import (
    ARMS,
    Array,
    average_errors,
    clip_and_renormalise,
    estimates,
    experiments,
    group_sizes,
    mean_squared_errors,
)
from paper.printed import HALVES
from simulation.population import Dataset, Marginal, load

SEED = 20_220_101
TINY = Dataset(
    "tiny",
    "Tiny",
    "",
    7,
    (Marginal("a", ("x", "y", "z"), (4, 3, 0)), Marginal("b", ("p", "q"), (5, 2))),
)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ([0.5, 0.25, 0.25], [0.5, 0.25, 0.25]),
        ([0.75, -0.5, 0.75], [0.5, 0.0, 0.5]),
        ([1.5, 0.5, -1.0], [0.75, 0.25, 0.0]),
        ([0.125, 0.125, 0.0], [0.5, 0.5, 0.0]),
        ([-0.5, -0.25, 0.0], [0.0, 0.0, 0.0]),  # nothing positive: all 0, as in the authors' code
    ],
)
def test_clip_and_renormalise(raw: list[float], expected: list[float]) -> None:
    assert clip_and_renormalise(np.array([raw, raw])).tolist() == [expected, expected]


@pytest.mark.parametrize(
    ("n", "d", "sizes"), [(6, 3, [2, 2, 2]), (7, 3, [3, 2, 2]), (11, 4, [3, 3, 3, 2])]
)
def test_groups_are_as_equal_as_can_be(n: int, d: int, sizes: list[int]) -> None:
    assert group_sizes(n, d) == sizes


@pytest.mark.parametrize("name", ["nursery", "adult", "ms_fimu", "census_income"])
def test_everybody_is_in_one_group(name: str) -> None:
    data = load(name)
    sizes = group_sizes(data.n, len(data.attributes))
    assert sum(sizes) == data.n
    assert all(earlier - later in (0, 1) for earlier, later in pairwise(sizes))


def test_without_noise_the_error_is_that_of_the_groups() -> None:
    """With given groups and reports that tell the truth MSE_avg can be worked out by hand."""
    held = [np.array([[2, 2, 0], [4, 0, 0]]), np.array([[1, 2], [3, 0]])]
    errors = average_errors(
        TINY, held, lambda group: dict.fromkeys(ARMS, group / group.sum(-1)[:, None])
    )
    first = ((1 / 2 - 4 / 7) ** 2 + (1 / 2 - 3 / 7) ** 2) / 3 + (2 * (1 / 3 - 5 / 7) ** 2) / 2
    second = ((1 - 4 / 7) ** 2 + (3 / 7) ** 2) / 3 + (2 * (1 - 5 / 7) ** 2) / 2
    for name in ARMS:
        assert errors[name] == pytest.approx([first / 2, second / 2], rel=1e-12)


@pytest.mark.parametrize("protocol", ["L-SUE", "L-OUE", "ALLOMFREE"])
@pytest.mark.parametrize(("eps_inf", "eps_1"), [(0.5, 0.15), (2.0, 1.2), (4.0, 2.4)])
def test_the_mean_error_is_the_theoretical_variance(
    protocol: str, eps_inf: float, eps_1: float
) -> None:
    """The unprocessed estimates' MSE_avg: privacy noise and drawing without replacement."""
    data, runs = load("adult"), 400
    errors = mean_squared_errors(np.random.default_rng(SEED), data, eps_inf, eps_1, runs)
    measured = errors[f"{protocol} unprocessed"]
    expected = _expected(data, protocol, eps_inf, eps_1)
    z = (measured.mean() - expected) / (measured.std(ddof=1) / runs**0.5)
    assert abs(z) < 4, f"z = {z:.2f} with seed {SEED}"


def _expected(data: Dataset, protocol: str, eps_inf: float, eps_1: float) -> float:
    d = len(data.attributes)
    total = 0.0
    for attribute, size in zip(data.attributes, group_sizes(data.n, d), strict=True):
        chances = ARMS[protocol].calibrate(attribute.k, eps_inf, eps_1)
        f = np.array(attribute.counts) / data.n
        noise = f * chances.device_variance(True) + (1 - f) * chances.device_variance(False)
        drawing = f * (1 - f) * (data.n - size) / (data.n - 1)
        total += float((noise + drawing).mean()) / size / d
    return total


def test_arms_with_the_same_chances_share_one_draw() -> None:
    rng = np.random.default_rng(SEED)
    found = estimates(rng, np.array([[50, 30, 20] * 10]), 1.0, 0.3)
    assert found["exact"] is found["exact + projection"]
    assert found["ALLOMFREE"] is found["L-OSUE"]  # k = 30: neither calibration takes L-GRR
    assert found["exact"] is found["L-OSUE"]
    assert found["L-SUE"] is not found["L-OUE"]


def test_the_same_seed_gives_the_same_errors_and_another_seed_others() -> None:
    half = HALVES[0]
    once, again, other = (
        list(experiments(half, runs=3, seed=seed)) for seed in (SEED, SEED, SEED + 1)
    )
    for name in ARMS:
        assert [x.errors[name].tolist() for x in once] == [x.errors[name].tolist() for x in again]
        assert [x.errors[name].tolist() for x in once] != [x.errors[name].tolist() for x in other]


def test_every_experiment_has_a_random_stream_of_its_own() -> None:
    """So that one half table does not depend on which others are run."""

    def draw(rng: np.random.Generator, *_: object) -> dict[str, Array]:
        return {"ALLOMFREE": rng.random(1)}

    first = [
        (experiment.data_set, experiment.ratio, experiment.eps_inf, *experiment.errors["ALLOMFREE"])
        for half in HALVES
        for experiment in experiments(half, runs=1, seed=SEED, measure=draw)
    ]
    assert [label[:3] for label in first] == [
        (half.data_set, half.ratio, row.eps_inf) for half in HALVES for row in half.rows
    ]
    assert len({number for *_, number in first}) == 64
