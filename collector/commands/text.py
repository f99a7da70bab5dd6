"""Typed facts as text for the terminal."""

from __future__ import annotations

from typing import TypedDict

from collector.show.facts import (
    CampaignStatus,
    FillingFacts,
    Overview,
    ResultFacts,
    outcome_help,
)
from collector.show.planning import AttributePlan, Plan
from collector.show.tables import Row
from collector.show.terminal import heading, withheld_text


class OpenedFacts(TypedDict):
    """What `open --json` prints."""

    campaign: str
    digest: str
    join: str
    running: bool
    published: bool
    trouble: str | None


class SealedFacts(TypedDict):
    """What `seal --json` prints."""

    campaign: str
    sealed: list[int]


def plan_text(plan: Plan) -> str:
    """What to expect, attribute by attribute."""
    lines = [
        f"{plan.n:,} devices, eps_inf {plan.eps_inf:g}, eps_1 {plan.eps_1:g}",
        f"half-widths of 95 % intervals at a true frequency of {plan.f:g}, in percentage points",
        f"set receipt_pages to about {plan.receipt_pages} (a thousand devices a page)",
    ]
    for attribute in plan.attributes:
        lines += ["", *_attribute_plan(attribute, plan.precision)]
    return "\n".join(lines)


def _attribute_plan(a: AttributePlan, precision: float | None) -> list[str]:
    pooled = ", ".join(f"{t}: ±{100 * w:.2f}" for t, w in a.half_width_pooled.items())
    lines = [
        f"{a.name} ({a.k} values): {a.protocol} ({a.why})",
        (
            f"  one round of {a.devices:,} devices   ±{100 * a.half_width:.2f}"
            f"   all values at once ±{100 * a.half_width_all:.2f}"
        ),
        f"  pooled over rounds          {pooled}",
        f"  floor, however many rounds  ±{100 * a.floor:.2f} (noise of the one memo per device)",
    ]
    if a.split_budget_ratio is not None and a.split_budget_ratio > 1.0:
        lines.append(
            f"  if every device answered all questions instead of one: "
            f"{a.split_budget_ratio:.2f} times wider"
        )
    if precision is not None:
        lines.append(
            f"  for ±{100 * precision:g} in one round: {a.devices_for_precision:,} devices in all"
        )
    return lines


def opened_text(facts: OpenedFacts) -> str:
    """What to do next with a new campaign."""
    published = "Published: devices can join it now."
    waiting = "Not published yet: the collector publishes it when it runs."
    if facts["trouble"]:
        waiting = (
            f"Not published yet ({facts['trouble']}): the collector publishes it when it runs."
        )
    return "\n".join(
        [
            f"Opened {facts['campaign']}",
            f"Digest {facts['digest']}",
            published if facts["published"] else waiting,
            *([] if facts["running"] else ["Start collecting with: allomfree-collector run"]),
            "An owner joins with:",
            f"    {facts['join']}",
        ]
    )


def sealed_text(facts: SealedFacts) -> str:
    """Which rounds became final."""
    shown = ", ".join(map(str, facts["sealed"]))
    return f"{facts['campaign']}: " + (f"sealed {shown}" if shown else "nothing was due")


def status_text(facts: Overview) -> str:
    """The service, then every campaign."""
    lines = [f"service: {facts['service']}; {facts['received']:,} messages received"]
    for campaign in facts["campaigns"]:
        lines += ["", *_campaign_lines(campaign)]
    if facts["elsewhere"]:
        lines += ["", "messages of no campaign here:", *_outcome_lines(facts["elsewhere"])]
    return "\n".join(lines)


def _campaign_lines(c: CampaignStatus) -> list[str]:
    state = "open" if c["open"] else "closed"
    now = "no round now" if c["round"] is None else f"round {c['round']}"
    return [
        f"{c['campaign']} ({state}): {c['title']}",
        f"  {now} of {c['rounds']}; {c['sealed']} sealed{_next_sealing(c)}",
        *map(_filling_line, c["filling"]),
        *_outcome_lines(c["outcomes"]),
    ]


def _next_sealing(c: CampaignStatus) -> str:
    ahead = c["open"] and c["sealed"] < c["rounds"]
    return f", next sealing at {c['next_seal']}" if ahead else ""


def _filling_line(row: FillingFacts) -> str:
    counts = ", ".join(f"{name} {n:,}" for name, n in row["reports"].items())
    return f"  round {row['round']} fills: {counts} (a histogram needs {row['enough']:,})"


def _outcome_lines(outcomes: dict[str, int]) -> list[str]:
    texts = outcome_help()
    return [f"  {n:>10,}  {name:<18} {texts[name]}" for name, n in sorted(outcomes.items())]


def result_text(facts: ResultFacts) -> str:
    """A histogram as a table."""
    head = heading(facts)
    if facts["smallest_visible"] is None or facts["device_bound"] is None:
        return "\n".join([*head, f"  {withheld_text(facts)}"])
    width = max(5, *(len(row["value"]) for row in facts["histogram"]))
    smallest, shift = 100 * facts["smallest_visible"], 100 * facts["device_bound"]
    return "\n".join(
        [
            *head,
            f"  {'value':<{width}}      raw   95 % interval     for all at once   projected",
            *(_row(row, width) for row in facts["histogram"]),
            f"  the smallest difference this can show is about ±{smallest:.1f} points",
            f"  one dishonest device can move a raw bar by at most {shift:.3g} points",
        ]
    )


def _row(row: Row, width: int) -> str:
    one = f"{100 * row['low']:5.1f} … {100 * row['high']:5.1f}"
    every = f"{100 * row['low_all']:5.1f} … {100 * row['high_all']:5.1f}"
    return (
        f"  {row['value']:<{width}}  {100 * row['raw']:6.1f}%  {one}     {every}     "
        f"{100 * row['projected']:6.1f}%"
    )
