"""Is A above B? What a result says is enough to answer exactly, in every way of reporting."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from collector.errors import UnknownCampaign
from collector.results.estimates import compare, estimate_of
from protocol_spec import Manifest, Result, calibrate
from protocol_spec.estimation import Estimate, cdf, contrast, difference, estimate_window
from tests.support.results import (
    FUEL,
    ROOM,
    SHARES,
    made_result,
    pooled_estimate,
    rooms,
    round_estimate,
    withheld,
)

UNEQUAL = ([1, 3, 40], [300, 200, 25])


def of_round(manifest: Manifest, index: int, n: int = 800) -> tuple[Estimate, Result]:
    made, counts = round_estimate(manifest.ways[index], n, SHARES[index])
    return made, made_result(manifest, index, made, counts, n=n)


def of_pooled(manifest: Manifest, index: int) -> tuple[Estimate, Result]:
    made, counts = pooled_estimate(manifest.ways[index], UNEQUAL, SHARES[index])
    n = int(np.dot(*UNEQUAL))
    options = {"n": n, "devices": 525, "rounds": (0, 39), "pooled": True}
    return made, made_result(manifest, index, made, counts, **options)  # type: ignore[arg-type]


def assert_same(found: Estimate, made: Estimate) -> None:
    """In all that sums over bars need."""
    assert found.raw.tolist() == made.raw.tolist()
    assert found.sums_to_one == made.sums_to_one
    for name in ("v0", "slope", "base", "base_slope", "n_eff", "dilution"):
        expected = getattr(made.moments, name)
        assert getattr(found.moments, name) == pytest.approx(expected, rel=1e-9, abs=1e-15), name


@pytest.mark.parametrize("index", [ROOM, FUEL])
@pytest.mark.parametrize("reporting", ["memoized", "once", "hashed", "nested"])
def test_the_estimate_of_a_round_comes_back(reporting: str, index: int) -> None:
    manifest = rooms(reporting)
    made, result = of_round(manifest, index)
    assert_same(estimate_of(manifest, result), made)


@pytest.mark.parametrize("index", [ROOM, FUEL])
@pytest.mark.parametrize("reporting", ["memoized", "hashed"])
def test_the_estimate_of_pooled_rounds_comes_back(reporting: str, index: int) -> None:
    """Devices that reported very unequally, whose numbers of reports the result does not hold."""
    manifest = rooms(reporting)
    made, result = of_pooled(manifest, index)
    assert_same(estimate_of(manifest, result), made)


def test_a_unary_protocol_comes_back_too() -> None:
    """Thirty values: L-OSUE, OUE."""
    for reporting in ("memoized", "nested", "once"):
        asked = rooms(reporting)
        many = replace(asked.attributes[FUEL], values=tuple(f"v{i}" for i in range(300)), levels=())
        if reporting == "nested":
            many = replace(many, levels=asked.attributes[FUEL].levels)
        manifest = replace(asked, attributes=(many,))
        shares = [0.3, 0.2, *[0.5 / 298] * 298]
        made, counts = round_estimate(manifest.ways[0], 5000, shares)
        assert not made.sums_to_one
        assert_same(estimate_of(manifest, made_result(manifest, 0, made, counts, n=5000)), made)


def test_a_window_with_several_answers_of_a_device() -> None:
    manifest = rooms("once")
    channel = manifest.ways[FUEL].channels[0]
    _, counts = round_estimate(manifest.ways[FUEL], 600, SHARES[FUEL])
    table = np.stack([counts, np.zeros_like(counts)])
    made = estimate_window(table, [600, 0], channel, each=2)
    result = made_result(manifest, FUEL, made, counts, n=600, rounds=(3, 4))
    assert_same(estimate_of(manifest, result), made)
    assert result.n_eff == pytest.approx(300)


def test_differences_and_distributions_follow() -> None:
    manifest = rooms("memoized")
    made, result = of_pooled(manifest, ROOM)
    found = estimate_of(manifest, result)
    assert difference(found, 1, 4).value == difference(made, 1, 4).value
    weights = [1.0, 2.0, 3.0, 5.0, 8.0, 13.0]
    assert contrast(found, weights).standard_error() == pytest.approx(
        contrast(made, weights).standard_error()
    )
    for ours, theirs in zip(cdf(found).band(), cdf(made).band()):
        assert ours == pytest.approx(theirs)


def test_the_answer_with_its_interval() -> None:
    manifest = rooms("memoized")
    made, result = of_pooled(manifest, FUEL)
    found = compare(manifest, result, "gas", "oil")
    expected = difference(made, 0, 3)
    assert found["difference"] == pytest.approx(expected.value)
    assert (found["low"], found["high"]) == pytest.approx(expected.interval())
    assert found["half_width_all"] == pytest.approx(
        expected.half_width(comparisons=math.comb(5, 2))
    )
    assert (found["answer"], found["answer_all"]) == ("above", "above")
    assert compare(manifest, result, "oil", "gas")["answer"] == "below"
    back = compare(manifest, result, "oil", "gas")
    assert back["difference"] == pytest.approx(-(found["difference"] or 0.0))


def test_what_a_pair_named_beforehand_shows_may_not_hold_for_all_pairs() -> None:
    manifest = rooms("memoized")
    made, result = of_round(manifest, FUEL, 800)
    apart = difference(made, 0, 3).standard_error() * 2.3  # between z of 1 and of 10 comparisons
    raw = list(result.raw)
    raw[0] = raw[3] + apart
    found = compare(manifest, replace(result, raw=tuple(raw)), "gas", "oil")
    assert (found["answer"], found["answer_all"]) == ("above", "not shown")


def test_two_equal_values_are_told_apart_in_one_of_twenty_results() -> None:
    """One round of 5000 devices, two values, both at 1/2: the audit's case, 200 results."""
    noise = calibrate("L-GRR", k=2, eps_inf=2.0, eps_1=0.6)
    asked = rooms("memoized")
    two = replace(asked.attributes[FUEL], values=("a", "b"))
    manifest = replace(asked, eps_inf=2.0, eps_1=0.6, attributes=(two,))
    draw, trials, missed = np.random.default_rng(20_260), 200, 0
    shares = (0.5, 0.5)
    made, counts = round_estimate(manifest.ways[0], 5000, shares)
    result = made_result(manifest, 0, made, counts, n=5000)
    support = noise.qs + noise.gap / 2
    for first in draw.binomial(5000, support, trials):
        ones = np.array([first, 5000 - first])
        raw = tuple(((ones / 5000 - noise.qs) / noise.gap).tolist())
        seen = replace(result, raw=raw, counts=tuple(ones.tolist()))
        missed += compare(manifest, seen, "a", "b")["answer"] != "not shown"
    z = (missed - 0.05 * trials) / math.sqrt(0.05 * 0.95 * trials)
    assert abs(z) < 4, (missed, "seed 20260")


def test_a_withheld_result_answers_nothing() -> None:
    manifest = rooms("once")
    found = compare(manifest, withheld(manifest, FUEL, 20, (0, 1)), "gas", "oil")
    assert (found["answer"], found["difference"], found["low"]) == ("withheld", None, None)
    with pytest.raises(ValueError, match="withheld"):
        estimate_of(manifest, withheld(manifest, FUEL, 20, (0, 1)))


@pytest.mark.parametrize(
    ("pair", "told"),
    [
        (("gas", "coal"), "unknown value 'coal'; the attribute has: 'gas', 'heat pump'"),
        (("gas", "gas"), "'gas' is compared with itself; name two values"),
    ],
)
def test_mistakes_are_named(pair: tuple[str, str], told: str) -> None:
    manifest = rooms("memoized")
    with pytest.raises(UnknownCampaign) as refused:
        compare(manifest, of_round(manifest, FUEL)[1], *pair)
    assert told in str(refused.value)
