"""What the fields of a result must be, by themselves and beside each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from protocol_spec.chances import LONGITUDINAL
from protocol_spec.decoding import WIRE_VERSION
from protocol_spec.limits import MAX_COUNT, MAX_ROUNDS
from protocol_spec.names import ATTRIBUTE
from protocol_spec.outcomes import Outcome
from protocol_spec.reporting import LOLOHA, NESTABLE
from protocol_spec.ways import WAYS

__all__ = ["FIELDS", "NUMBERS", "PROTOCOLS", "QUANTILES", "SERIES", "fault_of"]

Check = Callable[[Any], bool]

SERIES: Final = (
    "raw",
    "projected",
    "privacy_error",
    "sampling_error",
    "low",
    "high",
    "low_all",
    "high_all",
)
QUANTILES: Final = (0.1, 0.25, 0.5, 0.75, 0.9)

# The protocols that run in each way of reporting.
PROTOCOLS: Final[Mapping[str, tuple[str, ...]]] = {
    "memoized": LONGITUDINAL,
    "once": NESTABLE,
    "hashed": (LOLOHA,),
    "nested": NESTABLE,
}


def fault_of(document: Any) -> str | None:
    """The first field that is not as it should be, or None."""
    if type(document) is not dict or tuple(document) != FIELDS:
        return "fields"
    unsound = (name for name, sound in _CHECKS.items() if not sound(document[name]))
    return next(unsound, None) or next(_contradictions(document), None)


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_COUNT


def _number(value: Any) -> bool:
    return type(value) is float and math.isfinite(value)


def _number_or_nil(value: Any) -> bool:
    return value is None or _number(value)


def _numbers(value: Any) -> bool:
    return type(value) is tuple and all(map(_number, value))


def _counts(value: Any) -> bool:
    return type(value) is tuple and all(map(_count, value))


def _round(value: Any) -> bool:
    return _count(value) and value < MAX_ROUNDS


def _outcomes(value: Any) -> bool:
    """All of them, in order."""
    return (
        type(value) is dict and tuple(value) == tuple(Outcome) and all(map(_count, value.values()))
    )


def _map_of(checks: Mapping[str, Check]) -> Check:
    """A map with exactly these fields in this order, or nil."""

    def sound(value: Any) -> bool:
        if value is None:
            return True
        alike = type(value) is dict and tuple(value) == tuple(checks)
        return alike and all(check(value[name]) for name, check in checks.items())

    return sound


def _quantiles(value: Any) -> bool:
    if type(value) is not tuple or not all(type(row) is tuple and len(row) == 4 for row in value):
        return False
    stated = tuple(row[0] for row in value) == QUANTILES and all(_number(row[0]) for row in value)
    return stated and all(map(_number_or_nil, (end for row in value for end in row[1:])))


NUMBERS: Final[Mapping[str, Check]] = {
    "mean": _number_or_nil,
    "mean_low": _number_or_nil,
    "mean_high": _number_or_nil,
    "mean_bias": _number_or_nil,
    "cdf": _numbers,
    "cdf_low": _numbers,
    "cdf_high": _numbers,
    "quantiles": _quantiles,
}

_CHECKS: Final[dict[str, Check]] = {
    "v": lambda v: type(v) is int and v == WIRE_VERSION,
    "digest": lambda v: type(v) is bytes and len(v) == 32,
    "attribute": lambda v: type(v) is str and ATTRIBUTE.fullmatch(v) is not None,
    "reporting": lambda v: type(v) is str and v in WAYS,
    "round": lambda v: v is None or _round(v),
    "first": _round,
    "last": _round,
    "rounds": lambda v: _count(v) and v <= MAX_ROUNDS,
    "protocol": lambda v: type(v) is str,
    "n": _count,
    "devices": _count,
    "n_eff": lambda v: type(v) is float and 0.0 <= v < math.inf,
    "min_reports": _count,
    "confidence": lambda v: type(v) is float and 0.0 < v < 1.0,
    "device_bound": lambda v: type(v) is float and 0.0 <= v < math.inf,
    "counts": _counts,
    **dict.fromkeys(SERIES, _numbers),
    "difference": _map_of({"pair": _number, "tallest": _number}),
    "numbers": _map_of(NUMBERS),
    "outcomes": _outcomes,
}
FIELDS: Final = tuple(_CHECKS)


def _withheld(document: Any, withheld: bool) -> Iterator[str]:
    lengths = {len(document[name]) for name in ("counts", *SERIES)}
    if len(lengths) != 1 or 1 in lengths or withheld != (lengths == {0}):
        yield "lengths"
    if withheld != (document["device_bound"] == 0.0):
        yield "device_bound"


def _contradictions(document: Any) -> Iterator[str]:
    n, devices, n_eff = document["n"], document["devices"], document["n_eff"]
    yield from _rounds(document)
    if document["protocol"] not in PROTOCOLS[document["reporting"]]:
        yield "protocol"
    if devices > n or (devices == 0) != (n == 0):
        yield "devices"
    if (n_eff == 0.0) != (n == 0):
        yield "n_eff"
    withheld = n == 0 or n_eff < document["min_reports"]
    yield from _withheld(document, withheld)
    if withheld != (document["difference"] is None):
        yield "difference"
    if document["numbers"] is not None and (withheld or _unfit(document)):
        yield "numbers"


def _rounds(document: Any) -> Iterator[str]:
    """Which rounds a result is about, and how many of them had reports."""
    number, first, last = (document[name] for name in ("round", "first", "last"))
    if first > last or (number is not None and not first == number == last):
        yield "round"
    heard = document["rounds"]
    if heard > last - first + 1 or (heard == 0) != (document["n"] == 0):
        yield "rounds"


def _unfit(document: Any) -> bool:
    """A mean is stated whole or not at all; there is a share for each edge between bins.

    There are as many bins as values, or one less: then the last value is no number.
    """
    numbers = document["numbers"]
    missing = {numbers[name] is None for name in ("mean", "mean_low", "mean_high", "mean_bias")}
    places = {len(numbers[name]) for name in ("cdf", "cdf_low", "cdf_high")}
    k = len(document["counts"])
    return len(missing) != 1 or places not in ({k - 1}, {k - 2})
