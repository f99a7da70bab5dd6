"""The statement's facts as text for people."""

from __future__ import annotations

import textwrap

from edge_client.show.facts import (
    AboutFacts,
    AttributeFacts,
    CampaignFacts,
    InvitationFacts,
    JoinedFacts,
    LedgerFacts,
    ReportFacts,
    ShowFacts,
    StatusFacts,
)

WIDTH = 96

NONE_JOINED = "No campaign joined. Begin with: allomfree-edge join ADDRESS"

CHANGES_SHOW = (
    "What noise cannot hide: if your value changes, someone who keeps all your reports can in the "
    "long run notice that it changed, though not what it was."
)
FIRST_ONLY = (
    "Only the first value is ever answered for: if yours changes to another of the answers, the "
    "reports go on from the first."
)


def invitation_text(facts: InvitationFacts) -> str:
    """What an owner reads before agreeing."""
    lines = [
        *_about_lines(facts),
        "",
        "If you agree, this device draws one of these questions at random and answers only that",
        f"one, once every {period_text(facts['period_seconds'])}, with noise added here:",
    ]
    for attribute in facts["attributes"]:
        lines += ["", *_attribute_lines(attribute)]
    lines += [
        "",
        f"It would go to {facts['broker']} on the topic",
        f"    {facts['topic']}",
        *_limits_lines(facts),
        "You can `pause`, `leave` or `forget` at any time.",
    ]
    return "\n".join(lines)


def campaign_text(facts: CampaignFacts) -> str:
    """What `show` prints about one campaign."""
    lines = [*_about_lines(facts), f"Status      {facts['status']}: {facts['state']}", ""]
    lines += [
        "This device drew one question for life:",
        *_attribute_lines(facts["drawn_attribute"]),
    ]
    lines += ["", f"Sent to     {facts['broker']}", f"Topic       {facts['topic']}"]
    for title, rows in (("Queued", facts["queued"]), ("Left this device", facts["sent"])):
        lines += ["", f"{title}:"] + (_report_lines(rows) or ["    nothing"])
    lines += [
        "",
        *_limits_lines(facts),
        "",
        *_spent_lines(facts),
        f"Stop with: allomfree-edge pause | leave | forget {facts['campaign']}",
    ]
    return "\n".join(lines)


def show_text(facts: ShowFacts) -> str:
    """Every campaign, and the ledger."""
    shown = [campaign_text(campaign) for campaign in facts["campaigns"]] or [NONE_JOINED]
    return "\n\n\n".join([*shown, ledger_text(facts["ledger"])])


def joined_text(facts: JoinedFacts) -> str:
    """What joining has settled."""
    attribute = facts["attribute"]
    return f"\nJoined {facts['campaign']}. This device will answer {attribute!r}, for life."


def status_text(facts: StatusFacts) -> str:
    """A line for the agent and one per campaign."""
    idle = "" if facts["pid"] else " (`allomfree-edge run` starts it; `report` needs none)"
    lines = [f"agent: {facts['agent']}{idle}"]
    lines += [
        f"{c['campaign']}: {'joined, ' if c['status'] == 'joined' else ''}{c['state']}; "
        f"attribute {c['attribute']}, "
        f"{count_text(c['reports'], 'report')}, {c['queued']} queued, "
        f"epsilon {c['epsilon_exact']:.4f} of {c['epsilon_charged']:g}"
        for c in facts["campaigns"]
    ]
    if not facts["campaigns"]:
        lines.append(NONE_JOINED)
    return "\n".join(lines)


def ledger_text(lines: list[LedgerFacts]) -> str:
    """The ledger as a table."""
    if not lines:
        return "Ledger: nothing was ever charged."
    wide = max(len("source"), *(len(x["source"]) for x in lines))
    rows = [
        f"{x['at']}  {x['epsilon']:8.4f}  {x['source']:<{wide}}  "
        f"{x['campaign'] or 'unknown'}, {x['reason']}"
        for x in lines
    ]
    return "\n".join(
        [f"when                   epsilon  {'source':<{wide}}  campaign, reason", *rows]
    )


def _about_lines(facts: AboutFacts) -> list[str]:
    return [
        facts["title"],
        "=" * len(facts["title"]),
        f"Campaign    {facts['campaign']}",
        *_wrap(facts["purpose"], "Purpose     "),
        f"Asked by    {facts['owner']}, {facts['contact']}",
        (
            f"Rounds      {facts['rounds']}, one every {period_text(facts['period_seconds'])}, "
            f"from {facts['first_round']}"
        ),
        f"Ends        {facts['ends']}",
    ]


def _attribute_lines(facts: AttributeFacts) -> list[str]:
    shown = ", ".join(facts["values"][:8]) + (", ..." if len(facts["values"]) > 8 else "")
    octets = facts["bytes"] if facts["length"] <= 40 else facts["bytes"][:90] + " ..."
    one, every = facts["belief_one_report"], facts["belief_all_reports"]
    return [
        f"  {facts['attribute']}: {facts['question']}",
        f"    Answers   {len(facts['values'])}: {shown}",
        *_wrap(facts["one_report"], "    Odds      "),
        *_wrap(facts["all_reports"], "              "),
        *_wrap(
            f"One report multiplies anyone's odds about you {one}, all together {every}.", " " * 14
        ),
        f"    Bytes     {octets}",
        f"              {facts['length']} bytes, {facts['protocol']}; ?? is noise",
    ]


def _limits_lines(facts: InvitationFacts | CampaignFacts) -> list[str]:
    """What is not sent, what is seen all the same, and what noise does not hide."""
    several = f"At most {facts['max_values']} different values of yours are ever answered for."
    return [
        *_wrap("Never sent: " + "; ".join(facts["never_leaves"]) + "."),
        *_wrap("The broker sees: " + "; ".join(facts["broker_sees"]) + "."),
        *(_wrap(FIRST_ONLY) if facts["max_values"] == 1 else [several, *_wrap(CHANGES_SHOW)]),
    ]


def _spent_lines(facts: CampaignFacts) -> list[str]:
    if not facts["memos"]:
        return [
            f"Ledger: nothing was drawn yet; the first report books epsilon {facts['eps_inf']:g}."
        ]
    memos, reports = count_text(facts["memos"], "memo"), count_text(facts["reports"], "report")
    return [
        (
            f"Ledger: {memos}, {reports}. "
            f"Revealed so far at most epsilon {facts['epsilon_exact']:.4f};"
        ),
        f"booked {facts['epsilon_charged']:g}, the most that any number of them can reveal.",
    ]


def count_text(number: int, thing: str) -> str:
    """A number with its noun: `1 report`, `2 reports`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _report_lines(rows: list[ReportFacts]) -> list[str]:
    lines = []
    for row in rows[-5:]:
        says = ", ".join(row["says"][:6]) or "nothing"
        lines += [
            f"    round {row['round']}: {row['fate']}; the noisy answer says: {says}",
            f"        {row['bytes']}",
        ]
    return lines


def period_text(seconds: int) -> str:
    """A duration in its largest whole unit."""
    for size, name in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds % size == 0:
            count = seconds // size
            return name if count == 1 else f"{count} {name}s"
    return f"{seconds} seconds" if seconds > 1 else "second"


def _wrap(text: str, label: str = "") -> list[str]:
    """Lines of at most WIDTH columns, indented below their label."""
    return textwrap.wrap(text, WIDTH, initial_indent=label, subsequent_indent=" " * len(label)) or [
        label
    ]
