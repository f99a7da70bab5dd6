"""Planning: the numbers are the calibration's, and what it promises is what comes out."""

from __future__ import annotations

import math

import pytest

from collector.show.planning import POOLED_ROUNDS, AttributePlan, Plan, plan, plan_manifest
from protocol_spec import Attribute, ParameterError, calibrate, smp_variance, spl_variance
from protocol_spec.estimation import critical_value
from tests.support.collector_fakes import three_questions

Z = critical_value(0.95)


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


def test_one_pooled_round_is_one_round_and_more_rounds_fall_to_the_floor() -> None:
    planned = plan_one(8)
    widths = [planned.half_width_pooled[t] for t in POOLED_ROUNDS]
    assert widths[0] == pytest.approx(planned.half_width)
    assert widths == sorted(widths, reverse=True)
    assert planned.floor < widths[-1] < 1.02 * planned.floor


def test_the_floor_is_that_of_endless_rounds() -> None:
    for k in (4, 8):
        calibration = calibrate(plan_one(k).protocol, k=k, eps_inf=2.0, eps_1=0.6)
        noise = calibration.pooled_variance(10_000, 10**9, 0.1) + 0.09 / 10_000
        assert plan_one(k).floor == pytest.approx(Z * math.sqrt(noise))


@pytest.mark.parametrize("precision", [0.2, 0.05, 0.01, 0.0013])
@pytest.mark.parametrize("d", [1, 2, 5])
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


def test_the_width_for_all_bars_is_wider() -> None:
    assert plan_one(20).half_width_all > 1.2 * plan_one(20).half_width


@pytest.mark.parametrize("protocol", ["auto", "L-OSUE"])
def test_answering_one_question_beats_answering_all(protocol: str) -> None:
    """Smp against Spl, from the protocol's own formulas."""
    asked = tuple(attribute(6, protocol, f"a{i}") for i in range(4))
    planned = plan(asked, n=1000, eps_inf=2.0, eps_1=0.6, f=0.1).attributes[0]
    name = "ALLOMFREE" if protocol == "auto" else protocol
    options = {"k": 6, "n": 1000, "d": 4, "eps_inf": 2.0, "eps_1": 0.6, "f": 0.1}
    ratio = spl_variance(name, **options) / smp_variance(name, **options)  # type: ignore[arg-type]
    assert planned.split_budget_ratio == pytest.approx(math.sqrt(ratio))
    assert planned.split_budget_ratio is not None
    assert planned.split_budget_ratio > 1.5
    assert planned.devices == 250


def test_with_one_question_there_is_nothing_to_split() -> None:
    assert plan_one(6).split_budget_ratio == pytest.approx(1.0)


def test_a_protocol_that_cannot_split_its_budget_is_planned_all_the_same() -> None:
    """L-OUE reaches eps_1 = 0.8 eps_inf at eps_inf = 4, but not at a quarter of it."""
    asked = tuple(attribute(6, "L-OUE", f"a{i}") for i in range(4))
    planned = plan(asked, n=1000, eps_inf=4.0, eps_1=3.2)
    assert [a.split_budget_ratio for a in planned.attributes] == [None] * 4
    assert planned.attributes[0].half_width > 0


def test_it_says_why_a_protocol_was_chosen() -> None:
    both = [calibrate(p, k=8, eps_inf=2.0, eps_1=0.6).variance(1) for p in ("L-GRR", "L-OSUE")]
    assert plan_one(8).why == (f"variance of one answer: L-GRR {both[0]:.4g}, L-OSUE {both[1]:.4g}")
    assert plan_one(8, "L-SUE").why == "named in the manifest"


def test_a_manifest_is_planned_with_its_own_budget() -> None:
    manifest = three_questions()
    planned: Plan = plan_manifest(manifest, n=3500, f=0.2, precision=None)
    assert [a.name for a in planned.attributes] == ["fuel", "town", "colour"]
    assert [a.protocol for a in planned.attributes] == ["L-GRR", "L-GRR", "L-OSUE"]
    assert (planned.eps_inf, planned.eps_1, planned.receipt_pages) == (2.0, 0.6, 4)
    assert planned.attributes[0].devices_for_precision is None


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
