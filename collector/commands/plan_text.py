"""A plan as text for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from collector.show.planning.records import AttributePlan, Judgement, NumbersPlan, Plan, WayPlan
from collector.show.words import median_between, quantity, rounds_name


def plan_text(plan: Plan) -> str:
    """What to expect, attribute by attribute."""
    way = "" if plan.reporting == "memoized" else f", reporting {plan.reporting}"
    lines = [
        (
            f"{plan.n:,} devices, eps_inf {plan.eps_inf:g}, eps_1 {plan.eps_1:g}{way}, "
            f"{plan.rounds:,} rounds, bound for life {plan.lifetime_epsilon:g}"
        ),
        f"half-widths of 95 % intervals at a true frequency of {plan.f:g}, in percentage points",
        f"set receipt_pages to about {plan.receipt_pages} (a thousand devices a page)",
    ]
    if plan.receipts_warning is not None:
        lines.append(f"careful: {plan.receipts_warning}")
    for attribute in plan.attributes:
        lines += ["", *_attribute(attribute, plan)]
    return "\n".join(lines)


def _attribute(a: AttributePlan, plan: Plan) -> Iterator[str]:
    yield f"{a.name} ({a.k} values): {a.protocol} ({a.why})"
    yield from (f"  careful: {warning}" for warning in a.warnings)
    for judged in a.verdict:
        yield f"  verdict, {rounds_name(judged.rounds)}: {judged.sentence}"
    yield from _widths(a, plan)
    yield from (f"  {line}" for line in numbers_lines(a.numbers, a.unit))
    yield from (f"  advice: {line}" for line in a.advice)
    yield from _suggestions(a)
    yield from (f"  {line}" for line in ways_table(a.ways))
    yield from _choices(a, plan)


def _widths(a: AttributePlan, plan: Plan) -> Iterator[str]:
    reports = _round_reports(a.verdict)
    pooled = ", ".join(f"{t}: ±{100 * w:.2f}" for t, w in a.half_width_pooled.items())
    yield (
        f"  one round of {reports:,.0f} devices   ±{100 * a.half_width:.2f}"
        f"   all values at once ±{100 * a.half_width_all:.2f}"
    )
    yield (
        f"  a difference in one round   ±{100 * a.difference:.2f}"
        f"   any pair ±{100 * a.difference_all:.2f}"
    )
    yield f"  pooled over rounds          {pooled}"
    yield f"  floor, however many rounds  ±{100 * a.floor:.2f} ({_FLOORS[a.reporting]})"
    if a.split_budget_ratio is not None and a.split_budget_ratio > 1.0:
        yield (
            f"  if every device answered all questions instead of one: "
            f"{a.split_budget_ratio:.2f} times wider"
        )
    if plan.precision is not None:
        yield (
            f"  for ±{100 * plan.precision:g} in one round: "
            f"{a.devices_for_precision:,} devices in all"
        )


_FLOORS = {
    "memoized": "noise of the one memo per device",
    "once": "every device has answered",
    "hashed": "noise of the memos and of the groups",
    "nested": "the last level",
}


def _round_reports(verdict: Iterable[Judgement]) -> float:
    return next(judged.reports for judged in verdict)


def numbers_lines(numbers: Iterable[NumbersPlan], unit: str) -> Iterator[str]:
    """Mean and median, if numbers were spread evenly over the bins."""
    for each in numbers:
        mean = "no mean"
        if each.mean_half_width is not None:
            mean = (
                f"mean ±{quantity(each.mean_half_width, unit)}, and up to "
                f"±{quantity(each.mean_bias, unit)} because bins have a width"
            )
        median = median_between(each.median_low, each.median_high, unit)
        yield f"{rounds_name(each.rounds)}: {mean}; {median}"


def _suggestions(a: AttributePlan) -> Iterator[str]:
    if a.suggestions:
        read = a.verdict[-1].rounds
        yield f"  for ±{100 * a.target:g} with {rounds_name(read)}, one of these would do:"
        yield from (f"    {each.sentence}" for each in a.suggestions)


def ways_table(ways: Iterable[WayPlan]) -> Iterator[str]:
    """The ways of reporting, the chosen one marked."""
    yield "way of reporting   one round    7 rounds   28 rounds   bound   hides"
    for way in ways:
        widths = "   ".join(f"{f'±{100 * w:.2f}':>9}" for w in way.half_width.values())
        mark = ">" if way.chosen else " "
        unfit = "" if way.suits else "; not for values that change"
        yield (
            f"{mark} {way.reporting:<14}   {widths}   {way.lifetime_epsilon:>5g}   "
            f"{way.hides}{unfit}"
        )


def _choices(a: AttributePlan, plan: Plan) -> Iterator[str]:
    for choice in a.choices:
        yield (
            f'  choose_for = "{choice.choose_for}": {choice.protocol}, '
            f"±{100 * choice.half_width:.2f} in one round, "
            f"±{100 * choice.half_width_pooled:.2f} over {plan.rounds:,} rounds"
        )
