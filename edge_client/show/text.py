"""The statement's facts as text for people."""

from __future__ import annotations

import textwrap

from edge_client.show.facts import (
    AboutFacts,
    AttributeFacts,
    CampaignFacts,
    DrawnRoundFacts,
    InvitationFacts,
    JoinedFacts,
    LedgerFacts,
    ReportFacts,
    ShowFacts,
    StatusFacts,
)
from edge_client.show.ways import period_text

WIDTH = 96
MOST_ROUNDS = 8
MOST_REVEALED = "the most that any number of them can reveal"

NONE_JOINED = "No campaign joined. Begin with: allomfree-edge join ADDRESS"


def invitation_text(facts: InvitationFacts) -> str:
    """What an owner reads before agreeing."""
    lines = [
        *_about_lines(facts),
        "",
        *_wrap(
            "If you agree, this device draws one of these questions at random and answers only "
            f"that one, {facts['answers']}, with noise added here:"
        ),
    ]
    for attribute in facts["attributes"]:
        lines += ["", *_attribute_lines(attribute)]
    lines += [
        "",
        f"It would go to {facts['broker']} on the topic",
        f"    {facts['topic']}",
        *_limits_lines(facts, facts["attributes"]),
        *_wrap(f"All of it together can cost {facts['bound']}."),
        "You can `pause`, `leave` or `forget` at any time.",
    ]
    return "\n".join(lines)


def campaign_text(facts: CampaignFacts) -> str:
    """What `show` prints about one campaign."""
    lines = [*_about_lines(facts), f"Status      {facts['status']}: {facts['state']}", ""]
    lines += [
        "This device drew one question for life:",
        *_attribute_lines(facts["drawn_attribute"]),
        *_wrap(f"    It answers {facts['answers']}."),
        *_rounds_lines(facts["drawn_rounds"]),
    ]
    lines += ["", f"Sent to     {facts['broker']}", f"Topic       {facts['topic']}"]
    for title, rows in (("Queued", facts["queued"]), ("Left this device", facts["sent"])):
        lines += ["", f"{title}:"] + (_report_lines(rows) or ["    nothing"])
    lines += [
        "",
        *_limits_lines(facts, [facts["drawn_attribute"]]),
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
    joined = f"Joined {facts['campaign']}. This device will answer {attribute!r}, for life."
    warning = _wrap(facts["warning"]) if facts["warning"] else []
    return "\n".join(["", joined, *_rounds_lines(facts["rounds"]), *warning])


def status_text(facts: StatusFacts) -> str:
    """A line for the agent and one per campaign."""
    idle = "" if facts["pid"] else " (`allomfree-edge run` starts it; `report` needs none)"
    lines = [f"agent: {facts['agent']}{idle}"]
    lines += [
        f"{c['campaign']}: {'joined, ' if c['status'] == 'joined' else ''}{c['state']}; "
        f"attribute {c['attribute']}, "
        f"{count_text(c['reports'], 'report')}, {c['queued']} queued, "
        f"epsilon {c['epsilon_exact']:.4f} of {c['epsilon_charged']:g}, "
        f"at most {c['epsilon_bound']:g} ever"
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
    warning = _wrap(facts["warning"], " " * 4) if facts["warning"] else []
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
        *warning,
    ]


def _rounds_lines(rounds: list[DrawnRoundFacts] | None) -> list[str]:
    """The rounds drawn, where a device does not answer in all of them."""
    if rounds is None:
        return []
    shown = ", ".join(f"{r['round']} ({r['opens'][:16]}Z)" for r in rounds[:MOST_ROUNDS])
    more = f" and {len(rounds) - MOST_ROUNDS} more" if len(rounds) > MOST_ROUNDS else ""
    said = f"Rounds drawn: {shown}{more}" if rounds else "No round is left for it to answer"
    return _wrap(f"    {said}.")


def _limits_lines(
    facts: InvitationFacts | CampaignFacts, attributes: list[AttributeFacts]
) -> list[str]:
    """What is not sent, what is seen all the same, and what noise does not hide."""
    not_hidden = dict.fromkeys(line for each in attributes for line in each["not_hidden"])
    return [
        *_wrap("Never sent: " + "; ".join(facts["never_leaves"]) + "."),
        *_wrap("The broker sees: " + "; ".join(facts["broker_sees"]) + "."),
        *(line for told in not_hidden for line in _wrap(told)),
    ]


def _spent_lines(facts: CampaignFacts) -> list[str]:
    ever = _wrap(f"In all, {facts['bound']}.")
    if not facts["reports"]:
        first = first_charge(facts)
        return [f"Ledger: nothing was drawn yet; the first report books epsilon {first:g}.", *ever]
    each = f"{facts['eps_1']:g} for each of them"
    what = each if facts["reporting"] == "once" else MOST_REVEALED
    return [
        (
            f"Ledger: {drawn_text(facts)}. "
            f"Revealed so far at most epsilon {facts['epsilon_exact']:.4f};"
        ),
        f"booked {facts['epsilon_charged']:g}, {what}.",
        *ever,
    ]


def first_charge(facts: CampaignFacts) -> float:
    """What the first report books: an answer of its own, or a memo for many."""
    return facts["eps_1"] if facts["reporting"] == "once" else facts["eps_inf"]


def drawn_text(facts: CampaignFacts) -> str:
    """How many memos and reports were drawn; memos only where there are any."""
    reports = count_text(facts["reports"], "report")
    return f"{count_text(facts['memos'], 'memo')}, {reports}" if facts["memos"] else reports


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


def _wrap(text: str, label: str = "") -> list[str]:
    """Lines of at most WIDTH columns, indented below their label."""
    return textwrap.wrap(text, WIDTH, initial_indent=label, subsequent_indent=" " * len(label)) or [
        label
    ]
