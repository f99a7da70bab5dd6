"""Thresholds next to the manifest, for devices that cannot calculate with 80 digits.

Claim: a device that draws with thresholds which pass `thresholds_fault` spends no more than the
manifest says, whoever made them: one report discloses at most eps_1, all reports of one memo
together at most eps_inf. The check looks at what the numbers do, not at where they come from, and
needs nothing but float64: sums and products of positive numbers, and one logarithm.

Float64 is not exact, so the check asks for slightly less than the epsilon, by more than its own
errors. A collector publishes thresholds for slightly less again, so that they pass everywhere. Both
margins are far below anything that an estimate could show: `MARGIN`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from itertools import pairwise
from typing import Final

from protocol_spec.encoding import DIGEST, ArrayMessage, checked, decode
from protocol_spec.limits import DIGEST_BYTES, MAX_ATTRIBUTES, MAX_LEVELS, MAX_THRESHOLDS_BYTES
from protocol_spec.manifest import Manifest
from protocol_spec.mechanisms import LOLOHA
from protocol_spec.outcomes import Rejected
from protocol_spec.probabilities import SETS, precise
from protocol_spec.randomiser import SCALE, DrawnStep, rounded

STEP_BYTES: Final = 16
MAX_STEPS: Final = MAX_ATTRIBUTES * MAX_LEVELS * STEP_BYTES
# What the check leaves of an epsilon: epsilon - epsilon * relative - absolute. Published
# thresholds leave twice as much.
MARGIN: Final = (2.0**-40, 2.0**-43)
# A protocol's number is its place here; part of the wire, so new ones are added at the end.
PROTOCOL_NUMBERS: Final = (
    *("L-GRR", "L-OUE", "L-SUE", "L-OSUE", "L-SOUE", "GRR", "OUE", LOLOHA, "L-SS", "SS"),
)


@dataclass(frozen=True, slots=True)
class PublishedThresholds(ArrayMessage):
    """For each attribute its protocol's number, and both numbers of all steps, 8 bytes each."""

    digest8: bytes
    protocols: bytes
    steps: bytes


def decode_thresholds(payload: bytes) -> PublishedThresholds | Rejected:
    """Read published thresholds; `thresholds_fault` says whether a device may use them."""
    limit = MAX_THRESHOLDS_BYTES
    return decode(payload, PublishedThresholds, _FIELDS, limit=limit, binary=MAX_STEPS)


_FIELDS: Final = (
    DIGEST,
    checked("protocols", lambda x: type(x) is bytes and 1 <= len(x) <= MAX_ATTRIBUTES),
    checked("steps", lambda x: type(x) is bytes and x and not len(x) % STEP_BYTES),
)


# --- the collector: what is published -------------------------------------------------------------


@lru_cache(maxsize=16)  # 0.6 s for 128 attributes of 32 levels, at every connect
@precise
def published_thresholds(manifest: Manifest) -> PublishedThresholds:
    """The steps of every attribute, each for slightly less than its epsilon."""
    steps = [
        rounded(step, mechanism.protocol in _UNARY)
        for mechanism in manifest.mechanisms
        for step in mechanism.steps(_less)
    ]
    return PublishedThresholds(
        manifest.digest[:DIGEST_BYTES],
        bytes(PROTOCOL_NUMBERS.index(mechanism.protocol) for mechanism in manifest.mechanisms),
        b"".join(struct.pack(">QQ", *step) for step in steps),
    )


def _less(epsilon: float) -> Decimal:
    relative, absolute = map(Decimal, MARGIN)
    return Decimal(epsilon) * (1 - 2 * relative) - 2 * absolute


# --- the device: whether they may be used ---------------------------------------------------------


def thresholds_fault(published: PublishedThresholds, manifest: Manifest) -> str | None:
    """Why a device must not draw with these, or None when it may. Float64 is enough."""
    if published.digest8 != manifest.digest[:DIGEST_BYTES]:
        return "they are of another manifest"
    if len(published.protocols) != len(manifest.attributes):
        return "they are of another number of attributes"
    joined = published.steps
    pairs = [struct.unpack_from(">QQ", joined, at) for at in range(0, len(joined), STEP_BYTES)]
    asked = zip(published.protocols, manifest.mechanisms, manifest.attributes)
    for number, mechanism, attribute in asked:
        epsilons = mechanism.step_epsilons
        steps, pairs = pairs[: len(epsilons)], pairs[len(epsilons) :]
        if len(steps) < len(epsilons) or number >= len(PROTOCOL_NUMBERS):
            return "they end too early, or name no protocol"
        protocol = PROTOCOL_NUMBERS[number]
        named = attribute.protocol
        if protocol not in (mechanism.rules.automatic if named == "auto" else (named,)):
            return f"{attribute.name}: {protocol} is not what the manifest asks for"
        if not _within(protocol, mechanism.calibration.k, steps, epsilons):
            return f"{attribute.name}: a report could disclose more than the manifest says"
    return "they do not end with the last attribute" if pairs else None


_UNARY: Final = set(PROTOCOL_NUMBERS) - set(SETS) - {LOLOHA}


def _within(protocol: str, k: int, steps: Sequence[DrawnStep], epsilons: Sequence[float]) -> bool:
    """Whether the loss after each step stays within its epsilon, less the margin."""
    drawn = list(zip(steps, epsilons))
    if epsilons[0] < epsilons[-1]:
        drawn.reverse()  # nested: the last level is drawn first
    in_order = [step for step, _ in drawn]
    if protocol not in _UNARY and not _are_sizes(protocol, k, [size for _, size in in_order]):
        return False
    losses = (_losses_unary if protocol in _UNARY else _losses_of_sets)(k, in_order)
    relative, absolute = MARGIN
    return all(
        loss <= epsilon - epsilon * relative - absolute for loss, (_, epsilon) in zip(losses, drawn)
    )


def _are_sizes(protocol: str, k: int, sizes: Sequence[int]) -> bool:
    """Whether a device can draw sets of these sizes, one from the other."""
    if protocol not in ("L-SS", "SS"):
        return set(sizes) == {1}
    starts = sizes[0] == 1 or protocol == "SS"
    return starts and all(0 < a <= b < k for a, b in pairwise((*sizes, sizes[-1])))


def _losses_unary(_k: int, steps: Sequence[DrawnStep]) -> Iterator[float]:
    """Of two values, the log-ratio of the most revealing bits after each step."""
    ones, zeros = (1.0, 0.0), (0.0, 1.0)  # probabilities of 1 and of 0: the value's bit, others
    for p, q in steps:
        keep, drop, add, leave = (float(number) for number in (p, SCALE - p, q, SCALE - q))
        ones, zeros = (
            ((one * keep + zero * add) / SCALE, (one * drop + zero * leave) / SCALE)
            for one, zero in (ones, zeros)
        )
        yield _log_ratio(ones[0], zeros[0]) + _log_ratio(zeros[1], ones[1])


def _losses_of_sets(k: int, steps: Sequence[DrawnStep]) -> Iterator[float]:
    """Of two values, the log-ratio of a set that has one of them after each step."""
    kept, blind = 1.0, 0.0  # probabilities that the value is still in it, and that nothing is
    for keep, size in steps:
        blind += kept * (float(SCALE - keep) / SCALE)
        kept *= float(keep) / SCALE
        yield _log_ratio(kept * k + blind * size, blind * size)


def _log_ratio(one: float, other: float) -> float:
    """|ln(one / other)|; infinite where one of them is impossible."""
    return abs(math.log(one / other)) if one > 0.0 and other > 0.0 else math.inf
