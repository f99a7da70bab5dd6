"""The arithmetic between what was timed and what is shown."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest

from benchmarks.accuracy import (
    POLISH,
    Budget,
    Ratio,
    geometric_mean,
    our_errors,
    ratio_of_means,
    squared_error,
    truth,
)
from benchmarks.measurements import Measurement, cells, facts, in_turns, median_of, ratio_of
from paper.pipeline import clip_and_renormalise
from protocol_spec import as_drawn, calibrate
from simulation.model.datasets import Dataset, Marginal


def test_a_ratio_is_taken_repeat_by_repeat() -> None:
    """Not the ratio of medians: what slowed one repeat down slowed both of its sides."""
    made = ratio_of("speed", [10.0, 80.0, 30.0], [1.0, 2.0, 10.0], at_least=10.0)
    assert (made.value, made.low, made.high) == (10.0, 3.0, 40.0)
    assert made.verdict == "ok"
    assert ratio_of("speed", [9.9], [1.0], at_least=10.0).verdict == "BROKEN"


def test_sides_of_unequal_length_are_no_pairs() -> None:
    with pytest.raises(ValueError, match="shorter"):
        ratio_of("speed", [1.0, 2.0], [1.0])


def test_sides_take_turns_in_going_first() -> None:
    order: list[str] = []

    def side(name: str, repeat: int) -> int:
        order.append(f"{name} {repeat}")
        return repeat

    ours, theirs = in_turns(3, partial(side, "ours"), partial(side, "theirs"))
    assert order == ["ours 0", "theirs 0", "theirs 1", "ours 1", "ours 2", "theirs 2"]
    assert ours == theirs == [0, 1, 2]


@pytest.mark.parametrize(
    ("measured", "shown"),
    [
        (Measurement("a", 12.3456, "MiB"), "12.3 MiB"),
        (Measurement("a", 1_234_567.0, "/s"), "1,234,567 /s"),
        (Measurement("a", None), "-"),
        (median_of("a", [2.0, 1.0, 4.0], "x"), "2 x (1 to 4)"),
        (median_of("a", [2.0], "x"), "2 x"),
    ],
)
def test_how_a_number_is_shown(measured: Measurement, shown: str) -> None:
    assert cells(measured)[1] == shown


def test_json_of_a_benchmark() -> None:
    told = facts("peers", [ratio_of("speed", [30.0, 20.0], [1.0, 1.0], at_least=20.0, note="n")])
    assert told == {
        "benchmark": "peers",
        "ok": True,
        "measurements": [
            {
                "what": "speed",
                "value": 25.0,
                "unit": "x",
                "limit": None,
                "note": "n",
                "at_least": 20.0,
                "low": 20.0,
                "high": 30.0,
                "verdict": "ok",
            }
        ],
    }


# --- errors --------------------------------------------------------------------------------------


def test_ratio_of_means_carries_the_error_of_both() -> None:
    found = ratio_of_means([1.0, 3.0], [4.0, 4.0])  # 2 ± 1 over 4 ± 0
    assert found == pytest.approx(Ratio(0.5, 0.25))
    both = ratio_of_means([1.0, 3.0], [3.0, 5.0])
    assert both.error == pytest.approx(0.5 * math.hypot(1 / 2, 1 / 4))


def test_geometric_mean_of_ratios() -> None:
    assert geometric_mean([Ratio(2.0, 0.2), Ratio(8.0, 0.8)]) == pytest.approx(
        Ratio(4.0, 4.0 * math.hypot(0.1, 0.1) / 2)
    )


def test_the_peers_own_finish_is_the_reproduction_s() -> None:
    assert clip_and_renormalise in POLISH.values()


def test_the_metric_averages_values_then_attributes() -> None:
    """Of two attributes with 2 and 4 values each counts half, however many values it has."""
    true = [np.array([0.5, 0.5]), np.array([0.25] * 4)]
    found = squared_error([[0.6, 0.4], [0.45, 0.05, 0.25, 0.25]], true)
    assert float(found) == pytest.approx((0.01 + 0.02) / 2)


def test_our_error_is_the_calibrations_variance() -> None:
    """Two equally frequent values, far from the edges: nothing is clipped, so the mean squared
    error of an estimate is its variance, L-GRR's at k = 2, and that of who was drawn."""
    n, runs, budget = 200_000, 4_000, Budget(4.0, 2.4)
    data = Dataset("d", "D", "", n, (Marginal("a", ("x", "y"), (n // 2, n // 2)),))
    calibration = as_drawn(calibrate("ALLOMFREE", k=2, **budget._asdict()))
    assert calibration.protocol == "L-GRR"
    expected = calibration.device_variance(True) / n  # everybody reports: none is left out
    for how, errors in our_errors(data, budget, runs, seed=11).items():
        z = (errors.mean() - expected) / (errors.std(ddof=1) / math.sqrt(runs))
        assert abs(z) < 4, f"{how}: z = {z}, seed 11"
    assert [f.tolist() for f in truth(data)] == [[0.5, 0.5]]
