"""An estimate from a result: what its bars' differences, and other sums of them, are judged by.

Claim: a result and its manifest are enough. A result says of its errors what the covariance of its
bars needs: how many devices it amounts to, and the privacy error of each bar. So results that
were sealed long ago, whose devices are forgotten, and those that came by MQTT answer as well.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from protocol_spec import HalfWidths, Manifest, Result, Way
from protocol_spec.estimation import (
    Array,
    Channel,
    Estimate,
    estimate,
    estimate_pooled,
    smallest_difference,
)


def half_widths(manifest: Manifest, result: Result) -> HalfWidths:
    """How far apart two bars must be; results of version 1 do not say it, but it follows."""
    if result.difference is not None:
        return result.difference
    return HalfWidths(*smallest_difference(estimate_of(manifest, result), result.confidence))


def estimate_of(manifest: Manifest, result: Result) -> Estimate:
    """The estimate that a result was made from, as far as weighted sums of its bars need it.

    Its `raw`, the parts of its moments that `contrast`, `cdf` and the like use, and `n_eff`. The
    skewness, which only intervals of single bars need, is that of devices of equal weight.
    """
    if result.withheld:
        raise ValueError("a withheld result has no estimate")
    index = [each.name for each in manifest.attributes].index(result.attribute)
    way, raw = manifest.ways[index], np.array(result.raw)
    diluted = 1.0 / _effective(result)
    if way.reporting == "nested":
        one = _mixed(way, result)
    else:
        (channel,) = way.channels
        one = (
            _pooled(channel, result, diluted)
            if _repeated(way, result)
            else _single(channel, result)
        )
    known = replace(one.moments, n_eff=1.0 / diluted, dilution=diluted)
    return replace(one, raw=raw, moments=known)


def _effective(result: Result) -> float:
    """Effective devices; results of version 1 say it by their sampling error."""
    if result.n_eff is not None:
        return result.n_eff
    held = np.clip(result.raw, 0.0, 1.0)
    spread = held * (1.0 - held)
    best = int(spread.argmax())
    if spread[best] == 0.0:
        return float(result.devices)
    return float(spread[best] / result.sampling_error[best] ** 2)


def _repeated(way: Way, result: Result) -> bool:
    """Whether a device may have sent several reports of one memo."""
    return result.round is None and way.reporting != "once"


def _single(channel: Channel, result: Result) -> Estimate:
    """Every report has noise of its own."""
    return estimate(np.array(result.counts), result.n, channel)


def _pooled(channel: Channel, result: Result, squares: float) -> Estimate:
    """Reports of memos: noise of memos by the sum of squared weights, fresh noise by another sum.

    That other sum, of squared weights each divided by the device's reports, is what the privacy
    error of a bar tells.
    """
    nothing = np.zeros(len(result.raw), dtype=np.int64)
    once, twice = (estimate_pooled(nothing, [m], [1], channel, weights="reports") for m in (1, 2))
    held = np.clip(result.raw, 0.0, 1.0)
    first, second = (each.moments.without_sampling().variance(held) for each in (once, twice))
    between, within = _parts(first, second)
    at = int(np.argmax(within / first))
    rest = (result.privacy_error[at] ** 2 - between[at] * squares) / within[at]
    names = ("v0", "slope", "base", "base_slope")
    ones, twos = (np.array([getattr(e.moments, n) for n in names]) for e in (once, twice))
    of_memos, fresh = _parts(ones, twos)
    mixed = of_memos * squares + fresh * max(float(rest), 0.0)
    return replace(once, moments=replace(once.moments, **dict(zip(names, mixed.tolist()))))


def _parts(one: Array, two: Array) -> tuple[Array, Array]:
    """What stays, and what is divided by the number of reports, from one report and from two."""
    within = 2.0 * (one - two)
    return one - within, within


def _mixed(way: Way, result: Result) -> Estimate:
    """Devices at several levels: the privacy errors of two bars tell the mixture of their noise."""
    some = estimate(np.zeros(way.k, dtype=np.int64), 1, way.channels[-1])
    held = np.clip(result.raw, 0.0, 1.0)
    v0, slope = _line(held, np.square(result.privacy_error))
    return replace(some, moments=replace(some.moments, **_covariances(way, v0, slope)))


def _line(f: Array, variance: Array) -> tuple[float, float]:
    """Variances lie on a line over frequencies; through its two furthest points."""
    first, last = int(f.argmin()), int(f.argmax())
    if f[last] - f[first] < 1e-9:
        return float(variance[0]), 0.0
    slope = (variance[last] - variance[first]) / (f[last] - f[first])
    return float(variance[first] - f[first] * slope), float(slope)


def _covariances(way: Way, v0: float, slope: float) -> dict[str, float]:
    """What `Moments.base` and `base_slope` are, for one-time protocols of any mixture of levels.

    GRR with d = p - q has base (1-d)/(k d^2) and base_slope (1-d)/d, and v0 and slope are sums of
    these: v0 = base (k-1)/k + base_slope / k^2, slope = base_slope (1 - 2/k).
    """
    base, base_slope, k = v0, slope, way.k
    if not way.counted.unary:
        base_slope = slope / (1.0 - 2.0 / k) if k > 2 else 0.0
        base = (v0 - base_slope / k**2) * k / (k - 1)
    return {"v0": v0, "slope": slope, "base": base, "base_slope": base_slope}
