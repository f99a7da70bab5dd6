"""The views' facts as text for people."""

from __future__ import annotations

from typing import Any

from collector.show.facts import Facts, outcome_help


def plan_text(facts: Facts) -> str:
    """What to expect, attribute by attribute."""
    f, n = facts["f"], facts["n"]
    lines = [
        f"{n:,} devices, eps_inf {facts['eps_inf']:g}, eps_1 {facts['eps_1']:g}",
        f"half-widths of 95 % intervals at a true frequency of {f:g}, in percentage points",
        f"set receipt_pages to about {facts['receipt_pages']} (a thousand devices a page)",
    ]
    for a in facts["attributes"]:
        lines += ["", *_attribute_plan(a, facts["precision"])]
    return "\n".join(lines)


def _attribute_plan(a: Facts, precision: float | None) -> list[str]:
    pooled = ", ".join(f"{t}: ±{100 * w:.2f}" for t, w in a["half_width_pooled"].items())
    lines = [
        f"{a['name']} ({a['k']} values): {a['protocol']} ({a['why']})",
        (
            f"  one round of {a['devices']:,} devices   ±{100 * a['half_width']:.2f}"
            f"   all bars at once ±{100 * a['half_width_all']:.2f}"
        ),
        f"  pooled over rounds          {pooled}",
        f"  floor, however many rounds  ±{100 * a['floor']:.2f} (noise of the one memo per device)",
    ]
    if a["split_budget_ratio"] is not None and a["split_budget_ratio"] > 1.0:
        lines.append(
            f"  if every device answered everything instead of one question, "
            f"{a['split_budget_ratio']:.2f} times wider"
        )
    if precision is not None:
        needed = f"{a['devices_for_precision']:,}"
        lines.append(f"  for ±{100 * precision:g} in one round: {needed} devices in all")
    return lines


def opened_text(facts: Facts) -> str:
    """What to do next with a new campaign."""
    published = "Published: devices can join it now."
    waiting = "Not published yet: the collector does that when it runs."
    if facts["trouble"]:
        waiting = f"Not published yet, the collector does that when it runs: {facts['trouble']}"
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


def sealed_text(facts: Facts) -> str:
    """Which rounds became final."""
    shown = ", ".join(map(str, facts["sealed"]))
    return f"{facts['campaign']}: " + (f"sealed {shown}" if shown else "nothing was due")


def status_text(facts: Facts) -> str:
    """How everything stands."""
    lines = [f"service: {facts['service']}; {facts['received']:,} messages received"]
    for c in facts["campaigns"]:
        state = "open" if c["open"] else "closed"
        now = "no round now" if c["round"] is None else f"round {c['round']}"
        lines += [
            "",
            f"{c['campaign']} ({state}): {c['title']}",
            f"  {now} of {c['rounds']}; {c['sealed']} sealed{_next_sealing(c)}",
        ]
        lines += [_filling_line(row) for row in c["filling"]]
        lines += _outcome_lines(c["outcomes"])
    if facts["elsewhere"]:
        lines += ["", "messages of no campaign here:", *_outcome_lines(facts["elsewhere"])]
    return "\n".join(lines)


def _next_sealing(c: Facts) -> str:
    ahead = c["open"] and c["sealed"] < c["rounds"]
    return f", next sealing at {c['next_seal']}" if ahead else ""


def _filling_line(row: Facts) -> str:
    counts = ", ".join(f"{name} {n:,}" for name, n in row["reports"].items())
    return f"  round {row['round']} fills: {counts} (a histogram needs {row['enough']:,})"


def _outcome_lines(outcomes: dict[str, int]) -> list[str]:
    texts = outcome_help()
    return [f"  {n:>10,}  {name:<18} {texts[name]}" for name, n in sorted(outcomes.items())]


def result_text(facts: Facts) -> str:
    """A histogram as a table."""
    head = heading(facts)
    if facts["withheld"]:
        return "\n".join([*head, f"  {withheld_text(facts)}"])
    width = max(5, *(len(row["value"]) for row in facts["histogram"]))
    lines = [f"  {'value':<{width}}      raw   95 % interval     for all at once   projected"]
    lines += [_row(row, width) for row in facts["histogram"]]
    lines.append(
        f"  the smallest difference this can show is about ±{100 * facts['smallest_visible']:.1f} "
        "points"
    )
    shift = f"{100 * facts['device_bound']:.3g} points"
    lines.append(f"  one dishonest device can move a raw bar by at most {shift}")
    return "\n".join([*head, *lines])


def withheld_text(facts: Facts) -> str:
    """Why there is no histogram."""
    return f"not enough reports: {facts['n']:,} of {facts['min_reports']:,}; withheld"


def heading(facts: Facts) -> list[str]:
    """Which question, which rounds, how many reports."""
    which = f"round {facts['round']}"
    if facts["round"] is None:
        which = "1 round" if facts["rounds"] == 1 else f"{facts['rounds']} rounds pooled"
    if not facts["final"]:
        which += " so far, not sealed"
    return [
        f"{facts['attribute']}: {facts['question']}",
        f"  {which}, {facts['n']:,} reports of {facts['devices']:,} devices, {facts['protocol']}",
    ]


def _row(row: dict[str, Any], width: int) -> str:
    one = f"{100 * row['low']:5.1f} … {100 * row['high']:5.1f}"
    every = f"{100 * row['low_all']:5.1f} … {100 * row['high_all']:5.1f}"
    return (
        f"  {row['value']:<{width}}  {100 * row['raw']:6.1f}%  {one}     {every}     "
        f"{100 * row['projected']:6.1f}%"
    )
