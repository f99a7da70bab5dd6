"""From counts to frequencies with honest error bars. The one part of the contract that needs numpy.

Everything works on integer counts per value, never on reports, and is vectorised over values.

    histograms.py    shifting and projecting raw estimates
    moments.py       the exact variance, skewness and covariance of estimates
    intervals.py     intervals from those
    frequencies.py   counts to `Estimate`: one round, or several pooled
    combined.py      counts of several rounds, or levels, of devices that are not in two of them
    functionals.py   differences, and any other weighted sum of frequencies
    ratios.py        the same among some of the devices only
    numbers.py       for numeric attributes: mean, distribution function, quantiles
    summary.py       what a result says of a numeric attribute
"""

from protocol_spec.estimation.frequencies import (
    Estimate,
    Weights,
    effective_devices,
    estimate,
    estimate_levels,
    estimate_pooled,
    estimate_window,
)
from protocol_spec.estimation.intervals import (
    Array,
    Moments,
    critical_value,
    project_to_simplex,
    score_interval,
    shift_to_one,
    skew_corrected_interval,
)
from protocol_spec.estimation.numbers import (
    Contrast,
    Covariance,
    Distribution,
    PartialMean,
    Quantile,
    Ratio,
    SmallestDifference,
    binning_bias,
    cdf,
    contrast,
    covariance,
    difference,
    half_widths,
    mean,
    median,
    midpoints,
    numbers_of,
    plausible,
    quantile,
    smallest_difference,
)
from protocol_spec.mechanisms.base import Channel

__all__ = [
    "Array",
    "Channel",
    "Contrast",
    "Covariance",
    "Distribution",
    "Estimate",
    "Moments",
    "PartialMean",
    "Quantile",
    "Ratio",
    "SmallestDifference",
    "Weights",
    "binning_bias",
    "cdf",
    "contrast",
    "covariance",
    "critical_value",
    "difference",
    "effective_devices",
    "estimate",
    "estimate_levels",
    "estimate_pooled",
    "estimate_window",
    "half_widths",
    "mean",
    "median",
    "midpoints",
    "numbers_of",
    "plausible",
    "project_to_simplex",
    "quantile",
    "score_interval",
    "shift_to_one",
    "skew_corrected_interval",
    "smallest_difference",
]
