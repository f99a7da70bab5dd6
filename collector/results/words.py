"""Sentences about results that the commands and the page have in common."""

from __future__ import annotations

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


def in_percent(share: float) -> str:
    """With one digit and a true minus sign; what is rounded to nothing has no sign."""
    return f"{round(100 * share, 1) + 0.0:.1f}".replace("-", "−")


def rounds_name(rounds: int) -> str:
    return "one round" if rounds == 1 else f"{rounds:,} rounds together"


def quantity(number: float | None, unit: str = "", missing: str = "?") -> str:
    """A number of a numeric question with four digits, and its unit."""
    text = missing if number is None else f"{number:.4g}"
    return f"{text} {unit}".rstrip()


def median_between(low: float | None, high: float | None, unit: str) -> str:
    """Where a median will lie; ends that are None are those of bins without an end."""
    if low is None and high is None:
        return "the median may be anywhere"
    if low is None or high is None:
        return f"median {'below' if low is None else 'above'} {quantity(high or low, unit)}"
    return f"median between {quantity(low)} and {quantity(high, unit)}"


def numbers_lines(numbers: Facts) -> list[str]:
    """Mean and quantiles, each with its interval."""
    unit, lines = numbers["unit"], []
    if numbers["mean"] is not None:
        lines.append(
            f"mean {quantity(numbers['mean'], unit)}   {quantity(numbers['mean_low'])} … "
            f"{quantity(numbers['mean_high'])}, and up to ±{quantity(numbers['mean_bias'])} "
            "due to the width of bins"
        )
    for q in numbers["quantiles"]:
        ends = f"{quantity(q['low'], missing='below')} … {quantity(q['high'], missing='above')}"
        name = "median" if q["tau"] == 0.5 else f"{100 * q['tau']:g} % are below"
        lines.append(f"{name} {quantity(q['value'], unit)}   {ends}")
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


def heading(facts: Facts) -> list[str]:
    """Which question, which rounds, how many reports; a trial is always named as one."""
    rounds = rounds_label(facts) + ("" if facts["final"] else " so far, not sealed")
    mechanism = "" if facts["reporting"] == DEFAULT_MECHANISM else f", {facts['reporting']}"
    trial = " (a TRIAL)" if facts["campaign"].rpartition("-")[0].endswith("-trial") else ""
    alike = round(facts["n_eff"]) == facts["devices"]
    effective = "" if alike else f" (as good as {facts['n_eff']:,.0f})"
    return [
        f"{facts['attribute']}: {facts['question']}{trial}",
        (
            f"  {rounds}, {facts['n']:,} reports of {facts['devices']:,} devices{effective}, "
            f"{facts['protocol']}{mechanism}"
        ),
    ]


def withheld_text(facts: Facts) -> str:
    """Why there is no histogram."""
    n, devices, needed, n_eff = facts["n"], facts["devices"], facts["min_reports"], facts["n_eff"]
    if devices == n and round(n_eff) == devices:
        return f"not enough reports: {n:,} of {needed:,}"
    if round(n_eff) == devices:
        return f"not enough devices: {devices:,} of {needed:,}"
    return (
        f"not enough devices: {n:,} reports of {devices:,} devices weigh as much as {n_eff:,.1f} "
        f"devices that report equally often, of {needed:,}"
    )


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
