"""Sentences that terminal and page share."""

from __future__ import annotations

from collections.abc import Sequence

from edge_client.language import number, say, say_count
from edge_client.show.facts import AboutFacts, BudgetFacts, CampaignFacts, LedgerFacts
from edge_client.show.ways import every
from protocol_spec.programs.pasting import typed


def none_joined() -> str:
    """How to begin."""
    command = typed("allomfree-edge", "join", "ADDRESS")
    return say("No campaign joined. Begin with: {command}", command=command)


def clock_text(doubt: str) -> str:
    """What there is to say about the clock."""
    return say("Clock: {doubt}.", doubt=doubt)


def booked_text(line: LedgerFacts) -> str:
    """For which campaign a charge was booked, and why."""
    return f"{line['campaign'] or say('unknown')}, {say(line['reason'])}"


def rounds_text(facts: AboutFacts) -> str:
    """How many rounds there are, and how long one is."""
    return say(
        "{count}, one {every}, from {first}",
        count=facts["rounds"],
        every=every(facts["period_seconds"]),
        first=facts["first_round"],
    )


def and_more(shown: str, of: Sequence[object], most: int) -> str:
    """A list that is cut, with how many more there are."""
    if len(of) <= most:
        return shown
    return say("{shown} and {count} more", shown=shown, count=len(of) - most)


def in_all(facts: AboutFacts) -> str:
    """The most that can ever be booked, as a sentence."""
    return say("In all, {bound}.", bound=facts["bound"])


def first_charge(facts: CampaignFacts) -> float:
    """What the first report books: an answer of its own, or a memo for many."""
    return facts["eps_1"] if facts["reporting"] == "once" else facts["eps_inf"]


def drawn_text(facts: CampaignFacts) -> str:
    """How many memos and reports were drawn; memos only where there are any."""
    reports = reports_text(facts["reports"])
    return f"{memos_text(facts['memos'])}, {reports}" if facts["memos"] else reports


def reports_text(count: int) -> str:
    """`1 report`, `2 reports`."""
    return say_count(count, "{count} report", "{count} reports")


def memos_text(count: int) -> str:
    """`1 memo`, `2 memos`."""
    return say_count(count, "{count} memo", "{count} memos")


def budgets_text(budgets: Sequence[BudgetFacts]) -> str:
    """How much of the owner's limits is used up or promised."""
    told = [
        say(
            "{source} {used} of {allowed}",
            source=say("all sources together") if b["source"] == "*" else b["source"],
            used=number(b["used"]),
            allowed=say("no limit") if b["allowed"] is None else number(b["allowed"]),
        )
        for b in budgets
    ]
    return say("Used or promised, of what your policy allows: {budgets}.", budgets=", ".join(told))
