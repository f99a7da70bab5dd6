"""The ledger adds up, never shows less than was spent, and says it in odds people understand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol_spec import (
    LONGITUDINAL,
    Calibration,
    Odds,
    ParameterError,
    calibrate,
    largest_shift,
    lifetime_odds,
    report_odds,
    spending,
)
from tests.support.protocol.budgets import VARIANTS, budgets

GRR = calibrate("L-GRR", k=5, eps_inf=2.0, eps_1=0.2)


def test_nothing_drawn_is_nothing_spent() -> None:
    spent = spending(GRR, [])
    assert (spent.memos, spent.reports, spent.exact, spent.charged) == (0, 0, 0.0, 0.0)


@pytest.mark.parametrize("reports", [1, 5, 10])
def test_one_memo_costs_eps_t_and_is_charged_eps_inf(reports: int) -> None:
    spent = spending(GRR, [reports])
    assert (spent.memos, spent.reports) == (1, reports)
    assert spent.exact == GRR.epsilon_after(reports)
    assert spent.charged == 2.0


def test_a_memo_is_charged_in_full_before_its_first_report() -> None:
    spent = spending(GRR, [0])
    assert spent.charged == 2.0
    assert abs(spent.exact) < 1e-70


def test_each_value_is_charged_for_itself() -> None:
    spent = spending(GRR, [1, 0, 7])
    assert (spent.memos, spent.reports) == (3, 8)
    assert math.isclose(spent.exact, 0.2 + GRR.epsilon_after(7))
    assert spent.charged == 6.0


def test_any_iterable_of_counts_will_do() -> None:
    assert spending(GRR, iter((2, 3))) == spending(GRR, [2, 3])


def test_a_negative_number_of_reports_is_refused() -> None:
    with pytest.raises(ParameterError, match="reports"):
        spending(GRR, [3, -1])


@pytest.mark.parametrize("variant", VARIANTS, ids="-".join)
@settings(max_examples=50)
@given(st.data())
def test_what_is_charged_is_never_below_what_is_spent(
    variant: tuple[str, str], data: st.DataObject
) -> None:
    """Also after so many reports that eps_t has rounded to eps_inf."""
    calibration = data.draw(budgets(variant)).calibrate()
    counts = data.draw(st.lists(st.integers(1, 10**9), max_size=6))
    spent = spending(calibration, counts)
    assert spent.exact <= spent.charged == len(counts) * calibration.eps_inf


@pytest.mark.parametrize("protocol", LONGITUDINAL)
def test_odds_are_the_chances(protocol: str) -> None:
    calibration = calibrate(protocol, k=5, eps_inf=2.0, eps_1=0.6)
    one, life = report_odds(calibration), lifetime_odds(calibration)
    assert (one.if_true, one.if_false) == (calibration.ps, calibration.qs)
    assert (life.if_true, life.if_false) == (calibration.p1, calibration.q1)


def sentence(calibration: Calibration) -> str:
    return report_odds(calibration).sentence("open")


def test_the_sentence_holds_the_numbers() -> None:
    # GRR at eps_1 = ln 3 with two values: 3/4 against 1/4.
    two = calibrate("L-GRR", k=2, eps_inf=3.0, eps_1=math.log(3))
    assert sentence(two) == (
        "If your true answer is “open”, one report says “open” about 75 times in 100; "
        "if it were something else, still about 25 times in 100."
    )
    # L-OSUE: 1/2 against 1/(e^eps_1 + 1) = 1/10.
    osue = calibrate("L-OSUE", k=40, eps_inf=5.0, eps_1=math.log(9))
    assert "about 50 times in 100" in sentence(osue)
    assert "still about 10 times in 100" in sentence(osue)


def test_the_sentence_can_be_about_all_reports() -> None:
    text = lifetime_odds(GRR).sentence("open", subject="your device, over all its reports,")
    assert "your device, over all its reports, says “open”" in text


@pytest.mark.parametrize(
    ("chance", "words"),
    [
        (1.0, "practically always"),
        (0.9999, "practically always"),
        (0.994, "about 99 times in 100"),
        (0.5, "about 50 times in 100"),
        (0.04, "about 4 times in 100"),
        (0.03, "about 30 times in 1,000"),
        (0.00244, "about 24 times in 10,000"),
        (0.0004, "about 4 times in 10,000"),
        (0.0003, "about 30 times in 100,000"),
        (0.00002, "about 2 times in 100,000"),
        (0.00001, "about once in 100,000"),
        (0.000004, "less than once in 100,000"),
        (0.0, "less than once in 100,000"),
    ],
)
def test_a_chance_in_words(chance: float, words: str) -> None:
    assert Odds(chance, 0.5).sentence("x").split(" says “x” ")[1].startswith(words + ";")
    assert Odds(0.5, chance).sentence("x").endswith(f"still {words}.")


@given(st.floats(4e-5, 0.99))
def test_the_words_are_right_to_an_eighth(chance: float) -> None:
    """At least four of the base: rounding is off by half of one at most."""
    said = Odds(chance, chance).sentence("x").split("still about ")[1].removesuffix(".")
    times, base = (float(word.replace(",", "")) for word in said.split(" times in "))
    assert math.isclose(times / base, chance, rel_tol=1 / 7)


@pytest.mark.parametrize(("epsilon", "factor"), [(0.0, "1"), (math.log(3), "3"), (2.0, "7.39")])
def test_the_largest_shift_in_words(epsilon: float, factor: str) -> None:
    assert f"at most {factor}" in largest_shift(epsilon)


def test_a_shift_that_bounds_nothing_is_called_so() -> None:
    assert largest_shift(20.0) == "without a useful bound"
