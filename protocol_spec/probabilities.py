"""The closed forms: each protocol's probabilities for a given eps_inf and eps_1, in 80 digits.

A value is randomised twice: RR1 once, for life, with (p1, q1); RR2 in every round with (p2, q2).
p is the probability that a supported value stays supported, q that another one becomes so.

There are two kinds of protocols. In unary encodings (OUE, SUE) each of k bits is drawn by itself.
In subset selection (SS) an answer is a set of `size` values: with probability `keep` one that
contains all that was held before, otherwise any set, each as likely. GRR is the set of one value.
Of sets that never shrink, the chances to keep multiply: a chain of steps from the value is one
step, with the product of all `keep`.

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

LONGITUDINAL: Final = ("L-GRR", "L-OUE", "L-SUE", "L-OSUE", "L-SOUE", "L-SS")
ONE_TIME: Final = ("GRR", "OUE", "SUE", "SS")
SETS: Final = ("L-GRR", "L-SS", "GRR", "SS")


class Probabilities(NamedTuple):
    """p1, q1, p2, q2 in full precision."""

    p1: Decimal
    q1: Decimal
    p2: Decimal
    q2: Decimal


def exact_probabilities(
    protocol: str,
    k: int,
    eps_inf: Decimal,
    eps_1: Decimal,
    method: Method = "exact",
    size: int = 1,
) -> Probabilities:
    """p1, q1, p2, q2 in full precision, for parameters already checked.

    Those of a bit are the same for any number of values, and the paper's are exact. `size` is that
    of the sets reported; a memo is a set of one value, so that `eps_inf` is all that it can tell.
    """
    if protocol in SETS:
        named = method if protocol == "L-GRR" else "exact"
        return _cached(protocol, k, eps_inf, eps_1, named, size)
    return _cached(protocol, 2, eps_inf, eps_1, "exact", 0)


@lru_cache(maxsize=1024)  # joining, reporting, counting and showing need the same
@precise
def _cached(
    protocol: str, k: int, eps_inf: Decimal, eps_1: Decimal, method: Method, size: int
) -> Probabilities:
    first, second = _STEPS[protocol]
    step = ONE, ONE - ONE
    if second == "set":
        step = _second_set(eps_inf, eps_1, k, method, size)
    elif second == "SUE":
        step = _second_symmetric(protocol, eps_inf, eps_1)
    elif second == "OUE":
        step = _second_half(protocol, eps_inf, eps_1)
    return Probabilities(*_first(first, eps_inf, k, size if second is None else 1), *step)


_STEPS: Final[dict[str, tuple[str, str | None]]] = {
    "GRR": ("set", None),
    "SS": ("set", None),
    "OUE": ("OUE", None),
    "SUE": ("SUE", None),
    "L-GRR": ("set", "set"),
    "L-SS": ("set", "set"),
    "L-OUE": ("OUE", "OUE"),
    "L-SUE": ("SUE", "SUE"),
    "L-OSUE": ("OUE", "SUE"),
    "L-SOUE": ("SUE", "OUE"),
}


def _first(kind: str, epsilon: Decimal, k: int, size: int) -> tuple[Decimal, Decimal]:
    if kind == "set":
        return of_kept(kept_for(epsilon, k, size), k, 1, size)
    if kind == "OUE":
        return HALF, 1 / (epsilon.exp() + 1)
    q = 1 / ((epsilon / 2).exp() + 1)
    return 1 - q, q


# --- sets -----------------------------------------------------------------------------------------


def kept_for(epsilon: Decimal, k: int, size: int) -> Decimal:
    """`keep` of a set drawn from the value, of which the likeliest is e^epsilon times the least."""
    gain = size * (epsilon.exp() - 1)
    return gain / (gain + k)


def of_kept(keep: Decimal, k: int, before: int, size: int) -> tuple[Decimal, Decimal]:
    """p and q of a step from sets of `before` values to sets of `size`."""
    anyway = (1 - keep) * size / k
    return keep + anyway, keep * (size - before) / (k - before) + anyway


def kept_of(p: Decimal, q: Decimal, k: int, before: int, size: int) -> Decimal:
    """The inverse of `of_kept`."""
    return (p - q) * (k - before) / (k - size)


@precise
def best_size(k: int, epsilon: float, before: int = 1, above: float | None = None) -> int:
    """The size d of sets with the least variance, summed over all values; if they are drawn from
    sets of `before` at the epsilon `above`, the nearest that is possible.

    The sum is (k-1)^2 / (k keep^2) d / (k-d) less a constant, which falls to k / (e^epsilon + 1)
    and then rises. Two sizes never tie: e^epsilon is no fraction.
    """
    gain = Decimal(epsilon).exp() - 1
    below = int(k / (gain + 2))

    def variance(size: int) -> Decimal:
        return (size * gain + k) ** 2 / (size * (k - size))

    best = min((size for size in (below, below + 1) if 1 <= size < k), key=variance)
    if above is not None:
        best = min(best, int(before * (Decimal(above).exp() - 1) / gain))
    return max(before, best)


def _second_set(
    eps_inf: Decimal, eps_1: Decimal, k: int, method: Method, size: int
) -> tuple[Decimal, Decimal]:
    """What is kept twice is kept for eps_1. The paper's b = p2/q2 drops two terms k-2."""
    if method == "exact":
        return of_kept(kept_for(eps_1, k, size) / kept_for(eps_inf, k, 1), k, 1, size)
    a, c = eps_inf.exp(), eps_1.exp()
    b = 1 + (c - 1) * (a + 1) / (a - c)
    q2 = 1 / (b + k - 1)
    return 1 - (k - 1) * q2, q2


# --- unary encodings ------------------------------------------------------------------------------


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
