"""What a result says of an estimate beside its bars: differences, and numbers of numeric questions.

Collectors and simulators use these, so that a result is the same whoever makes it.
"""

from __future__ import annotations

import math

from protocol_spec.attributes import Attribute
from protocol_spec.estimation.frequencies import Estimate
from protocol_spec.estimation.functionals import smallest_difference
from protocol_spec.estimation.numbers import (
    Quantile,
    binning_bias,
    cdf,
    mean,
    midpoints,
    quantile,
)
from protocol_spec.result import HalfWidths, Numbers, ResultQuantile
from protocol_spec.result_checks import QUANTILES

__all__ = ["half_widths", "numbers_of"]


def half_widths(estimated: Estimate, confidence: float = 0.95) -> HalfWidths:
    """How far apart two bars must be to be told apart."""
    return HalfWidths(*smallest_difference(estimated, confidence))


def numbers_of(
    estimated: Estimate, attribute: Attribute, confidence: float = 0.95
) -> Numbers | None:
    """Mean, distribution function and quantiles of the devices that gave a number.

    None for a question of named values, and where hardly any device may have given a number.
    """
    if attribute.edges is None:
        return None
    function = cdf(estimated, attribute.bins)
    if not function.ratio.is_certain(confidence):
        return None
    low, high = function.band(confidence)
    found = (quantile(estimated, attribute.edges, tau, confidence) for tau in QUANTILES)
    return Numbers(
        *_mean(estimated, attribute, confidence),
        cdf=tuple(function.ratio.values.tolist()),
        cdf_low=tuple(low.tolist()),
        cdf_high=tuple(high.tolist()),
        quantiles=tuple(_stated(each) for each in found),
    )


def _mean(
    estimated: Estimate, attribute: Attribute, confidence: float
) -> tuple[float | None, float | None, float | None, float | None]:
    """Value, limits, and how far numbers can be from their bins' middles; if there are middles."""
    edges = attribute.finite_edges
    if edges is None:
        return None, None, None, None
    found = mean(estimated, midpoints(edges))
    value = min(max(found.value, found.smallest), found.largest)
    return value, *found.interval(confidence), binning_bias(edges)


def _stated(found: Quantile) -> ResultQuantile:
    low, high = (end if math.isfinite(end) else None for end in (found.low, found.high))
    return ResultQuantile(found.tau, found.value, low, high)
