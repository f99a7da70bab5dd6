"""Sentences about results that the commands and the page have in common."""

from __future__ import annotations

from typing import Final

from collector.results.estimates import Comparison
from collector.results.facts import NumbersFacts, ResultFacts


def which(facts: ResultFacts) -> str:
    """Which rounds a result is about."""
    first, last = facts["first"], facts["last"]
    if facts["round"] is not None:
        return f"round {facts['round']}"
    if facts["reporting"] == "once" and first is not None and last is not None:
        return f"round {first}" if first == last else f"rounds {first} to {last}"
    if facts["reporting"] == "nested" and last is not None:
        return f"round {last}, which says all that earlier ones said"
    return "1 round" if facts["rounds"] == 1 else f"{facts['rounds']} rounds pooled"


def heading(facts: ResultFacts) -> list[str]:
    """Which question, which rounds, how many reports."""
    rounds = which(facts) + ("" if facts["final"] else " so far, not sealed")
    way = "" if facts["reporting"] == "memoized" else f", {facts['reporting']}"
    return [
        f"{facts['attribute']}: {facts['question']}{_trial(facts)}",
        (
            f"  {rounds}, {facts['n']:,} reports of {facts['devices']:,} devices"
            f"{_effective(facts)}, {facts['protocol']}{way}"
        ),
    ]


def _trial(facts: ResultFacts) -> str:
    """Said wherever a result of a trial is shown."""
    slug = facts["campaign"].rpartition("-")[0]
    return " (a TRIAL)" if slug.endswith("-trial") else ""


def _effective(facts: ResultFacts) -> str:
    """Said where it is not simply their number."""
    n_eff = facts["n_eff"]
    alike = round(n_eff) == facts["devices"]
    return "" if alike else f" (as good as {n_eff:,.0f})"


def withheld_text(facts: ResultFacts) -> str:
    """Why there is no histogram."""
    n, devices, needed = facts["n"], facts["devices"], facts["min_reports"]
    n_eff = facts["n_eff"]
    if devices == n and round(n_eff) == devices:
        return f"not enough reports: {n:,} of {needed:,}"
    if round(n_eff) == devices:
        return f"not enough devices: {devices:,} of {needed:,}"
    return (
        f"not enough devices: {n:,} reports of {devices:,} devices weigh as much as {n_eff:,.1f} "
        f"devices that report equally often, of {needed:,}"
    )


def in_percent(share: float) -> str:
    """With one digit and a true minus sign; what is rounded to nothing has no sign."""
    return f"{round(100 * share, 1) + 0.0:.1f}".replace("-", "−")


def rounds_name(rounds: int) -> str:
    """One round, or several together."""
    return "one round" if rounds == 1 else f"{rounds:,} rounds together"


def quantity(number: float | None, unit: str = "", missing: str = "?") -> str:
    """A number of a numeric question with four digits, and its unit."""
    said = missing if number is None else f"{number:.4g}"
    return f"{said} {unit}".rstrip()


def median_between(low: float | None, high: float | None, unit: str) -> str:
    """Where a median will lie; ends that are None are those of bins without an end."""
    if low is None and high is None:
        return "the median may be anywhere"
    if low is None or high is None:
        return f"median {'below' if low is None else 'above'} {quantity(high or low, unit)}"
    return f"median between {quantity(low)} and {quantity(high, unit)}"


def numbers_lines(numbers: NumbersFacts) -> list[str]:
    """Mean and quantiles, each with its interval."""
    unit, lines = numbers["unit"], []
    if numbers["mean"] is not None:
        lines.append(
            f"mean {quantity(numbers['mean'], unit)}   {quantity(numbers['mean_low'])} … "
            f"{quantity(numbers['mean_high'])}, and up to ±{quantity(numbers['mean_bias'])} "
            "because bins have a width"
        )
    for q in numbers["quantiles"]:
        ends = f"{quantity(q['low'], missing='below')} … {quantity(q['high'], missing='above')}"
        name = "median" if q["tau"] == 0.5 else f"{100 * q['tau']:g} % are below"
        lines.append(f"{name} {quantity(q['value'], unit)}   {ends}")
    return lines


def difference_lines(facts: ResultFacts) -> list[str]:
    """How far apart bars must be."""
    far = facts["difference"]
    if far is None:
        return []
    if far["pair"] >= 1.0:
        return ["no two values can be told apart"]
    return [
        (
            f"two values named beforehand differ if they are {100 * far['pair']:.1f} points "
            f"apart; to say which is tallest, {100 * far['tallest']:.1f}"
        )
    ]


ANSWERS: Final = {
    "above": "yes: {a} is above {b}",
    "below": "no: {a} is below {b}",
    "not shown": "not shown: {a} and {b} may be equally frequent",
    "withheld": "withheld: too few reports",
}


def answer_text(found: Comparison, *, every_pair: bool = False) -> str:
    """Whether A is above B, in words."""
    answer = found["answer_all"] if every_pair else found["answer"]
    return ANSWERS[answer].format(a=found["a"], b=found["b"])
