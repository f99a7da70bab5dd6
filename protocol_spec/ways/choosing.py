"""From what a manifest asks for to the way in which a question is answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol_spec.adaptive import ChooseFor, choose_for
from protocol_spec.attributes import Attribute
from protocol_spec.calibration import Calibration, choose
from protocol_spec.reporting import Hashed, Nested, Once, better_once, gradual_levels
from protocol_spec.ways.hashed import HashedWay
from protocol_spec.ways.interface import Reporting, Way
from protocol_spec.ways.memoized import MemoizedWay
from protocol_spec.ways.nested import NestedWay
from protocol_spec.ways.once import OnceWay

__all__ = ["Budget", "ask_levels", "make_way"]

_AUTO: Final = "auto"
_DECIMALS: Final = 6


@dataclass(frozen=True, slots=True)
class Budget:
    """What a manifest asks for on behalf of all its questions."""

    reporting: Reporting
    eps_inf: float
    eps_1: float
    max_values: int
    choose_for: ChooseFor
    rounds: int
    each: int


def make_way(attribute: Attribute, budget: Budget, digest: bytes) -> Way:
    """The way to answer one question. Raises `ParameterError` where there is none."""
    if budget.reporting == "once":
        return _once(attribute, budget)
    if budget.reporting == "hashed":
        cells = Hashed.calibrate(k=attribute.k, eps_inf=budget.eps_inf, eps_1=budget.eps_1)
        return HashedWay(cells, digest)
    if budget.reporting == "nested":
        best = better_once(attribute.k, budget.eps_inf).protocol
        protocol = best if attribute.protocol == _AUTO else attribute.protocol
        return NestedWay(Nested.calibrate(protocol, k=attribute.k, schedule=attribute.levels))
    return MemoizedWay(_memoized(attribute, budget), budget.max_values)


def _memoized(attribute: Attribute, budget: Budget) -> Calibration:
    if attribute.protocol != _AUTO:
        return attribute.calibration(budget.eps_inf, budget.eps_1)
    return choose_for(
        budget.choose_for,
        k=attribute.k,
        eps_inf=budget.eps_inf,
        eps_1=budget.eps_1,
        rounds=budget.rounds,
        method=attribute.method,
    ).chosen


def _once(attribute: Attribute, budget: Budget) -> OnceWay:
    once = Once.calibrate(
        attribute.protocol,
        k=attribute.k,
        epsilon=budget.eps_1,
        rounds=budget.rounds,
        each=budget.each,
    )
    return OnceWay(once, once.calibration, budget.eps_inf)


def ask_levels(k: int, eps_inf: float, eps_1: float) -> tuple[float, ...]:
    """The levels of a nested question whose author gave none: what the paper's reports would tell.

    eps_1, then what the first two, three, ... reports of ALLOMFREE's memo tell together, rounded to
    six decimals, then eps_inf.
    """
    told = gradual_levels(choose(k=k, eps_inf=eps_inf, eps_1=eps_1).chosen)
    between = (round(epsilon, _DECIMALS) for epsilon in told[1:-1])
    inner = sorted({epsilon for epsilon in between if eps_1 < epsilon < eps_inf})
    return (eps_1, *inner, eps_inf)
