"""The formulas of the specification, read from its text and calculated, are those of the code."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import pytest

from protocol_spec import (
    LONGITUDINAL,
    Calibration,
    InfeasibleBudget,
    as_drawn,
    calibrate,
    calibrate_once,
    candidates,
    choose,
    largest_eps_1,
    thresholds,
)
from protocol_spec.estimation import contrast, critical_value, estimate
from protocol_spec.estimation.intervals import GRID
from protocol_spec.mechanisms import Hashed, Nested
from tests.support.protocol.specification import TEXT, Names, calculated, chances, fence

BUDGETS = [(2, 1.0, 0.3), (3, 2.0, 0.6), (7, 0.1, 0.05), (41, 4.0, 2.4), (4096, 20.0, 6.0)]
MECHANISMS = [(p, "exact") for p in LONGITUDINAL] + [("L-GRR", "paper")]


def _calibrated(protocol: str, k: int, eps_inf: float, eps_1: float, method: str) -> Calibration:
    assert method in ("exact", "paper")
    return calibrate(
        protocol,
        k=k,
        eps_inf=eps_inf,
        eps_1=eps_1,
        method="paper" if method == "paper" else "exact",
    )


@pytest.mark.parametrize(("k", "eps_inf", "eps_1"), BUDGETS)
@pytest.mark.parametrize(("protocol", "method"), MECHANISMS)
def test_the_formulas_of_calibration_are_those_of_the_code(
    protocol: str, method: str, k: int, eps_inf: float, eps_1: float
) -> None:
    noise = _calibrated(protocol, k, eps_inf, eps_1, method)
    with localcontext(prec=80):
        said = chances(protocol, k, eps_inf, eps_1, method)
        for name, exact in zip(("p1", "q1", "p2", "q2"), noise.exact):
            assert abs(said[name] - exact) < Decimal("1e-60"), name
    assert float(said["ps"]) == noise.ps
    assert float(said["qs"]) == noise.qs
    assert float(said["V"]) == noise.variance(1)


@pytest.mark.parametrize("protocol", ["L-OUE", "L-SOUE"])
@pytest.mark.parametrize("eps_inf", [0.1, 1.0, 4.0, 20.0])
def test_the_formulas_of_feasibility_are_those_of_the_code(protocol: str, eps_inf: float) -> None:
    with localcontext(prec=80):
        limit = float(chances(protocol, 5, eps_inf, eps_inf / 8, "exact")["limit"])
    assert limit == largest_eps_1(protocol, eps_inf=eps_inf)
    calibrate(protocol, k=5, eps_inf=eps_inf, eps_1=limit)
    with pytest.raises(InfeasibleBudget):
        calibrate(protocol, k=5, eps_inf=eps_inf, eps_1=math.nextafter(limit, math.inf))


@pytest.mark.parametrize(("protocol", "method"), MECHANISMS)
def test_the_thresholds_are_those_of_the_next_float_below(protocol: str, method: str) -> None:
    noise = _calibrated(protocol, 7, 2.0, 0.6, method)
    below = [math.nextafter(epsilon, 0.0) for epsilon in (2.0, 0.6)]
    with localcontext(prec=80):
        said = chances(protocol, 7, below[0], below[1], method)
        scaled = {name: said[name] * 2**64 for name in ("p1", "q1", "p2", "q2")}
        p1, q1, p2, q2 = scaled.values()
        expected = (math.floor(p1), math.ceil(q1)), (math.floor(p2), math.ceil(q2))
        if not noise.unary:
            keep = (p2 - q2) * 6 / (7 - noise.size)
            expected = (math.floor(p1 - q1), 1), (math.floor(keep), noise.size)
    assert thresholds(noise) == expected


@pytest.mark.parametrize(("k", "eps_inf", "eps_1"), BUDGETS)
@pytest.mark.parametrize("method", ["exact", "paper"])
def test_the_papers_choice_compares_variances(
    method: str, k: int, eps_inf: float, eps_1: float
) -> None:
    with localcontext(prec=80):
        grr, osue = (
            chances(protocol, k, eps_inf, eps_1, method)["V"] for protocol in ("L-GRR", "L-OSUE")
        )
    chosen = _calibrated("ALLOMFREE", k, eps_inf, eps_1, method)
    assert chosen.protocol == ("L-GRR" if grr <= osue else "L-OSUE")


@pytest.mark.parametrize("reports", [1, 2, 10])
@pytest.mark.parametrize(("protocol", "method"), MECHANISMS)
def test_the_formulas_of_loss_are_those_of_the_code(
    protocol: str, method: str, reports: int
) -> None:
    noise = _calibrated(protocol, 7, 2.0, 0.6, method)
    with localcontext(prec=80):
        names = {**chances(protocol, 7, 2.0, 0.6, method), "t": Decimal(reports)}
        lost = calculated(fence("formulas loss").splitlines()[2:], names)
        if not noise.unary:
            found = max(_of_sets(noise, names, w) for w in range(reports))
            assert float(found) == noise.epsilon_after(reports)
            return
    assert float(lost["unary"]) == noise.epsilon_after(reports)


def _of_sets(noise: Calibration, names: Names, w: int) -> Decimal:
    """What the formula makes of one w, with S as the text says."""
    lines = fence("formulas loss").splitlines()
    left = int(names["t"]) * (noise.size - 1) - w
    if left < 0:
        return Decimal(0)
    known = calculated(lines[:1], {**names, "d": Decimal(noise.size)})
    others = [left // 5 + (i < left % 5) for i in range(5)]
    known |= {"w": Decimal(w), "S": sum((known["b"] ** n for n in others), Decimal(0))}
    return calculated(lines[1:2], known)["set"]


# --- results -------------------------------------------------------------------------------------


@pytest.mark.parametrize("for_all", [False, True])
@pytest.mark.parametrize("protocol", ["L-GRR", "L-OSUE"])
def test_the_formulas_of_a_result_are_those_of_the_code(protocol: str, for_all: bool) -> None:
    """With many devices: an end then is where g is as far from f as chance allows, and no more."""
    noise = as_drawn(_calibrated(protocol, 4, 2.0, 0.6, "exact"))
    n = 100_000
    counts = [round(n * (noise.qs + f * noise.gap)) for f in (0.5, 0.3, 0.2, 0.0)]
    estimated = estimate(counts, n, noise)
    ends = estimated.interval(0.95, simultaneous=for_all)
    z = critical_value(0.95 ** (1 / 4) if for_all else 0.95)
    for i, count in enumerate(counts):
        said = _result(noise, n, count)
        for name, found in {
            "raw": estimated.raw[i],
            "device_bound": 1 / (n * noise.gap),
            "V0": estimated.v0,
            "V1": estimated.v1,
            "privacy_error": estimated.privacy_error[i],
            "sampling_error": estimated.sampling_error[i],
        }.items():
            assert float(said[name]) == pytest.approx(found, rel=1e-9, abs=1e-12), name
        low, high = (Decimal(float(end[i])) for end in ends)
        assert _surprised(said, low, z) == (0 if low else -1)
        assert _surprised(said, high, z) == 0
        assert _surprised(said, low - Decimal("1e-6"), z) == (1 if low else -1)
        assert _surprised(said, high + Decimal("1e-6"), z) == 1


def _result(noise: Calibration, n: int, count: int) -> Names:
    """What section 11 makes of a count."""
    lines = fence("formulas result").splitlines()
    exact = dict(zip(("p1", "q1", "p2", "q2"), noise.exact))
    names = calculated(fence("formulas support").splitlines()[:2], exact)
    names |= {"n": Decimal(n), "count": Decimal(count)}
    raw = calculated(lines[:1], names)["raw"]
    names["g"] = min(max(raw, Decimal(0)), Decimal(1))
    return calculated(lines, names)


def _surprised(said: Names, f: Decimal, z: float) -> int:
    """Whether g is further from f than chance allows: 1, or -1 if it is not, 0 just between."""
    names = {**said, "f": f, "z": Decimal(z)}
    reached = calculated(fence("formulas interval").splitlines(), names)
    excess = abs(said["g"] - f) - reached["up" if f < said["g"] else "down"]
    return 0 if abs(excess) < Decimal("1e-12") else 1 if excess > 0 else -1


def test_the_grid_that_is_mentioned_is_the_codes() -> None:
    assert f"looks at {GRID.size} equally spaced f" in TEXT


@pytest.mark.parametrize("protocol", ["L-GRR", "L-SS", "L-OSUE"])
def test_the_formulas_of_weighted_sums_are_those_of_the_code(protocol: str) -> None:
    noise = as_drawn(_calibrated(protocol, 4, 2.0, 0.3, "exact"))
    n, weights = 5000, [0.0, 1.0, 4.0, -2.0]
    estimated = estimate([round(n * noise.qs) + 100 * i for i in range(4)], n, noise)
    found = contrast(estimated, weights)
    d = [Decimal(c) - Decimal(sum(weights)) / 4 for c in weights]
    f = [Decimal(share) for share in estimated.projected.tolist()]
    names = _result(noise, n, round(n * noise.qs))
    names |= {"D": sum((x * x for x in d), Decimal(0))}
    names |= {"E": sum((y * x * x for x, y in zip(d, f)), Decimal(0))}
    names |= {"F": sum((y * x for x, y in zip(d, f)), Decimal(0)), "k": Decimal(4)}
    said = calculated(fence("formulas weighted").splitlines(), names)
    variance = found.privacy_variance + found.sampling_variance
    assert float(said["unary" if noise.unary else "set"]) == pytest.approx(variance, rel=1e-9)


# --- other ways of reporting ---------------------------------------------------------------------


def _steps(protocol: str, k: int, eps_inf: float, eps_1: float) -> Names:
    with localcontext(prec=80):
        return chances(protocol, k, eps_inf, eps_1, "exact")


@pytest.mark.parametrize(("k", "eps_inf", "eps_1"), [*BUDGETS, (9, 1.0, 0.5)])
@pytest.mark.parametrize("rounds", [1, 30])
def test_the_choice_for_pooled_rounds_compares_them(
    k: int, eps_inf: float, eps_1: float, rounds: int
) -> None:
    found = []
    for noise in candidates(k=k, eps_inf=eps_inf, eps_1=eps_1):
        names = {**_steps(noise.protocol, k, eps_inf, eps_1), "T": Decimal(rounds)}
        with localcontext(prec=80):
            said = calculated(fence("formulas pooled").splitlines(), names)
        assert float(said["other"]) == noise.device_variance(False, rounds)
        found.append((said["total"], noise))
    least = min(found, key=lambda pair: pair[0])[1]
    assert choose(k=k, eps_inf=eps_inf, eps_1=eps_1, rounds=rounds) == least


@pytest.mark.parametrize(("k", "epsilon"), [(2, 0.1), (5, 1.0), (300, 4.0)])
def test_an_answer_of_once_is_one_step(k: int, epsilon: float) -> None:
    for protocol in ("GRR", "SS"):
        once = calibrate_once(protocol, k=k, epsilon=epsilon)
        said = _set_step(k, epsilon, once.size, 1, Decimal(1))
        assert (float(said["p"]), float(said["q"])) == pytest.approx((once.p1, once.q1), rel=1e-15)
    once, said = calibrate_once("OUE", k=k, epsilon=epsilon), _steps("L-OUE", k, epsilon, 0.01)
    assert (float(said["p1"]), float(said["q1"])) == (once.p1, once.q1)


def _set_step(k: int, epsilon: float, d: int, before: int, s: Decimal) -> Names:
    with localcontext(prec=80):
        e = Decimal(epsilon).exp()
        names = {"k": Decimal(k), "e": e, "d": Decimal(d), "D": Decimal(before), "S": s}
        return calculated(fence("formulas sets").splitlines(), names)


@pytest.mark.parametrize(("eps_inf", "eps_1"), [(1.0, 0.3), (4.0, 2.0)])
def test_hashed_is_two_cells_and_half_of_the_rest(eps_inf: float, eps_1: float) -> None:
    hashed = Hashed.calibrate(k=9, eps_inf=eps_inf, eps_1=eps_1)
    said = calculated(fence("formulas hashed").splitlines(), _steps("L-GRR", 2, eps_inf, eps_1))
    p1, q1, p2, q2 = hashed.exact
    assert float(said["ps"]) == pytest.approx(float(p1 * p2 + (1 - p1) * q2), rel=1e-15)
    assert float(said["qs"]) == pytest.approx(float(q1 * p2 + (1 - q1) * q2), rel=1e-15)


@pytest.mark.parametrize("protocol", ["GRR", "SS", "OUE"])
@pytest.mark.parametrize("k", [2, 12])
def test_nested_is_one_step_after_another(protocol: str, k: int) -> None:
    levels = [0.3, 1.0, 1.6, 2.0]
    nested = Nested.calibrate(protocol, k=k, schedule=levels)
    names, before, kept = {"p_t": Decimal(1), "q_t": Decimal(0)}, 1, Decimal(1)
    for level in (3, 2, 1, 0):
        drawn, size = (
            [float(each) for each in nested.steps(Decimal)[level]],
            nested.levels[level].size,
        )
        if protocol == "OUE":
            said = _steps("L-OUE", k, levels[3], 0.01)
            p, q = said["p1"], said["q1"]
            if level < 3:
                said = _steps("L-OSUE", k, levels[level + 1], levels[level])
                p, q = said["p2"], said["q2"]
            assert drawn == pytest.approx([float(p), float(q)])
        else:
            said = _set_step(k, levels[level], size, before, kept)
            p, q, before, kept = said["p"], said["q"], size, said["s"]
            assert drawn == pytest.approx([float(said["keep"]), size])
        above = {"P": names["p_t"], "Q": names["q_t"], "p": p, "q": q}
        with localcontext(prec=80):
            names = calculated(fence("formulas nested").splitlines(), above)
        alone = nested.levels[level]
        assert (float(names["p_t"]), float(names["q_t"])) == pytest.approx((alone.p1, alone.q1))
