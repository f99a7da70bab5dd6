"""An estimate from a result: what its bars' differences, and other sums of them, are judged by.

Claim: a result and its manifest are enough. A result says of its errors what the covariance of its
bars needs: how many devices it amounts to, and the privacy error of each bar. So results that
were sealed long ago, whose devices are forgotten, and those that came by MQTT answer as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from collector.errors import UnknownCampaign
from collector.results.words import Facts
from protocol_spec import Attribute, Manifest, Mechanism, Result
from protocol_spec.estimation import (
    CUBES,
    Array,
    Channel,
    Contrast,
    Estimate,
    Plausibility,
    Relation,
    difference,
    estimate,
    estimate_pooled,
    lie_shift,
    linear_terms,
    margins,
    plausibility,
    relation,
    share_for_shift,
)
from protocol_spec.programs.output import quoted, shown


def estimate_of(manifest: Manifest, result: Result) -> Estimate:
    """The estimate that a result was made from, as far as weighted sums of its bars need it.

    Its `raw`, the parts of its moments that `contrast`, `cdf` and the like use, and `n_eff`. The
    skewness, which only intervals of single bars need, is that of devices of equal weight.
    """
    if result.withheld:
        raise ValueError("a withheld result has no estimate")
    mechanism, diluted = _mechanism(manifest, result), 1.0 / result.n_eff
    if len(mechanism.channels) > 1:
        one = _mixed(mechanism, result)
    elif result.round is None and mechanism.analysis.combined != "window":
        one = _pooled(mechanism.channels[0], result)  # several reports of one memo
    else:  # every report has noise of its own
        one = estimate(np.array(result.counts), result.n, mechanism.channels[0])
    known = replace(one.moments, n_eff=1.0 / diluted, dilution=diluted)
    return replace(one, raw=np.array(result.raw), moments=known)


def _pooled(channel: Channel, result: Result) -> Estimate:
    """Reports of memos, which weigh the same. The noise of memos counts by the sum of the squared
    weights of devices, fresh noise by 1 over the reports: as of so many equally active devices."""
    reports, nothing = [result.n / result.n_eff], np.zeros(len(result.raw), dtype=np.int64)
    return estimate_pooled(nothing, reports, [result.n_eff], channel, weights="reports")


def _mixed(mechanism: Mechanism, result: Result) -> Estimate:
    """Devices at several levels: two bars' privacy errors determine the mixture of their noise. Its
    skewness is taken as that of the two levels between which it is."""
    nothing = np.zeros(mechanism.k, dtype=np.int64)
    some = estimate(nothing, 1, mechanism.channels[-1])
    held = np.clip(result.raw, 0.0, 1.0)
    v0, slope = _line(held, np.square(result.privacy_error))
    base, base_slope = v0, slope
    if some.sums_to_one:
        base, base_slope = linear_terms(v0, v0 + slope, mechanism.k)
    levels = [some.moments]  # of one device, from the least noise on
    levels += [estimate(nothing, 1, each).moments for each in mechanism.channels[-2::-1]]
    noise, n = [level.v0 for level in levels], result.n_eff
    third = {
        name: float(np.interp(v0 * n, noise, [getattr(each, name) for each in levels])) / n**2
        for name in CUBES
    }
    known = replace(some.moments, v0=v0, slope=slope, base=base, base_slope=base_slope, **third)
    return replace(some, moments=known)


def _line(f: Array, variance: Array) -> tuple[float, float]:
    """Variances lie on a line over frequencies; through its two furthest points."""
    first, last = int(f.argmin()), int(f.argmax())
    if f[last] - f[first] < 1e-9:
        return float(variance[0]), 0.0
    slope = (variance[last] - variance[first]) / (f[last] - f[first])
    return float(variance[first] - f[first] * slope), float(slope)


# --- what a result's intervals do not account for -------------------------------------------------


def plausibility_of(manifest: Manifest, result: Result) -> Plausibility | None:
    """Whether honest devices can have sent this; None where withheld.

    The rate of false alarms is that of all results of the campaign: one for each round and
    attribute, and as many pooled ones.
    """
    if result.withheld:
        return None
    results = 2 * manifest.rounds.count * len(manifest.attributes)
    return plausibility(estimate_of(manifest, result), results)


def lie_shift_of(manifest: Manifest, result: Result, share: float = 0.01) -> float:
    """How far a bar can be off if that share of the devices lied together, reporting every time."""
    return lie_shift(_mechanism(manifest, result).channels, share, _liar_weight(result))


def share_for_shift_of(manifest: Manifest, result: Result, error: float) -> float:
    """The largest share of liars that leaves every bar within `error`."""
    return share_for_shift(_mechanism(manifest, result).channels, error, _liar_weight(result))


def _liar_weight(result: Result) -> float:
    """Who reported in all rounds weighs that many times the average device."""
    return result.rounds * result.devices / result.n if result.devices < result.n else 1.0


def _mechanism(manifest: Manifest, result: Result) -> Mechanism:
    index = [each.name for each in manifest.attributes].index(result.attribute)
    return manifest.mechanisms[index]


# --- two questions answered together -------------------------------------------------------------


def margins_of(manifest: Manifest, result: Result) -> list[tuple[Attribute, Estimate]]:
    """Both questions of a pair, each as if it had been asked alone; none of other results."""
    asked = attribute_of(manifest, result)
    if not asked.cross or result.withheld:
        return []
    return list(zip(asked.cross, margins(estimate_of(manifest, result), asked.shape)))


def relation_of(manifest: Manifest, result: Result) -> Relation | None:
    """Whether the two questions of a pair are related; None for other results."""
    asked = attribute_of(manifest, result)
    if not asked.cross or result.withheld:
        return None
    return relation(estimate_of(manifest, result), asked.shape)


def attribute_of(manifest: Manifest, result: Result) -> Attribute:
    return next(each for each in manifest.attributes if each.name == result.attribute)


# --- is A above B? ------------------------------------------------------------------------------


def compare(manifest: Manifest, result: Result, a: str, b: str) -> Facts:
    """How much more frequent value `a` is than value `b`, as shares of 1; None where withheld.

    `low` and `high` are for a pair named before looking; `low_all` and `high_all` hold for all
    pairs at once, which is what a pair picked for its bars needs.
    """
    attribute = attribute_of(manifest, result)
    u, v = (_index(attribute.values, value) for value in (a, b))
    if u == v:
        raise UnknownCampaign(f"{quoted(a)} is compared with itself; name two values")
    found = None if result.withheld else difference(estimate_of(manifest, result), u, v)
    names = ("round", "first", "last", "rounds", "n", "devices", "n_eff", "confidence")
    return {
        "attribute": result.attribute,
        "a": a,
        "b": b,
        **{name: getattr(result, name) for name in names},
        "difference": None if found is None else found.value,
        "privacy_error": None if found is None else math.sqrt(found.privacy_variance),
        "sampling_error": None if found is None else math.sqrt(found.sampling_variance),
        **_interval(found, result.confidence, 1, ""),
        **_interval(found, result.confidence, math.comb(attribute.k, 2), "_all"),
    }


def _interval(found: Contrast | None, confidence: float, comparisons: int, suffix: str) -> Facts:
    half, low, high, answer = None, None, None, "withheld"
    if found is not None:
        half = found.half_width(confidence, comparisons)
        low, high = found.interval(confidence, comparisons)
        answer = "above" if low > 0.0 else "below" if high < 0.0 else "not shown"
    names = ("half_width", "low", "high", "answer")
    return {f"{name}{suffix}": value for name, value in zip(names, (half, low, high, answer))}


def _index(values: tuple[str, ...], value: str) -> int:
    if value not in values:
        known = ", ".join(map(repr, values[:20])) + (", …" if len(values) > 20 else "")
        raise UnknownCampaign(
            f"unknown value {quoted(value)}; the attribute has: {shown(known, 600)}"
        )
    return values.index(value)


# --- which value over time a reader should see first ---------------------------------------------


class Seen(NamedTuple):
    """An estimate, as a share of 1; a window of rounds is named by its last round."""

    round: int
    raw: float


Change = tuple[Seen, Seen]  # the earlier first


class Interest(NamedTuple):
    """The place of a value, and what makes it interesting; None if it is the most frequent."""

    place: int
    change: Change | None


def most_interesting(rounds: Sequence[Result], pooled: Result | None) -> Interest | None:
    """The value a reader should see first; None where every histogram is withheld.

    It is the one with the largest change between two rounds that chance does not explain; if there
    is none, the most frequent one. A change is beyond chance if its interval, made so that with
    95 % confidence no value and no pair of rounds is beyond it by chance alone (Bonferroni), does
    not contain 0. Errors of rounds of the same memos are positively correlated, so that this is on
    the safe side.
    """
    released = [result for result in rounds if not result.withheld]
    together = released[-1:] if pooled is None or pooled.withheld else [pooled]
    if not together:
        return None
    changes = list(_changes(released))
    if changes:
        return Interest(*max(changes, key=lambda found: abs(found[1][1].raw - found[1][0].raw)))
    raw = together[0].raw
    return Interest(max(range(len(raw)), key=raw.__getitem__), None)


def _changes(released: Sequence[Result]) -> Iterator[tuple[int, Change]]:
    """The largest change of each value, where it is beyond chance."""
    if len(released) < 2:
        return
    k, confidence = len(released[0].raw), released[0].confidence
    pairs = k * math.comb(len(released), 2)
    critical = NormalDist().inv_cdf(1.0 - (1.0 - confidence) / (2 * pairs))
    for i in range(k):
        lowest, highest = (pick(released, key=lambda r: r.raw[i]) for pick in (min, max))
        errors = [e[i] for r in (lowest, highest) for e in (r.privacy_error, r.sampling_error)]
        if highest.raw[i] - lowest.raw[i] > critical * math.hypot(*errors):
            first, last = sorted((lowest, highest), key=released.index)
            yield i, (Seen(first.last, first.raw[i]), Seen(last.last, last.raw[i]))
