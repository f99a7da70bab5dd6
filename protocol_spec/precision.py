"""Arithmetic wide enough that every published number is right to the last bit of a float.

The closed forms subtract nearly equal numbers (e^eps_inf - e^eps_1, p2 - q2) and the device's
thresholds need p to one part in 2^64, which no float64 holds. Eighty decimal digits leave more
than thirty after the worst cancellation that the accepted parameters allow, and the standard
library's `decimal` is compiled, so a calibration still takes well under a millisecond.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable
from decimal import Decimal
from functools import wraps
from typing import ParamSpec, TypeVar

__all__ = ["HALF", "ONE", "precise"]

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
