"""Sentences about results that the commands and the page have in common."""

from __future__ import annotations

import math
from typing import Any, Final

from protocol_spec import Calibration, Mechanism, Odds, lifetime_odds, report_odds
from protocol_spec.mechanisms import DEFAULT_MECHANISM, MECHANISMS

Facts = dict[str, Any]  # what `--json` prints and the page gives under `.json`; see docs/results.md

ANSWERS: Final = {
    "above": "yes: {a} is above {b}",
    "below": "no: {a} is below {b}",
    "not shown": "not shown: {a} and {b} may be equally frequent",
    "withheld": "withheld: too few reports",
}

# --- numbers ------------------------------------------------------------------------------------


def decimals(half_width: float) -> int:
    """Digits after the point that a number with this error deserves.

    The last digit shown is the error's second one where that begins with 1, 2 or 3, else its first.
    """
    if not 0.0 < half_width < math.inf:
        return 1
    power = math.floor(math.log10(half_width))
    return min(6, max(0, (half_width / 10.0**power < 3.5) - power))


def number(value: float, digits: int) -> str:
    """With a true minus sign; what is rounded to nothing has no sign."""
    return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")


def in_percent(share: float) -> str:
    return number(100 * share, 1)


def rounds_name(rounds: int) -> str:
    return "one round" if rounds == 1 else f"{rounds:,} rounds together"


def quantity(value: float | None, unit: str = "", missing: str = "?") -> str:
    """A number of a numeric question with four digits, and its unit."""
    text = missing if value is None else f"{value:.4g}"
    return f"{text} {unit}".rstrip()


def estimated(value: float | None, low: float | None, high: float | None, unit: str) -> str:
    """A number with as many digits as its interval allows."""
    if value is None or low is None or high is None:
        return "–"
    return f"{number(value, decimals((high - low) / 2))} {unit}".rstrip()


def estimate_of(facts: Facts, name: str, unit: str = "") -> str:
    """The mean or median of a result."""
    return estimated(facts[name], facts[f"{name}_low"], facts[f"{name}_high"], unit)


def around(low: float, high: float, unit: str = "") -> tuple[str, str]:
    """Both ends as texts, rounded outwards, so that what they say is still true."""
    digits = decimals((high - low) / 2.0)
    step = 10.0**-digits
    ends = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    return number(ends[0], digits), f"{number(ends[1], digits)} {unit}".rstrip()


def ends_of(facts: Facts, name: str) -> str:
    """The interval of a mean or median."""
    low, high = facts[f"{name}_low"], facts[f"{name}_high"]
    if name == "mean" and low is not None:
        return " … ".join(around(low, high))
    return between(low, high)


def between(low: float | None, high: float | None, unit: str = "") -> str:
    """An interval of a quantile; its ends are edges of bins, or None where there is no edge."""
    if low is None and high is None:
        return "unknown"
    if low is None:
        return f"below {quantity(high, unit)}"
    if high is None:
        return f"above {quantity(low, unit)}"
    return f"between {quantity(low)} and {quantity(high, unit)}"


def bias_text(facts: Facts) -> str:
    """How much of a mean's interval the width of bins is, as precise as the interval."""
    half_width = (facts["mean_high"] - facts["mean_low"]) / 2
    return f"±{number(facts['numbers']['mean_bias'], decimals(half_width))} for the width of bins"


def numbers_lines(facts: Facts) -> list[str]:
    """Mean and quantiles, each with its interval."""
    numbers, unit, lines = facts["numbers"], facts["unit"], []
    if numbers is None:
        return []
    if facts["mean"] is not None:
        mean, ends = estimate_of(facts, "mean", unit), ends_of(facts, "mean")
        lines.append(f"mean {mean}   {ends}, with {bias_text(facts)}")
    for q in numbers["quantiles"]:
        name = "median" if q["tau"] == 0.5 else f"{100 * q['tau']:g} % quantile"
        value = estimated(q["value"], q["low"], q["high"], unit)
        about = "" if value.startswith("–") else f" about {value},"
        lines.append(f"{name}{about} {between(q['low'], q['high'], unit)}")
    return lines


# --- results ------------------------------------------------------------------------------------


def rounds_label(facts: Facts) -> str:
    """Which rounds a result is about."""
    combined = MECHANISMS[facts["reporting"]].analysis.combined
    first, last = facts["first"], facts["last"]
    if facts["round"] is not None:
        return f"round {facts['round']}"
    if combined == "window":
        return f"round {first}" if first == last else f"rounds {first} to {last}"
    if combined == "latest":
        return f"round {last}, which includes what earlier ones revealed"
    return "1 round" if facts["rounds"] == 1 else f"{facts['rounds']} rounds pooled"


def question_line(facts: Facts) -> str:
    """A trial is always named as one."""
    return f"{facts['attribute']}: {facts['question']}{' (a TRIAL)' if facts['trial'] else ''}"


def rounds_line(facts: Facts) -> str:
    """Which rounds, and how many reports; of a round that is not sealed the sentence says it."""
    mechanism = "" if facts["reporting"] == DEFAULT_MECHANISM else f", {facts['reporting']}"
    if not facts["final"]:
        return f"{rounds_label(facts)} so far, not sealed, {facts['protocol']}{mechanism}"
    alike = round(facts["n_eff"]) == facts["devices"]
    effective = "" if alike else f" (as precise as {facts['n_eff']:,.0f} equally active devices)"
    reports = f"{facts['n']:,} reports of {facts['devices']:,} devices{effective}"
    return f"{rounds_label(facts)}, {reports}, {facts['protocol']}{mechanism}"


def response_text(facts: Facts) -> str:
    """How many of the devices heard before reported again, and what the others could hide; empty
    where a device answers only when it is its turn, and in a first round."""
    heard, returned, silence = facts["heard"], facts["returned"], facts["silence"]
    if not heard or MECHANISMS[facts["reporting"]].rules.draws_rounds:
        return ""
    if silence is None or facts["round"] is None:
        return f"{returned:,} of {heard:,} devices heard before reported in the last round"
    return (
        f"{returned:,} of {heard:,} devices heard before reported again; the others could move a "
        f"bar by {in_percent(silence['shift'])} points at most"
    )


def heading(facts: Facts) -> list[str]:
    """The question, its result in a sentence, and what that is made from."""
    lines = (facts["sentence"], rounds_line(facts), response_text(facts))
    warnings = (f"careful: {warning}" for warning in facts["warnings"])
    return [question_line(facts), *(f"  {line}" for line in (*lines, *warnings) if line)]


def difference_lines(facts: Facts) -> list[str]:
    """How far apart bars must be."""
    far = facts["difference"]
    if far is None:
        return []
    if far["pair"] >= 1.0:
        return ["no two values can be distinguished"]
    return [
        (
            f"two values named beforehand differ if they are {100 * far['pair']:.1f} points "
            f"apart; to say which is tallest, {100 * far['tallest']:.1f}"
        )
    ]


def lies_text(lies: Facts) -> str:
    """What lies can do to a result."""
    shift, most, error = (100 * lies[name] for name in ("shift", "share_for_error", "error"))
    return (
        f"if {100 * lies['share']:g} % of the devices lied together, a bar could be off by "
        f"{number(shift, 1)} points; to stay within {error:g} point{'s' * (error != 1)}, no "
        f"more than {most:.2g} % may lie"
    )


def answer_text(found: Facts, *, every_pair: bool = False) -> str:
    """Whether A is above B."""
    answer = found["answer_all"] if every_pair else found["answer"]
    return ANSWERS[answer].format(a=found["a"], b=found["b"])


# --- what reports reveal, for the analyst; the owner's program says the same as odds --------------


def odds_sentences(mechanism: Mechanism, value: str) -> tuple[str, str]:
    """What one report reveals, and all that there will ever be."""
    one, every = report_odds(mechanism.calibration), lifetime_odds(mechanism.calibration)
    texts, value = mechanism.analysis, mechanism.analysis.answer.format(value=value)
    if mechanism.rules.draws_rounds:
        bound = mechanism.lifetime_epsilon
        sentence = f"Everything a device ever sends is bounded by epsilon {bound:g}."
        return _odds(texts.one_report, value, one), sentence
    lowest = mechanism.channels[0]
    if len(mechanism.channels) > 1 and isinstance(lowest, Calibration):
        one = report_odds(lowest)
    return _odds(texts.one_report, value, one), _odds(texts.all_reports, value, every)


def _odds(subject: str, value: str, odds: Odds) -> str:
    return (
        f"{subject} says “{value}” with probability {_probability(odds.if_true)} if that is the "
        f"device's true answer, and {_probability(odds.if_false)} if it is not."
    )


def _probability(share: float) -> str:
    """In percent with three digits; never 100 where it is not."""
    return "more than 99.9 %" if 0.999 < share < 1.0 else f"{100 * share:.3g} %"
