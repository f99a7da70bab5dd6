"""Typed facts as text for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypedDict

from collector.show.comparison import Comparison
from collector.show.facts import (
    CampaignStatus,
    FillingFacts,
    ResultFacts,
    StatusFacts,
    WaitingFacts,
    outcome_help,
)
from collector.show.tables import Row
from collector.show.words import (
    answer_text,
    difference_lines,
    heading,
    numbers_lines,
    which,
    withheld_text,
)
from collector.show.workers import WorkerFacts, role_of
from protocol_spec.programs.output import shown

_UNSIGNED: Final = (
    "Not signed: owners cannot tell who made it. See: allomfree-collector operator-key create"
)
_USUAL_MIN_PERIOD_SECONDS: Final = 3_600  # which devices allow without a policy of their own


class OpenedFacts(TypedDict):
    """What `open --json` prints."""

    campaign: str
    digest: str
    operator: str
    join: str
    running: bool
    published: bool
    trouble: str | None
    receipts: str
    trial: bool
    period_seconds: int
    first_result: str


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
            f"Opened {facts['campaign']}{' (a TRIAL)' if facts['trial'] else ''}",
            f"Digest {facts['digest']}",
            f"Signed by {facts['operator']}" if facts["operator"] else _UNSIGNED,
            facts["receipts"],
            published if facts["published"] else waiting,
            *([] if facts["running"] else ["Start collecting with: allomfree-collector run"]),
            "An owner joins with:",
            f"    {facts['join']}",
            *(_short_rounds_lines(facts["period_seconds"]) if facts["trial"] else []),
            f"The first result comes soon after {facts['first_result']}.",
            f"As a QR code: allomfree-collector invite {facts['campaign']}",
        ]
    )


def _short_rounds_lines(period_seconds: int) -> list[str]:
    """What an owner must allow before a device joins a trial."""
    if period_seconds >= _USUAL_MIN_PERIOD_SECONDS:
        return []
    return [
        f"Devices refuse rounds as short as {period_seconds} s unless their configuration has:",
        "    [policy]",
        f"    min_period = {period_seconds}",
    ]


def sealed_text(facts: SealedFacts) -> str:
    """Which rounds became final."""
    sealed = ", ".join(map(str, facts["sealed"]))
    return f"{facts['campaign']}: " + (f"sealed {sealed}" if sealed else "nothing was due")


def status_text(facts: StatusFacts) -> str:
    """The service, then every campaign."""
    lines = [f"service: {facts['service']}; {facts['received']:,} messages received"]
    lines += map(_worker_line, facts["workers"])
    for campaign in facts["campaigns"]:
        lines += ["", *_campaign_lines(campaign)]
    if facts["elsewhere"]:
        lines += ["", "messages of no campaign here:", *_outcome_lines(facts["elsewhere"])]
    if facts["requests"]:
        counted = ", ".join(f"{n:,} {name}" for name, n in sorted(facts["requests"].items()))
        lines += ["", f"requests to be forgotten: {counted}"]
    for name in facts["suspended_names"]:
        lines += ["", *_suspended_lines(name)]
    return "\n".join(lines)


def _worker_line(worker: WorkerFacts) -> str:
    drained = "" if worker["drained"] is None else f", drained {worker['drained']:.0f} s ago"
    return (
        f"  worker {worker['number']} on {shown(worker['name'])} {role_of(worker)}: seen "
        f"{worker['silent']:.0f} s ago{drained}; {worker['received']:,} messages since it started"
    )


def _suspended_lines(name: str) -> list[str]:
    return [
        f"{name} floods and is suspended until it stops; other devices are counted.",
        f"If it goes on: allomfree-collector revoke {name}",
    ]


def _campaign_lines(c: CampaignStatus) -> list[str]:
    now = "no round now" if c["round"] is None else f"round {c['round']}"
    rounds = f"{now} of {c['rounds']}; {c['sealed']} sealed{_next_sealing(c)}"
    if c["state"] == "finished":
        rounds = f"all rounds are sealed: {c['rounds']}"
    return [
        f"{c['campaign']} ({c['state']}): {c['title']}",
        f"  {rounds}",
        *_waiting_lines(c["waiting"]),
        *map(_filling_line, c["filling"]),
        *_outcome_lines(c["outcomes"]),
    ]


def _next_sealing(c: CampaignStatus) -> str:
    ahead = c["open"] and c["sealed"] < c["rounds"]
    return f", next sealing at {c['next_seal']}" if ahead else ""


def _waiting_lines(waits: WaitingFacts | None) -> list[str]:
    if waits is None:
        return []
    longest = "" if waits["until"] is None else f"; until {waits['until']} at most"
    return [f"  round {waits['round']} is over but not sealed: {waits['why']}{longest}"]


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


def comparisons_text(facts: Sequence[ResultFacts], found: Sequence[Comparison]) -> str:
    """One comparison in sentences, several of a question as a table."""
    parts = []
    for attribute in dict.fromkeys(each["attribute"] for each in found):
        mine = [(f, c) for f, c in zip(facts, found) if c["attribute"] == attribute]
        parts.append(comparison_text(*mine[0]) if len(mine) == 1 else _comparison_table(mine))
    return "\n\n".join(parts)


_SHORTLY: Final = {"above": "yes", "below": "no", "not shown": "not shown", "withheld": "withheld"}


def _comparison_table(compared: Sequence[tuple[ResultFacts, Comparison]]) -> str:
    facts, first = compared[0]
    a, b = first["a"], first["b"]
    width = max(6, *(len(which(each)) for each, _ in compared))
    columns = (
        f"{'reports':>10}  {'difference':>10}   {'95 % interval':<15}  {'answer':<9}  if picked"
    )
    return "\n".join(
        [
            f"{facts['attribute']}: {facts['question']}",
            f"  is {a} above {b}? {a} minus {b}, in points",
            f"  {'rounds':<{width}}  {columns}",
            *(_comparison_row(which(each), width, c) for each, c in compared),
            "  if picked: the answer for two values that you picked because of their bars",
        ]
    )


def _comparison_row(rounds: str, width: int, c: Comparison) -> str:
    difference, interval = "", ""
    if c["difference"] is not None and c["low"] is not None and c["high"] is not None:
        difference = f"{100 * c['difference']:.1f}"
        interval = f"{100 * c['low']:6.1f} … {100 * c['high']:6.1f}"
    answers = f"{_SHORTLY[c['answer']]:<9}  {_SHORTLY[c['answer_all']]}"
    return f"  {rounds:<{width}}  {c['n']:>10,}  {difference:>10}   {interval:<15}  {answers}"


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
