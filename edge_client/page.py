"""The owner's statement as one HTML page, from the facts that `show` prints, and its server.

The page fetches nothing and runs nothing: its policy forbids every request and script, the curve is
drawn inside it, and every text is escaped. As a file it is its owner's alone, and replaces only an
earlier one of its kind.

The server listens on loopback only, but every user of the machine can reach that, and so can a web
site by a name that it lets point here (DNS rebinding). So the address holds a random word, compared
in constant time, and a request for any other host name is refused. It only reads: there is nothing
that a request could change.
"""

from __future__ import annotations

import hmac
import os
import socket
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import BoundedSemaphore
from typing import Final, NamedTuple

from edge_client.agent import Device
from edge_client.errors import SettingsError
from edge_client.language import current_language, message, number, say, say_count
from edge_client.records import Membership
from edge_client.statement import (
    CampaignFacts,
    DrawnRoundFacts,
    LedgerFacts,
    ReportFacts,
    budget_facts,
    campaign_facts,
    ledger_facts,
)
from edge_client.text import (
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
from protocol_spec import AllomfreeError
from protocol_spec.programs.cli import typed
from protocol_spec.programs.system import write_durably

WIDTH: Final = 640
HEIGHT: Final = 220
LEFT: Final = 46
RIGHT: Final = WIDTH - 16
TOP: Final = 30
BASE: Final = HEIGHT - 34
STEPS: Final = 60
NEARLY_ALL: Final = 0.98


class Loss(NamedTuple):
    """What t reports tell, and what no number of them exceeds."""

    epsilon_after: Callable[[int], float]
    ceiling: float


def curve_svg(loss: Loss, most: int, reports: Sequence[int]) -> str:
    """The loss from no report to about as many as matter; a dot for each memo drawn.

    `most` is the number of reports that there can be.
    """
    last = _horizon(loss, most, max(reports, default=0))
    ceiling = loss.ceiling

    def x(t: int) -> float:
        return LEFT + t / last * (RIGHT - LEFT)

    def y(epsilon: float) -> float:
        return BASE - epsilon / ceiling * (BASE - TOP)

    times = sorted({round(i * last / STEPS) for i in range(STEPS + 1)} | {0, 1})
    curve = [(x(t), y(loss.epsilon_after(t))) for t in times]
    dots = [(x(t), y(loss.epsilon_after(t))) for t in reports]
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in curve)
    below = f"{x(0):.1f},{BASE} {points} {x(last):.1f},{BASE}"
    title, told = say("Privacy spent, by number of reports"), _told(loss, reports)
    never = say("never above epsilon {ceiling}", ceiling=number(ceiling))
    end = say_count(last, "{count} report", "{count} reports")
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
        f"<title>{title}</title><desc>{told}</desc>"
        f'<polygon class="spent" points="{below}"/>'
        f'<line class="axis" x1="{LEFT}" y1="{BASE}" x2="{RIGHT}" y2="{BASE}"/>'
        f'<line class="ceiling" x1="{LEFT}" y1="{TOP}" x2="{RIGHT}" y2="{TOP}"/>'
        f'<polyline class="curve" points="{points}"/>'
        f"{''.join(_dot(*dot) for dot in dots)}"
        f'<text x="{LEFT}" y="{TOP - 10}">{never}</text>'
        f'<text x="{LEFT - 8}" y="{TOP + 4}" text-anchor="end">{number(ceiling)}</text>'
        f'<text x="{LEFT - 8}" y="{BASE + 4}" text-anchor="end">0</text>'
        f'<text x="{LEFT}" y="{BASE + 20}">0</text>'
        f'<text x="{RIGHT}" y="{BASE + 20}" text-anchor="end">{end}</text>'
        f"{_label(*dots[-1], reports[-1]) if len(dots) == 1 else ''}</svg>"
    )


def _horizon(loss: Loss, rounds: int, most: int) -> int:
    """Where to end: the curve is nearly flat, the present is on it, and rounds are not exceeded."""
    flat = 1
    while flat < rounds and loss.epsilon_after(flat) < NEARLY_ALL * loss.ceiling:
        flat *= 2
    return max(1, min(rounds, max(flat, most + most // 4 + 1)), most)


def _told(loss: Loss, reports: Sequence[int]) -> str:
    ceiling = number(loss.ceiling)
    if not reports:
        return say("It climbs to {ceiling}; nothing was drawn yet.", ceiling=ceiling)
    points = ", ".join(
        say("{epsilon} after {reports}", epsilon=number(loss.epsilon_after(t), ".4f"), reports=t)
        for t in reports
    )
    return say(
        "It climbs to {ceiling} and never beyond; so far {points}.", ceiling=ceiling, points=points
    )


def _dot(x: float, y: float) -> str:
    return f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="6"/>'


def _label(x: float, y: float, t: int) -> str:
    """To the right of the dot, where the curve is above it; at the end, well below."""
    if x < RIGHT - 230:  # on a telephone its letters are larger
        place = f'x="{x + 10:.1f}" y="{y + 22:.1f}"'
    else:
        place = f'x="{x:.1f}" y="{y + 36:.1f}" text-anchor="end"'
    you = say("you, after {reports}", reports=number(t, ",d"))
    return f'<text class="now" {place}>{you}</text>'


# --- parts of the page ---------------------------------------------------------------------------


STYLE: Final = """
:root{color-scheme:light dark;--ink:#26303a;--soft:#5d6975;--paper:#fbfbf9;--card:#fff;
--line:#e2e5e8;--accent:#2f6aa8;--fill:#dfeaf5;--warm:#b4530f}
@media(prefers-color-scheme:dark){:root{--ink:#dde3e9;--soft:#97a3af;--paper:#12161a;--card:#191f25;
--line:#2b333b;--accent:#86b7ea;--fill:#1e3348;--warm:#f0a05f}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 system-ui,sans-serif}
main{max-width:46rem;margin:0 auto;padding:2rem 1rem 4rem}
h1{font-size:1.7rem;line-height:1.25;margin:0 0 .3rem}
h2{font-size:1.45rem;line-height:1.25;margin:2.5rem 0 .2rem}
h3{font-size:1.05rem;margin:0 0 .5rem}
p{margin:.5rem 0}p,h2,li,dd,code{overflow-wrap:anywhere}.soft,dt{color:var(--soft)}
section{background:var(--card);border:1px solid var(--line);border-radius:10px;
padding:1.1rem 1.3rem;margin:1rem 0}
.lead{font-size:1.12rem}.big{font-size:1.9rem;font-weight:600;color:var(--accent)}
code,.bytes{font:.86em ui-monospace,monospace}
.bytes b{color:var(--warm);font-weight:600}
.rows{list-style:none;margin:.4rem 0;padding:0}
.rows li{border-top:1px solid var(--line);padding:.5rem 0}
.rows li p{margin:.15rem 0}
.facts{display:flex;flex-wrap:wrap;gap:0 .8rem}.facts b{font-weight:600}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.25rem 1rem;margin:.4rem 0}dd{margin:0}
ul{margin:.3rem 0;padding-left:1.2rem}
summary{cursor:pointer;color:var(--accent);padding:.25rem 0}
summary h3{display:inline;color:var(--ink)}
svg{display:block;width:100%;height:auto;margin:.8rem 0}
svg text{font:13px system-ui,sans-serif;fill:var(--soft)}svg .now{fill:var(--ink);font-weight:600}
svg .axis{stroke:var(--line)}svg .ceiling{stroke:var(--warm);stroke-dasharray:4 4}
svg .curve{fill:none;stroke:var(--accent);stroke-width:2}svg .spent{fill:var(--fill)}
svg .dot{fill:var(--accent);stroke:var(--card);stroke-width:2}
@media(max-width:34rem){main{padding:1.2rem .7rem 2rem}section{padding:.8rem .9rem;margin:.7rem 0}
body{font-size:15px;line-height:1.45}h1{font-size:1.4rem}h2{font-size:1.25rem;margin-top:1.6rem}
svg text{font-size:20px}dl{grid-template-columns:1fr;gap:0}dd{margin-bottom:.4rem}}
"""


def section(title: str, body: str) -> str:
    """A card with its title."""
    return f"<section><h3>{escape(title)}</h3>{body}</section>"


def folded_section(title: str, body: str) -> str:
    """A card that is opened by a touch; nothing runs for that."""
    return (
        f"<section><details><summary><h3>{escape(title)}</h3></summary>{body}</details></section>"
    )


def fold(summary: str, body: str) -> str:
    """More of a list, opened by a touch."""
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


def paragraphs(texts: Iterable[str], kind: str = "") -> str:
    """Each text a paragraph."""
    named = f' class="{kind}"' if kind else ""
    return "".join(f"<p{named}>{escape(text)}</p>" for text in texts)


def sentence(text: str, kind: str) -> str:
    """A paragraph of our own words, in which `commands` stand out."""
    parts = escape(text).split("`")
    marked = "".join(f"<code>{p}</code>" if i % 2 else p for i, p in enumerate(parts))
    return f'<p class="{kind}">{marked}</p>'


def bullets(texts: Iterable[str]) -> str:
    """A list of texts."""
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>"


def rows(items: Sequence[str]) -> str:
    """A list of rows that are HTML already; each is as wide as the window."""
    return f'<ol class="rows">{"".join(f"<li>{item}</li>" for item in items)}</ol>'


def facts(*texts: str) -> str:
    """What is known of one row, side by side as far as there is room; the first stands out."""
    first, *others = (escape(text) for text in texts)
    rest = "".join(f'<span class="soft">{text}</span>' for text in others)
    return f'<p class="facts"><b>{first}</b>{rest}</p>'


def terms(pairs: Iterable[tuple[str, str]]) -> str:
    """Names with what they mean; the second of a pair is HTML already."""
    return f"<dl>{''.join(f'<dt>{escape(n)}</dt><dd>{text}</dd>' for n, text in pairs)}</dl>"


def code(text: str) -> str:
    """A name or command, as it is."""
    return f"<code>{escape(text)}</code>"


# --- the page ------------------------------------------------------------------------------------


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


def statement_page(
    device: Device, memberships: Sequence[Membership], *, served: bool = False
) -> str:
    """The whole document, of these campaigns and the ledger of all."""
    at = datetime.fromtimestamp(device.clock.wall(), UTC).strftime("%Y-%m-%d %H:%M UTC")
    campaigns = "".join(_campaign(device, m) for m in memberships)
    title = say("What leaves this device")
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f"<title>{escape(title)}</title><style>{STYLE}</style>"
    )
    return (
        f'{MARK.decode()}\n<html lang="{current_language()}"><head>{head}</head><body><main>'
        f"<h1>{escape(title)}</h1>"
        f"{sentence(say(SERVED if served else A_COPY, at=at), 'soft')}"
        f"{campaigns or f'<section>{paragraphs([none_joined()])}</section>'}"
        f"<h2>{escape(say('Ledger'))}</h2>{_ledger(ledger_facts(device))}"
        f"{paragraphs([budgets_text(budget_facts(device))])}</main></body></html>\n"
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
            paragraphs([now], "soft"),
            section(say("What leaves"), _leaves(facts)),
            section(say("What that has revealed"), _revealed(facts) + _curve(device, membership)),
            section(say("The last reports"), _reports(facts)),
            section(say("What does not leave"), _stays(facts)),
            folded_section(say("Who gets it, and until when"), _who(facts)),
            folded_section(say("How to stop"), _stop(facts["campaign"])),
        ]
    )


def _curve(device: Device, membership: Membership) -> str:
    """Of one memo; of all answers, where each is drawn anew."""
    way, rounds = membership.way, membership.manifest.rounds
    if way.memos == 0:
        answers = [membership.answers] if membership.answers else []
        return curve_svg(Loss(way.epsilon_after, way.lifetime_epsilon), rounds.each, answers)
    reports = [memo.reports for memo in device.store.memos(membership.name).values()]
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
        f"{paragraphs([how])}{paragraphs([drawn['question']], 'lead')}"
        f"{paragraphs([say('Answers: {values}', values=values)], 'soft')}"
        f"{paragraphs((drawn['one_report'], drawn['all_reports'], shift, *warning))}"
    )


def _revealed(facts: CampaignFacts) -> str:
    if not facts["reports"]:
        said = say(
            "Nothing was drawn yet; the first report books epsilon {epsilon}.",
            epsilon=number(first_charge(facts)),
        )
        return paragraphs([said, in_all(facts)])
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
    return f"<p>{told}</p>{paragraphs([booked, in_all(facts)])}"


def _drawn(facts: CampaignFacts) -> str:
    reports = reports_text(facts["reports"])
    if not facts["memos"]:
        return reports
    return say("{reports} of {memos}", reports=reports, memos=memos_text(facts["memos"]))


def _reports(facts: CampaignFacts) -> str:
    last = (facts["sent"] + facts["queued"])[-LAST_REPORTS:]
    if not last:
        return paragraphs([say("Nothing has left this device yet.")])
    preview = facts["drawn_attribute"]["bytes"].split(" ")
    shown = [_report(row, preview) for row in reversed(last)]
    newest, earlier = shown[:SHOWN_REPORTS], shown[SHOWN_REPORTS:]
    caption = say(
        "Newest first. All bytes are shown; the answer and its noise are the marked ones."
    )
    more = say_count(len(earlier), "{count} earlier report", "{count} earlier reports")
    folded = fold(more, rows(earlier)) if earlier else ""
    return f"{paragraphs([caption], 'soft')}{rows(newest)}{folded}"


def _report(row: ReportFacts, preview: list[str]) -> str:
    says = row["says"]
    answer = and_more(", ".join(says[:MOST_SAID]) or say("nothing"), says, MOST_SAID)
    noisy = say("The noisy answer says: {says}", says=answer)
    first = say("Round {round}", round=row["round"])
    return (
        f"{facts(first, say(row['fate']), row['drawn'])}{paragraphs([noisy])}"
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
    seen = paragraphs([say("What the broker sees all the same:")])
    return (
        f"{bullets(facts['never_leaves'])}{seen}{bullets(facts['broker_sees'])}{paragraphs(limit)}"
    )


def _who(facts: CampaignFacts) -> str:
    drawn = facts["drawn_rounds"]
    answers = [] if drawn is None else [(say("Answers in"), escape(_rounds(drawn)))]
    return terms(
        [
            (say("Asked by"), escape(f"{facts['owner']}, {facts['contact']}")),
            (say("Sent to"), escape(facts["broker"])),
            (say("Under the name"), escape(facts["device"])),
            (say("Topic"), code(facts["topic"])),
            (say("Rounds"), escape(rounds_text(facts))),
            *answers,
            (say("Ends"), escape(facts["ends"])),
            (say("Campaign"), code(facts["campaign"])),
            (say("Digest"), code(facts["digest"])),
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
        f"<p>{code(typed('allomfree-edge', verb, campaign))}</p>{paragraphs([say(does)], 'soft')}"
        for verb, does in STOPPING
    ]
    caption = say("At any time, without giving a reason. Type:")
    return f"{paragraphs([caption])}{rows(commands)}"


def _ledger(lines: list[LedgerFacts]) -> str:
    if not lines:
        return section(say("Charges"), paragraphs([say("Nothing was ever charged.")]))
    shown = [
        facts(number(line["epsilon"], ".4f"), line["source"], booked_text(line), line["at"])
        for line in reversed(lines)
    ]
    newest, earlier = shown[:SHOWN_CHARGES], shown[SHOWN_CHARGES:]
    caption = say(
        "Every charge in epsilon, newest first, also of campaigns since forgotten. Lines are never "
        "removed."
    )
    more = say_count(len(earlier), "{count} earlier charge", "{count} earlier charges")
    folded = fold(more, rows(earlier)) if earlier else ""
    return section(say("Charges"), f"{paragraphs([caption], 'soft')}{rows(newest)}{folded}")


# --- the server ----------------------------------------------------------------------------------


HOST: Final = "127.0.0.1"
NAMES: Final = ("127.0.0.1", "localhost")
AT_ONCE: Final = 16
PATIENCE_SECONDS: Final = 10.0
HEADERS: Final = {
    "Content-Security-Policy": f"{POLICY}; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}

Render = Callable[[], str]


class PageServer(ThreadingHTTPServer):
    """The page under an address that only its owner is told."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, render: Render, port: int, word: str | None = None) -> None:
        self.render = render
        self.word = word or os.urandom(16).hex()
        self._free = BoundedSemaphore(AT_ONCE)
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise SettingsError(
                f"port {port} of this machine cannot be used: {error.strerror}. Nothing was drawn "
                "or sent. Choose another: allomfree-edge page --port 0 takes any that is free"
            ) from None

    @property
    def url(self) -> str:
        """What to open in a browser."""
        return f"http://{HOST}:{self.server_port}/{self.word}/"

    def server_bind(self) -> None:
        """Without asking for this machine's name, which may take long and is not needed."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = HOST, int(self.server_address[1])

    def process_request(self, request: object, client_address: object) -> None:
        """In a thread of its own; those beyond the limit are hung up on."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)  # type: ignore[arg-type]
            return
        super().process_request(request, client_address)  # type: ignore[arg-type]

    def process_request_thread(self, request: object, client_address: object) -> None:
        """One connection, and its place given back."""
        try:
            super().process_request_thread(request, client_address)  # type: ignore[arg-type]
        finally:
            self._free.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """A reader that went away is no news, and what a fault says may be private."""


class _Handler(BaseHTTPRequestHandler):
    """One request: the page, or why not."""

    server: PageServer
    timeout = PATIENCE_SECONDS
    server_version = "allomfree-edge"
    sys_version = ""

    def do_GET(self) -> None:
        """The page."""
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        """The same without its content."""
        self._answer(with_body=False)

    def log_message(self, *_: object) -> None:
        """Nothing: the address in a log would let others in."""

    def _answer(self, *, with_body: bool) -> None:
        status, text = self._found()
        body = text.encode()
        self.send_response(status)
        kind = "text/html" if status == 200 else "text/plain"
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def _found(self) -> tuple[int, str]:
        host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        if host not in NAMES:
            return 421, "This page answers to 127.0.0.1 and localhost only.\n"
        given = self.path.encode(errors="replace")
        if not hmac.compare_digest(given, f"/{self.server.word}/".encode()):
            return 404, "Open the whole address that `allomfree-edge page` printed.\n"
        try:
            return 200, self.server.render()
        except AllomfreeError as error:
            return 503, f"{error}\n"
