"""What the owner reads before and after joining, as text and as a page: exact, and drawn by nobody.

It is made by the code that sends, without any randomness, and the page fetches and runs nothing.
"""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from edge_client import EdgeClient, Policy
from edge_client.agent import Agent
from edge_client.errors import CampaignProblem, SettingsError
from edge_client.explain import times
from edge_client.page import (
    AT_ONCE,
    BASE,
    LEFT,
    MARK,
    PATIENCE_SECONDS,
    POLICY,
    RIGHT,
    TOP,
    PageServer,
    curve_svg,
    statement_page,
    write_page,
)
from edge_client.statement import (
    NEVER_LEAVES,
    attribute_facts,
    campaign_facts,
    invitation_facts,
    joined_facts,
    ledger_facts,
    status_facts,
)
from edge_client.text import campaign_text, invitation_text, joined_text, ledger_text, status_text
from protocol_spec import (
    LONGITUDINAL,
    Manifest,
    Reporting,
    calibrate,
    lifetime_odds,
    report_odds,
)
from protocol_spec.mechanisms import MECHANISMS
from tests.support.campaigns import manifest_text
from tests.support.command_line import Cli
from tests.support.edge import (
    COLOUR,
    DAY,
    FUEL,
    ROOM,
    WARMTH,
    FakeClock,
    Joined,
    daily,
    draw,
    draw_rounds,
    many_values,
    no_entropy,
    only,
    rows,
)
from tests.support.harness import ROOT

EVERY_MECHANISM = pytest.mark.parametrize("reporting", MECHANISMS)


@pytest.fixture
def opened(state: Path, clock: FakeClock) -> Iterator[EdgeClient]:
    """The owner's look at the state directory; randomness would be an error."""
    with EdgeClient(state, clock=clock, entropy=no_entropy, exclusive=False) as client:
        yield client


def plain(text: str) -> str:
    return " ".join(text.split())


# --- before joining -------------------------------------------------------------------------------


def invited(client: EdgeClient, campaign: Manifest, device: str | None = None) -> str:
    invitation = client.invitation(manifest=campaign, broker="mqtts://b.example", check=False)
    return plain(invitation_text(invitation_facts(invitation, device)))


def test_the_preview_says_who_what_where_and_until_when(opened: EdgeClient, state: Path) -> None:
    campaign = daily(eps_inf=2.0, eps_1=0.6)
    before = rows(state)
    text = invited(opened, campaign, "heater")
    assert rows(state) == before
    for part in (
        *(campaign.title, campaign.purpose, campaign.owner, campaign.contact, campaign.campaign),
        *("365, one every day", "2027-01-15T08:00:00Z", "What heats your home?"),
        *("wood, gas, oil, pump", "mqtts://b.example:8883", *NEVER_LEAVES[:2]),
        f"allomfree/v1/{campaign.campaign}/up/heater/report",
    ):
        assert part in text, part


EXPLAINED: dict[Reporting, tuple[str, ...]] = {
    "memoized": (
        "answers this question, once every day, with noise",
        "Only the first value is ever answered for",
        "The total cost is at most epsilon 2: for the one value that is answered for",
    ),
    "once": (
        "in 3 of 365 rounds, drawn at random when you join, and is silent in others",
        "At most 3 reports ever leave, each about the value of its own round only.",
        "by at most 1.95, all together by at most 7.39",
        "cannot be read in a round that was drawn, it is answered for as “pump”",
        "at most epsilon 2: 0.666667 for each of at most 3 answers, however often",
    ),
    "hashed": (
        "divides the answers into two groups; only the group is reported",
        "see the pattern of its changes between the two groups, though not the values",
        "by at most 54.6 between histories with the same changes",
        "The total cost is at most epsilon 4: 2 for each of the two groups",
    ),
    "nested": (
        "by at most 1.82 if it is the first, by at most 7.39 if it is a late one",
        "The first reveals epsilon 0.6; a late report alone reveals as much as all before it",
        "Only the first value is ever answered for",
        "The total cost is at most epsilon 2: for the one value, all reports together",
    ),
}


@EVERY_MECHANISM
def test_the_invitation_explains_the_mechanism(opened: EdgeClient, reporting: Reporting) -> None:
    text = invited(opened, daily(reporting=reporting, each=3))
    for other, parts in EXPLAINED.items():
        assert all(part in text for part in parts) is (other == reporting), other
    if reporting == "once":
        text = invited(opened, daily(reporting=reporting, each=3, attributes=WARMTH))
        assert "it is answered for as one of the answers, drawn at random." in text


def test_odds_are_those_of_the_mechanism() -> None:
    plain_mechanisms: tuple[Reporting, ...] = ("memoized", "once", "hashed")
    for reporting in plain_mechanisms:
        facts = attribute_facts(daily(reporting=reporting), 0)
        odds = report_odds(daily(reporting=reporting).mechanisms[0].calibration)
        assert times(odds.if_true) in facts["one_report"]
        assert times(odds.if_false) in facts["one_report"]
    nested = daily(reporting="nested")
    mechanism, facts = nested.mechanisms[0], attribute_facts(nested, 0)
    assert times(float(mechanism.channels[0].exact.p1)) in facts["one_report"]
    assert times(lifetime_odds(mechanism.calibration).if_true) in facts["all_reports"]


@pytest.mark.parametrize("attribute", [FUEL, FUEL + "changes = true\n", ROOM, WARMTH])
@EVERY_MECHANISM
def test_memos_of_what_changes_are_warned_of(
    asked: Path, join: Cli, config: Path, reporting: Reporting, attribute: str
) -> None:
    """Once in what is read before agreeing, and once for the attribute that was drawn."""
    config.write_text(f'[policy]\nmechanisms = ["{reporting}"]\n', encoding="utf-8")
    text = manifest_text(reporting=reporting, attributes=attribute, period=DAY)
    asked.write_text(text, encoding="utf-8")
    joined = join("--yes", "--config", config)
    assert joined.exit_code == 0, joined.output
    warned = reporting in ("memoized", "nested") and attribute != FUEL
    assert joined.stdout.count("Warning: this is about something that changes") == 2 * warned


# --- what left the device -------------------------------------------------------------------------


def shown_text(client: EdgeClient) -> str:
    shown = campaign_text(campaign_facts(client, client.find()))
    return plain(f"{shown} {status_text(status_facts(client))}")


def test_show_prints_exactly_the_bytes_and_what_they_say(agent: Agent, opened: EdgeClient) -> None:
    payloads = draw_rounds(agent, 3)
    agent.store.finish(only(agent).name, {0: "counted", 1: "missed"})
    facts = campaign_facts(opened, opened.find())
    assert [row["bytes"] for row in facts["queued"]] == [payloads[2].hex(" ")]
    assert [row["bytes"] for row in facts["sent"]] == [p.hex(" ") for p in payloads[:2]]
    assert [row["fate"] for row in facts["sent"]] == ["counted", "missed"]
    values = only(agent).attribute.values
    for row, payload in zip(facts["sent"] + facts["queued"], payloads):
        assert row["says"] == [values[payload[-1]]]
    assert all(payload.hex(" ") in campaign_text(facts) for payload in payloads)


def test_show_never_prints_the_true_value_or_the_memo(joined: Joined, opened: EdgeClient) -> None:
    """R23."""
    agent = joined(daily(attributes=COLOUR))
    draw_rounds(agent, 2, "c77")
    memo = agent.store.memos(only(agent).name)[77].body
    facts = campaign_facts(opened, opened.find())
    page = re.sub("<[^>]*>", "", statement_page(opened, opened.memberships()))
    assert "last_value" not in facts
    assert memo.hex() not in (str(facts) + page).replace(" ", "")
    assert "c77" not in page


@EVERY_MECHANISM
def test_the_preview_of_every_mechanism_is_what_is_sent(
    joined: Joined, opened: EdgeClient, reporting: Reporting
) -> None:
    """All but the noise, with the padding and the level; and the page marks the noise alone."""
    tables = many_values(100) + FUEL
    campaign = daily(reporting=reporting, attributes=tables, count=2, each=2)
    agent = joined(campaign)
    preview = attribute_facts(campaign, only(agent).attribute_index)
    sent = draw(agent, "wood").payload.hex(" ").split(" ")
    pairs = list(zip(preview["bytes"].split(" "), sent, strict=True))
    assert preview["length"] == len(sent)
    assert all(shown in ("??", byte) for shown, byte in pairs)
    noise = " ".join(byte for shown, byte in pairs if shown == "??")
    assert f"<b>{noise}</b>" in statement_page(opened, opened.memberships())


def test_hashed_reports_say_the_values_of_their_group(joined: Joined, opened: EdgeClient) -> None:
    agent = joined(daily(reporting="hashed", attributes=many_values(16)))
    draw_rounds(agent, 12, "v03")
    cell_of = only(agent).mechanism.randomiser(only(agent).device).key
    groups = {cell: [f"v{i:02}" for i in range(16) if cell_of(i) == cell] for cell in (0, 1)}
    for row in campaign_facts(opened, opened.find())["queued"]:
        assert row["says"] == groups[int(row["bytes"][-2:], 16)]


def test_the_owner_sees_the_rounds_that_were_drawn(joined: Joined, opened: EdgeClient) -> None:
    """They follow from no value, and whoever sees a report sees its round."""
    agent = joined(daily(reporting="once", count=365, each=2))
    one, two = only(agent).drawn_rounds or ()
    text = joined_text(joined_facts(only(agent)))
    assert f"Rounds drawn: {one} (20" in text
    assert f", {two} (20" in text
    assert f"Rounds drawn: {one} (20" in shown_text(opened)
    assert f"{one} (opens 20" in statement_page(opened, opened.memberships())


def test_why_nothing_is_due(agent: Agent, clock: FakeClock, opened: EdgeClient) -> None:
    draw(agent)
    clock.set_forward(5 * DAY)
    assert "the clock ran ahead" in status_text(status_facts(opened))
    opened.pause()
    assert "paused by you" in status_text(status_facts(opened))


# --- what was spent -------------------------------------------------------------------------------


def test_the_ledger_shown_is_the_one_stored(joined: Joined, opened: EdgeClient) -> None:
    agent = joined(daily(max_values=2), policy=Policy(max_values=2))
    draw_rounds(agent, 3, "wood")
    draw_rounds(agent, 1, "gas")
    facts, lines = campaign_facts(opened, opened.find()), ledger_facts(opened)
    status = status_facts(opened)
    assert (facts["memos"], facts["reports"], facts["epsilon_charged"]) == (2, 4, 4.0)
    assert 0 < facts["epsilon_exact"] < 4.0
    assert [line["epsilon"] for line in lines] == [2.0, 2.0]
    assert "memo drawn" in ledger_text(lines)
    assert status["campaigns"][0]["epsilon_exact"] == 4.0, "whatever the values were (P1)"
    assert "4 reports, 4 queued" in status_text(status)
    reader = Reader(statement_page(opened, opened.memberships()))
    assert len(reader.named("circle")) == 2, "a dot for each memo"
    assert "after 4 reports of 2 memos" in reader.text
    assert "someone who keeps all your reports can" in reader.text


@EVERY_MECHANISM
def test_what_was_spent_is_shown_exactly_with_its_bound(
    joined: Joined, opened: EdgeClient, reporting: Reporting
) -> None:
    campaign = daily(reporting=reporting, count=3, each=3)
    agent = joined(campaign)
    first = campaign.eps_1 if reporting == "once" else campaign.eps_inf
    assert f"the first report books epsilon {first:g}." in shown_text(opened)
    draw_rounds(agent, 2)
    exact, bound = campaign.mechanisms[0].epsilon_after(2), campaign.lifetime_epsilon
    booked = 2 * campaign.eps_1 if reporting == "once" else campaign.eps_inf
    text = shown_text(opened)
    assert f"Revealed so far at most epsilon {exact:.4f}; booked {booked:g}, " in text
    assert f"The total cost is at most epsilon {bound:g}" in text
    # With hashing, status says the most it can be: the number of visited groups reveals something.
    most = (bound, bound) if reporting == "hashed" else (exact, booked)
    assert f"epsilon {most[0]:.4f} of {most[1]:g}, at most {bound:g} ever" in text
    html = statement_page(opened, opened.memberships())
    assert f'<span class="big">{exact:.4f}</span> of at most {booked:g}, in epsilon' in html
    assert f"The total cost is at most epsilon {bound:g}" in html
    assert f"{exact:.4f} after 2" in html, "and on the curve"


# --- the page -------------------------------------------------------------------------------------


class Reader(HTMLParser):
    """Tags with their attributes, and the text as a person reads it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._styling = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._styling = tag == "style"

    def handle_data(self, data: str) -> None:
        self.words += [] if self._styling else data.split()

    @property
    def text(self) -> str:
        return " ".join(self.words)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def test_the_page_shows_what_show_prints(agent: Agent, state: Path, opened: EdgeClient) -> None:
    draw_rounds(agent, 3)
    agent.store.finish(only(agent).name, {0: "counted", 1: "missed"})
    before = rows(state)
    text = Reader(statement_page(opened, opened.memberships())).text
    assert rows(state) == before
    facts = campaign_facts(opened, opened.find())
    drawn, reports = facts["drawn_attribute"], facts["sent"] + facts["queued"]
    assert len(reports) == 3
    for part in (
        *(facts[name] for name in ("title", "purpose", "campaign", "digest", "topic", "broker")),
        *(facts[name] for name in ("owner", "contact", "ends", "device", "first_round")),
        *(drawn["one_report"], drawn["all_reports"], drawn["question"]),
        *(row["bytes"] for row in reports),
        *(value for row in reports for value in row["says"]),
        *("counted", "missed", "queued", *NEVER_LEAVES, *facts["broker_sees"]),
        f"{facts['epsilon_exact']:.4f} of at most 2",
        *(f"allomfree-edge {verb} " for verb in ("pause", "resume", "leave", "forget")),
        "2.0000 fuel",
    ):
        assert plain(part) in text, part


def test_the_page_fetches_and_runs_nothing_and_everyone_can_read_it(
    joined: Joined, opened: EdgeClient
) -> None:
    """What others wrote is text."""
    hostile = '<script>alert("x")</script>&'
    table = f"[[attributes]]\nname = 'fuel'\nquestion = '{hostile}'\nvalues = ['{hostile}', 'b']\n"
    draw_rounds(joined(daily(attributes=table)), 3, hostile)
    text = statement_page(opened, opened.memberships())
    reader = Reader(text)
    assert hostile in reader.text
    tags = {tag for tag, _ in reader.tags}
    assert not tags & {"script", "link", "img", "iframe", "object", "form", "a", "base"}
    names = {name for _, attributes in reader.tags for name in attributes}
    assert not {n for n in names if n.startswith("on") or n in ("src", "href", "style", "action")}
    (policy,) = [m for m in reader.named("meta") if "http-equiv" in m]
    assert policy == {"http-equiv": "Content-Security-Policy", "content": POLICY}
    assert POLICY == "default-src 'none'; style-src 'unsafe-inline'"
    assert "url(" not in text
    assert reader.named("html") == [{"lang": "en"}]
    assert len(reader.named("h1")) == 1
    assert reader.named("table") == [], "rows are read on a telephone too"
    assert len(reader.named("details")) == len(reader.named("summary")) == 2
    assert len(reader.named("desc")) == len(reader.named("svg")) == 1
    assert "prefers-color-scheme:dark" in text


def test_without_a_campaign_the_page_says_how_to_begin(opened: EdgeClient) -> None:
    text = Reader(statement_page(opened, [])).text
    assert "Begin with: allomfree-edge join ADDRESS" in text
    assert "Nothing was ever charged." in text
    assert "nothing was ever charged" in ledger_text(ledger_facts(opened))
    status = status_facts(opened)
    assert (status["agent"], status["pid"], status["campaigns"]) == ("not running", None, [])


@pytest.mark.parametrize("protocol", LONGITUDINAL)
@pytest.mark.parametrize("count", [1, 7, 365, 65_536])
def test_the_curve_climbs_to_its_ceiling_and_marks_the_present(protocol: str, count: int) -> None:
    calibration = calibrate(protocol, k=5, eps_inf=2.0, eps_1=0.2)
    reports = min(5, count)
    svg = curve_svg(calibration.epsilon_after, calibration.eps_inf, count, [reports])
    elements = {e.get("class"): e for e in ET.fromstring(svg).iter()}  # noqa: S314 - our own
    pairs = [p.split(",") for p in (elements["curve"].get("points") or "").split()]
    points = [(float(x), float(y)) for x, y in pairs]
    assert points[0] == (LEFT, BASE)
    assert points[-1][0] == RIGHT
    assert all(a[1] >= b[1] for a, b in pairwise(points))
    assert all(TOP <= y <= BASE for _, y in points)
    height = (BASE - float(elements["dot"].get("cy") or 0)) / (BASE - TOP) * calibration.eps_inf
    assert height == pytest.approx(calibration.epsilon_after(reports), abs=0.01)
    assert f"{calibration.epsilon_after(reports):.4f} after {reports}" in svg


# --- as a file ------------------------------------------------------------------------------------


TEXT = MARK.decode() + "\nnew"


def test_the_file_is_its_owners_and_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_page(path, TEXT)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    write_page(path, TEXT + "er")
    assert path.read_text() == TEXT + "er"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(SettingsError, match=r"cannot be written: No such file or directory; what"):
        write_page(tmp_path / "no" / "page.html", TEXT)


@pytest.mark.parametrize("kind", ["file", "directory", "link", "pipe"])
def test_what_is_not_such_a_page_is_left_alone(tmp_path: Path, kind: str) -> None:
    path, other = tmp_path / "page.html", tmp_path / "letters"
    other.write_text("somebody's letters")
    if kind == "file":
        path.write_text("<!doctype html><p>somebody's page")
    elif kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(other)
    with pytest.raises(SettingsError, match="nothing was written"):
        write_page(path, TEXT)
    assert other.read_text() == "somebody's letters"
    assert kind != "file" or "somebody's page" in path.read_text()


def test_show_html(cli: Cli, agent: Agent, state: Path, tmp_path: Path) -> None:
    draw(agent)
    path = tmp_path / "statement.html"
    wrote = cli("show", "--html", path, "--state-dir", state)
    assert (wrote.exit_code, wrote.stdout) == (0, "")
    assert str(path) in wrote.stderr
    printed = cli("show", "--html", "-", "--state-dir", state)
    assert printed.stdout.startswith(MARK.decode())
    assert Reader(printed.stdout).named("svg")
    path.write_text("mine")
    refused = cli("show", "--html", path, "--state-dir", state)
    assert (refused.exit_code, path.read_text()) == (2, "mine")
    assert refused.stderr.startswith("error: ")


# --- as `page`: on this machine only, for whoever has the address, and read-only ------------------


PAGE = "<!doctype html><p>secret statement"


@contextmanager
def serving(render: Callable[[], str] = lambda: PAGE) -> Iterator[PageServer]:
    with PageServer(render, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    with serving() as running:
        yield running


def fetch(
    port: int, path: str, method: str = "GET", host: str = "localhost"
) -> tuple[int, str, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, headers={"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers
    finally:
        connection.close()


def test_whoever_has_the_address_sees_the_page_and_nobody_else(server: PageServer) -> None:
    """Other users of the machine reach the port, but do not know the random word."""
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[0-9a-f]{32}/", server.url)
    path, port = f"/{server.token}/", server.server_port
    status, body, headers = fetch(port, path)
    assert (status, body) == (200, PAGE)
    assert fetch(port, path, "HEAD")[:2] == (200, "")
    assert headers["Cache-Control"] == "no-store"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; style-src")
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Server"].strip() == "allomfree-edge"
    near = server.token[:-1] + ("1" if server.token[-1] == "0" else "0")
    for other in ("/", "//", "/index.html", path[:-1], f"{path}x", f"{path}?x", f"/{near}/"):
        status, body, _ = fetch(port, other)
        assert status == 404
        assert "secret" not in body
        assert server.token not in body
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        assert fetch(port, path, method)[0] == 501, "nothing can be changed"


def test_a_web_site_cannot_point_its_name_here(server: PageServer) -> None:
    path = f"/{server.token}/"
    for host in ("evil.example", "127.0.0.1.evil.example", "", "192.0.2.1:80"):
        status, body, _ = fetch(server.server_port, path, host=host)
        assert (status, "secret" in body) == (421, False)
    for host in ("localhost", "localhost:99", "127.0.0.1", "127.0.0.1:99"):
        assert fetch(server.server_port, path, host=host)[0] == 200


def test_it_listens_on_this_machine_only(server: PageServer) -> None:
    assert server.socket.getsockname()[0] == "127.0.0.1"
    with socket.socket() as other:  # another address of this machine's
        assert other.connect_ex(("127.0.0.2", server.server_port)) != 0
    with pytest.raises(SettingsError, match="--port 0 takes any"):
        PageServer(lambda: PAGE, server.server_port)


def test_silent_connections_keep_nobody_out() -> None:
    """A9: however many hold a half-sent request, the oldest of them gives way to the owner."""
    with serving() as server:
        address = ("127.0.0.1", server.server_port)
        silent = [socket.create_connection(address) for _ in range(AT_ONCE + 3)]
        try:
            for one in silent:
                with suppress(OSError):
                    one.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
            assert fetch(server.server_port, f"/{server.token}/")[:2] == (200, PAGE)
            silent[0].settimeout(PATIENCE_SECONDS / 2)  # sooner than by itself
            assert silent[0].recv(10) == b""
        finally:
            for one in silent:
                one.close()


def test_what_is_wrong_is_shown() -> None:
    def fail() -> str:
        raise CampaignProblem("the memory is gone")

    with serving(fail) as server:
        assert fetch(server.server_port, f"/{server.token}/")[:2] == (503, "the memory is gone\n")


def test_a_state_that_cannot_be_read_is_reported_at_once(cli: Cli, tmp_path: Path) -> None:
    exposed = tmp_path / "exposed"
    exposed.mkdir()
    exposed.chmod(0o755)
    done = cli("page", "--port", "0", "--state-dir", exposed)
    assert done.exit_code == 1
    assert "can be read by other users" in done.stderr
    assert "has joined no campaign" in cli("page", "heat", "--state-dir", tmp_path / "new").stderr


RUN = """
import sys
from edge_client.__main__ import main
try:
    main(sys.argv[1:])
finally:
    print("\\n".join(sorted(sys.modules)))
"""


@pytest.mark.usefixtures("home")
def test_the_page_command(agent: Agent, state: Path) -> None:
    """It shows what is there at each moment, loads no MQTT, and ends on SIGTERM."""
    words = ("page", "--port", "0", "--state-dir", str(state), "--language", "de")
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    server = subprocess.Popen(
        [sys.executable, "-c", RUN, *words], env=environ, text=True, stdout=subprocess.PIPE
    )
    try:
        assert server.stdout
        found = re.search(r"http://127\.0\.0\.1:(\d+)(/\w+/)", server.stdout.readline())
        assert found
        port, path = int(found[1]), found[2]
        first = fetch(port, path)[1]
        assert "Noch hat nichts dieses Gerät verlassen." in first
        assert f"allomfree-edge leave {daily().campaign} --state-dir {state}" in first
        assert "laden Sie die Seite neu" in first
        draw_rounds(agent, 1)
        assert "Runde 0" in fetch(port, path)[1]
        server.send_signal(signal.SIGTERM)
        loaded = set(server.communicate(timeout=60)[0].split())
        assert server.returncode == 0
    finally:
        server.kill()
        server.wait()
    assert {"edge_client.page", "edge_client.store"} <= loaded
    assert {name.split(".")[0] for name in loaded}.isdisjoint({"paho", "numpy", "collector"})


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("verb", ["show", "status"])
def test_reading_loads_no_mqtt(state: Path, verb: str) -> None:
    """They ask no broker, and start the faster for it."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, verb, "--state-dir", str(state)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "edge_client.store" in done.stdout.split()
    assert "paho.mqtt.client" not in done.stdout.split()
