"""Typed facts as text for the terminal."""

from __future__ import annotations

from typing import TypedDict

from collector.show.comparison import Comparison
from collector.show.facts import (
    CampaignStatus,
    FillingFacts,
    Overview,
    ResultFacts,
    outcome_help,
)
from collector.show.tables import Row
from collector.show.words import (
    answer_text,
    difference_lines,
    heading,
    numbers_lines,
    withheld_text,
)


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
    head = [*heading(facts), *(f"  careful: {warning}" for warning in facts["warnings"])]
    if facts["device_bound"] is None:
        return "\n".join([*head, f"  {withheld_text(facts)}; withheld"])
    width = max(5, *(len(row["value"]) for row in facts["histogram"]))
    told = [] if facts["numbers"] is None else numbers_lines(facts["numbers"])
    return "\n".join(
        [
            *head,
            f"  {'value':<{width}}      raw   95 % interval     for all at once   projected",
            *(_row(row, width) for row in facts["histogram"]),
            *(f"  {line}" for line in told),
            *(f"  {line}" for line in difference_lines(facts)),
            (
                "  one dishonest device can move a raw bar by at most "
                f"{100 * facts['device_bound']:.3g} points"
            ),
        ]
    )


def _row(row: Row, width: int) -> str:
    one = f"{100 * row['low']:5.1f} … {100 * row['high']:5.1f}"
    every = f"{100 * row['low_all']:5.1f} … {100 * row['high_all']:5.1f}"
    return (
        f"  {row['value']:<{width}}  {100 * row['raw']:6.1f}%  {one}     {every}     "
        f"{100 * row['projected']:6.1f}%"
    )


def comparison_text(facts: ResultFacts, found: Comparison) -> str:
    """Whether A is above B, and by how much."""
    if found["difference"] is None:
        return "\n".join([*heading(facts), f"  {withheld_text(facts)}; withheld"])
    ends = ((found["low"], found["high"]), (found["low_all"], found["high_all"]))
    named, every = (f"{100 * (low or 0.0):.1f} … {100 * (high or 0.0):.1f}" for low, high in ends)
    return "\n".join(
        [
            *heading(facts),
            f"  is {found['a']} above {found['b']}? {answer_text(found)}",
            f"  difference {100 * found['difference']:.1f} points, 95 % interval {named}",
            (
                f"  if you picked the two by their bars: {answer_text(found, every_pair=True)} "
                f"({every})"
            ),
        ]
    )
