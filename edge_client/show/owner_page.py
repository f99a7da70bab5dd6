"""The owner's statement as one HTML page, from the facts that `show` prints.

It fetches nothing and runs nothing: its policy forbids every request and script, the curve is drawn
inside it, and every text is escaped. As a file it is its owner's alone, and replaces only an
earlier one of its kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Final

from edge_client.device import Device
from edge_client.errors import SettingsError
from edge_client.language import message, number, say, say_count, spoken
from edge_client.records import Membership
from edge_client.show import html
from edge_client.show.curve import Loss, curve_svg
from edge_client.show.facts import CampaignFacts, DrawnRoundFacts, LedgerFacts, ReportFacts
from edge_client.show.phrases import (
    and_more,
    booked_text,
    budgets_text,
    first_charge,
    in_all,
    memos_text,
    none_joined,
    reports_text,
    rounds_text,
)
from edge_client.show.statement import budget_facts, campaign_facts, ledger_facts
from protocol_spec.programs.pasting import typed
from protocol_spec.programs.private_files import write_durably

MARK: Final = b"<!doctype html>\n<!-- allomfree-edge show -->"
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
LAST_REPORTS: Final = 12
SHOWN_REPORTS: Final = 3
SHOWN_CHARGES: Final = 4
MOST_SAID: Final = 6
MOST_ROUNDS: Final = 24
BOOKED: Final = {
    "memoized": message(
        "The whole is booked when a memo is drawn, because that is the most that any number of "
        "reports from it can reveal."
    ),
    "once": message(
        "Each answer is booked when it is drawn; the rounds were drawn before, whatever your "
        "values are."
    ),
    "hashed": message(
        "The whole is booked when the memo of a group is drawn, because that is the most that any "
        "number of reports from it can reveal."
    ),
    "nested": message(
        "The whole is booked with the first report, because all later ones are drawn with it; "
        "each that is sent tells a step more."
    ),
}
STOPPING: Final = (
    ("pause", message("nothing is drawn or sent until you resume; the memory is kept")),
    ("resume", message("goes on, and costs nothing more")),
    (
        "leave",
        message("stops for good; the memory is kept, so joining again costs nothing more"),
    ),
    (
        "forget",
        message("withdraws what can be withdrawn and wipes the memory; the ledger keeps its line"),
    ),
)
A_COPY: Final = message(
    "As it stood at {at}. This page is a copy for you alone; it does not change by itself, and "
    "`forget` does not remove it."
)
SERVED: Final = message(
    "As it stood at {at}; load it again to see the present. It is for you alone, and gone when "
    "`allomfree-edge page` ends."
)


def page(device: Device, memberships: Sequence[Membership], *, served: bool = False) -> str:
    """The whole document, of these campaigns and the ledger of all."""
    at = datetime.fromtimestamp(device.clock.wall(), UTC).strftime("%Y-%m-%d %H:%M UTC")
    campaigns = "".join(_campaign(device, m) for m in memberships)
    title = say("What leaves this device")
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f"<title>{escape(title)}</title><style>{html.STYLE}</style>"
    )
    return (
        f'{MARK.decode()}\n<html lang="{spoken()}"><head>{head}</head><body><main>'
        f"<h1>{escape(title)}</h1>"
        f"{html.sentence(say(SERVED if served else A_COPY, at=at), 'soft')}"
        f"{campaigns or f'<section>{html.paragraphs([none_joined()])}</section>'}"
        f"<h2>{escape(say('Ledger'))}</h2>{_ledger(ledger_facts(device))}"
        f"{html.paragraphs([budgets_text(budget_facts(device))])}</main></body></html>\n"
    )


def write_page(path: Path, text: str) -> None:
    """Replace the file whole or not at all, readable by its owner only."""
    if path.is_symlink() or (path.exists() and not _is_page(path)):
        raise SettingsError(
            f"{path} is there and is not a page of `show`; nothing was written. "
            "Choose another name, or remove it first"
        )
    try:
        write_durably(path, text)
    except OSError as error:
        raise SettingsError(
            f"{path} cannot be written: {error.strerror}; what was there is unchanged. "
            "Choose another place with --html"
        ) from None


def _is_page(path: Path) -> bool:
    """Looked at before it is opened: opening a pipe waits for its writer."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(MARK)) == MARK
    except OSError:
        return False


# --- a campaign ----------------------------------------------------------------------------------


def _campaign(device: Device, membership: Membership) -> str:
    facts = campaign_facts(device, membership)
    joined = facts["status"] == "joined"
    state = facts["state"] if joined else f"{say(facts['status'])}: {facts['state']}"
    now = say("{purpose}. Now: {state}.", purpose=facts["purpose"], state=state)
    return "".join(
        [
            f"<h2>{escape(facts['title'])}</h2>",
            html.paragraphs([now], "soft"),
            html.section(say("What leaves"), _leaves(facts)),
            html.section(
                say("What that has revealed"), _revealed(facts) + _curve(device, membership)
            ),
            html.section(say("The last reports"), _reports(facts)),
            html.section(say("What does not leave"), _stays(facts)),
            html.folded_section(say("Who gets it, and until when"), _who(facts)),
            html.folded_section(say("How to stop"), _stop(facts["campaign"])),
        ]
    )


def _curve(device: Device, membership: Membership) -> str:
    """Of one memo; of all answers, where each is drawn anew."""
    way, rounds = membership.way, membership.manifest.rounds
    if way.memos == 0:
        answers = [membership.answers] if membership.answers else []
        return curve_svg(Loss(way.epsilon_after, way.lifetime_epsilon), rounds.each, answers)
    reports = [memo.reports for memo in device.store.memos.of(membership.name).values()]
    return curve_svg(Loss(way.epsilon_after, way.calibration.eps_inf), rounds.count, reports)


def _leaves(facts: CampaignFacts) -> str:
    drawn = facts["drawn_attribute"]
    how = say(
        "One noisy answer of {bytes} bytes, {answers}, to the one question this device drew for "
        "life:",
        bytes=drawn["length"],
        answers=facts["answers"],
    )
    shift = say(
        "One report multiplies anyone's odds about you {one}, all of them together, however many, "
        "{every}.",
        one=drawn["belief_one_report"],
        every=drawn["belief_all_reports"],
    )
    values = and_more(", ".join(drawn["values"][:8]), drawn["values"], 8)
    warning = [drawn["warning"]] if drawn["warning"] else []
    return (
        f"{html.paragraphs([how])}{html.paragraphs([drawn['question']], 'lead')}"
        f"{html.paragraphs([say('Answers: {values}', values=values)], 'soft')}"
        f"{html.paragraphs((drawn['one_report'], drawn['all_reports'], shift, *warning))}"
    )


def _revealed(facts: CampaignFacts) -> str:
    if not facts["reports"]:
        said = say(
            "Nothing was drawn yet; the first report books epsilon {epsilon}.",
            epsilon=number(first_charge(facts)),
        )
        return html.paragraphs([said, in_all(facts)])
    big = f'<span class="big">{number(facts["epsilon_exact"], ".4f")}</span>'
    told = escape(
        say(
            "{revealed} of at most {charged}, in epsilon, after {drawn}.",
            revealed="\0",
            charged=number(facts["epsilon_charged"]),
            drawn=_drawn(facts),
        )
    ).replace("\0", big)
    climbs = say("The curve climbs to its ceiling and never beyond.")
    booked = f"{say(BOOKED[facts['reporting']])} {climbs}"
    return f"<p>{told}</p>{html.paragraphs([booked, in_all(facts)])}"


def _drawn(facts: CampaignFacts) -> str:
    reports = reports_text(facts["reports"])
    if not facts["memos"]:
        return reports
    return say("{reports} of {memos}", reports=reports, memos=memos_text(facts["memos"]))


def _reports(facts: CampaignFacts) -> str:
    rows = (facts["sent"] + facts["queued"])[-LAST_REPORTS:]
    if not rows:
        return html.paragraphs([say("Nothing has left this device yet.")])
    preview = facts["drawn_attribute"]["bytes"].split(" ")
    shown = [_report(row, preview) for row in reversed(rows)]
    newest, earlier = shown[:SHOWN_REPORTS], shown[SHOWN_REPORTS:]
    caption = say(
        "Newest first. All bytes are shown; the answer and its noise are the marked ones."
    )
    more = say_count(len(earlier), "{count} earlier report", "{count} earlier reports")
    folded = html.fold(more, html.rows(earlier)) if earlier else ""
    return f"{html.paragraphs([caption], 'soft')}{html.rows(newest)}{folded}"


def _report(row: ReportFacts, preview: list[str]) -> str:
    says = row["says"]
    answer = and_more(", ".join(says[:MOST_SAID]) or say("nothing"), says, MOST_SAID)
    noisy = say("The noisy answer says: {says}", says=answer)
    first = say("Round {round}", round=row["round"])
    return (
        f"{html.facts(first, say(row['fate']), row['drawn'])}{html.paragraphs([noisy])}"
        f"<p>{_bytes(row['bytes'], preview)}</p>"
    )


def _bytes(octets: str, preview: list[str]) -> str:
    """Counted from the end: what stands before the noise grows with the number of the round."""
    pairs = octets.split(" ")
    begin = len(pairs) - (len(preview) - preview.index("??"))
    end = begin + preview.count("??")
    head, noise, tail = (" ".join(p) for p in (pairs[:begin], pairs[begin:end], pairs[end:]))
    return f'<span class="bytes">{head} <b>{noise}</b>{" " + tail if tail else ""}</span>'


def _stays(facts: CampaignFacts) -> str:
    limit = facts["drawn_attribute"]["not_hidden"]
    seen = html.paragraphs([say("What the broker sees all the same:")])
    return (
        f"{html.bullets(facts['never_leaves'])}{seen}"
        f"{html.bullets(facts['broker_sees'])}{html.paragraphs(limit)}"
    )


def _who(facts: CampaignFacts) -> str:
    drawn = facts["drawn_rounds"]
    answers = [] if drawn is None else [(say("Answers in"), escape(_rounds(drawn)))]
    return html.terms(
        [
            (say("Asked by"), escape(f"{facts['owner']}, {facts['contact']}")),
            (say("Sent to"), escape(facts["broker"])),
            (say("Under the name"), escape(facts["device"])),
            (say("Topic"), html.code(facts["topic"])),
            (say("Rounds"), escape(rounds_text(facts))),
            *answers,
            (say("Ends"), escape(facts["ends"])),
            (say("Campaign"), html.code(facts["campaign"])),
            (say("Digest"), html.code(facts["digest"])),
        ]
    )


def _rounds(drawn: list[DrawnRoundFacts]) -> str:
    """The rounds that this device drew, for its owner."""
    shown = [
        say("{round} (opens {opens})", round=one["round"], opens=one["opens"])
        for one in drawn[:MOST_ROUNDS]
    ]
    return and_more(", ".join(shown), drawn, MOST_ROUNDS) or say("no round: none was left")


def _stop(campaign: str) -> str:
    commands = [
        f"<p>{html.code(typed('allomfree-edge', verb, campaign))}</p>"
        f"{html.paragraphs([say(does)], 'soft')}"
        for verb, does in STOPPING
    ]
    caption = say("At any time, without giving a reason. Type:")
    return f"{html.paragraphs([caption])}{html.rows(commands)}"


def _ledger(lines: list[LedgerFacts]) -> str:
    if not lines:
        return html.section(say("Charges"), html.paragraphs([say("Nothing was ever charged.")]))
    shown = [
        html.facts(number(line["epsilon"], ".4f"), line["source"], booked_text(line), line["at"])
        for line in reversed(lines)
    ]
    newest, earlier = shown[:SHOWN_CHARGES], shown[SHOWN_CHARGES:]
    caption = say(
        "Every charge in epsilon, newest first, also of campaigns since forgotten. Lines are never "
        "removed."
    )
    more = say_count(len(earlier), "{count} earlier charge", "{count} earlier charges")
    folded = html.fold(more, html.rows(earlier)) if earlier else ""
    return html.section(
        say("Charges"), f"{html.paragraphs([caption], 'soft')}{html.rows(newest)}{folded}"
    )
