"""A numeric question before it is asked: mean, median, and advice on its bins."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from collector.show.planning.expected import CONFIDENCE, Terms, expected
from collector.show.planning.records import NumbersPlan
from protocol_spec import Attribute, Way
from protocol_spec.estimation import Estimate, binning_bias, contrast, median, midpoints

FEWEST_BINS, MOST_BINS = 6, 16
_ADVICE: Final = f"{FEWEST_BINS} to {MOST_BINS} bins"


def numbers_plan(
    attribute: Attribute, way: Way, terms: Terms, devices: int, rounds: Sequence[int]
) -> tuple[NumbersPlan, ...]:
    """Mean and median after so many rounds; nothing for named values."""
    if attribute.edges is None:
        return ()
    return tuple(_after(attribute, way, terms, devices, t) for t in dict.fromkeys(rounds))


def _after(attribute: Attribute, way: Way, terms: Terms, devices: int, rounds: int) -> NumbersPlan:
    bins, ends = attribute.bins, attribute.finite_edges
    spread = np.zeros(way.k)
    spread[:bins] = 1.0 / bins
    estimated = expected(way, terms, devices, rounds, spread)
    low, high = _median(estimated, ends or attribute.edges or (), bins)
    if ends is None:
        return NumbersPlan(rounds, None, None, low, high)
    weights = np.full(way.k, midpoints(ends).mean())  # whoever has no number moves no mean
    weights[:bins] = midpoints(ends)
    half = contrast(estimated, weights).half_width(CONFIDENCE)
    return NumbersPlan(rounds, half, binning_bias(ends), low, high)


def _median(
    estimated: Estimate, ends: Sequence[float], bins: int
) -> tuple[float | None, float | None]:
    """Ends of the median's interval, None where there is none, if every device has a number."""
    found = median(replace(estimated, raw=estimated.raw[:bins]), ends, CONFIDENCE)
    low, high = (end if math.isfinite(end) else None for end in (found.low, found.high))
    return low, high


def bin_advice(attribute: Attribute) -> Iterator[str]:
    """What would make the numbers of a question more useful."""
    if attribute.edges is None:
        return
    if attribute.bins < FEWEST_BINS:
        yield f"{attribute.bins} bins are coarse for a median: choose {_ADVICE}"
    if attribute.bins > MOST_BINS:
        yield f"{attribute.bins} bins make each bar and the mean less certain: choose {_ADVICE}"
    if attribute.finite_edges is None:
        yield (
            "there will be no mean: give the outer bins finite ends, or say with `low` and `high` "
            "where they end"
        )
