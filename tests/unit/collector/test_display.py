"""What readers see lies between 0 and 100 %, and each sentence follows from its numbers."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.charts import bar_chart, bar_list, charts, over_time, plot_text, svg
from collector.charts import line as line_of
from collector.records import Campaign, Tally
from collector.results.display import headline, round_up, shares
from collector.results.estimates import compare
from collector.results.facts import result_facts
from collector.results.tables import mean_interval
from collector.results.words import around, decimals
from collector.rounds.results import round_result
from protocol_spec import Result
from tests.support.pages import FUEL, ROOM, SHARES, expected_tally, rooms

MECHANISMS = ("memoized", "once", "hashed", "nested")
CAMPAIGNS = {name: Campaign(1, rooms(name), 0, None) for name in MECHANISMS}
MANY = tuple(f"v{i}" for i in range(60))  # L-OSUE, whose estimates need not sum to one


def of_counts(campaign: Campaign, index: int, number: int, n: int, seed: int) -> Result:
    """Any counts at all: of honest devices, of liars, of very few."""
    mechanism = campaign.manifest.mechanisms[index]
    draw = np.random.default_rng(seed)
    weights = draw.dirichlet([0.3] * mechanism.k)
    tally = expected_tally(mechanism, n, tuple(weights))
    counts = tally.counts.copy()
    rows = counts.reshape(len(mechanism.channels), -1)
    for row in rows:
        bars, most = row[-mechanism.k :], tally.n if len(rows) == 1 else int(row[0])
        if mechanism.counted.unary:
            bars[:] = np.clip(bars + draw.normal(0, 2 * n**0.5, mechanism.k), 0, most)
        else:
            bars[:] = draw.multinomial(most, draw.dirichlet(bars + 1.0))
    return round_result(campaign, number, index, Tally(tally.n, counts), {})


@st.composite
def campaigns(draw: st.DrawFn) -> tuple[Campaign, int, list[Result]]:
    """Rounds of one question, with any mechanism, of a handful of devices or of many."""
    campaign = CAMPAIGNS[draw(st.sampled_from(MECHANISMS))]
    index = draw(st.sampled_from([ROOM, FUEL]))
    if campaign.manifest.reporting == "memoized" and draw(st.booleans()):
        asked = replace(campaign.manifest.attributes[FUEL], values=MANY)
        campaign = Campaign(1, replace(campaign.manifest, attributes=(asked,)), 0, None)
        index = 0
    made = [
        of_counts(
            campaign, index, number, draw(st.integers(50, 20_000)), draw(st.integers(0, 10**9))
        )
        for number in range(draw(st.integers(1, 3)))
    ]
    return campaign, index, [result for result in made if not result.withheld]


def coordinates(markup: str) -> list[float]:
    """Where marks of bars begin and end, in percent of their width."""
    return [float(x) for x in re.findall(r'(?:x|x1|x2|width)="(-?[\d.e+-]+)%"', markup)]


@settings(max_examples=150, deadline=None)
@given(campaigns())
def test_nothing_is_drawn_outside_0_to_100_percent(
    drawn: tuple[Campaign, int, list[Result]],
) -> None:
    campaign, _, results = drawn
    for result in results:
        for every in (False, True):
            found = shares(result, every=every)
            assert sum(share.value for share in found) == pytest.approx(1.0)
            assert all(0.0 <= s.low <= s.value <= s.high <= 1.0 for s in found)
            chart = bar_chart(campaign, result, None, every=every)
            listed = bar_list(chart)
            assert all(0.0 <= at <= 100.0 for at in coordinates(listed))
            numbers = re.findall(r"([−\d.]+) % <small>([−\d.]+) … ([−\d.]+)", listed)
            assert len(numbers) == len(chart.bars)
            assert all(0.0 <= float(x) <= 100.0 for row in numbers for x in row)
        text = plot_text(result_facts(campaign, result, result.last), width=100)
        numbers = re.findall(r" ([−\d.]+) % +([−\d.]+) … +([−\d.]+)$", text, re.MULTILINE)
        assert len(numbers) == len(result.raw)
        assert all(0.0 <= float(x) <= 100.0 for row in numbers for x in row)
        ET.fromstring(svg(charts(campaign, results, None), ""))  # noqa: S314 - our own file
    for i in range(min(3, len(results[0].raw)) if results else 0):
        line = line_of(campaign, results, None, i)
        assert all(0.0 <= p.low <= p.value <= p.high <= 100.0 for p in line.points)
        ticks = re.findall(r">(-?[\d.]+) %</text>", over_time(line, "", ""))
        assert all(0.0 <= float(tick) <= 100.0 for tick in ticks)


@settings(max_examples=150, deadline=None)
@given(campaigns())
def test_each_sentence_follows_from_the_numbers(drawn: tuple[Campaign, int, list[Result]]) -> None:
    """A value is called ahead only where the interval for all pairs at once allows it."""
    campaign, index, results = drawn
    values = campaign.manifest.attributes[index].values
    for result in results:
        text, found = headline(campaign.manifest, result), shares(result, every=True)
        if "median" in text or "mean" in text:
            assert_numbers_follow(campaign, index, result, text)
            continue
        tallest = values[max(range(len(values)), key=lambda i: result.raw[i])]
        behind = {
            value
            for value in values
            if value != tallest
            and compare(campaign.manifest, result, tallest, value)["answer_all"] == "above"
        }
        named = re.findall(r"“([^”]*)”", text)
        assert set(values) - behind - set(named) == set() or not named
        if text.startswith("Between "):
            low, high = map(float, re.findall(r"([\d.]+) %", text)[:2])
            assert named == [tallest]
            share = found[values.index(tallest)]
            assert low <= 100 * share.low + 1e-6
            assert high >= 100 * share.high - 1e-6
            assert high - low <= 100 * (share.high - share.low) * 1.6 + 1e-9, "and says no less"
        elif text.startswith("The most frequent"):
            assert set(named) == set(values) - behind
        elif text.startswith("The leading"):
            (most,) = map(float, re.findall(r"more than ([\d.]+) %", text))
            assert most >= 100 * max(share.high for share in found) - 1e-6
        else:
            assert text.startswith("Too few reports to rank the answers: ")
            assert all(float(x) <= 50 for x in re.findall(r"±([\d.]+)", text))
            assert len(behind) < len(values) - 1, "no value is ahead of all"


def assert_numbers_follow(campaign: Campaign, index: int, result: Result, text: str) -> None:
    numbers, asked = result.numbers, campaign.manifest.attributes[index]
    assert numbers is not None
    middle = numbers.quantiles[2]
    stated = [float(x.replace("−", "-")) for x in re.findall(r"−?\d+(?:\.\d+)?", text)][:-1]
    ends = [end for end in middle[2:] if end is not None]
    mean = mean_interval(asked, numbers)
    ends += [] if mean is None else mean
    assert len(stated) == len(ends), text
    for i, (said, end) in enumerate(zip(stated, ends)):
        lower = end == middle.low or (mean is not None and i == len(ends) - 2)
        assert said <= end + 1e-6 if lower else said >= end - 1e-6, text


# --- examples -------------------------------------------------------------------------------------


def example(n: int, *frequencies: float, min_reports: int = 50) -> str:
    campaign = Campaign(1, rooms("memoized", min_reports=min_reports), 0, None)
    tally = expected_tally(campaign.manifest.mechanisms[FUEL], n, frequencies or SHARES[FUEL])
    return headline(campaign.manifest, round_result(campaign, 0, FUEL, tally, {}))


def test_sentences() -> None:
    assert example(5_000) == (
        "Between 36 % and 45 % of the devices answered “gas” (95 % confidence); it is ahead of "
        "every other answer."
    )
    assert example(2_000, 0.35, 0.33, 0.12, 0.1, 0.1) == (
        "The most frequent answer is “gas” (28 % to 42 %) or “heat pump” (27 % to 40 %); more "
        "reports would show which (95 % confidence)."
    )
    assert example(60) == (
        "Too few reports to rank the answers: the intervals are ±28 points; with 500 devices they "
        "would be ±10 points."
    )
    assert example(10**6, 0.2, 0.2, 0.2, 0.2, 0.2).startswith("The leading answers are too close")
    assert example(40) == "Not enough reports for a result: 40 of 50."
    campaign = CAMPAIGNS["once"]
    tally = expected_tally(campaign.manifest.mechanisms[ROOM], 5_000, SHARES[ROOM])
    room = headline(campaign.manifest, round_result(campaign, 0, ROOM, tally, {}))
    assert room.startswith("The median is between 18 and 22 °C and the mean between ")


def test_digits_follow_the_error() -> None:
    widths = (47.0, 12.0, 3.6, 3.4, 0.8, 0.25, 0.0)
    assert [decimals(width) for width in widths] == [0, 0, 0, 1, 1, 2, 1]
    assert around(31.2, 40.7) == ("31", "41")
    assert around(-0.04, 1.96, "°C") == ("−0.1", "2.0 °C")
    assert [round_up(x) for x in (0.2, 51.0, 2000.0, 2001.0)] == [1, 100, 2000, 5000]
