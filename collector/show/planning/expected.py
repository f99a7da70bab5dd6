"""The error that a way of reporting leads to, before there are reports.

Variances do not depend on counts. A device's share of them is taken from the functions that
estimate, as if one device had reported, and divided by the devices that will be heard.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from protocol_spec import Attribute, ChooseFor, Manifest, Reporting, Way
from protocol_spec.estimation import (
    Estimate,
    Moments,
    critical_value,
    estimate,
    estimate_pooled,
    estimate_window,
)
from protocol_spec.ways import Budget, ask_levels, make_way

CONFIDENCE: Final = 0.95
ENDLESS: Final = 10**9  # rounds: more than any campaign has


@dataclass(frozen=True, slots=True)
class Terms:
    """What a campaign asks for, as far as precision depends on it."""

    reporting: Reporting
    eps_inf: float
    eps_1: float
    rounds: int
    each: int = 0
    max_values: int = 1
    choose_for: ChooseFor = "round"


def terms_of(manifest: Manifest) -> Terms:
    """The terms of a manifest."""
    return Terms(
        reporting=manifest.reporting,
        eps_inf=manifest.eps_inf,
        eps_1=manifest.eps_1,
        rounds=manifest.rounds.count,
        each=manifest.rounds.each,
        max_values=manifest.max_values,
        choose_for=manifest.choose_for,
    )


def way_of(attribute: Attribute, terms: Terms) -> Way:
    """How the attribute would be answered under these terms."""
    levels = attribute.levels
    if terms.reporting == "nested" and not levels:
        levels = ask_levels(attribute.k, terms.eps_inf, terms.eps_1)
    budget = Budget(
        reporting=terms.reporting,
        eps_inf=terms.eps_inf,
        eps_1=terms.eps_1,
        max_values=terms.max_values,
        choose_for=terms.choose_for,
        rounds=terms.rounds,
        each=terms.each,
    )
    return make_way(replace(attribute, levels=levels), budget, b"")


def heard(terms: Terms, devices: float, rounds: int) -> float:
    """How many of the devices have answered after so many rounds, on average."""
    if terms.reporting != "once":
        return devices
    return devices * terms.each * min(rounds, terms.rounds) / terms.rounds


def expected(
    way: Way, terms: Terms, devices: float, rounds: int, shape: npt.ArrayLike | None = None
) -> Estimate:
    """The estimate of so many rounds if it came out as `shape`, with the error it would have."""
    one = _of_one_device(way, terms, rounds)
    raw = np.full(way.k, 1.0 / way.k) if shape is None else np.asarray(shape, dtype=np.float64)
    return replace(one, raw=raw, moments=_shared(one.moments, heard(terms, devices, rounds)))


def _of_one_device(way: Way, terms: Terms, rounds: int) -> Estimate:
    nothing = np.zeros(way.k, dtype=np.int64)
    if way.reporting == "nested":
        return estimate(nothing, 1, way.channels[min(rounds, len(way.channels)) - 1])
    (channel,) = way.channels
    if way.reporting != "once":
        return estimate_pooled(nothing, [rounds], [1], channel, weights="reports")
    window = min(rounds, terms.rounds, terms.each)  # a device is in no more of them than that
    answers = np.zeros(window, dtype=np.int64)
    answers[0] = 1
    return estimate_window(np.tile(nothing, (window, 1)), answers, channel, each=terms.each)


def _shared(known: Moments, devices: float) -> Moments:
    """Of the mean over so many devices like this one."""
    second = ("v0", "slope", "base", "base_slope", "dilution")
    third = ("third0", "third_slope", "coupled", "third_dilution")
    return replace(
        known,
        n_eff=known.n_eff * devices,
        **{name: getattr(known, name) / devices for name in second},
        **{name: getattr(known, name) / devices**2 for name in third},
    )


def half_width(estimated: Estimate, f: float, comparisons: int = 1) -> float:
    """Of the interval of a value of frequency f, far from 0 and 1."""
    variance = float(estimated.moments.variance(np.asarray(f)))
    return critical_value(CONFIDENCE, comparisons) * math.sqrt(variance)


def difference_width(estimated: Estimate, f: float, comparisons: int = 1) -> float:
    """Half-width of the difference between two values that both have frequency f, at most 1/2."""
    known, share = estimated.moments, min(f, 0.5)
    variance = 2.0 * (known.base + share * (known.base_slope + known.dilution))
    return critical_value(CONFIDENCE, comparisons) * math.sqrt(variance)


def floor(way: Way, terms: Terms, devices: float, f: float) -> float:
    """Half-width that no number of rounds goes below: what repeated reports do not average out."""
    return half_width(expected(way, terms, devices, ENDLESS), f)


def why(attribute: Attribute, way: Way, terms: Terms) -> str:
    """What made an attribute's protocol the one it is: variances, or the manifest."""
    if attribute.protocol != "auto":
        return "named in the manifest"
    if way.reporting == "hashed":
        return "two cells, whatever the number of values"
    if way.reporting != "memoized":
        limit = 3.0 * math.exp(way.calibration.eps_inf) + 2.0
        return f"GRR up to {limit:.4g} values at this epsilon, OUE above"
    both = attribute.choice(terms.eps_inf, terms.eps_1)
    said = [f"{each.protocol} {each.variance(1):.4g}" for each in (both.grr, both.osue)]
    if terms.choose_for == "round":
        return f"variance of one answer: {', '.join(said)}"
    pooled = [
        f"{each.protocol} {each.pooled_variance(1, terms.rounds):.4g}"
        for each in (both.grr, both.osue)
    ]
    return f"variance of {terms.rounds} answers of a device: {', '.join(pooled)}"
