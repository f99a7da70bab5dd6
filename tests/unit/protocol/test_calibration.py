"""p1, q1, p2, q2 and all that follows from them are right to 1e-12, for every protocol."""

from __future__ import annotations

import decimal
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol_spec import LONGITUDINAL, calibrate, calibrate_once, choose
from protocol_spec import largest_eps_1 as largest
from tests.support.harness import every
from tests.support.protocol import reference, vectors
from tests.support.protocol.budgets import VARIANTS, budget_of, budgets, near, relative
from tests.support.protocol.shared import from_shared, shared

VECTORS = vectors.load("calibration.json")
TIGHT = 1e-12


@every("entry", VECTORS["longitudinal"], ids=lambda e: "-".join(map(str, budget_of(e))))
def test_longitudinal_vectors(entry: dict[str, Any]) -> None:
    calibration = budget_of(entry).calibrate()
    for name in ("p1", "q1", "p2", "q2", "ps", "qs"):
        assert near(getattr(calibration, name), entry[name]), name
    assert near(calibration.variance(1), entry["variance"][0])
    assert near(calibration.variance(1, 0.25), entry["variance"][1])
    for t, epsilon in entry["epsilon_after"].items():
        assert near(calibration.epsilon_after(int(t)), epsilon), t
    for t, variance in entry["pooled_variance"].items():
        assert near(calibration.pooled_variance(1, int(t), 0.25), variance), t


def test_one_time_vectors() -> None:
    for entry in VECTORS["one_time"]:
        once = calibrate_once(entry["protocol"], k=entry["k"], epsilon=entry["epsilon"])
        assert near(once.p1, entry["p1"])
        assert near(once.q1, entry["q1"])
        assert near(once.variance(1), entry["variance"][0])
        assert near(once.variance(1, 0.25), entry["variance"][1])
        assert near(once.single_report_epsilon, entry["epsilon"])


def test_limit_vectors() -> None:
    for entry in VECTORS["largest_eps_1"]:
        got = largest(entry["protocol"], eps_inf=entry["eps_inf"])
        assert near(got, entry["largest_eps_1"])


def test_choice_vectors() -> None:
    for entry in VECTORS["choice"]:
        asked = {name: entry[name] for name in ("k", "eps_inf", "eps_1", "method")}
        assert calibrate("ALLOMFREE", **asked).protocol == entry["chosen"], entry


def test_shared_vectors() -> None:
    for entry in shared("protocols"):
        calibration = from_shared(entry)
        for name in ("p1", "q1", "p2", "q2", "ps", "qs"):
            assert near(getattr(calibration, name), entry[name]), (name, entry)
        assert near(calibration.single_report_epsilon, entry["eps1_true"])
        assert near(calibration.variance(1), entry["var_star_n1"])
        assert near(calibration.variance(1, 0.25), entry["var_super_f025_n1"])
        assert near(calibration.pooled_variance(1, 1, 0.25), entry["var_fixed_f025_n1"])
        for t, epsilon in entry["eps_t"].items():
            assert near(calibration.epsilon_after(int(t)), epsilon), (t, entry)
        for t, variance in entry["var_pooled_f0_n1"].items():
            assert near(calibration.pooled_variance(1, int(t)), variance), (t, entry)


def test_shared_limits() -> None:
    for entry in shared("feasibility"):
        assert near(largest("L-OUE", eps_inf=entry["einf"]), entry["loue_max_e1"])
        assert near(largest("L-SOUE", eps_inf=entry["einf"]), entry["lsoue_max_e1"])


@pytest.mark.parametrize("variant", VARIANTS, ids="-".join)
@settings(max_examples=50)
@given(st.data())
def test_every_number_agrees_with_the_reference(
    variant: tuple[str, str], data: st.DataObject
) -> None:
    budget = data.draw(budgets(variant))
    f = data.draw(st.floats(0, 1))
    n, t = data.draw(st.integers(1, 10**6)), data.draw(st.integers(1, 12))
    calibration, wanted = budget.calibrate(), budget.reference()
    assert relative(calibration.p1, wanted.p1) < TIGHT
    assert relative(calibration.q1, wanted.q1) < TIGHT
    assert relative(calibration.p2, wanted.p2) < TIGHT
    assert relative(calibration.q2, wanted.q2) < TIGHT
    assert relative(calibration.gap, wanted.gap()) < TIGHT
    assert relative(calibration.epsilon_after(t), wanted.epsilon(t)) < TIGHT
    assert relative(calibration.variance(n, f), wanted.variance(n, f)) < TIGHT
    assert relative(calibration.pooled_variance(n, t, f), wanted.pooled_variance(n, t, f)) < TIGHT


IDENTITIES = ((1.0, 0.3), (2.0, 1.2), (0.001, 0.00001), (20.0, 12.0))


@pytest.mark.parametrize(("eps_inf", "eps_1"), IDENTITIES)
@pytest.mark.parametrize(("chain", "once"), [("L-GRR", "GRR"), ("L-OSUE", "OUE"), ("L-SUE", "SUE")])
def test_a_single_report_is_the_one_time_protocol(
    chain: str, once: str, eps_inf: float, eps_1: float
) -> None:
    for k in (2, 5, 4096):
        longitudinal = calibrate(chain, k=k, eps_inf=eps_inf, eps_1=eps_1)
        single = calibrate_once(once, k=k, epsilon=eps_1)
        assert near(longitudinal.ps, single.p1)
        assert near(longitudinal.qs, single.q1)
        assert near(longitudinal.variance(1), single.variance(1))


@pytest.mark.parametrize("eps_inf", [0.5, 2.0, 8.0])
@pytest.mark.parametrize("protocol", LONGITUDINAL)
def test_pooling_decomposes_into_memo_and_single_report(protocol: str, eps_inf: float) -> None:
    """V(T) = (1 - 1/T) V of RR1 at eps_inf + 1/T V of one report, for every T and f."""
    c = calibrate(protocol, k=6, eps_inf=eps_inf, eps_1=eps_inf / 4)
    once = calibrate_once(reference.STEPS[protocol][0], k=6, epsilon=eps_inf)
    for rounds in (1, 2, 7, 100):
        for f in (0.0, 0.3, 1.0):
            memo, single = once.pooled_variance(1, 1, f), c.pooled_variance(1, 1, f)
            expected = (1 - 1 / rounds) * memo + single / rounds
            assert near(c.pooled_variance(1, rounds, f), expected)


@pytest.mark.parametrize("protocol", LONGITUDINAL)
def test_device_noise_is_between_and_within(protocol: str) -> None:
    c = calibrate(protocol, k=6, eps_inf=2.0, eps_1=0.6)
    for holds, f in ((False, 0.0), (True, 1.0)):
        between, within = c.device_noise(holds)
        for rounds in (1, 3):
            assert near(c.device_variance(holds, rounds), between + within / rounds)
            assert near(c.device_variance(holds, rounds), c.pooled_variance(1, rounds, f))


def test_sampling_adds_f_times_one_minus_f() -> None:
    c = calibrate("L-OUE", k=6, eps_inf=2.0, eps_1=0.6)
    for f in (0.0, 0.1, 0.9):
        assert near(c.variance(7, f), c.pooled_variance(7, 1, f) + f * (1 - f) / 7)


def test_osue_variance_in_closed_form() -> None:
    for eps_1, f in ((0.3, 0.0), (1.2, 0.7)):
        c = math.exp(eps_1)
        osue = calibrate("L-OSUE", k=9, eps_inf=3.0, eps_1=eps_1)
        assert near(osue.pooled_variance(1, 1, f), 4 * c / (c - 1) ** 2 + f)


def test_the_papers_gamma_would_give_a_negative_variance() -> None:
    grr = calibrate("L-GRR", k=32, eps_inf=1.0, eps_1=0.5)
    assert near(grr.variance(1, 0.5), 98.58, rel=1e-4)


# (k, the last with L-GRR) for eps_1: floor(3 e^eps_1 + 2), whatever eps_inf.
CROSSOVER = {0.1: 5, 0.3: 6, 0.5: 6, 0.6: 7, 1: 10, 1.2: 11, 1.5: 15, 2: 24, 2.4: 35, 3: 62, 4: 165}


@pytest.mark.parametrize(("eps_1", "last"), CROSSOVER.items())
def test_allomfree_changes_over_where_the_variances_cross(eps_1: float, last: int) -> None:
    for eps_inf in (eps_1 * 1.01, eps_1 + 2):
        for k, expected in ((2, "L-GRR"), (last, "L-GRR"), (last + 1, "L-OSUE")):
            choice = choose(k=k, eps_inf=eps_inf, eps_1=eps_1)
            assert choice.chosen.protocol == expected, (k, eps_inf)
            assert (choice.grr.protocol, choice.osue.protocol) == ("L-GRR", "L-OSUE")
            assert choice.chosen.variance(1) == min(choice.grr.variance(1), choice.osue.variance(1))


PAPER_SWITCH = {
    0.3: (3, 3, 4, 4, 5, 6, 7, 9),
    0.6: (3, 4, 5, 6, 8, 11, 14, 20),
}


@pytest.mark.parametrize(("alpha", "lasts"), PAPER_SWITCH.items())
def test_the_papers_calibration_changes_over_earlier(alpha: float, lasts: tuple[int, ...]) -> None:
    for eps_inf, last in zip((0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4), lasts):
        for k, expected in ((last, "L-GRR"), (last + 1, "L-OSUE")):
            chosen = choose(k=k, eps_inf=eps_inf, eps_1=alpha * eps_inf, method="paper").chosen
            assert chosen.protocol == expected, (k, eps_inf)
            assert chosen.method == "paper"


# eps_inf, eps_1: (k, what one report of the paper's L-GRR truly spends, variance paper / exact)
PAPER_SPENDS = {
    (1, 0.3): ((3, 0.253, 1.44), (16, 0.084, 15.7), (32, 0.046, 54.6), (100, 0.016, 482)),
    (2, 0.6): ((3, 0.557, 1.19), (8, 0.410, 2.53), (32, 0.182, 16.6), (100, 0.071, 124)),
    (2, 1.2): ((4, 1.103, 1.25), (5, 1.061, 1.41), (16, 0.754, 3.96), (100, 0.243, 69.8)),
    (4, 1.2): ((3, 1.188, 1.03), (8, 1.132, 1.19), (16, 1.054, 1.50), (100, 0.623, 7.1)),
    (4, 2.4): ((3, 2.387, 1.02), (5, 2.361, 1.06), (16, 2.232, 1.35), (100, 1.633, 5.6)),
    (0.5, 0.3): ((1024, 0.00196, 31_940),),
}


@pytest.mark.parametrize(("budget", "rows"), PAPER_SPENDS.items())
def test_the_papers_calibration_is_noisier_than_asked_for(
    budget: tuple[float, float], rows: tuple[tuple[int, float, float], ...]
) -> None:
    eps_inf, eps_1 = budget
    for k, spent, factor in rows:
        paper = calibrate("L-GRR", k=k, eps_inf=eps_inf, eps_1=eps_1, method="paper")
        exact = calibrate("L-GRR", k=k, eps_inf=eps_inf, eps_1=eps_1)
        places = 5 if spent < 0.01 else 3
        assert round(paper.single_report_epsilon, places) == spent
        assert near(exact.single_report_epsilon, eps_1)
        assert near(paper.variance(1) / exact.variance(1), factor, rel=0.01)


@pytest.mark.parametrize("protocol", LONGITUDINAL)
def test_one_report_spends_exactly_eps_1_and_the_memo_eps_inf(protocol: str) -> None:
    c = calibrate(protocol, k=7, eps_inf=3.0, eps_1=0.7)
    assert near(c.single_report_epsilon, 0.7)
    assert near(c.epsilon_after(10**6), 3.0)
    assert abs(c.epsilon_after(0)) < 1e-70


def test_the_papers_method_changes_only_l_grr() -> None:
    for protocol in ("L-OUE", "L-SUE", "L-OSUE", "L-SOUE"):
        exact = calibrate(protocol, k=7, eps_inf=3.0, eps_1=0.7)
        paper = calibrate(protocol, k=7, eps_inf=3.0, eps_1=0.7, method="paper")
        assert exact.exact == paper.exact
    two = [calibrate("L-GRR", k=2, eps_inf=3.0, eps_1=0.7, method=m) for m in ("exact", "paper")]
    assert near(two[0].p2, two[1].p2)


def test_the_callers_decimal_context_changes_nothing() -> None:
    wanted = calibrate("L-SUE", k=4, eps_inf=1.125, eps_1=0.375).epsilon_after(3)
    with decimal.localcontext(decimal.Context(prec=3)):
        got = calibrate("L-SUE", k=5, eps_inf=1.125, eps_1=0.375).epsilon_after(3)
    assert got == wanted
