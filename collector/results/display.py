"""What readers see of a result: a consistent histogram, numbers as precise as their errors, and the
result in a sentence.

Shown is `projected`, the nearest histogram: no share is below 0 or above 1, and they sum to 1.
`raw` is unbiased, which sums and averages need, but can be -14 % or 167 %: it is for calculations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from collector.results.estimates import attribute_of, estimate_of, relation_of
from collector.results.tables import mean_interval
from collector.results.words import around, between, decimals, number
from protocol_spec import Attribute, Manifest, Numbers, Result
from protocol_spec.estimation import Relation, critical_value, difference

MOST_LEADERS: Final = 3  # named in a sentence that cannot say which of them is first
CLOSE: Final = 0.05  # a half-width: where answers cannot be ranked with it, they are nearly equal
USELESS: Final = 0.50  # a half-width from which on an interval says nothing
USEFUL: Final = 0.10  # a half-width worth aiming at


class Share(NamedTuple):
    """A share of the devices and its interval, all between 0 and 1."""

    value: float
    low: float
    high: float


def share_of(projected: float, low: float, high: float) -> Share:
    """A share with its interval.

    The interval belongs to the unbiased estimate. Where the share lies outside it, because bars
    were shifted to sum to 1, the interval is extended to it, which can only raise its coverage.
    """
    value = min(1.0, max(0.0, projected))
    return Share(value, min(value, low), max(value, high))


def shares(result: Result, *, every: bool = False) -> list[Share]:
    """One for each value; `every` for the intervals that hold for all values at once."""
    ends = (result.low_all, result.high_all) if every else (result.low, result.high)
    return [share_of(*row) for row in zip(result.projected, *ends, strict=True)]


# --- digits ---------------------------------------------------------------------------------------


def share_decimals(found: Sequence[Share]) -> int:
    """Of all shares of a histogram, in percent: as many as the least certain one deserves."""
    return decimals(max((50.0 * (share.high - share.low) for share in found), default=0.0))


# --- the result in a sentence ---------------------------------------------------------------------


def headline(manifest: Manifest, result: Result, *, final: bool = True) -> str:
    """What the numbers say, and nothing that they do not."""
    asked = attribute_of(manifest, result)
    if not final:
        n, step = result.n, result.min_reports
        so_far = f"At least {n:,}" if n else f"Fewer than {step:,}"
        return f"{so_far} reports so far; the result comes when the round is sealed."
    if result.withheld:
        return withheld_sentence(result)
    related = relation_of(manifest, result)
    if related is not None:
        return _related(asked, related)
    in_numbers = None if result.numbers is None else _numeric(asked, result, result.numbers)
    return in_numbers or _ranked(manifest, asked, result)


def withheld_sentence(result: Result) -> str:
    """Why there is no histogram."""
    n, devices, needed, n_eff = result.n, result.devices, result.min_reports, result.n_eff
    if round(n_eff) != devices:
        return (
            f"Not enough devices for a result: {n:,} reports of {devices:,} devices are as precise "
            f"as {n_eff:,.1f} equally active devices; {needed:,} are needed."
        )
    what, count = ("reports", n) if devices == n else ("devices", devices)
    return f"Not enough {what} for a result: {count:,} of {needed:,}."


def _numeric(asked: Attribute, result: Result, numbers: Numbers) -> str | None:
    """Median and mean; None where the reports say nothing about either."""
    middle = next(q for q in numbers.quantiles if q.tau == 0.5)
    parts, unit = [], asked.unit
    if middle.low is not None or middle.high is not None:
        parts.append(f"the median is {between(middle.low, middle.high, unit)}")
    ends = mean_interval(asked, numbers)
    if ends is not None:
        begins, reaches = around(*ends, unit)
        parts.append(
            f"the mean between {begins} and {reaches}"
            if parts
            else f"the mean is between {begins} and {reaches}"
        )
    if not parts:
        return None
    among = "among devices with a number, " if asked.bins < asked.k else ""
    each = " each" if len(parts) > 1 else ""
    text = f"{among}{' and '.join(parts)} ({_confidence(result)}{each})."
    return text[0].upper() + text[1:]


def _related(asked: Attribute, found: Relation) -> str:
    names, one_in = " and ".join(part.name for part in asked.cross), 1.0 / found.false_alarms
    if not found.shown:
        return f"No relation between {names} can be shown."
    return (
        f"{names[0].upper()}{names[1:]} are related: if they were not, a table like this would "
        f"have a chance of less than 1 in {one_in:.0f}."
    )


def _ranked(manifest: Manifest, asked: Attribute, result: Result) -> str:
    leading, found = leaders(manifest, result), shares(result, every=True)
    confidence = _confidence(result)
    if len(leading) == 1:
        low, high = _percents(found[leading[0]])
        return (
            f"Between {low} and {high} of the devices answered “{asked.values[leading[0]]}” "
            f"({confidence}); it is ahead of every other answer."
        )
    if len(leading) <= MOST_LEADERS and len(leading) < asked.k:
        names = [f"“{asked.values[i]}” ({' to '.join(_percents(found[i]))})" for i in leading]
        listed = f"{', '.join(names[:-1])} or {names[-1]}"
        return (
            f"The most frequent answer is {listed}; more reports would show which ({confidence})."
        )
    width = critical_value(result.confidence) * max(map(math.hypot, *_errors(result)))
    if width <= CLOSE:
        _, most = _percents(Share(0.0, 0.0, max(share.high for share in found)))
        return (
            f"The leading answers are too close to rank: none was given by more than {most} of the "
            f"devices ({confidence})."
        )
    devices = round_up(result.n_eff * (width / min(USEFUL, width / 2.0)) ** 2)
    narrower = _points(width * math.sqrt(result.n_eff / devices))
    now = f"the intervals are ±{_points(width)} points; " if width < USELESS else ""
    return (
        f"Too few reports to rank the answers: {now}with {devices:,} devices "
        f"{'they' if now else 'the intervals'} would be ±{narrower} points."
    )


def leaders(manifest: Manifest, result: Result) -> list[int]:
    """Places of the values that may be the most frequent, with the result's confidence for all
    pairs at once; the tallest bar's is the first, and no more than one too many is searched for."""
    raw, far, pairs = result.raw, result.difference, math.comb(len(result.raw), 2)
    first, *others = sorted(range(len(raw)), key=lambda i: -raw[i])
    found, made = [first], estimate_of(manifest, result)
    for i in others:
        certain = far is not None and min(1.0, raw[first] - raw[i]) > far.tallest
        if certain or len(found) > MOST_LEADERS:
            break  # as are all that are further away
        if difference(made, first, i).interval(result.confidence, pairs)[0] <= 0.0:
            found.append(i)
    return found


def round_up(devices: float) -> int:
    """The next of 1, 2, 5, 10, 20, 50, …"""
    power: int = 10 ** math.floor(math.log10(max(1.0, devices)))
    return next(power * m for m in (1, 2, 5, 10) if power * m >= devices * (1 - 1e-9))


def _errors(result: Result) -> tuple[Sequence[float], Sequence[float]]:
    return result.privacy_error, result.sampling_error


def _percents(share: Share) -> tuple[str, str]:
    low, high = around(100.0 * share.low, 100.0 * share.high)
    return f"{low} %", f"{high} %"


def _points(half_width: float) -> str:
    """Rounded up."""
    digits = decimals(100.0 * half_width)
    step = 10.0**-digits
    return number(math.ceil(100.0 * half_width / step - 1e-9) * step, digits)


def _confidence(result: Result) -> str:
    return f"{100 * result.confidence:.3g} % confidence"
