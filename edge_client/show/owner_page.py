"""The owner's statement as one HTML file, from the facts that `show` prints.

It fetches nothing and runs nothing: its policy forbids every request and script, the curve is drawn
inside it, and every text is escaped. Only its owner can read the file, and it replaces only
an earlier one of its kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Final

from edge_client.client import EdgeClient
from edge_client.errors import SettingsError
from edge_client.records import Membership
from edge_client.show.curve import Loss, curve_svg
from edge_client.show.facts import CampaignFacts, DrawnRoundFacts, LedgerFacts
from edge_client.show.statement import campaign_facts, ledger_facts
from edge_client.show.text import NONE_JOINED, count_text, first_charge
from edge_client.show.ways import period_text
from protocol_spec.programs.private_files import write_durably

MARK: Final = b"<!doctype html>\n<!-- allomfree-edge show -->"
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
LAST_REPORTS: Final = 12
MOST_SAID: Final = 6
MOST_ROUNDS: Final = 24
BOOKED: Final = {
    "memoized": "The whole is booked when a memo is drawn, because that is the most that any "
    "number of reports from it can reveal.",
    "once": "Each answer is booked when it is drawn; the rounds were drawn before, whatever your "
    "values are.",
    "hashed": "The whole is booked when the memo of a group is drawn, because that is the most "
    "that any number of reports from it can reveal.",
    "nested": "The whole is booked with the first report, because all later ones are drawn with "
    "it; each that is sent tells a step more.",
}

STOPPING: Final = (
    ("pause", "nothing is drawn or sent until you resume; the memory is kept"),
    ("resume", "goes on, and costs nothing more"),
    ("leave", "stops for good; the memory is kept, so joining again costs nothing more"),
    ("forget", "withdraws what can be withdrawn and wipes the memory; the ledger keeps its line"),
)

STYLE: Final = """
:root{color-scheme:light dark;--ink:#26303a;--soft:#5d6975;--paper:#fbfbf9;--card:#fff;
--line:#e2e5e8;--accent:#2f6aa8;--fill:#dfeaf5;--warm:#b4530f}
@media(prefers-color-scheme:dark){:root{--ink:#dde3e9;--soft:#97a3af;--paper:#12161a;--card:#191f25;
--line:#2b333b;--accent:#86b7ea;--fill:#1e3348;--warm:#f0a05f}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 system-ui,sans-serif}
main{max-width:46rem;margin:0 auto;padding:2rem 1rem 4rem}
h1{font-size:1.7rem;line-height:1.25;margin:0 0 .3rem}
h2{font-size:1.45rem;margin:3rem 0 .2rem}
h3{font-size:1.05rem;margin:0 0 .6rem}
p{margin:.5rem 0}p,h2,li,dd{overflow-wrap:anywhere}.soft,caption,dt{color:var(--soft)}
section{background:var(--card);border:1px solid var(--line);border-radius:10px;
padding:1.1rem 1.3rem;margin:1rem 0}
.lead{font-size:1.12rem}.big{font-size:1.9rem;font-weight:600;color:var(--accent)}
code,.bytes{font:.86em ui-monospace,monospace;overflow-wrap:anywhere}
.bytes b{color:var(--warm);font-weight:600}
table{border-collapse:collapse;width:100%;font-size:.92rem}
caption{text-align:left;padding-bottom:.4rem}
th,td{text-align:left;vertical-align:top;padding:.4rem .8rem .4rem 0;
border-top:1px solid var(--line)}
th{font-weight:600}.whole{white-space:nowrap}.scroll{overflow-x:auto}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.25rem 1rem;margin:0}dd{margin:0}
ul{margin:.3rem 0;padding-left:1.2rem}
svg{display:block;width:100%;height:auto;margin:.8rem 0}
svg text{font:13px system-ui,sans-serif;fill:var(--soft)}svg .now{fill:var(--ink);font-weight:600}
svg .axis{stroke:var(--line)}svg .ceiling{stroke:var(--warm);stroke-dasharray:4 4}
svg .curve{fill:none;stroke:var(--accent);stroke-width:2}svg .spent{fill:var(--fill)}
svg .dot{fill:var(--accent);stroke:var(--card);stroke-width:2}
@media(max-width:34rem){dl{grid-template-columns:1fr}dd{margin-bottom:.5rem}}
"""


def page(client: EdgeClient, memberships: Sequence[Membership]) -> str:
    """The whole document, of these campaigns and the ledger of all."""
    at = datetime.fromtimestamp(client.clock.wall(), UTC).strftime("%Y-%m-%d %H:%M UTC")
    campaigns = "".join(_campaign(client, m) for m in memberships)
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f"<title>What leaves this device</title><style>{STYLE}</style>"
    )
    return (
        f'{MARK.decode()}\n<html lang="en"><head>{head}</head><body><main>'
        "<h1>What leaves this device</h1>"
        f'<p class="soft">As it stood at {escape(at)}. This page is a copy for you alone; it does '
        "not change by itself, and <code>forget</code> does not remove it.</p>"
        f"{campaigns or f'<section><p>{escape(NONE_JOINED)}</p></section>'}"
        f"<h2>Ledger</h2>{_ledger(ledger_facts(client))}</main></body></html>\n"
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


def _campaign(client: EdgeClient, membership: Membership) -> str:
    facts = campaign_facts(client, membership)
    curve = _curve(client, membership)
    state = (
        facts["state"] if facts["status"] == "joined" else f"{facts['status']}: {facts['state']}"
    )
    return "".join(
        [
            f"<h2>{escape(facts['title'])}</h2>",
            f'<p class="soft">{escape(facts["purpose"])}. Now: {escape(state)}.</p>',
            _section("What leaves", _leaves(facts)),
            _section("What that has revealed", _revealed(facts) + curve),
            _section("The last reports", _reports(facts)),
            _section("What does not leave", _stays(facts)),
            _section("Who gets it, and until when", _who(facts)),
            _section("How to stop", _stop(facts["campaign"])),
        ]
    )


def _curve(client: EdgeClient, membership: Membership) -> str:
    """Of one memo; of all answers, where each is drawn anew."""
    way, rounds = membership.way, membership.manifest.rounds
    if way.memos == 0:
        answers = [membership.answers] if membership.answers else []
        return curve_svg(Loss(way.epsilon_after, way.lifetime_epsilon), rounds.each, answers)
    reports = [memo.reports for memo in client.store.memos.of(membership.name).values()]
    return curve_svg(Loss(way.epsilon_after, way.calibration.eps_inf), rounds.count, reports)


def _section(title: str, body: str) -> str:
    return f"<section><h3>{escape(title)}</h3>{body}</section>"


def _leaves(facts: CampaignFacts) -> str:
    drawn = facts["drawn_attribute"]
    values = drawn["values"]
    answers = ", ".join(values[:8]) + (f" and {len(values) - 8} more" if len(values) > 8 else "")
    how = (
        f"One noisy answer of {drawn['length']} bytes, {facts['answers']}, "
        "to the one question this device drew for life:"
    )
    shift = (
        f"One report multiplies anyone's odds about you {drawn['belief_one_report']}, all of them "
        f"together, however many, {drawn['belief_all_reports']}."
    )
    warning = [drawn["warning"]] if drawn["warning"] else []
    return (
        f'<p>{escape(how)}</p><p class="lead">{escape(drawn["question"])}</p>'
        f'<p class="soft">Answers: {escape(answers)}</p>'
        f"{_paragraphs((drawn['one_report'], drawn['all_reports'], shift, *warning))}"
    )


def _revealed(facts: CampaignFacts) -> str:
    ever = f"In all, {facts['bound']}."
    if not facts["reports"]:
        said = f"Nothing was drawn yet; the first report books epsilon {first_charge(facts):g}."
        return _paragraphs([said, ever])
    reports = count_text(facts["reports"], "report")
    drawn = f"{reports} of {count_text(facts['memos'], 'memo')}" if facts["memos"] else reports
    booked = f"{BOOKED[facts['reporting']]} The curve climbs to its ceiling and never beyond."
    return (
        f'<p><span class="big">{facts["epsilon_exact"]:.4f}</span> of at most '
        f"{facts['epsilon_charged']:g}, in epsilon, after {drawn}.</p>"
        f"{_paragraphs([booked, ever])}"
    )


def _reports(facts: CampaignFacts) -> str:
    rows = (facts["sent"] + facts["queued"])[-LAST_REPORTS:]
    if not rows:
        return _paragraphs(["Nothing has left this device yet."])
    preview = facts["drawn_attribute"]["bytes"].split(" ")
    cells = [
        (
            str(row["round"]),
            f'<span class="whole">{escape(row["drawn"])}</span><br>{escape(row["fate"])}',
            escape(_said(row["says"])),
            _bytes(row["bytes"], preview),
        )
        for row in reversed(rows)
    ]
    caption = "Newest first. All bytes are shown; the answer and its noise are the marked ones."
    return _table(caption, ("round", "drawn", "the noisy answer says", "bytes"), cells)


def _said(says: Sequence[str]) -> str:
    more = f" and {len(says) - MOST_SAID} more" if len(says) > MOST_SAID else ""
    return (", ".join(says[:MOST_SAID]) or "nothing") + more


def _bytes(octets: str, preview: list[str]) -> str:
    """Counted from the end: what stands before the noise grows with the number of the round."""
    pairs = octets.split(" ")
    begin = len(pairs) - (len(preview) - preview.index("??"))
    end = begin + preview.count("??")
    head, noise, tail = (" ".join(p) for p in (pairs[:begin], pairs[begin:end], pairs[end:]))
    return f'<span class="bytes">{head} <b>{noise}</b>{" " + tail if tail else ""}</span>'


def _stays(facts: CampaignFacts) -> str:
    limit = facts["drawn_attribute"]["not_hidden"]
    return (
        f"{_list(facts['never_leaves'])}<p>What the broker sees all the same:</p>"
        f"{_list(facts['broker_sees'])}{_paragraphs(limit)}"
    )


def _who(facts: CampaignFacts) -> str:
    rounds = f"{facts['rounds']}, one every {period_text(facts['period_seconds'])}"
    drawn = facts["drawn_rounds"]
    terms = {
        "Asked by": f"{facts['owner']}, {facts['contact']}",
        "Sent to": facts["broker"],
        "Under the name": facts["device"],
        "Topic": facts["topic"],
        "Rounds": f"{rounds}, from {facts['first_round']}",
        **({} if drawn is None else {"Answers in": _rounds(drawn)}),
        "Ends": facts["ends"],
        "Campaign": facts["campaign"],
        "Digest": facts["digest"],
    }
    rows = "".join(
        f"<dt>{name}</dt><dd><code>{escape(text)}</code></dd>"
        if name in ("Topic", "Campaign", "Digest")
        else f"<dt>{name}</dt><dd>{escape(text)}</dd>"
        for name, text in terms.items()
    )
    return f"<dl>{rows}</dl>"


def _rounds(drawn: list[DrawnRoundFacts]) -> str:
    """The rounds that this device drew, for its owner."""
    shown = [f"{one['round']} (opens {one['opens']})" for one in drawn[:MOST_ROUNDS]]
    more = [f"{len(drawn) - MOST_ROUNDS} more"] if len(drawn) > MOST_ROUNDS else []
    return ", ".join([*shown, *more]) or "no round: none was left"


def _stop(campaign: str) -> str:
    rows = [
        (f"<code>allomfree-edge {verb} {escape(campaign)}</code>", escape(does))
        for verb, does in STOPPING
    ]
    return _table("At any time, without giving a reason.", ("type", "what it does"), rows)


def _ledger(lines: list[LedgerFacts]) -> str:
    if not lines:
        return _section("Charges", _paragraphs(["Nothing was ever charged."]))
    rows = [
        (
            f'<span class="whole">{escape(line["at"])}</span>',
            f"{line['epsilon']:.4f}",
            escape(line["source"]),
            escape(f"{line['campaign'] or 'unknown'}, {line['reason']}"),
        )
        for line in lines
    ]
    caption = "Every charge, also of campaigns since forgotten. Lines are never removed."
    body = _table(caption, ("when", "epsilon", "source", "campaign, reason"), rows)
    return _section("Charges", body)


# --- small parts ---------------------------------------------------------------------------------


def _table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are HTML already."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table><caption>{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _paragraphs(texts: Iterable[str]) -> str:
    return "".join(f"<p>{escape(text)}</p>" for text in texts)


def _list(texts: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>"
