"""Numeric attributes in numbers, with and without devices whose answer is no number."""

from __future__ import annotations

import math

import numpy as np
import pytest

from collector.records import Campaign, Tally
from collector.rounds.results import round_result
from protocol_spec import RESULT_QUANTILES, Numbers, Result, decode_result
from protocol_spec.estimation import (
    cdf,
    estimate,
    mean,
    midpoints,
    quantile,
)
from tests.support.collector import FIRST, asked, random_counts

N = 4000


def numeric(edges: str, more: str = "", reporting: str = "memoized") -> Campaign:
    question = f'[[attributes]]\nname = "power"\nquestion = "?"\nedges = {edges}\n{more}\n'
    return Campaign(1, asked(reporting, attributes=question), FIRST, None)


def answered(campaign: Campaign, shares: list[float]) -> Result:
    """A round whose counts are just as expected."""
    way = campaign.manifest.mechanisms[0]
    p1, q1, p2, q2 = (float(x) for x in way.channels[0].exact)
    ps, qs = p1 * p2 + (1 - p1) * q2, q1 * p2 + (1 - q1) * q2
    counts = np.rint(N * (qs + np.array(shares) * (ps - qs))).astype(np.int64)
    if not way.channels[0].unary:
        counts[0] += N - counts.sum()
    result = round_result(campaign, 0, 0, Tally(N, counts), {})
    assert isinstance(decode_result(result.encode()), Result)
    return result


def told(result: Result) -> Numbers:
    assert result.numbers is not None
    return result.numbers


@pytest.mark.parametrize("reporting", ["memoized", "once", "hashed"])
def test_without_open_questions_they_are_those_of_estimation(reporting: str) -> None:
    campaign = numeric("[-inf, 1.0, 2.0, 5.0, inf]", "low = 0.0\nhigh = 9.0", reporting)
    result = answered(campaign, [0.1, 0.4, 0.3, 0.2])
    made, numbers = (
        estimate(result.counts, N, campaign.manifest.mechanisms[0].channels[0]),
        told(result),
    )
    low, high = cdf(made).band()
    assert (numbers.cdf_low, numbers.cdf_high) == (tuple(low), tuple(high))
    assert numbers.cdf == tuple(np.clip(cdf(made).values, 0, 1))
    expected = mean(made, midpoints([0.0, 1.0, 2.0, 5.0, 9.0]))
    assert (numbers.mean, numbers.mean_low) == (expected.value, expected.interval()[0])
    assert numbers.mean_bias == 2.0
    edges = [-math.inf, 1.0, 2.0, 5.0, math.inf]
    for row, tau in zip(numbers.quantiles, RESULT_QUANTILES, strict=True):
        same = quantile(made, edges, tau)
        ends = [end if math.isfinite(end) else None for end in (same.low, same.high)]
        assert row == (tau, same.value, *ends)


def test_a_mean_needs_ends() -> None:
    result = answered(numeric("[-inf, 1.0, 2.0, inf]"), [0.2, 0.5, 0.3])
    numbers = told(result)
    assert (numbers.mean, numbers.mean_low, numbers.mean_high, numbers.mean_bias) == (None,) * 4
    assert len(numbers.cdf) == 2
    assert [row.value is None for row in numbers.quantiles] == [True, False, False, True, True]


SHARES = [0.1, 0.3, 0.2, 0.2, 0.2]  # the last: not known
EDGES = [0.0, 1.0, 2.0, 4.0, 8.0]


@pytest.mark.parametrize("reporting", ["memoized", "once", "hashed"])
def test_devices_without_a_number_are_left_out(reporting: str) -> None:
    campaign = numeric("[0.0, 1.0, 2.0, 4.0, 8.0]", reporting=reporting)
    result = answered(campaign, SHARES)
    numbers, share = told(result), np.array(SHARES[:4]) / 0.8
    assert numbers.cdf == pytest.approx(np.cumsum(share)[:3].tolist(), abs=0.01)
    assert numbers.mean == pytest.approx(float(share @ [0.5, 1.5, 3.0, 6.0]), abs=0.05)
    median = numbers.quantiles[2]
    assert median.value == pytest.approx(2.0, abs=0.1)
    assert median.low is not None
    assert median.high is not None
    assert median.low < 2.0 <= median.high


def test_nothing_is_said_where_nobody_may_have_a_number() -> None:
    result = answered(numeric("[0.0, 1.0, 2.0, 4.0, 8.0]"), [0.0, 0.0, 0.0, 0.0, 1.0])
    assert not result.withheld
    assert result.numbers is None


def test_named_values_have_no_numbers() -> None:
    campaign = Campaign(1, asked("memoized"), FIRST, None)
    form = campaign.manifest.body_formats[0]
    result = round_result(campaign, 0, 0, Tally(300, random_counts(form, 300, 1)[1]), {})
    assert result.numbers is None
    assert result.difference is not None
