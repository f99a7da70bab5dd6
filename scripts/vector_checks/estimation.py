"""Intervals, projections, differences, means, distribution functions, and linked tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from protocol_spec.estimation import (
    Contrast,
    Estimate,
    cdf,
    contrast,
    critical_value,
    difference,
    estimate_pooled,
    linked_table,
    mean,
    midpoints,
    project_to_simplex,
    score_interval,
    skew_corrected_interval,
)
from vector_checks.calibration import calibrated
from vector_checks.entries import Compared, Entry

CONFIDENCE: Final = 0.95


def uncorrected_interval(entry: Entry) -> Iterator[Compared]:
    c, rounds, n = calibrated(entry), int(entry["T"]), entry.number("n")
    v0, v1 = (c.device_variance(holds, rounds) / n for holds in (False, True))
    raw = entry.number("fhat")
    low, high = score_interval([raw], v0, v1, z=entry.number("z"))
    yield Compared("V0", v0, entry.number("V0"))
    yield Compared("V1", v1, entry.number("V1"))
    yield Compared("centre", min(max(raw, 0.0), 1.0), entry.number("centre_used"))
    yield Compared("low", float(low[0]), entry.number("lo"))
    yield Compared("high", float(high[0]), entry.number("hi"))


def simplex_projection(entry: Entry) -> Iterator[Compared]:
    got = project_to_simplex(entry["inp"])
    for i, (ours, theirs) in enumerate(zip(got, entry["out"], strict=True)):
        yield Compared(f"value {i}", float(ours), theirs)


def _pooled(entry: Entry, fleet: int | None = None) -> Estimate:
    """With no counts yet: errors depend on who reported how often, not on what."""
    c = calibrated(entry)
    counts, weights = np.zeros(c.k, dtype=np.int64), entry.get("weights", "reports")
    rows = counts if weights == "reports" else np.zeros((len(entry["reports"]), c.k), np.int64)
    return estimate_pooled(
        rows, entry["reports"], entry["devices"], c, weights=weights, fleet=fleet
    )


def linear_functionals(entry: Entry) -> Iterator[Compared]:
    f = np.array(entry["f"], dtype=np.float64)
    estimated = replace(_pooled(entry), raw=f)
    yield Compared("A", estimated.moments.base, entry.number("A"))
    yield Compared("B", estimated.moments.base_slope, entry.number("B"))
    yield Compared("dilution", estimated.dilution, entry.number("dilution"))
    yield Compared("n_eff", estimated.n_eff, entry.number("n_eff"))
    for name, found in entry.matching(r"difference_(\d+)_(\d+)"):
        got = difference(estimated, int(found[1]), int(found[2]))
        yield from _contrast(name, got, entry.inner(name))
    for name, found in entry.matching(r"mean_of_midpoints_on_(\d+)_(\d+)"):
        edges = np.linspace(float(found[1]), float(found[2]), f.size + 1).tolist()
        yield from _contrast(name, mean(estimated, midpoints(edges)), entry.inner(name))
    yield from _distribution(estimated, entry.each("cdf"))
    for name, _ in entry.matching(r"fleet.*"):
        fleet = entry.inner(name)
        dilution = _pooled(entry, int(fleet["size"])).dilution
        yield Compared(name, dilution, fleet.number("dilution"))


def _contrast(name: str, got: Contrast, entry: Entry) -> Iterator[Compared]:
    for part in ("value", "privacy_variance", "sampling_variance"):
        yield Compared(f"{name}.{part}", getattr(got, part), entry.number(part))


def _distribution(estimated: Estimate, edges: list[Entry]) -> Iterator[Compared]:
    """By its own formula, and as the weighted sum that it is."""
    got = cdf(estimated)
    for entry in edges:
        j = int(entry["edge"])
        for part in ("value", "privacy_variance", "sampling_variance"):
            series = got.values if part == "value" else getattr(got, part)
            yield Compared(f"cdf[{j}].{part}", float(series[j - 1]), entry.number(part))
        below = (np.arange(estimated.raw.size) < j).astype(np.float64)
        yield from _contrast(f"contrast[{j}]", contrast(estimated, below), entry)


def skew_corrected_intervals(entry: Entry) -> Iterator[Compared]:
    moments = _pooled(entry).moments
    confidence = float(entry.get("confidence", CONFIDENCE))
    z = critical_value(confidence, int(entry["comparisons"]))
    yield Compared("z", z, entry.number("z"))
    for point in entry.each("moments"):
        f = np.array([point.number("f")])
        yield Compared("variance", float(moments.variance(f)[0]), point.number("variance"))
        yield Compared("skewness", float(moments.skewness(f)[0]), point.number("skewness"))
    intervals = entry.each("intervals")
    low, high = skew_corrected_interval([i.number("raw") for i in intervals], moments, z=z)
    for interval, below, above in zip(intervals, low, high):
        yield Compared("low", float(below), interval.number("low"))
        yield Compared("high", float(above), interval.number("high"))


def linked_tables(entry: Entry) -> Iterator[Compared]:
    got = linked_table(calibrated(entry), int(entry["reports"]), entry.number("designed_at"))
    for s, (ours, theirs) in enumerate(zip(got.table, entry["table"], strict=True)):
        yield Compared(f"table[{s}]", ours, theirs)
    yield Compared("variance at 0", got.variance[0], entry.number("n_var_at_0"))
    yield Compared("variance, holder", got.variance[1], entry.number("n_var_holder"))


KINDS: Final[dict[str, Callable[[Entry], Iterator[Compared]]]] = {
    "score_interval": uncorrected_interval,
    "simplex_projection": simplex_projection,
    "linear_functionals": linear_functionals,
    "skew_corrected_intervals": skew_corrected_intervals,
    "linked_tables": linked_tables,
}
