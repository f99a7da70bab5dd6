"""The message a histogram travels in: one attribute, one round or several pooled.

It is self-describing (a map) because dashboards and people read it, and it always carries what is
needed to judge it: n, how many devices of equal weight that amounts to, both kinds of error, both
kinds of interval, what one dishonest device can shift, the outcome counters and the manifest's
digest. When too few devices answered, the histogram is withheld: the same message with empty lists.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from protocol_spec.canonical import Undecodable, pack, unpack
from protocol_spec.decoding import WIRE_VERSION
from protocol_spec.limits import MAX_RESULT_BYTES, MAX_VALUES
from protocol_spec.outcomes import Outcome, Rejected
from protocol_spec.result_checks import FIELDS, fault_of
from protocol_spec.ways import Reporting

__all__ = [
    "HalfWidths",
    "Numbers",
    "Result",
    "ResultQuantile",
    "decode_result",
]


class HalfWidths(NamedTuple):
    """How far two bars must be apart to be told apart, for the pair with the largest error.

    `pair` is for two values named before looking, `tallest` for all pairs at once.
    """

    pair: float
    tallest: float


class ResultQuantile(NamedTuple):
    """Below which number a share tau of the devices lies; None where a bin has no end."""

    tau: float
    value: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Numbers:
    """A numeric attribute in numbers. What is not stated is None.

    The mean needs bins with ends; `mean_bias` is the furthest that it can be off because numbers
    stand for their bins. `cdf[j]` is the share of devices in bins 0 to j, its limits hold for all
    at once. Devices whose answer is no number are left out.
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
        """Canonical bytes."""
        said: dict[str, Any] = {
            "v": WIRE_VERSION,
            "outcomes": {str(outcome): self.outcomes.get(outcome, 0) for outcome in Outcome},
            "difference": self.difference and self.difference._asdict(),
            "numbers": self.numbers and _plain(self.numbers),
        }
        return pack({name: said[name] if name in said else getattr(self, name) for name in FIELDS})


def _plain(numbers: Numbers) -> dict[str, Any]:
    return {field.name: getattr(numbers, field.name) for field in fields(numbers)}


def decode_result(payload: bytes) -> Result | Rejected:
    """Read a histogram, or say why the bytes are none."""
    if len(payload) > MAX_RESULT_BYTES:
        return Rejected(Outcome.OVERSIZE, f"more than {MAX_RESULT_BYTES} bytes")
    try:
        document = unpack(payload, array=MAX_VALUES, text=64, binary=32, maps=32)
    except Undecodable:
        return Rejected(Outcome.MALFORMED, "not msgpack within the limits")
    fault = fault_of(document)
    if fault is not None:
        return Rejected(Outcome.MALFORMED, f"bad {fault}")
    result = _built(document)
    if result.encode() != payload:
        return Rejected(Outcome.MALFORMED, "not the canonical encoding")
    return result


def _built(document: dict[str, Any]) -> Result:
    """From fields that were checked."""
    said = {name: value for name, value in document.items() if name != "v"}
    said["outcomes"] = {outcome: document["outcomes"][outcome] for outcome in Outcome}
    if said["difference"] is not None:
        said["difference"] = HalfWidths(**said["difference"])
    if said["numbers"] is not None:
        rows = [ResultQuantile(*row) for row in said["numbers"]["quantiles"]]
        said["numbers"] = Numbers(**{**said["numbers"], "quantiles": tuple(rows)})
    return Result(**said)
