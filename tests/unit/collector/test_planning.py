"""Planning: the numbers are the calibration's, and suggestions are sufficient and minimal."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from collector.planning import POOLED_ROUNDS, AttributePlan, Case, plan_budget, plan_manifest
from protocol_spec import (
    Attribute,
    ParameterError,
    Reporting,
    calibrate,
    calibrate_once,
    candidates,
)
from protocol_spec.estimation import critical_value
from protocol_spec.estimation.reliability import lie_shift
from protocol_spec.mechanisms import Budget, Once
from tests.support.collector import three_questions

Z = critical_value(0.95)


def attribute(k: int, protocol: str = "auto", name: str = "a") -> Attribute:
    return Attribute(name, "?", tuple(f"v{i}" for i in range(k)), protocol=protocol)


def numeric(*edges: float, **options: Any) -> Attribute:
    labels = tuple(f"bin {i}" for i in range(len(edges) - 1))
    return Attribute("room", "?", labels, edges, "°C", changes=True, **options)


def budget_of(reporting: Reporting) -> Budget:
    """A year of daily rounds."""
    once = reporting == "once"
    return Budget(reporting, 2.0, 2.0 if once else 0.6, 365, int(once))


def plan(
    *attributes: Attribute, reporting: Reporting = "memoized", n: int = 10_000, **options: Any
) -> list[AttributePlan]:
    chosen = {"f": 0.1, "precision": None, **options}
    return list(plan_budget(attributes, budget_of(reporting), n=n, **chosen).attributes)


@pytest.mark.parametrize(("k", "chosen"), [(4, "L-GRR"), (7, "L-SS"), (30, "L-OSUE")])
@pytest.mark.parametrize("f", [0.0, 0.1, 0.5])
def test_widths_are_the_calibrations_and_approach_the_floor(k: int, chosen: str, f: float) -> None:
    (planned,) = plan(attribute(k), f=f)
    calibration = calibrate(chosen, k=k, eps_inf=2.0, eps_1=0.6)
    single = calibration.variance(10_000, f)
    assert (planned.protocol, planned.k, planned.devices) == (chosen, k, 10_000)
    assert planned.half_width == pytest.approx(Z * math.sqrt(single))
    assert planned.half_width_all == pytest.approx(critical_value(0.95, k) * math.sqrt(single))
    pooled = {**planned.half_width_pooled, 10**9: planned.floor}
    for rounds, width in pooled.items():
        noise = calibration.pooled_variance(10_000, rounds, f) + f * (1 - f) / 10_000
        assert width == pytest.approx(Z * math.sqrt(noise))
    assert list(planned.half_width_pooled) == list(POOLED_ROUNDS)
    assert list(pooled.values()) == sorted(pooled.values(), reverse=True)


@pytest.mark.parametrize("precision", [0.2, 0.0013])
@pytest.mark.parametrize("d", [1, 5])
def test_the_number_of_devices_for_a_precision_is_sufficient_and_minimal(
    d: int, precision: float
) -> None:
    asked = [attribute(4 + i, name=f"a{i}") for i in range(d)]
    for i, first in enumerate(plan(*asked, n=1, precision=precision)):
        needed = first.devices_for_precision
        assert needed is not None
        assert plan(*asked, n=needed)[i].half_width <= precision
        if needed > d:
            assert plan(*asked, n=needed - d)[i].half_width > precision


@pytest.mark.parametrize("protocol", ["auto", "L-OSUE"])
def test_answering_one_question_beats_answering_all(protocol: str) -> None:
    """Sampling one attribute (Smp) against splitting the budget over all (Spl)."""
    planned = plan(*(attribute(6, protocol, f"a{i}") for i in range(4)), n=1000)[0]
    name = "L-SS" if protocol == "auto" else protocol
    split = calibrate(name, k=6, eps_inf=2.0 / 4, eps_1=0.6 / 4).variance(1000, 0.1)
    ratio = split / calibrate(name, k=6, eps_inf=2.0, eps_1=0.6).variance(1000 // 4, 0.1)
    assert planned.split_budget_ratio == pytest.approx(math.sqrt(ratio))
    assert ratio > 2
    assert planned.devices == 250


def test_a_manifest_is_planned_with_its_own_budget_and_protocols() -> None:
    asked = three_questions()
    planned = plan_manifest(asked, n=3500, f=0.2, precision=None)
    assert [a.name for a in planned.attributes] == ["fuel", "town", "colour"]
    assert [a.protocol for a in planned.attributes] == ["L-GRR", "L-GRR", "L-OSUE"]
    assert (planned.eps_inf, planned.eps_1, planned.receipt_pages) == (2.0, 0.6, 14)
    for found, mechanism in zip(planned.attributes, asked.mechanisms):
        assert found.lie_shift == lie_shift(mechanism.channels, 0.01)
    both = candidates(k=24, eps_inf=2.0, eps_1=0.6)
    sums = ", ".join(f"{c.protocol} {c.total_variance():.4g}" for c in both)
    (chosen,), (named,) = plan(attribute(24)), plan(attribute(24, "L-SUE"))
    assert chosen.why == f"variance of one answer, over all values: {sums}"
    assert (named.why, named.choices) == ("named in the manifest", ())
    by_round, by_pool = chosen.choices
    assert (by_round.choose_for, by_round.protocol) == ("round", "L-SS")
    assert (by_pool.choose_for, by_pool.protocol) == ("pooled", "L-OSUE")
    assert by_round.half_width < by_pool.half_width
    assert by_round.half_width_pooled > by_pool.half_width_pooled


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("n", 0), ("f", -0.1), ("f", 1.5), ("f", math.nan)),
        *(("precision", 0.0), ("precision", 1.0), ("precision", math.nan)),
    ],
)
def test_impossible_parameters_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ParameterError) as refused:
        plan(attribute(4), **{field: value})  # type: ignore[arg-type]
    assert refused.value.field == field


# --- mechanisms, verdicts and suggestions ---------------------------------------------------------


def test_every_mechanism_has_the_width_of_its_own_formula() -> None:
    planned = {mechanism.reporting: mechanism for mechanism in plan(attribute(6))[0].mechanisms}
    assert [mechanism.chosen for mechanism in planned.values()] == [True, False, False, False]
    assert [mechanism.lifetime_epsilon for mechanism in planned.values()] == [2.0, 2.0, 4.0, 2.0]
    memoized, once, hashed, nested = (mechanism.half_width for mechanism in planned.values())
    calibration = Once.calibrate(k=6, epsilon=2.0, rounds=365)
    for t, width in once.items():
        noise = sum(calibration.window_variance(10_000, t, 0.1))
        assert width == pytest.approx(Z * math.sqrt(noise))
    c = math.exp(0.6)
    gamma = 0.5 + 0.1 * (c / (c + 1) - 0.5)
    noise = gamma * (1 - gamma) / (c / (c + 1) - 0.5) ** 2 / 10_000
    assert hashed[1] == pytest.approx(Z * math.sqrt(noise))
    last = calibrate_once("GRR", k=6, epsilon=2.0).variance(10_000, 0.1)
    assert nested[28] == pytest.approx(Z * math.sqrt(last))
    assert nested[1] == pytest.approx(memoized[1], rel=1e-6)


@pytest.mark.parametrize(("reporting", "warned"), [("memoized", 1), ("nested", 1), ("once", 0)])
def test_a_changing_attribute_needs_a_mechanism_that_suits_it(
    reporting: Reporting, warned: int
) -> None:
    (planned,) = plan(numeric(0, 1, 2, 3), reporting=reporting)
    suits = {mechanism.reporting: mechanism.suits for mechanism in planned.mechanisms}
    assert suits == {"memoized": False, "once": True, "hashed": True, "nested": False}
    assert len(planned.warnings) == warned
    assert all('choose reporting = "once"' in warning for warning in planned.warnings)
    (same,) = plan(replace(numeric(0, 1, 2, 3), changes=False), reporting=reporting)
    assert same.warnings == ()
    assert all(mechanism.suits for mechanism in same.mechanisms)


@pytest.mark.parametrize(
    ("n", "grades"),
    [(100, ["nothing", "coarse"]), (1_000, ["coarse", "good"]), (10**6, ["good", "good"])],
)
def test_the_verdict(n: int, grades: list[str]) -> None:
    (planned,) = plan(attribute(5), n=n)
    assert [(j.rounds, j.grade) for j in planned.verdict] == list(zip((1, 365), grades))
    assert bool(planned.suggestions) == (grades[-1] != "good")
    for j in planned.verdict:
        unit = "percentage points"
        sentences = {
            "nothing": f"shows nothing: ±{100 * j.half_width:.0f} {unit}",
            "coarse": f"detects only large differences: {100 * j.difference:.0f} {unit} or more",
            "good": f"can detect differences of {100 * j.difference:.1f} {unit} or more",
        }
        assert j.sentence == sentences[j.grade]


def test_a_round_that_would_be_withheld() -> None:
    (planned,) = plan(numeric(0, 1, 2, 3), reporting="once", n=7300, min_reports=200)
    one, together = planned.verdict
    assert one.grade == "withheld"
    assert one.sentence == "withheld: about 20 reports, and 200 are needed"
    assert together.rounds == 28
    assert together.reports == pytest.approx(560)


@pytest.mark.parametrize("reporting", ["memoized", "once", "hashed", "nested"])
@pytest.mark.parametrize("asked", [attribute(40), numeric(*range(13))], ids=["names", "numbers"])
def test_every_suggestion_is_sufficient_and_minimal(reporting: Reporting, asked: Attribute) -> None:
    """Taken up one by one, each brings the width under the target, and a little less does not."""
    (planned,) = plan(asked, reporting=reporting, n=900, min_reports=50)
    budget, read = budget_of(reporting), planned.verdict[-1].rounds

    def width(
        question: Attribute = asked, how: Budget = budget, n: int = 900, rounds: int = read
    ) -> float:
        return Case(question, how, n, 0.1, 50).released(rounds)

    assert planned.suggestions
    for suggested in planned.suggestions:
        value: Any = suggested.value
        assert suggested.half_width <= 0.05
        if suggested.change == "devices":
            assert width(n=value) <= 0.05 < width(n=value - 2)
        elif suggested.change == "rounds":
            assert width(rounds=value) <= 0.05 < width(rounds=value - 1)
        elif suggested.change == "eps":
            eps_1 = value if reporting == "once" else 0.3 * value
            assert width(how=replace(budget, eps_inf=value, eps_1=eps_1)) <= 0.05
        elif suggested.change == "values":
            assert width(replace(asked, values=asked.values[:value], edges=None)) <= 0.05


def test_mean_and_median_of_a_numeric_attribute() -> None:
    asked = numeric(10, 14, 18, 22, 26, 30, 34)
    one, together = plan(asked, reporting="once", n=500_000)[0].numbers
    assert (one.rounds, together.rounds) == (1, 28)
    assert one.mean_half_width is not None
    assert together.mean_half_width == pytest.approx(one.mean_half_width / math.sqrt(28))
    assert one.mean_bias == 2.0
    assert together.median_low is not None
    assert together.median_high is not None
    assert 18 <= together.median_low < 22 < together.median_high <= 26


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ((0, 1, 2, 3), "3 bins are coarse"),
        (tuple(range(30)), "29 bins make each bar and the mean less certain: choose 6 to 16 bins"),
        ((-math.inf, 1, 2, 3, 4, 5, 6, math.inf), "there will be no mean"),
    ],
)
def test_advice_on_bins(edges: tuple[float, ...], message: str) -> None:
    assert any(message in line for line in plan(numeric(*edges), reporting="once")[0].advice)
    assert plan(numeric(*range(9)), reporting="once")[0].advice == ()


# --- devices that miss rounds --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reporting", "rounds"), [("memoized", 1), ("memoized", 10), ("nested", 3)]
)
def test_devices_that_miss_rounds_answer_less(reporting: Reporting, rounds: int) -> None:
    """As many as the effective devices of a fleet that reports in each round with that chance."""
    case = Case(attribute(4), budget_of(reporting), 20_000, participation=0.6)
    sent = np.random.default_rng(11).binomial(rounds, 0.6, 20_000)
    expected = (sent > 0).sum() if reporting == "nested" else sent.sum() ** 2 / (sent**2).sum()
    assert case.devices_answered(rounds) == pytest.approx(expected, rel=0.02)
    assert case.width(rounds) > replace(case, participation=1.0).width(rounds)


def test_what_uneven_participation_does_to_a_share() -> None:
    """By reports 0.3 * 0.5 / (0.3 * 0.5 + 0.7 * 0.9); by devices only who was never heard lacks."""
    (planned,) = plan(attribute(4), f=0.3, participation={"": 0.9, "v0": 0.5})
    (row,) = planned.uneven
    assert row.by_reports == pytest.approx(0.15 / 0.78)
    assert row.by_devices == pytest.approx(0.3, abs=1e-3)
    for wrong in ({"": 0.0}, {"": 1.1}, {"coal": 0.5}):
        with pytest.raises(ParameterError, match="participation"):
            plan(attribute(4), participation=wrong)


def test_nested_is_recommended_for_values_that_stay_and_once_for_those_that_change() -> None:
    (stays,) = plan(attribute(4))
    assert stays.advice[0].startswith('reporting = "nested" is as precise with 365 rounds')
    assert "counts each device once" in stays.advice[0]
    assert plan(attribute(4), reporting="nested")[0].advice == ()
    (changes,) = plan(replace(attribute(4), changes=True))
    assert 'choose reporting = "once"' in changes.warnings[0]
    assert changes.advice == ()
