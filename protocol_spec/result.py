"""The message a histogram travels in: one attribute, one round or several pooled.

It is self-describing (a map) because dashboards and people read it, and it always carries what is
needed to judge it: n, both kinds of error, both kinds of interval, what one dishonest device can
shift, the outcome counters and the manifest's digest. When fewer than `min_reports` reports came,
the histogram is withheld: the same message with empty lists.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from protocol_spec.canonical import Undecodable, pack, unpack
from protocol_spec.chances import LONGITUDINAL
from protocol_spec.limits import MAX_COUNT, MAX_RESULT_BYTES, MAX_ROUNDS, MAX_VALUES
from protocol_spec.names import ATTRIBUTE
from protocol_spec.outcomes import Outcome, Rejected

__all__ = ["RESULT_VERSION", "SERIES", "Result", "decode_result"]

RESULT_VERSION: Final = 1

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


@dataclass(frozen=True, slots=True)
class Result:
    """Estimated frequencies of one attribute. All series have one number per value, or none.

    `device_bound` is the furthest that one device can move any of `raw` by sending other reports.
    """

    digest: bytes
    attribute: str
    round: int | None
    rounds: int
    protocol: str
    n: int
    devices: int
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
    outcomes: dict[Outcome, int]

    @property
    def withheld(self) -> bool:
        """Too few reports to release a histogram."""
        return not self.counts

    def encode(self) -> bytes:
        """Canonical bytes."""
        return pack(
            {
                "v": RESULT_VERSION,
                "digest": self.digest,
                "attribute": self.attribute,
                "round": self.round,
                "rounds": self.rounds,
                "protocol": self.protocol,
                "n": self.n,
                "devices": self.devices,
                "min_reports": self.min_reports,
                "confidence": self.confidence,
                "device_bound": self.device_bound,
                "counts": list(self.counts),
                **{name: list(getattr(self, name)) for name in SERIES},
                "outcomes": {str(name): self.outcomes.get(name, 0) for name in Outcome},
            }
        )


def decode_result(payload: bytes) -> Result | Rejected:
    """Read a histogram, or say why the bytes are none."""
    if len(payload) > MAX_RESULT_BYTES:
        return Rejected(Outcome.OVERSIZE, f"more than {MAX_RESULT_BYTES} bytes")
    try:
        document = unpack(payload, array=MAX_VALUES, text=64, binary=32, maps=32)
    except Undecodable:
        return Rejected(Outcome.MALFORMED, "not msgpack within the limits")
    fault = _fault(document)
    if fault is not None:
        return Rejected(Outcome.MALFORMED, f"bad {fault}")
    outcomes = {name: document["outcomes"][str(name)] for name in Outcome}
    fields = {k: v for k, v in document.items() if k not in ("v", "outcomes")}
    result = Result(**fields, outcomes=outcomes)
    if result.encode() != payload:
        return Rejected(Outcome.MALFORMED, "not the canonical encoding")
    return result


def _fault(document: Any) -> str | None:
    """The first field that is not as it should be, or None."""
    if type(document) is not dict or tuple(document) != _FIELDS:
        return "fields"
    for field, sound in _CHECKS.items():
        if not sound(document[field]):
            return field
    return _contradiction(document)


def _contradiction(document: Any) -> str | None:
    """The first field that is right by itself but not beside the others, or None."""
    if document["rounds"] < 1 or (document["round"] is not None and document["rounds"] != 1):
        return "rounds"
    if document["devices"] > document["n"]:
        return "devices"
    lengths = {len(document[name]) for name in ("counts", *SERIES)}
    withheld = document["devices"] < document["min_reports"] or document["devices"] == 0
    if len(lengths) != 1 or 1 in lengths or withheld != (lengths == {0}):
        return "lengths"
    if withheld != (document["device_bound"] == 0.0):
        return "device_bound"
    return None


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_COUNT


def _floats(value: Any) -> bool:
    return type(value) is tuple and all(type(x) is float and math.isfinite(x) for x in value)


_CHECKS: Final[dict[str, Callable[[Any], bool]]] = {
    "v": lambda v: type(v) is int and v == RESULT_VERSION,
    "digest": lambda v: type(v) is bytes and len(v) == 32,
    "attribute": lambda v: type(v) is str and ATTRIBUTE.fullmatch(v) is not None,
    "round": lambda v: v is None or (_count(v) and v < MAX_ROUNDS),
    "rounds": lambda v: _count(v) and v <= MAX_ROUNDS,
    "protocol": lambda v: v in LONGITUDINAL,
    "n": _count,
    "devices": _count,
    "min_reports": _count,
    "confidence": lambda v: type(v) is float and 0.0 < v < 1.0,
    "device_bound": lambda v: type(v) is float and 0.0 <= v < math.inf,
    "counts": lambda v: type(v) is tuple and all(_count(x) for x in v),
    **dict.fromkeys(SERIES, _floats),
    "outcomes": lambda v: (
        type(v) is dict and tuple(v) == tuple(map(str, Outcome)) and all(map(_count, v.values()))
    ),
}

_FIELDS: Final = tuple(_CHECKS)
