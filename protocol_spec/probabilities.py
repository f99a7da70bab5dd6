"""The closed forms: each protocol's probabilities for a given eps_inf and eps_1, in 80 digits.

A value is randomised twice: RR1 once, for life, with (p1, q1); RR2 in every round with (p2, q2).
p is the probability that a support (the value of GRR, a bit of UE) is kept, q that it appears from
nothing.

The closed forms subtract nearly equal numbers (e^eps_inf - e^eps_1, p2 - q2) and the device's
thresholds need p to one part in 2^64, which no float64 holds. Eighty decimal digits leave more
than thirty after the worst cancellation that the accepted parameters allow, and the standard
library's `decimal` is compiled, so a calibration still takes well under a millisecond.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache, wraps
from typing import Final, Literal, NamedTuple, ParamSpec, TypeVar, get_args

_CONTEXT = decimal.Context(
    prec=80,
    rounding=decimal.ROUND_HALF_EVEN,
    Emin=decimal.MIN_EMIN,
    Emax=decimal.MAX_EMAX,
    traps=[decimal.InvalidOperation, decimal.DivisionByZero, decimal.Overflow],
)

ONE = Decimal(1)
HALF = Decimal("0.5")

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")


def precise(function: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
    """Run a function under the wide context, whatever context the caller has set."""

    @wraps(function)
    def within_context(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Returned:
        with decimal.localcontext(_CONTEXT):
            return function(*args, **kwargs)

    return within_context


Method = Literal["exact", "paper"]
METHODS: Final = get_args(Method)

LONGITUDINAL: Final = ("L-GRR", "L-OUE", "L-SUE", "L-OSUE", "L-SOUE")
ONE_TIME: Final = ("GRR", "OUE", "SUE")


class Probabilities(NamedTuple):
    """p1, q1, p2, q2 in full precision."""

    p1: Decimal
    q1: Decimal
    p2: Decimal
    q2: Decimal


def exact_probabilities(
    protocol: str, k: int, eps_inf: Decimal, eps_1: Decimal, method: Method = "exact"
) -> Probabilities:
    """p1, q1, p2, q2 in full precision, for parameters already checked.

    Those of a bit are the same for any number of values, and the paper's are exact.
    """
    if "GRR" in protocol:
        return _cached(protocol, k, eps_inf, eps_1, method)
    return _cached(protocol, 2, eps_inf, eps_1, "exact")


@lru_cache(maxsize=1024)  # joining, reporting, counting and showing need the same
@precise
def _cached(
    protocol: str, k: int, eps_inf: Decimal, eps_1: Decimal, method: Method
) -> Probabilities:
    first, second = _STEPS[protocol]
    step = ONE, ONE - ONE
    if second == "GRR":
        step = _second_grr(eps_inf, eps_1, k, method)
    elif second == "SUE":
        step = _second_symmetric(protocol, eps_inf, eps_1)
    elif second == "OUE":
        step = _second_half(protocol, eps_inf, eps_1)
    return Probabilities(*_first(first, eps_inf, k), *step)


_STEPS: Final[dict[str, tuple[str, str | None]]] = {
    "GRR": ("GRR", None),
    "OUE": ("OUE", None),
    "SUE": ("SUE", None),
    "L-GRR": ("GRR", "GRR"),
    "L-OUE": ("OUE", "OUE"),
    "L-SUE": ("SUE", "SUE"),
    "L-OSUE": ("OUE", "SUE"),
    "L-SOUE": ("SUE", "OUE"),
}


def _first(protocol: str, epsilon: Decimal, k: int) -> tuple[Decimal, Decimal]:
    if protocol == "OUE":
        return HALF, 1 / (epsilon.exp() + 1)
    if protocol == "GRR":
        q = 1 / (epsilon.exp() + k - 1)
        return 1 - (k - 1) * q, q
    q = 1 / ((epsilon / 2).exp() + 1)
    return 1 - q, q


def _second_grr(
    eps_inf: Decimal, eps_1: Decimal, k: int, method: Method
) -> tuple[Decimal, Decimal]:
    """b = p2/q2 that makes (ab + k-1)/(a + b + k-2) equal c; the paper drops both k-2."""
    a, c = eps_inf.exp(), eps_1.exp()
    others = k - 1 if method == "exact" else 1
    b = 1 + (c - 1) * (a + others) / (a - c)
    q2 = 1 / (b + k - 1)
    return 1 - (k - 1) * q2, q2


def _second_symmetric(protocol: str, eps_inf: Decimal, eps_1: Decimal) -> tuple[Decimal, Decimal]:
    scale = 2 if protocol == "L-SUE" else 1
    a, c = (eps_inf / scale).exp(), (eps_1 / scale).exp()
    b = 1 + (c - 1) * (a + 1) / (a - c)
    q2 = 1 / (b + 1)
    return 1 - q2, q2


def _second_half(protocol: str, eps_inf: Decimal, eps_1: Decimal) -> tuple[Decimal, Decimal]:
    """p2 = 1/2 and the smaller root of the quadratic in 2 q2, in the form that does not cancel."""
    c = eps_1.exp()
    if protocol == "L-OUE":
        a = eps_inf.exp()
        square, linear, constant = a * (c - 1), (a + 1) - c * (3 * a - 1), 2 * a + 1 - 3 * c
    else:
        a = (eps_inf / 2).exp()
        square = a * (c - 1)
        linear = (2 * a + 1 - a * a) - c * (a * a + 2 * a - 1)
        constant = a * (2 * a + 1) - c * (a + 2)
    constant = max(constant, ONE - ONE)  # the limit itself, rounded to a float, may lie above it
    return HALF, constant / (-linear + (linear * linear - 4 * square * constant).sqrt())


def _limit_soue(eps_inf: Decimal) -> Decimal:
    a = (eps_inf / 2).exp()
    return (a * (2 * a + 1) / (a + 2)).ln()


# Where p2 = 1/2 is fixed, a single report stops short of eps_inf.
LARGEST_EPS_1: Final[dict[str, Callable[[Decimal], Decimal]]] = {
    "L-OUE": lambda eps_inf: ((2 * eps_inf.exp() + 1) / 3).ln(),
    "L-SOUE": _limit_soue,
}
