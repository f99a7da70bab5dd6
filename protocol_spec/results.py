"""The message of a histogram: one attribute, one round or several pooled.

It is self-describing (a map) because dashboards and people read it, and it always carries what is
needed to judge it: n, the number of devices of equal weight that this amounts to, both kinds of
error, both kinds of interval, what one dishonest device can shift, the outcome counters and the
manifest's digest. When too few devices answered, the histogram is withheld: the same message with
empty lists.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from protocol_spec.encoding import WIRE_VERSION, Undecodable, pack, unpack
from protocol_spec.limits import MAX_COUNT, MAX_RESULT_BYTES, MAX_ROUNDS, MAX_VALUES
from protocol_spec.mechanisms import MECHANISMS, Reporting
from protocol_spec.outcomes import Outcome, Rejected
from protocol_spec.topics import ATTRIBUTE

Check = Callable[[Any], bool]

RESULT_SERIES: Final = (
    "raw",
    "projected",
    "privacy_error",
    "sampling_error",
    "low",
    "high",
    "low_all",
    "high_all",
)
RESULT_QUANTILES: Final = (0.1, 0.25, 0.5, 0.75, 0.9)


class HalfWidths(NamedTuple):
    """How far two bars must be apart to be distinguished, for the pair with the largest error.

    `pair` is for two values named before looking, `tallest` for all pairs at once.
    """

    pair: float
    tallest: float


class ResultQuantile(NamedTuple):
    """The number that a share tau of the devices lies below; None where a bin has no end."""

    tau: float
    value: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Numbers:
    """A numeric attribute in numbers. What is not stated is None.

    The mean needs bins with ends; `mean_bias` is the furthest that it can be off because each
    number is replaced by the middle of its bin. `cdf[j]` is the share of devices in bins 0 to j,
    its limits hold for all at once. Devices whose answer is not a number are left out.
    """

    mean: float | None
    mean_low: float | None
    mean_high: float | None
    mean_bias: float | None
    cdf: tuple[float, ...]
    cdf_low: tuple[float, ...]
    cdf_high: tuple[float, ...]
    quantiles: tuple[ResultQuantile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Estimated frequencies of one attribute. All series have one number per value, or none.

    `device_bound` is the furthest that one device can move any of `raw` by sending other reports.
    Of the devices `heard` in earlier rounds, `returned` reported in the last one that this is
    about. `uneven` is the furthest that any frequency can be from that of devices with a vote each,
    because some reported more often than others.
    """

    digest: bytes
    attribute: str
    reporting: Reporting
    round: int | None
    first: int
    last: int
    rounds: int
    protocol: str
    n: int
    devices: int
    n_eff: float
    heard: int = 0
    returned: int = 0
    uneven: float = 0.0
    min_reports: int
    confidence: float
    device_bound: float
    counts: tuple[int, ...]
    raw: tuple[float, ...]
    projected: tuple[float, ...]
    privacy_error: tuple[float, ...]
    sampling_error: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    low_all: tuple[float, ...]
    high_all: tuple[float, ...]
    difference: HalfWidths | None = None
    numbers: Numbers | None = None
    outcomes: dict[Outcome, int]

    @property
    def withheld(self) -> bool:
        """Too few devices to release a histogram."""
        return not self.counts

    def encode(self) -> bytes:
        fields: dict[str, Any] = {name: getattr(self, name, WIRE_VERSION) for name in FIELDS}
        fields["outcomes"] = {str(each): self.outcomes.get(each, 0) for each in Outcome}
        fields["difference"] = self.difference and self.difference._asdict()
        fields["numbers"] = self.numbers and {n: getattr(self.numbers, n) for n in NUMBERS}
        return pack(fields)


def decode_result(payload: bytes) -> Result | Rejected:
    """Read a histogram, or say why the bytes are not one."""
    if len(payload) > MAX_RESULT_BYTES:
        return Rejected(Outcome.OVERSIZE, f"more than {MAX_RESULT_BYTES} bytes")
    try:
        document = unpack(payload, array=MAX_VALUES, text=64, binary=32, maps=32)
    except Undecodable:
        return Rejected(Outcome.MALFORMED, "not msgpack within the limits")
    fault = fault_of(document)
    if fault is not None:
        return Rejected(Outcome.MALFORMED, f"bad {fault}")
    fields = {name: value for name, value in document.items() if name != "v"}
    fields["outcomes"] = {outcome: document["outcomes"][outcome] for outcome in Outcome}
    if fields["difference"] is not None:
        fields["difference"] = HalfWidths(**fields["difference"])
    if fields["numbers"] is not None:
        rows = [ResultQuantile(*row) for row in fields["numbers"]["quantiles"]]
        fields["numbers"] = Numbers(**{**fields["numbers"], "quantiles": tuple(rows)})
    result = Result(**fields)
    if result.encode() != payload:
        return Rejected(Outcome.MALFORMED, "not the canonical encoding")
    return result


# --- checks ---------------------------------------------------------------------------------------


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


def _round(value: Any) -> bool:
    return _count(value) and value < MAX_ROUNDS


def _map_of(checks: Mapping[str, Check]) -> Check:
    """A map with exactly these fields in this order."""

    def sound(value: Any) -> bool:
        alike = type(value) is dict and tuple(value) == tuple(checks)
        return alike and all(check(value[name]) for name, check in checks.items())

    return sound


def _or_nil(sound: Check) -> Check:
    return lambda value: value is None or sound(value)


def _quantiles(value: Any) -> bool:
    if type(value) is not tuple or not all(type(row) is tuple and len(row) == 4 for row in value):
        return False
    stated = tuple(row[0] for row in value) == RESULT_QUANTILES and all(
        _number(row[0]) for row in value
    )
    return stated and all(map(_number_or_nil, (end for row in value for end in row[1:])))


NUMBERS: Final[Mapping[str, Check]] = {
    **dict.fromkeys(("mean", "mean_low", "mean_high", "mean_bias"), _number_or_nil),
    **dict.fromkeys(("cdf", "cdf_low", "cdf_high"), _numbers),
    "quantiles": _quantiles,
}

_CHECKS: Final[dict[str, Check]] = {
    "v": lambda v: type(v) is int and v == WIRE_VERSION,
    "digest": lambda v: type(v) is bytes and len(v) == 32,
    "attribute": lambda v: type(v) is str and ATTRIBUTE.fullmatch(v) is not None,
    "reporting": lambda v: type(v) is str and v in MECHANISMS,
    "round": _or_nil(_round),
    "first": _round,
    "last": _round,
    "rounds": lambda v: _count(v) and v <= MAX_ROUNDS,
    "protocol": lambda v: type(v) is str,
    "n": _count,
    "devices": _count,
    "n_eff": lambda v: type(v) is float and 0.0 <= v < math.inf,
    "heard": _count,
    "returned": _count,
    "uneven": lambda v: type(v) is float and 0.0 <= v < 1.0,
    "min_reports": _count,
    "confidence": lambda v: type(v) is float and 0.0 < v < 1.0,
    "device_bound": lambda v: type(v) is float and 0.0 <= v < math.inf,
    "counts": lambda v: type(v) is tuple and all(map(_count, v)),
    **dict.fromkeys(RESULT_SERIES, _numbers),
    "difference": _or_nil(_map_of({"pair": _number, "tallest": _number})),
    "numbers": _or_nil(_map_of(NUMBERS)),
    "outcomes": _map_of(dict.fromkeys(Outcome, _count)),
}
FIELDS: Final = tuple(_CHECKS)


def _contradictions(document: Any) -> Iterator[str]:
    """Fields that cannot be together, by the name of one."""
    n, devices, n_eff = document["n"], document["devices"], document["n_eff"]
    number, first, last = (document[name] for name in ("round", "first", "last"))
    if first > last or (number is not None and not first == number == last):
        yield "round"
    if document["rounds"] > last - first + 1 or (document["rounds"] == 0) != (n == 0):
        yield "rounds"  # it counts those with reports
    if document["protocol"] not in MECHANISMS[document["reporting"]].rules.protocols:
        yield "protocol"
    if devices > n or (devices == 0) != (n == 0):
        yield "devices"
    if (n_eff == 0.0) != (n == 0):
        yield "n_eff"
    if document["returned"] > min(document["heard"], devices):
        yield "returned"
    withheld = n == 0 or n_eff < document["min_reports"]
    lengths = {len(document[name]) for name in ("counts", *RESULT_SERIES)}
    if len(lengths) != 1 or 1 in lengths or withheld != (lengths == {0}):
        yield "lengths"
    if withheld != (document["device_bound"] == 0.0):
        yield "device_bound"
    if withheld != (document["difference"] is None):
        yield "difference"
    if document["numbers"] is not None and (withheld or _unfit(document)):
        yield "numbers"


def _unfit(document: Any) -> bool:
    """The mean is stated whole or not at all; there is a share for each edge between bins.

    There are as many bins as values, or one less: then the last value is not a number.
    """
    numbers = document["numbers"]
    missing = {numbers[name] is None for name in ("mean", "mean_low", "mean_high", "mean_bias")}
    places = {len(numbers[name]) for name in ("cdf", "cdf_low", "cdf_high")}
    k = len(document["counts"])
    return len(missing) != 1 or places not in ({k - 1}, {k - 2})
