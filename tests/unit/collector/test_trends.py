"""What trends and comparisons say, and which of them a mechanism allows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from collector.errors import UnknownCampaign
from collector.records import Campaign, RoundSum
from collector.results.trends import compare_results, trend_facts
from collector.results.words import Facts
from collector.rounds.results import round_result, window_result
from protocol_spec import Result
from tests.support.pages import FUEL, ROOM, expected_tally, rooms

N = 4000


def course(
    shares: Sequence[float], reporting: str = "once", n: int = N
) -> tuple[Campaign, list[Result]]:
    """As many reports as are expected on average: of gas this share, of the others equal ones."""
    made = rooms(reporting)
    campaign = Campaign(1, made, made.created, None)
    results = []
    for number, share in enumerate(shares):
        tally = expected_tally(made.mechanisms[FUEL], n, (share, *[(1 - share) / 4] * 4))
        if reporting == "once":
            rounds = RoundSum(number, number, 1, tally)
            results.append(window_result(campaign, FUEL, rounds, ([1], [n]), {}))
        else:
            heard = (n, n) if number else (0, 0)
            results.append(round_result(campaign, number, FUEL, tally, {}, heard))
    return campaign, results


def trend(shares: Sequence[float], fit: str = "line", reporting: str = "once", n: int = N) -> Facts:
    campaign, results = course(shares, reporting, n)
    return trend_facts(campaign, FUEL, results, fit, ["gas"])


def gas(facts: Facts) -> Facts:
    found: Facts = next(row for row in facts["trends"] if row["value"] == "gas")
    return found


def rising(rounds: int, by: float = 0.4) -> list[float]:
    return [0.2 + by * (i + 0.5) / rounds for i in range(rounds)]


def test_a_rise_is_said_and_never_leaves_0_to_100_percent() -> None:
    facts = trend(rising(14))
    row = gas(facts)
    assert (facts["warnings"], row["per"], row["rounds"], row["fits"]) == ([], "an hour", 14, True)
    assert row["change"] == pytest.approx(0.4 / 14, rel=0.01)
    assert 0.0 < row["low_all"] < row["low"] < 0.4 / 14 < row["high"] < row["high_all"]
    assert facts["sentence"].startswith("“gas” rose by between ")
    assert " percentage points an hour (95 % confidence, all values at once)." in facts["sentence"]
    assert "“gas” fell by between " in gas(trend(rising(14, -0.18)))["sentence"]
    for shares in (rising(14), [0.0] * 4, [1.0] * 4):
        curve = gas(trend(shares))["curve"]
        ends = np.array([curve[end] for end in ("low", "high", "low_all", "high_all")])
        assert ends.min() >= 0.0
        assert ends.max() <= 1.0


def test_nothing_is_said_that_is_not_shown() -> None:
    facts = trend(rising(14, 0.002))
    assert facts["sentence"].startswith("No change can be shown: no share changed by more than ")
    row = gas(facts)
    assert row["low"] < 0.0 < row["high"]
    assert row["sentence"].startswith("No change of “gas” can be shown: it changed by between −")


def test_an_error_as_large_as_any_change_is_no_limit() -> None:
    facts = trend([0.5] * 7, "smooth", n=60)
    assert facts["sentence"].startswith("No change can be shown, and none is ruled out")
    assert " points from beginning to end (95" in trend([0.5] * 7, "smooth")["sentence"]


def test_a_wave_and_what_a_line_does_not_describe() -> None:
    wave = [0.4 + 0.2 * math.cos(2 * math.pi * (i + 0.5 - 3) / 7) for i in range(28)]
    row = gas(trend(wave, "7h"))
    assert row["change"] == pytest.approx(0.4, rel=0.05)
    assert (row["fits"], row["per"]) == (True, None)
    assert row["highest"][:15] == "2027-01-15T11:0", "three hours after the beginning"
    assert "within 7h, and is highest around 2027-01-15 (95 % confidence)." in row["sentence"]
    assert trend(wave[:6], "7h")["trends"], "of fewer rounds than a smooth curve needs"
    assert not gas(trend(wave))["fits"]
    smooth = gas(trend(rising(14), "smooth"))
    assert smooth["low"] < smooth["change"] < smooth["high"]
    assert trend(wave, "1w")["sentence"].startswith("A wave needs rounds over most of its length")


def test_memos_cancel_where_the_same_devices_report_and_what_can_change_is_said() -> None:
    shared, (result, _) = trend([0.3, 0.3], "smooth", "memoized"), course([0.3, 0.3], "memoized")[1]
    assert shared["trends"] == []
    facts = trend([0.3, 0.3], reporting="memoized")
    half = (gas(facts)["high"] - gas(facts)["low"]) / 2  # from one hour to the next
    alone = 1.96 * np.hypot(result.privacy_error[0], result.sampling_error[0]) * np.sqrt(2.0)
    assert 0.5 * alone < half < 0.95 * alone
    assert facts["warnings"] == [
        "each device answers for the first value it had: a change is one of who reports"
    ]


def test_results_that_contain_each_other_have_no_trend_and_no_difference() -> None:
    facts = trend([0.3, 0.4, 0.5], reporting="nested")
    assert facts["trends"] == []
    assert facts["sentence"].startswith("Nothing can be fitted over rounds: each result includes")
    campaign, results = course([0.3, 0.4], "nested")
    with pytest.raises(UnknownCampaign, match="Nothing can be fitted over rounds"):
        compare_results((campaign, results[0]), (campaign, results[1]))


def test_differences_of_results_and_what_cannot_be_compared() -> None:
    campaign, results = course([0.2, 0.5])
    facts = compare_results((campaign, results[1]), (campaign, results[0]))
    row = next(row for row in facts["differences"] if row["value"] == "gas")
    assert row["difference"] == pytest.approx(0.3, abs=1e-3)
    assert row["low_all"] < row["low"] < 0.3 < row["high"] < row["high_all"]
    assert facts["sentence"].startswith("“gas” is between ")
    assert " percentage points higher in round 1 than in round 0 (" in facts["sentence"]
    back = compare_results((campaign, results[0]), (campaign, results[1]))
    assert " percentage points lower in round 0 than in round 1 (" in back["sentence"]
    other, theirs = course([0.2], "memoized")
    assert other.name in compare_results((campaign, results[1]), (other, theirs[0]))["sentence"]
    with pytest.raises(UnknownCampaign, match="rounds in common; name two different rounds"):
        compare_results((campaign, results[0]), (campaign, results[0]))
    tally = expected_tally(campaign.manifest.mechanisms[ROOM], N, (0.1, 0.2, 0.3, 0.2, 0.1, 0.1))
    room = round_result(other, 0, ROOM, tally, {})
    with pytest.raises(UnknownCampaign, match="other values in"):
        compare_results((campaign, results[0]), (other, room))
