"""Planning: the numbers are the calibration's, and what it promises is what comes out."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from collector.planning import (
    POOLED_ROUNDS,
    AttributePlan,
    Case,
    Plan,
    plan_budget,
    plan_manifest,
)
from protocol_spec import (
    Attribute,
    ParameterError,
    Reporting,
    calibrate,
    calibrate_once,
)
from protocol_spec.estimation import critical_value, estimate, mean
from protocol_spec.mechanisms import Budget, Once
from tests.support.collector import three_questions

Z = critical_value(0.95)


def plan(
    attributes: tuple[Attribute, ...],
    *,
    n: int,
    eps_inf: float,
    eps_1: float,
    f: float = 0.1,
    precision: float | None = None,
) -> Plan:
    """The paper's mechanism, in a year of daily rounds."""
    budget = Budget("memoized", eps_inf, eps_1, 365)
    return plan_budget(attributes, budget, n=n, f=f, precision=precision)


def attribute(k: int, protocol: str = "auto", name: str = "a") -> Attribute:
    return Attribute(name, "?", tuple(f"v{i}" for i in range(k)), protocol=protocol)


def plan_one(k: int, protocol: str = "auto", **options: float) -> AttributePlan:
    made = plan((attribute(k, protocol),), n=10_000, eps_inf=2.0, eps_1=0.6, **options)
    return made.attributes[0]


@pytest.mark.parametrize(("k", "chosen"), [(4, "L-GRR"), (7, "L-GRR"), (8, "L-OSUE")])
@pytest.mark.parametrize("f", [0.0, 0.1, 0.5])
def test_widths_are_the_calibrations(k: int, chosen: str, f: float) -> None:
    planned = plan_one(k, f=f)
    calibration = calibrate(chosen, k=k, eps_inf=2.0, eps_1=0.6)
    single = calibration.variance(10_000, f)
    assert (planned.protocol, planned.k, planned.devices) == (chosen, k, 10_000)
    assert planned.half_width == pytest.approx(Z * math.sqrt(single))
    assert planned.half_width_all == pytest.approx(critical_value(0.95, k) * math.sqrt(single))
    for rounds, width in planned.half_width_pooled.items():
        noise = calibration.pooled_variance(10_000, rounds, f) + f * (1 - f) / 10_000
        assert width == pytest.approx(Z * math.sqrt(noise))


@pytest.mark.parametrize("k", [4, 8])
def test_more_rounds_approach_the_floor_of_endless_rounds(k: int) -> None:
    planned = plan_one(k)
    widths = [planned.half_width_pooled[t] for t in POOLED_ROUNDS]
    assert widths[0] == pytest.approx(planned.half_width)
    assert widths == sorted(widths, reverse=True)
    assert planned.floor < widths[-1] < 1.03 * planned.floor
    calibration = calibrate(planned.protocol, k=k, eps_inf=2.0, eps_1=0.6)
    noise = calibration.pooled_variance(10_000, 10**9, 0.1) + 0.09 / 10_000
    assert planned.floor == pytest.approx(Z * math.sqrt(noise))


@pytest.mark.parametrize("precision", [0.2, 0.0013])
@pytest.mark.parametrize("d", [1, 5])
def test_as_many_devices_as_it_says_really_give_that_width(d: int, precision: float) -> None:
    asked = tuple(attribute(4 + i, name=f"a{i}") for i in range(d))
    budget = {"eps_inf": 2.0, "eps_1": 0.6}
    first = plan(asked, n=1, precision=precision, **budget)
    for i in range(d):
        needed = first.attributes[i].devices_for_precision
        assert needed is not None
        enough = plan(asked, n=needed, **budget).attributes[i]
        assert enough.half_width <= precision
        if needed > d:
            assert plan(asked, n=needed - d, **budget).attributes[i].half_width > precision


@pytest.mark.parametrize("protocol", ["auto", "L-OSUE"])
def test_answering_one_question_beats_answering_all(protocol: str) -> None:
    """Sampling one attribute (Smp) against splitting the budget over all (Spl)."""
    asked = tuple(attribute(6, protocol, f"a{i}") for i in range(4))
    planned = plan(asked, n=1000, eps_inf=2.0, eps_1=0.6, f=0.1).attributes[0]
    name = "ALLOMFREE" if protocol == "auto" else protocol
    split = calibrate(name, k=6, eps_inf=2.0 / 4, eps_1=0.6 / 4).variance(1000, 0.1)
    ratio = split / calibrate(name, k=6, eps_inf=2.0, eps_1=0.6).variance(1000 // 4, 0.1)
    assert planned.split_budget_ratio == pytest.approx(math.sqrt(ratio))
    assert planned.split_budget_ratio is not None
    assert planned.split_budget_ratio > 1.5
    assert planned.devices == 250


def test_a_protocol_that_cannot_split_its_budget_is_planned_all_the_same() -> None:
    """L-OUE reaches eps_1 = 0.8 eps_inf at eps_inf = 4, but not at a quarter of it."""
    asked = tuple(attribute(6, "L-OUE", f"a{i}") for i in range(4))
    planned = plan(asked, n=1000, eps_inf=4.0, eps_1=3.2)
    assert [a.split_budget_ratio for a in planned.attributes] == [None] * 4
    assert planned.attributes[0].half_width > 0


def test_a_manifest_is_planned_with_its_own_budget_and_protocols() -> None:
    planned: Plan = plan_manifest(three_questions(), n=3500, f=0.2, precision=None)
    assert [a.name for a in planned.attributes] == ["fuel", "town", "colour"]
    assert [a.protocol for a in planned.attributes] == ["L-GRR", "L-GRR", "L-OSUE"]
    assert (planned.eps_inf, planned.eps_1, planned.receipt_pages) == (2.0, 0.6, 4)
    assert planned.attributes[0].devices_for_precision is None
    both = [calibrate(p, k=8, eps_inf=2.0, eps_1=0.6).variance(1) for p in ("L-GRR", "L-OSUE")]
    assert plan_one(8).why == (f"variance of one answer: L-GRR {both[0]:.4g}, L-OSUE {both[1]:.4g}")
    assert plan_one(8, "L-SUE").why == "named in the manifest"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"n": 0}, "n"),
        ({"f": -0.1}, "f"),
        ({"f": 1.5}, "f"),
        ({"f": math.nan}, "f"),
        ({"precision": 0.0}, "precision"),
        ({"precision": 1.0}, "precision"),
        ({"precision": math.nan}, "precision"),
        ({"eps_1": 2.0}, "eps_1"),
    ],
)
def test_impossible_parameters_are_refused_by_name(options: dict[str, float], field: str) -> None:
    asked = {"n": 1000, "eps_inf": 2.0, "eps_1": 0.6, **options}
    with pytest.raises(ParameterError) as refused:
        plan((attribute(4),), **asked)  # type: ignore[arg-type]
    assert refused.value.field == field


# --- mechanisms, verdicts and suggestions ---------------------------------------------------------


def numeric(*edges: float, **options: Any) -> Attribute:
    labels = tuple(f"bin {i}" for i in range(len(edges) - 1))
    return Attribute("room", "?", labels, edges, "°C", changes=True, **options)


def plan_with(
    asked: Attribute, reporting: Reporting, n: int = 5000, **options: Any
) -> AttributePlan:
    each = 1 if reporting == "once" else 0
    budget = Budget(reporting, 2.0, 2.0 if each else 0.6, 365, each)
    chosen = {"f": 0.1, "precision": None, **options}
    return plan_budget((asked,), budget, n=n, **chosen).attributes[0]


def test_every_mechanism_has_the_width_of_its_own_formula() -> None:
    planned = {mechanism.reporting: mechanism for mechanism in plan_one(6).mechanisms}
    assert [mechanism.chosen for mechanism in planned.values()] == [True, False, False, False]
    once = Once.calibrate(k=6, epsilon=2.0, rounds=365)
    for t, width in planned["once"].half_width.items():
        assert width == pytest.approx(Z * math.sqrt(sum(once.window_variance(10_000, t, 0.1))))
    c = math.exp(0.6)
    gamma = 0.5 + 0.1 * (c / (c + 1) - 0.5)
    hashed = gamma * (1 - gamma) / (c / (c + 1) - 0.5) ** 2 / 10_000
    assert planned["hashed"].half_width[1] == pytest.approx(Z * math.sqrt(hashed))
    last = calibrate_once("GRR", k=6, epsilon=2.0)
    assert planned["nested"].half_width[28] == pytest.approx(
        Z * math.sqrt(last.variance(10_000, 0.1))
    )
    assert planned["nested"].half_width[1] == pytest.approx(
        planned["memoized"].half_width[1], rel=1e-6
    )
    assert [mechanism.lifetime_epsilon for mechanism in planned.values()] == [2.0, 2.0, 4.0, 2.0]


@pytest.mark.parametrize(("reporting", "warned"), [("memoized", 1), ("nested", 1), ("once", 0)])
def test_a_changing_attribute_needs_a_mechanism_that_suits_it(
    reporting: Reporting, warned: int
) -> None:
    planned = plan_with(numeric(0, 1, 2, 3), reporting)
    suits = {mechanism.reporting: mechanism.suits for mechanism in planned.mechanisms}
    assert suits == {"memoized": False, "once": True, "hashed": True, "nested": False}
    assert all(mechanism.suits for mechanism in plan_one(6).mechanisms)
    assert len(planned.warnings) == warned
    assert all('choose reporting = "once"' in warning for warning in planned.warnings)
    assert plan_with(replace(numeric(0, 1, 2, 3), changes=False), reporting).warnings == ()


def test_both_choices_are_shown_and_may_differ() -> None:
    """Eight values at (2, 0.6): L-OSUE for a round, L-GRR for a year."""
    by_round, by_pool = plan_one(8).choices
    assert (by_round.choose_for, by_round.protocol) == ("round", "L-OSUE")
    assert (by_pool.choose_for, by_pool.protocol) == ("pooled", "L-GRR")
    assert by_round.half_width < by_pool.half_width
    assert by_round.half_width_pooled > by_pool.half_width_pooled
    assert plan_one(8, "L-SUE").choices == ()


@pytest.mark.parametrize(
    ("n", "grades"),
    [(100, ["nothing", "coarse"]), (1_000, ["coarse", "good"]), (10**6, ["good", "good"])],
)
def test_the_verdict(n: int, grades: list[str]) -> None:
    planned = plan_with(attribute(5), "memoized", n)
    judged = planned.verdict
    assert bool(planned.suggestions) == (grades[-1] != "good")
    assert [(j.rounds, j.grade) for j in judged] == list(zip((1, 365), grades))
    for j in judged:
        unit = "percentage points"
        sentences = {
            "nothing": f"shows nothing: ±{100 * j.half_width:.0f} {unit}",
            "coarse": f"detects only large differences: {100 * j.difference:.0f} {unit} or more",
            "good": f"can detect differences of {100 * j.difference:.1f} {unit} or more",
        }
        assert j.sentence == sentences[j.grade]


def test_a_round_that_would_be_withheld() -> None:
    one, together = plan_with(numeric(0, 1, 2, 3), "once", 7300, min_reports=200).verdict
    assert one.grade == "withheld"
    assert one.sentence == "withheld: about 20 reports, and 200 are needed"
    assert together.rounds == 28
    assert together.reports == pytest.approx(560)


@pytest.mark.parametrize("reporting", ["memoized", "once", "hashed", "nested"])
@pytest.mark.parametrize("asked", [attribute(40), numeric(*range(13))], ids=["names", "numbers"])
def test_every_suggestion_is_sufficient_and_minimal(reporting: Reporting, asked: Attribute) -> None:
    """Taken up one by one, each brings the width under the target, and a little less does not."""
    planned = plan_with(asked, reporting, 900, min_reports=50)
    read = planned.verdict[-1].rounds
    once = reporting == "once"
    budget = Budget(reporting, 2.0, 2.0 if once else 0.6, 365, int(once))

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
            larger = replace(budget, eps_inf=value, eps_1=value if once else 0.3 * value)
            assert width(how=larger) <= 0.05
        elif suggested.change == "values":
            fewer = replace(asked, values=asked.values[:value], edges=None)
            assert width(fewer) <= 0.05


def test_mean_and_median_of_a_numeric_question() -> None:
    one, together = plan_with(numeric(10, 14, 18, 22, 26, 30, 34), "once", 500_000).numbers
    assert (one.rounds, together.rounds) == (1, 28)
    assert one.mean_half_width is not None
    assert together.mean_half_width == pytest.approx(one.mean_half_width / math.sqrt(28))
    assert one.mean_bias == 2.0
    assert together.median_low is not None
    assert together.median_high is not None
    assert 18 <= together.median_low < 22 < together.median_high <= 26
    assert plan_one(5).numbers == ()


def test_the_expected_mean_is_what_a_result_has() -> None:
    """Numbers spread evenly, as the plan takes them to be."""
    asked = numeric(10, 14, 18, 22, 26, 30, 34)
    planned = plan_with(asked, "memoized", 5000).numbers[0]
    noise = calibrate("ALLOMFREE", k=6, eps_inf=2.0, eps_1=0.6)
    counts = np.full(6, 5000 // 6, dtype=np.int64)
    made = replace(estimate(counts, 5000, noise), raw=np.full(6, 1 / 6))
    assert planned.mean_half_width == pytest.approx(
        mean(made, [12, 16, 20, 24, 28, 32]).half_width()
    )


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ((0, 1, 2, 3), "3 bins are coarse"),
        (tuple(range(30)), "29 bins make each bar and the mean less certain: choose 6 to 16 bins"),
        ((-math.inf, 1, 2, 3, 4, 5, 6, math.inf), "there will be no mean"),
    ],
)
def test_advice_on_bins(edges: tuple[float, ...], message: str) -> None:
    assert any(message in line for line in plan_with(numeric(*edges), "once").advice)
    assert plan_with(numeric(*range(9)), "once").advice == ()
