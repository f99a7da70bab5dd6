"""The owner's page: the facts of `show`, nothing fetched or run, and a file of the owner's own."""

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
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from edge_client import EdgeClient, Policy
from edge_client.errors import CampaignProblem, SettingsError
from edge_client.page import (
    AT_ONCE,
    BASE,
    LEFT,
    MARK,
    POLICY,
    RIGHT,
    TOP,
    PageServer,
    curve_svg,
    statement_page,
    write_page,
)
from edge_client.statement import NEVER_LEAVES, campaign_facts
from protocol_spec import LONGITUDINAL, calibrate
from tests.support.command_line import Cli
from tests.support.edge import (
    FUEL,
    FakeClock,
    Joined,
    as_killed,
    daily,
    draw_rounds,
    joined_agent,
    no_entropy,
    only,
    rows,
)
from tests.support.harness import ROOT

HOSTILE = '<script>alert("x")</script>&'


class Reader(HTMLParser):
    """Tags with their attributes, and the text as a person reads it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.said: list[str] = []
        self._styling = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._styling = tag == "style"

    def handle_data(self, data: str) -> None:
        self.said += [] if self._styling else data.split()

    @property
    def text(self) -> str:
        return " ".join(self.said)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture
def looking(state: Path, clock: FakeClock, tmp_path: Path) -> Iterator[EdgeClient]:
    """A client that may not draw, on a copy of a device that sent three reports."""
    agent = joined_agent(state, clock, daily())
    draw_rounds(agent, clock, 3)
    agent.store.finish(only(agent).name, {0: "counted", 1: "missed"})
    copy = as_killed(state, tmp_path / "copy")
    agent.store.close()
    with EdgeClient(copy, clock=clock, entropy=no_entropy, exclusive=False) as client:
        yield client


def test_it_tells_what_show_tells(looking: EdgeClient) -> None:
    before = rows(looking.store.directory)
    reader = Reader(statement_page(looking, looking.memberships()))
    assert rows(looking.store.directory) == before
    facts = campaign_facts(looking, looking.find())
    drawn = facts["drawn_attribute"]
    reports = facts["sent"] + facts["queued"]
    assert len(reports) == 3
    for told in (
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
        assert " ".join(told.split()) in reader.text, told


def test_it_fetches_and_runs_nothing(looking: EdgeClient) -> None:
    reader = Reader(statement_page(looking, looking.memberships()))
    tags = {tag for tag, _ in reader.tags}
    assert not tags & {"script", "link", "img", "iframe", "object", "form", "a", "base"}
    names = {name for _, attributes in reader.tags for name in attributes}
    assert not {n for n in names if n.startswith("on") or n in ("src", "href", "style", "action")}
    (policy,) = [m for m in reader.named("meta") if "http-equiv" in m]
    assert policy == {"http-equiv": "Content-Security-Policy", "content": POLICY}
    assert POLICY == "default-src 'none'; style-src 'unsafe-inline'"
    assert "url(" not in statement_page(looking, looking.memberships())


def test_everyone_can_read_it(looking: EdgeClient) -> None:
    text = statement_page(looking, looking.memberships())
    reader = Reader(text)
    assert reader.named("html") == [{"lang": "en"}]
    assert len(reader.named("h1")) == 1
    assert reader.named("table") == [], "rows are read on a telephone too"
    assert len(reader.named("details")) == len(reader.named("summary")) == 2
    assert len(reader.named("desc")) == len(reader.named("svg")) == 1
    assert "prefers-color-scheme:dark" in text


def test_what_others_wrote_is_text(
    joined: Joined, clock: FakeClock, state: Path, tmp_path: Path
) -> None:
    table = f"[[attributes]]\nname = 'fuel'\nquestion = '{HOSTILE}'\nvalues = ['{HOSTILE}', 'b']\n"
    agent = joined(daily(attributes=table))
    draw_rounds(agent, clock, 5, HOSTILE)
    copy = as_killed(state, tmp_path / "copy")
    agent.store.close()
    with EdgeClient(copy, clock=clock, exclusive=False) as client:
        text = statement_page(client, client.memberships())
    assert "<script" not in text
    assert HOSTILE in Reader(text).text


def test_without_a_campaign_it_says_how_to_begin(tmp_path: Path) -> None:
    with EdgeClient(tmp_path / "new", exclusive=True) as client:
        reader = Reader(statement_page(client, []))
    assert "Begin with: allomfree-edge join ADDRESS" in reader.text
    assert "Nothing was ever charged." in reader.text


# --- the curve -----------------------------------------------------------------------------------


def drawn(svg: str, kind: str) -> list[tuple[float, float]]:
    root = ET.fromstring(svg)  # noqa: S314 - our own
    (element,) = [e for e in root.iter() if e.get("class") == kind]
    pairs = [p.split(",") for p in (element.get("points") or "").split()]
    return [(float(x), float(y)) for x, y in pairs]


@pytest.mark.parametrize("protocol", LONGITUDINAL)
@pytest.mark.parametrize("count", [1, 7, 365, 65_536])
def test_the_curve_climbs_to_its_ceiling_and_marks_the_present(protocol: str, count: int) -> None:
    calibration = calibrate(protocol, k=5, eps_inf=2.0, eps_1=0.2)
    reports = min(5, count)
    svg = curve_svg(calibration.epsilon_after, calibration.eps_inf, count, [reports])
    points = drawn(svg, "curve")
    assert points[0] == (LEFT, BASE)
    assert points[-1][0] == RIGHT
    assert all(a[1] >= b[1] for a, b in pairwise(points))
    assert all(TOP <= y <= BASE for _, y in points)
    (dot,) = [e for e in ET.fromstring(svg).iter() if e.get("class") == "dot"]  # noqa: S314
    height = (BASE - float(dot.get("cy") or 0)) / (BASE - TOP) * calibration.eps_inf
    assert height == pytest.approx(calibration.epsilon_after(reports), abs=0.01)
    assert f"{calibration.epsilon_after(reports):.4f} after {reports}" in svg


def test_the_page_of_several_memos_has_a_dot_for_each(
    joined: Joined, state: Path, clock: FakeClock, tmp_path: Path
) -> None:
    campaign = daily(attributes=FUEL, max_values=2)
    agent = joined(campaign, policy=Policy(max_values=2))
    draw_rounds(agent, clock, 3, "wood")
    draw_rounds(agent, clock, 1, "gas")
    copy = as_killed(state, tmp_path / "copy")
    agent.store.close()
    with EdgeClient(copy, clock=clock, exclusive=False) as client:
        reader = Reader(statement_page(client, client.memberships()))
    assert len(reader.named("circle")) == 2
    assert "after 4 reports of 2 memos" in reader.text
    assert "someone who keeps all your reports can" in reader.text


# --- the file ------------------------------------------------------------------------------------

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


@pytest.mark.parametrize("there", ["file", "directory", "link", "pipe"])
def test_what_is_not_such_a_page_is_left_alone(tmp_path: Path, there: str) -> None:
    path, other = tmp_path / "page.html", tmp_path / "letters"
    other.write_text("somebody's letters")
    if there == "file":
        path.write_text("<!doctype html><p>somebody's page")
    elif there == "directory":
        path.mkdir()
    elif there == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(other)
    with pytest.raises(SettingsError, match="nothing was written"):
        write_page(path, TEXT)
    assert other.read_text() == "somebody's letters"
    assert there != "file" or "somebody's page" in path.read_text()


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot be written: No such file or directory; what"):
        write_page(tmp_path / "no" / "page.html", TEXT)


def test_the_command(
    joined: Joined, cli: Cli, state: Path, tmp_path: Path, clock: FakeClock
) -> None:
    agent = joined(daily())
    draw_rounds(agent, clock, 1)
    agent.store.close()
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


# --- `page`: the statement on this machine only, for whoever was told the address, and read-only.


PAGE = "<!doctype html><p>secret statement"


@contextmanager
def serving(render: object = lambda: PAGE) -> Iterator[PageServer]:
    with PageServer(render, 0) as server:  # type: ignore[arg-type]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def asked(server: PageServer, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    try:
        connection.request(method, path, headers={"Host": "localhost", **headers})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_whoever_has_the_address_sees_it() -> None:
    with serving() as server:
        path = server.url.split(str(server.server_port))[1]
        assert asked(server, path) == (200, PAGE)
        assert asked(server, path, "HEAD") == (200, "")
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[0-9a-f]{32}/", server.url)


@pytest.mark.parametrize("path", ["/", "//", "/index.html", "/{}", "/{}/x", "/{}/?x"])
def test_nobody_else_does(path: str) -> None:
    """Other users of the machine reach the port, but do not know the word."""
    with serving() as server:
        status, said = asked(server, path.format(server.word))
        assert status == 404
        assert "secret" not in said
        assert server.word not in said
        near = "1" if server.word[-1] == "0" else "0"
        assert asked(server, f"/{server.word[:-1]}{near}/")[0] == 404


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "192.0.2.1:80"])
def test_a_web_site_cannot_point_its_name_here(host: str) -> None:
    with serving() as server:
        status, said = asked(server, f"/{server.word}/", Host=host)
        assert (status, "secret" in said) == (421, False)
        for ours in ("localhost", "localhost:99", "127.0.0.1", "127.0.0.1:99"):
            assert asked(server, f"/{server.word}/", Host=ours)[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_can_be_changed(method: str) -> None:
    with serving() as server:
        assert asked(server, f"/{server.word}/", method)[0] == 501


def test_the_answer_is_not_kept_framed_or_told_to_others() -> None:
    with serving() as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
        connection.request("GET", f"/{server.word}/")
        told = connection.getresponse().headers
        connection.close()
    assert told["Cache-Control"] == "no-store"
    assert told["Referrer-Policy"] == "no-referrer"
    assert told["Content-Security-Policy"].startswith("default-src 'none'; style-src")
    assert told["X-Frame-Options"] == "DENY"
    assert told["Server"].strip() == "allomfree-edge"


def test_it_listens_on_this_machine_only() -> None:
    with serving() as server:
        assert server.socket.getsockname()[0] == "127.0.0.1"
        with socket.socket() as other:  # another address of this machine's
            assert other.connect_ex(("127.0.0.2", server.server_port)) != 0


def test_those_who_say_nothing_keep_nobody_out() -> None:
    """They are heard side by side, up to a number; beyond it a connection is closed at once."""
    with serving() as server:
        silent = [
            socket.create_connection(("127.0.0.1", server.server_port)) for _ in range(AT_ONCE - 1)
        ]
        try:
            assert asked(server, f"/{server.word}/") == (200, PAGE)
            beyond = [socket.create_connection(("127.0.0.1", server.server_port)) for _ in range(3)]
            silent += beyond
            beyond[-1].settimeout(20)
            assert beyond[-1].recv(10) == b""
        finally:
            for one in silent:
                one.close()


def test_what_is_wrong_is_said() -> None:
    def fail() -> str:
        raise CampaignProblem("the memory is gone")

    with serving(fail) as server:
        assert asked(server, f"/{server.word}/") == (503, "the memory is gone\n")


def test_a_port_in_use_is_told() -> None:
    with serving() as server, pytest.raises(SettingsError, match="--port 0 takes any"):
        PageServer(lambda: PAGE, server.server_port)


def test_a_memory_that_cannot_be_read_is_told_at_once(cli: Cli, tmp_path: Path) -> None:
    exposed = tmp_path / "exposed"
    exposed.mkdir(mode=0o755)
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


def test_the_page_command(joined: Joined, state: Path, clock: FakeClock, home: Path) -> None:
    """It shows what is there at each moment, loads no MQTT, and ends politely."""
    agent = joined(daily())
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
        first = fetched(port, path)
        assert "Noch hat nichts dieses Gerät verlassen." in first
        assert f"allomfree-edge leave {daily().campaign} --state-dir {state}" in first
        assert "laden Sie die Seite neu" in first
        draw_rounds(agent, clock, 1)
        assert "Runde 0" in fetched(port, path)
        server.send_signal(signal.SIGTERM)
        loaded = set(server.communicate(timeout=60)[0].split())
        assert server.returncode == 0
    finally:
        server.kill()
        server.wait()
        agent.store.close()
    assert {"edge_client.page", "edge_client.store"} <= loaded
    assert {name.split(".")[0] for name in loaded}.isdisjoint({"paho", "numpy", "collector"})


def fetched(port: int, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def test_looking_loads_no_mqtt(state: Path, home: Path) -> None:
    """`show` and `status` ask no broker, and start the faster for it."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    for verb in ("show", "status"):
        code = RUN.replace("main(sys.argv[1:])", f"main(['{verb}', '--state-dir', sys.argv[1]])")
        done = subprocess.run(
            [sys.executable, "-c", code, str(state)],
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert "edge_client.store" in done.stdout.split()
        assert "paho.mqtt.client" not in done.stdout.split(), verb
