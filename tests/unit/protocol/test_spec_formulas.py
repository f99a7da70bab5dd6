"""The formulas of the specification, read from its text and calculated, are those of the code."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Sequence
from decimal import Decimal, localcontext
from typing import Any

import pytest

from protocol_spec import (
    LONGITUDINAL,
    Calibration,
    InfeasibleBudget,
    as_drawn,
    calibrate,
    choose,
    largest_eps_1,
    thresholds,
)
from protocol_spec.estimation import critical_value, estimate
from tests.support.protocol.specification import TEXT, bare, fence, rows

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sqrt": lambda value: value.sqrt(),
    "ln": lambda value: value.ln(),
    "exp": lambda value: value.exp(),
    "max": max,
}
Names = dict[str, Decimal]


def _value(node: ast.expr, names: Names) -> Any:
    match node:
        case ast.Constant(value=int(number)):
            return Decimal(number)
        case ast.Name(id=name):
            return names[name]
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_value(left, names), _value(right, names))
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return _FUNCTIONS[name](*(_value(argument, names) for argument in arguments))
    raise AssertionError(ast.dump(node))


def _calculated(lines: Sequence[str], names: Names) -> Names:
    """The names given and those that formulas such as "ps = p1*p2" add to them."""
    known = dict(names)
    for line in lines:
        target, formula = line.split(" = ")
        tree = ast.parse(formula.strip().replace("^", "**"), mode="eval").body
        known[target.strip()] = _value(tree, known)
    return known


def _chances(protocol: str, k: int, eps_inf: float, eps_1: float, method: str) -> Names:
    """p1, q1, p2, q2 and all else of section 8, as its table says."""
    wanted = f"{protocol}, `{method}`" if (protocol, method) == ("L-GRR", "paper") else protocol
    [row] = [row for row in rows("protocol", "RR1", "RR2", "largest eps_1") if row[0] == wanted]
    [letters] = re.findall(r"Write (`a = .*`)\.", TEXT)
    given = {"k": Decimal(k), "eps_inf": Decimal(eps_inf), "eps_1": Decimal(eps_1)}
    names = _calculated(re.findall(r"`([^`]+)`", letters), given)
    steps = [step for cell in row[1:3] for step in bare(cell).split("; ")]
    names = _calculated(steps, names)
    if row[3]:
        names = _calculated([f"limit = {bare(row[3])}"], names)
    return _calculated(fence("formulas support").splitlines(), names)


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
        said = _chances(protocol, k, eps_inf, eps_1, method)
        for name, exact in zip(("p1", "q1", "p2", "q2"), noise.exact):
            assert abs(said[name] - exact) < Decimal("1e-60"), name
    assert float(said["ps"]) == noise.ps
    assert float(said["qs"]) == noise.qs
    assert float(said["V"]) == noise.variance(1)


@pytest.mark.parametrize("protocol", ["L-OUE", "L-SOUE"])
@pytest.mark.parametrize("eps_inf", [0.1, 1.0, 4.0, 20.0])
def test_the_formulas_of_feasibility_are_those_of_the_code(protocol: str, eps_inf: float) -> None:
    with localcontext(prec=80):
        limit = float(_chances(protocol, 5, eps_inf, eps_inf / 8, "exact")["limit"])
    assert limit == largest_eps_1(protocol, eps_inf=eps_inf)
    calibrate(protocol, k=5, eps_inf=eps_inf, eps_1=limit)
    with pytest.raises(InfeasibleBudget):
        calibrate(protocol, k=5, eps_inf=eps_inf, eps_1=math.nextafter(limit, math.inf))


@pytest.mark.parametrize(("protocol", "method"), MECHANISMS)
def test_the_thresholds_are_those_of_the_next_float_below(protocol: str, method: str) -> None:
    noise = _calibrated(protocol, 7, 2.0, 0.6, method)
    below = [math.nextafter(epsilon, 0.0) for epsilon in (2.0, 0.6)]
    with localcontext(prec=80):
        said = _chances(protocol, 7, below[0], below[1], method)
        scaled = {name: said[name] * 2**64 for name in ("p1", "q1", "p2", "q2")}
    expected = [
        math.floor(chance) if name.startswith("p") else math.ceil(chance)
        for name, chance in scaled.items()
    ]
    assert list(thresholds(noise)) == expected


@pytest.mark.parametrize(("k", "eps_inf", "eps_1"), [*BUDGETS, (8, 2.0, math.log(2))])
@pytest.mark.parametrize("method", ["exact", "paper"])
def test_the_choice_compares_variances(method: str, k: int, eps_inf: float, eps_1: float) -> None:
    with localcontext(prec=80):
        grr, osue = (
            _chances(protocol, k, eps_inf, eps_1, method)["V"] for protocol in ("L-GRR", "L-OSUE")
        )
    chosen = _calibrated("ALLOMFREE", k, eps_inf, eps_1, method)
    assert chosen.protocol == ("L-GRR" if grr <= osue else "L-OSUE")


def test_the_tie_that_is_mentioned_is_one() -> None:
    """Rounded, both variances are equal; in full precision 3c + 2 is below 8."""
    choice = choose(k=8, eps_inf=2.0, eps_1=math.log(2))
    assert choice.grr.variance(1) == choice.osue.variance(1)
    assert choice.chosen.protocol == "L-OSUE"
    with localcontext(prec=80):
        assert 3 * Decimal(math.log(2)).exp() + 2 < 8
    assert "k = 8 and eps_1 = ln 2" in TEXT


@pytest.mark.parametrize("reports", [1, 2, 10])
@pytest.mark.parametrize(("protocol", "method"), MECHANISMS)
def test_the_formulas_of_loss_are_those_of_the_code(
    protocol: str, method: str, reports: int
) -> None:
    noise = _calibrated(protocol, 7, 2.0, 0.6, method)
    with localcontext(prec=80):
        names = {**_chances(protocol, 7, 2.0, 0.6, method), "t": Decimal(reports)}
        lost = _calculated(fence("formulas loss").splitlines(), names)
    assert float(lost["unary" if noise.unary else "grr"]) == noise.epsilon_after(reports)


@pytest.mark.parametrize("for_all", [False, True])
@pytest.mark.parametrize("protocol", ["L-GRR", "L-OSUE"])
def test_the_formulas_of_a_result_are_those_of_the_code(protocol: str, for_all: bool) -> None:
    noise = as_drawn(_calibrated(protocol, 4, 2.0, 0.6, "exact"))
    n, counts = 1000, [450, 260, 200, 90]
    estimated = estimate(counts, n, noise)
    low, high = estimated.interval(0.95, simultaneous=for_all)
    z = critical_value(0.95 ** (1 / 4) if for_all else 0.95)
    for i, count in enumerate(counts):
        said = _result(noise, n, count, z)
        for name, found in {
            "raw": estimated.raw[i],
            "device_bound": 1 / (n * noise.gap),
            "V0": estimated.v0,
            "V1": estimated.v1,
            "privacy_error": estimated.privacy_error[i],
            "sampling_error": estimated.sampling_error[i],
            "low": low[i],
            "high": high[i],
        }.items():
            assert said[name] == pytest.approx(found, rel=1e-9, abs=1e-12), name


def _result(noise: Calibration, n: int, count: int, z: float) -> dict[str, float]:
    """What section 11 makes of a count."""
    lines = fence("formulas result").splitlines()
    exact = dict(zip(("p1", "q1", "p2", "q2"), noise.exact))
    names = _calculated(fence("formulas support").splitlines()[:2], exact)
    names |= {"n": Decimal(n), "count": Decimal(count), "z": Decimal(z)}
    names["g"] = _clipped(_calculated(lines[:1], names)["raw"])
    said = _calculated(lines, names)
    said |= {name: _clipped(said[name]) for name in ("low", "high")}
    return {name: float(value) for name, value in said.items()}


def _clipped(value: Decimal) -> Decimal:
    return min(max(value, Decimal(0)), Decimal(1))
