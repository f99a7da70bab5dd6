"""The owner's statement as one HTML page, from the facts that `show` prints, and its server.

The page fetches nothing and runs nothing: its policy forbids every request and script, the curve is
drawn inside it, and every text is escaped. As a file it is private to its owner, and replaces only
an earlier one of its kind.

The server listens on loopback only, but every user of the machine can reach that, and so can a web
site by a name that it lets point here (DNS rebinding). So the address holds a random token,
compared in constant time, and a request for any other host name is refused. It only reads: there
is nothing that a request could change.
"""

from __future__ import annotations

import hmac
import os
import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Final

from edge_client.agent import DeviceState
from edge_client.errors import SettingsError
from edge_client.language import current_language, message, number, say, say_count
from edge_client.records import Membership
from edge_client.statement import Facts, budget_facts, campaign_facts, ledger_facts
from edge_client.text import (
    and_more,
    booked_text,
    budget_text,
    labels_text,
    memos_text,
    none_joined,
    reports_text,
    rounds_text,
    shifts_text,
    together_text,
    total_text,
    trial_text,
)
from protocol_spec import AllomfreeError
from protocol_spec.programs.cli import typed
from protocol_spec.programs.system import write_durably

# --- the curve -----------------------------------------------------------------------------------

WIDTH: Final = 640
HEIGHT: Final = 220
LEFT: Final = 46
RIGHT: Final = WIDTH - 16
TOP: Final = 30
BASE: Final = HEIGHT - 34
STEPS: Final = 60
NEARLY_ALL: Final = 0.98


def curve_svg(
    epsilon_after: Callable[[int], float], ceiling: float, most: int, reports: Sequence[int]
) -> str:
    """The privacy loss from no report to about as many as matter; a dot for each memo drawn.

    `most` is the number of reports that there can be, `ceiling` what no number of them exceeds.
    """
    drawn = max(reports, default=0)
    flat = 1
    while flat < most and epsilon_after(flat) < NEARLY_ALL * ceiling:
        flat *= 2
    last = max(1, min(most, max(flat, drawn + drawn // 4 + 1)), drawn)

    def point(t: int) -> tuple[float, float]:
        height = epsilon_after(t) / ceiling * (BASE - TOP)
        return LEFT + t / last * (RIGHT - LEFT), BASE - height

    times = sorted({round(i * last / STEPS) for i in range(STEPS + 1)} | {0, 1})
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(point, times))
    dots = "".join(
        f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="6"/>' for x, y in map(point, reports)
    )
    title = say("Privacy spent, by number of reports")
    never = say("never above epsilon {ceiling}", ceiling=number(ceiling))
    end = say_count(last, "{count} report", "{count} reports")
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
        f"<title>{title}</title><desc>{_described(epsilon_after, ceiling, reports)}</desc>"
        f'<polygon class="spent" points="{LEFT}.0,{BASE} {points} {RIGHT}.0,{BASE}"/>'
        f'<line class="axis" x1="{LEFT}" y1="{BASE}" x2="{RIGHT}" y2="{BASE}"/>'
        f'<line class="ceiling" x1="{LEFT}" y1="{TOP}" x2="{RIGHT}" y2="{TOP}"/>'
        f'<polyline class="curve" points="{points}"/>{dots}'
        f'<text x="{LEFT}" y="{TOP - 10}">{never}</text>'
        f'<text x="{LEFT - 8}" y="{TOP + 4}" text-anchor="end">{number(ceiling)}</text>'
        f'<text x="{LEFT - 8}" y="{BASE + 4}" text-anchor="end">0</text>'
        f'<text x="{LEFT}" y="{BASE + 20}">0</text>'
        f'<text x="{RIGHT}" y="{BASE + 20}" text-anchor="end">{end}</text>'
        f"{_label(*point(drawn), drawn) if len(reports) == 1 else ''}</svg>"
    )


def _described(
    epsilon_after: Callable[[int], float], ceiling: float, reports: Sequence[int]
) -> str:
    if not reports:
        return say("It climbs to {ceiling}; nothing was drawn yet.", ceiling=number(ceiling))
    points = ", ".join(
        say("{epsilon} after {reports}", epsilon=number(epsilon_after(t), ".4f"), reports=t)
        for t in reports
    )
    return say(
        "It climbs to {ceiling} and never beyond; so far {points}.",
        ceiling=number(ceiling),
        points=points,
    )


def _label(x: float, y: float, t: int) -> str:
    """To the right of the dot, where the curve is above it; at the end, well below."""
    if x < RIGHT - 230:  # on a telephone its letters are larger
        place = f'x="{x + 10:.1f}" y="{y + 22:.1f}"'
    else:
        place = f'x="{x:.1f}" y="{y + 36:.1f}" text-anchor="end"'
    you = say("you, after {reports}", reports=number(t, ",d"))
    return f'<text class="now" {place}>{you}</text>'


# --- parts of the page: each escapes its texts ---------------------------------------------------


def _section(title: str, body: str, *, folded: bool = False) -> str:
    """A card with its title; a folded one is opened by a touch, for which nothing runs."""
    heading = f"<h3>{escape(title)}</h3>"
    if folded:
        return f"<section><details><summary>{heading}</summary>{body}</details></section>"
    return f"<section>{heading}{body}</section>"


def _paragraphs(*texts: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return "".join(f"<p{named}>{escape(text)}</p>" for text in texts)


def _bullets(texts: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>"


def _rows(items: Sequence[str]) -> str:
    """A list of rows that are HTML already; each is as wide as the window."""
    return f'<ol class="rows">{"".join(f"<li>{item}</li>" for item in items)}</ol>'


def _newest(items: Sequence[str], most: int, earlier: str) -> str:
    """The first rows, and the others folded below the text `earlier`."""
    if len(items) <= most:
        return _rows(items)
    summary = f"<summary>{escape(earlier)}</summary>"
    return f"{_rows(items[:most])}<details>{summary}{_rows(items[most:])}</details>"


def _row_facts(*texts: str) -> str:
    """What is known of one row, side by side as far as there is room; the first stands out."""
    first, *others = (escape(text) for text in texts)
    rest = "".join(f'<span class="soft">{text}</span>' for text in others)
    return f'<p class="facts"><b>{first}</b>{rest}</p>'


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"


# --- the page ------------------------------------------------------------------------------------

MARK: Final = b"<!doctype html>\n<!-- allomfree-edge show -->"
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
LAST_REPORTS: Final = 12
SHOWN_REPORTS: Final = 3
SHOWN_CHARGES: Final = 4
MOST_ANSWERS: Final = 6
MOST_ROUNDS: Final = 24
STOPPING: Final = {
    "pause": message("nothing is drawn or sent until you resume; the memory is kept"),
    "resume": message("goes on, and costs nothing more"),
    "leave": message("stops for good; the memory is kept, so joining again costs nothing more"),
    "forget": message(
        "withdraws what can be withdrawn and wipes the memory; the ledger keeps its line"
    ),
}
A_COPY: Final = message(
    "As of {at}. This page is a copy for you alone; it does not change by itself, and "
    "`forget` does not remove it."
)
SERVED: Final = message(
    "As of {at}; reload the page to see the current state. It is for you alone, and gone when "
    "`allomfree-edge page` ends."
)


def statement_page(
    device: DeviceState, memberships: Sequence[Membership], *, served: bool = False
) -> str:
    """The whole document, of these campaigns and the ledger of all."""
    at = datetime.fromtimestamp(device.clock.wall(), UTC).strftime("%Y-%m-%d %H:%M UTC")
    parts = escape(say(SERVED if served else A_COPY, at=at)).split("`")
    copy = "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))
    campaigns = "".join(_campaign(device, m) for m in memberships)
    title = escape(say("What leaves this device"))
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f"<title>{title}</title><style>{style}</style>"
    )
    return (
        f'{MARK.decode()}\n<html lang="{current_language()}"><head>{head}</head><body><main>'
        f'<h1>{title}</h1><p class="soft">{copy}</p>'
        f"{campaigns or f'<section>{_paragraphs(none_joined())}</section>'}"
        f"<h2>{escape(say('Ledger'))}</h2>{_ledger(ledger_facts(device))}"
        f"{_paragraphs(budget_text(budget_facts(device)))}</main></body></html>\n"
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
    """Checked before it is opened: opening a pipe waits for its writer."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(MARK)) == MARK
    except OSError:
        return False


# --- a campaign ----------------------------------------------------------------------------------


def _campaign(device: DeviceState, membership: Membership) -> str:
    facts = campaign_facts(device, membership)
    joined = facts["status"] == "joined"
    state = facts["state"] if joined else f"{say(facts['status'])}: {facts['state']}"
    now = say("{purpose}. Now: {state}.", purpose=facts["purpose"], state=state)
    trial, revealed = [trial_text()], _paragraphs(total_text(facts))
    if not facts["trial"]:
        trial, revealed = [], _revealed(facts) + _curve(device, membership)
    stays = (
        f"{_bullets(facts['never_leaves'])}"
        f"{_paragraphs(say('What the broker sees all the same:'))}"
        f"{_bullets(facts['broker_sees'])}{_paragraphs(*facts['drawn_attribute']['not_hidden'])}"
    )
    return "".join(
        [
            f"<h2>{escape(facts['title'])}</h2>{_paragraphs(now, *trial, kind='soft')}",
            _section(say("What leaves"), _leaves(facts)),
            _section(say("What that has revealed"), revealed),
            _section(say("The last reports"), _reports(facts)),
            _section(say("What does not leave"), stays),
            _section(say("Who gets it, and until when"), _who(facts), folded=True),
            _section(say("How to stop"), _stop(facts["campaign"]), folded=True),
        ]
    )


def _curve(device: DeviceState, membership: Membership) -> str:
    """Of one memo; of all answers, where each is drawn independently."""
    mechanism, rounds = membership.mechanism, membership.manifest.rounds
    if mechanism.memos == 0:
        ceiling, most = mechanism.lifetime_epsilon, rounds.each or rounds.count
        reports = [membership.answers] if membership.answers else []
    else:
        ceiling, most = mechanism.charge, rounds.count
        reports = [memo.reports for memo in device.store.memos(membership.name).values()]
    return curve_svg(mechanism.epsilon_after, ceiling, most, reports)


def _leaves(facts: Facts) -> str:
    drawn = facts["drawn_attribute"]
    how = say(
        "One noisy answer of {bytes} bytes, {answers}, to the one question this device drew for "
        "life:",
        bytes=drawn["length"],
        answers=facts["answers"],
    )
    values = and_more(", ".join(drawn["values"][:8]), drawn["values"], 8)
    warning = [drawn["warning"]] if drawn["warning"] else []
    together = [together_text(drawn)] if drawn["together"] else []
    return (
        f"{_paragraphs(how)}{_paragraphs(drawn['question'], *together, kind='lead')}"
        f"{_paragraphs(say('Answers: {values}', values=values), kind='soft')}"
        f"{_paragraphs(drawn['one_report'], drawn['all_reports'], shifts_text(drawn), *warning)}"
    )


def _revealed(facts: Facts) -> str:
    if not facts["reports"]:
        nothing = say(
            "Nothing was drawn yet; the first report books epsilon {epsilon}.",
            epsilon=number(facts["charge"]),
        )
        return _paragraphs(nothing, total_text(facts))
    drawn = reports_text(facts["reports"])
    if facts["memos"]:
        drawn = say("{reports} of {memos}", reports=drawn, memos=memos_text(facts["memos"]))
    text = say(
        "{revealed} of at most {charged}, in epsilon, after {drawn}.",
        revealed="\0",  # marked up after the text is escaped
        charged=number(facts["epsilon_charged"]),
        drawn=drawn,
    )
    big = f'<span class="big">{number(facts["epsilon_exact"], ".4f")}</span>'
    marked, booked = escape(text).replace("\0", big), facts["drawn_attribute"]["booked"]
    climbs = say("The curve climbs to its ceiling and never beyond.")
    return f"<p>{marked}</p>{_paragraphs(f'{booked} {climbs}', total_text(facts))}"


def _reports(facts: Facts) -> str:
    last = (facts["sent"] + facts["queued"])[-LAST_REPORTS:]
    if not last:
        return _paragraphs(say("Nothing has left this device yet."))
    preview = facts["drawn_attribute"]["bytes"].split(" ")
    caption = say(
        "Newest first. All bytes are shown; the answer and its noise are the marked ones."
    )
    earlier = len(last) - SHOWN_REPORTS
    more = say_count(earlier, "{count} earlier report", "{count} earlier reports")
    newest = _newest([_report(row, preview) for row in reversed(last)], SHOWN_REPORTS, more)
    return f"{_paragraphs(caption, kind='soft')}{newest}"


def _report(row: Facts, preview: list[str]) -> str:
    says = row["says"]
    answer = and_more(", ".join(says[:MOST_ANSWERS]) or say("nothing"), says, MOST_ANSWERS)
    first = say("Round {round}", round=row["round"])
    # Counted from the end: what precedes the noise grows with the number of the round.
    pairs = row["bytes"].split(" ")
    begin = len(pairs) - (len(preview) - preview.index("??"))
    end = begin + preview.count("??")
    head, noise, tail = (" ".join(p) for p in (pairs[:begin], pairs[begin:end], pairs[end:]))
    octets = f"{head} <b>{noise}</b>{' ' + tail if tail else ''}"
    return (
        f"{_row_facts(first, say(row['fate']), row['drawn'])}"
        f"{_paragraphs(say('The noisy answer says: {says}', says=answer))}"
        f'<p><span class="bytes">{octets}</span></p>'
    )


def _who(facts: Facts) -> str:
    terms = [
        (say("Asked by"), escape(f"{facts['owner']}, {facts['contact']}")),
        (say("Sent to"), escape(facts["broker"])),
        (say("Under the name"), escape(f"{facts['device']} {labels_text(facts)}".strip())),
        (say("Topic"), _code(facts["topic"])),
        (say("Rounds"), escape(rounds_text(facts))),
        (say("Ends"), escape(facts["ends"])),
        (say("Campaign"), _code(facts["campaign"])),
        (say("Digest"), _code(facts["digest"])),
    ]
    if (drawn := facts["drawn_rounds"]) is not None:
        first = [
            say("{round} (opens {opens})", round=one["round"], opens=one["opens"])
            for one in drawn[:MOST_ROUNDS]
        ]
        rounds = and_more(", ".join(first), drawn, MOST_ROUNDS) or say("no round: none was left")
        terms.insert(5, (say("Answers in"), escape(rounds)))
    return f"<dl>{''.join(f'<dt>{escape(name)}</dt><dd>{text}</dd>' for name, text in terms)}</dl>"


def _stop(campaign: str) -> str:
    commands = [
        f"<p>{_code(typed('allomfree-edge', verb, campaign))}</p>"
        f"{_paragraphs(say(does), kind='soft')}"
        for verb, does in STOPPING.items()
    ]
    caption = say("At any time, without giving a reason. Type:")
    return f"{_paragraphs(caption)}{_rows(commands)}"


def _ledger(lines: list[Facts]) -> str:
    if not lines:
        return _section(say("Charges"), _paragraphs(say("Nothing was ever charged.")))
    charges = [
        _row_facts(number(line["epsilon"], ".4f"), line["source"], booked_text(line), line["at"])
        for line in reversed(lines)
    ]
    caption = say(
        "Every charge in epsilon, newest first, also of campaigns since forgotten. Lines are never "
        "removed."
    )
    earlier = len(charges) - SHOWN_CHARGES
    more = say_count(earlier, "{count} earlier charge", "{count} earlier charges")
    newest = _newest(charges, SHOWN_CHARGES, more)
    return _section(say("Charges"), f"{_paragraphs(caption, kind='soft')}{newest}")


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


class PageServer(ThreadingHTTPServer):
    """The page, under an address that only its owner knows.

    Where too many connections have sent no whole request yet, the oldest of them gives way (A9).
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, render: Callable[[], str], port: int) -> None:
        self.render = render
        self.token = os.urandom(16).hex()
        self._waiting: dict[object, None] = {}  # connections without a whole request, oldest first
        self._changing = Lock()
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise SettingsError(
                f"port {port} of this machine cannot be used: {error.strerror}. Nothing was drawn "
                "or sent. Choose another: allomfree-edge page --port 0 takes any that is free"
            ) from None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_port}/{self.token}/"

    def server_bind(self) -> None:
        """Without asking for this machine's name, which may take long and is not needed."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = HOST, int(self.server_address[1])

    def process_request(self, request: object, client_address: object) -> None:
        """In a thread of its own."""
        with self._changing:
            if len(self._waiting) >= AT_ONCE:
                oldest = next(iter(self._waiting))
                del self._waiting[oldest]
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # type: ignore[attr-defined]
            self._waiting[request] = None
        super().process_request(request, client_address)  # type: ignore[arg-type]

    def process_request_thread(self, request: object, client_address: object) -> None:
        try:
            super().process_request_thread(request, client_address)  # type: ignore[arg-type]
        finally:
            self.stop_waiting(request)

    def stop_waiting(self, request: object) -> None:
        """A whole request has arrived, or none will."""
        with self._changing:
            self._waiting.pop(request, None)

    def handle_error(self, request: object, client_address: object) -> None:
        """A disconnected reader is not worth a message, and the text of an error may be private."""


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    timeout = PATIENCE_SECONDS
    server_version = "allomfree-edge"
    sys_version = ""

    def log_message(self, *_: object) -> None:
        """Nothing: the address in a log would let others in."""

    def do_GET(self) -> None:
        self.server.stop_waiting(self.connection)
        status, text = self._found()
        body = text.encode()
        self.send_response(status)
        kind = "text/html" if status == 200 else "text/plain"
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815 - the name that http.server calls

    def _found(self) -> tuple[int, str]:
        host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        if host not in NAMES:
            return 421, "This page answers to 127.0.0.1 and localhost only.\n"
        given = self.path.encode(errors="replace")
        if not hmac.compare_digest(given, f"/{self.server.token}/".encode()):
            return 404, "Open the whole address that `allomfree-edge page` printed.\n"
        try:
            return 200, self.server.render()
        except AllomfreeError as error:
            return 503, f"{error}\n"
