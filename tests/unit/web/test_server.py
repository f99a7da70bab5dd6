"""The page's server: it answers whoever asks (A9), changes nothing, and checks the token."""

from __future__ import annotations

import errno
import json
import re
import socket
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from collector.records import Campaign
from collector.settings import Address, resolve
from collector.store.sqlite_database import APPLICATION_ID
from collector.web.live import Limits, origin
from collector.web.process import page_token, required_token
from collector.web.server import COOKIE, LONGEST_ADDRESS, LONGEST_HEAD
from protocol_spec.programs.settings import SettingsError
from tests.support.campaigns import manifest
from tests.support.collector import FIRST
from tests.support.command_line import Cli
from tests.support.harness import rows
from tests.support.pages import Own, Site, serving

HALF = b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
WHOLE = b"GET /planner HTTP/1.1\r\nHost: localhost\r\n\r\n"
BODY = b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"
PATIENT = 60.0  # seconds; a deadline of the server that never comes is what fails


@contextmanager
def sending(site: Site, data: bytes, host: str = "127.0.0.1") -> Iterator[socket.socket]:
    with socket.create_connection(
        ("127.0.0.1", site.port), PATIENT, source_address=(host, 0)
    ) as sock:
        if data:
            sock.sendall(data)
        yield sock


def read_to_the_end(sock: socket.socket) -> bytes:
    """What comes until the server closes; a reset is an end too."""
    received = b""
    try:
        while data := sock.recv(65_536):
            received += data
    except ConnectionError:
        pass
    return received


def is_open(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        return sock.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False
    finally:
        sock.settimeout(PATIENT)


def is_cut_off(sock: socket.socket, data: bytes, pace_seconds: float) -> bool:
    """Whether the server ends a connection on which `data` is sent for ever."""
    limit = time.monotonic() + PATIENT
    try:
        while time.monotonic() < limit:
            sock.sendall(data)
            time.sleep(pace_seconds)  # the pace of the attack
    except ConnectionError:
        return True
    return False


@pytest.mark.parametrize("sent", [b"", HALF, BODY], ids=["silent", "half", "no-body"])
def test_an_unfinished_request_has_a_deadline(tmp_path: Path, sent: bytes) -> None:
    with serving(tmp_path, limits=Limits(request_seconds=0.2)) as site:
        with sending(site, sent) as sock:
            answer = read_to_the_end(sock)
        assert answer.startswith(b"HTTP/1.1 503 ") if sent == BODY else answer == b""
        assert site.get("/planner").status == 200


@pytest.mark.parametrize("first", [b"", WHOLE], ids=["first-request", "after-an-answer"])
def test_single_bytes_do_not_put_it_off(tmp_path: Path, first: bytes) -> None:
    limits = Limits(request_seconds=0.5)
    with serving(tmp_path, limits=limits) as site, sending(site, first) as sock:
        assert is_cut_off(sock, b"G", pace_seconds=0.02)


def test_an_answer_that_nobody_reads_is_given_up(tmp_path: Path) -> None:
    """Many requests at once, and the answers are left in the socket."""
    limits = Limits(reading_seconds=0.2)
    with serving(tmp_path, limits=limits) as site, socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(PATIENT)
        sock.connect(("127.0.0.1", site.port))
        many = b"GET /static/page.css HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000
        assert is_cut_off(sock, many, pace_seconds=0.0)
        assert site.get("/planner").status == 200


def test_a_deadline_does_not_end_what_is_being_answered(data: Path, campaign: Campaign) -> None:
    limits = Limits(request_seconds=0.1, reading_seconds=0.1, alive_seconds=0.3)
    with serving(data, limits=limits) as site:
        connection = site.connect()
        connection.request("GET", "/campaigns/nosuch/events")
        response = connection.getresponse()
        assert [response.readline() for _ in range(5)][4] == b": still here\n"
        connection.close()


@pytest.mark.parametrize("limits", [Limits(connections=8), Limits(connections_of_one=8)])
def test_who_has_waited_longest_gives_way(tmp_path: Path, limits: Limits) -> None:
    with serving(tmp_path, limits=limits) as site, ExitStack() as stack:
        held = [stack.enter_context(sending(site, HALF)) for _ in range(8)]
        assert site.get("/planner").status == 200
        assert read_to_the_end(held[0]) == b""
        assert all(is_open(sock) for sock in held[1:])


def test_the_address_that_holds_most_gives_way(tmp_path: Path) -> None:
    """All of 127.0.0.0/8 is this machine: other addresses for a test."""
    with serving(tmp_path, limits=Limits(connections=8)) as site, ExitStack() as stack:
        single = stack.enter_context(sending(site, HALF, "127.0.0.2"))
        crowd = [stack.enter_context(sending(site, HALF, "127.0.0.3")) for _ in range(20)]
        assert [read_to_the_end(sock) for sock in crowd[:13]] == [b""] * 13
        assert is_open(single)
        assert all(is_open(sock) for sock in crowd[13:])
    assert origin("::ffff:192.0.2.7") == "192.0.2.7"
    assert origin("2001:db8:1:2:3:4:5:6") == "2001:db8:1:2::/64"
    assert origin("fe80::1%eth0") == "fe80::/64"
    assert origin(None) == ""


def test_if_all_are_being_answered_a_newcomer_is_told(data: Path, campaign: Campaign) -> None:
    with serving(data, limits=Limits(connections=3)) as site:
        readers = [site.connect() for _ in range(3)]
        for reader in readers:
            reader.request("GET", "/events")
            assert reader.getresponse().status == 200
        with sending(site, b"") as sock:
            answer = read_to_the_end(sock)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"try again in a few seconds" in answer
        for reader in readers:
            reader.close()


# --- It changes nothing, runs no script but its own, and answers only under its own name ----------

HOSTILE = "<script>alert(1)</script>\\\"'>{{ 7*7 }}"


@pytest.fixture
def paths(campaign: Campaign, fuel: str) -> list[str]:
    pages = ["/", f"/campaigns/{campaign.name}", fuel, f"{fuel}/rounds/0", "/planner", "/nosuch"]
    files = ["/index.json", f"{fuel}/rounds/0.csv", "/health", "/metrics", "/static/page.js"]
    return pages + files


def test_no_page_runs_or_loads_anything_foreign(site: Site, paths: list[str]) -> None:
    for path in paths:
        headers = site.get(path).headers
        policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
        assert policy == {
            "default-src": "'none'",
            "script-src": "'self'",
            "style-src": "'self'",
            "img-src": "'self' data:",
            "connect-src": "'self'",
            "base-uri": "'none'",
            "form-action": "'self'",
            "frame-ancestors": "'none'",
        }, path
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert ("no-store" in headers["cache-control"]) == ("/static/" not in path)
        assert "server" not in headers
    for path in paths[:6]:
        page = site.get(path).text.lower()
        assert page.count("<script") == page.count('<script src="/static/')
        assert not re.search("<style| style=| on[a-z]+=", page)
        assert "//" not in page.replace("http://www.w3.org", "").replace("<!doctype html>", "")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "PURGE", "HEAD"])
def test_nothing_can_be_changed(site: Site, data: Path, paths: list[str], method: str) -> None:
    before = rows(data / "collector.db")
    for path in paths:
        reply = site.get(path, method=method)
        if method == "HEAD":
            assert (reply.status, reply.body) == (site.get(path).status, b""), path
        else:
            assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD"), path
    assert rows(data / "collector.db") == before


def test_a_hostile_manifest_stays_text(own: Own) -> None:
    text = f'name = "fuel"\nquestion = "{HOSTILE}"\nvalues = ["{HOSTILE}", "=1+1"]\n'
    made = manifest(first=FIRST, attributes="[[attributes]]\n" + text)
    name = own.store.open_campaign(made, FIRST).name
    with serving(own.data) as site:
        for path in (f"/campaigns/{name}", f"/campaigns/{name}/attributes/fuel"):
            page = site.get(path).text
            assert "<script>alert" not in page
            assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
            assert "{{ 7*7 }}" in page
        assert site.get("/planner?campaign=<script>").text.count("<script>") == 0


def test_only_names_of_this_machine_are_answered(site: Site) -> None:
    """A web site that gives its own name this machine's address reads nothing."""
    for host in ("localhost", "127.0.0.1", "[::1]", "LOCALHOST", "localhost:80"):
        assert site.get("/", {"Host": host}).status == 200
    for host in (
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example:80",
        "",
        "[::2]",
    ):
        for path in ("/", "/index.json", "/health"):
            reply = site.get(path, {"Host": host})
            assert reply.status == 421
            assert "test-" not in reply.text


def test_addresses_and_heads_have_a_longest_length(site: Site) -> None:
    start = "/planner.json?protocol="
    longest = start + "x" * (LONGEST_ADDRESS - len(start) + 1)
    assert site.get(longest).status == 400
    assert site.get(longest + "x").status == 414
    with sending(site, b"GET / HTTP/1.1\r\nX-Long: " + b"z" * LONGEST_HEAD) as endless:
        assert endless.recv(100).startswith(b"HTTP/1.1 400 ")
    assert site.get("/").status == 200


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("k=1", "k = 1: must be a whole number from 2"),
        ("n=0", "n = '0': must be 1 or more"),
        ("n=" + "9" * 500, "must be a whole number"),
        ("d=129", "must be at most 128"),
        ("eps_1=3", "must be smaller than eps_inf"),
        ("eps_inf=inf", "eps_inf = inf: must lie between"),
        ("protocol=RAPPOR", "choose auto, L-GRR"),
        ("reporting=never", "choose memoized, once, hashed, nested"),
    ],
)
def test_parameters_out_of_range_get_a_sentence(site: Site, query: str, message: str) -> None:
    reply = site.get(f"/planner.json?{quote(query, safe='=&')}")
    assert reply.status == 400
    assert message in json.loads(reply.text)["error"]


def test_other_parameters_and_paths_that_are_refused(site: Site, fuel: str) -> None:
    for query in ("last=0", "last=1001", "last=x", "last=", "value=peat"):
        assert site.get(f"{fuel}?{query}").status == 400
    for path in ("../page.py", "%2e%2e/guard.py", "guard.py", "../../campaigns/.."):
        reply = site.get(f"/static/{path}")
        assert reply.status == 404
        assert "Traceback" not in reply.text


def test_a_database_that_is_none_gives_a_sentence(tmp_path: Path) -> None:
    """And the log a line, without a traceback in either."""
    with closing(sqlite3.connect(tmp_path / "collector.db")) as db:  # ours, but half made
        db.execute("CREATE TABLE campaign (id INTEGER)")
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    with serving(tmp_path) as site:
        for path in ("/", "/index.json", "/campaigns/x.json", "/metrics"):
            reply = site.get(path)
            assert reply.status == 503, path
            assert "cannot be shown at the moment" in reply.text
        assert site.get("/index.json").headers["content-type"] == "application/json"
        assert site.get("/planner").status == 200


# --- Where others can connect, nothing but the health is read without the token -------------------

TOKEN = "-".join(["a", "word", "that", "nobody", "guesses"])
ANYWHERE = Address("0.0.0.0", 0)  # noqa: S104 - with a token, for the length of a test


@pytest.fixture
def guarded(data: Path, campaign: Campaign) -> Iterator[Site]:
    with serving(data, ANYWHERE, TOKEN) as site:
        yield site


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Cookie": f"{COOKIE}=wrong"},
        {"Cookie": f"other={TOKEN}"},
        {"Cookie": f"{COOKIE}=é"},
    ],
)
def test_without_the_token_nothing_is_read(
    guarded: Site, campaign: Campaign, headers: dict[str, str]
) -> None:
    paths = ("/", "/index.json", "/metrics", "/events", "/planner", "/static/page.js", "/nosuch")
    sent = {name: value.encode().decode("latin-1") for name, value in headers.items()}
    for path in (*paths, "/?token=wrong", f"/campaigns/{campaign.name}.json"):
        reply = guarded.get(path, sent)
        assert reply.status == 401, path
        assert "allomfree-collector page --link" in reply.text
        assert campaign.name not in reply.text
        assert "set-cookie" not in reply.headers


def test_health_stays_open_and_names_no_place_or_host(guarded: Site) -> None:
    for wrong in ({}, {"Authorization": "Bearer wrong"}):
        reply = guarded.get("/health", wrong)
        assert (reply.status, reply.text) == (503, '{"healthy":false,"connected":false}')
    assert guarded.get("/health", {"Authorization": f"Bearer {TOKEN}"}).text == (
        '{"healthy":false,"connected":false,"trouble":"no collector is running"}'
    )


def test_the_token_or_the_cookie_that_the_link_leaves_reads_everything(guarded: Site) -> None:
    reply = guarded.get(f"/planner?n=5&token={TOKEN}")
    assert reply.headers["refresh"] == "0; url=/planner?n=5"
    kept, *flags = reply.headers["set-cookie"].split("; ")
    assert kept == f"{COOKIE}={TOKEN}"
    assert {"HttpOnly", "SameSite=strict"} <= set(flags)
    assert TOKEN not in reply.text
    for headers in ({"Authorization": f"Bearer {TOKEN}"}, {"Cookie": f"x=1; {kept}"}):
        for path in ("/", "/metrics", "/index.json"):
            assert guarded.get(path, headers).status == 200
        assert guarded.get("/", {"Host": "stats.example", **headers}).status == 200


@pytest.mark.parametrize("path", ["//evil.example/", "/%0d%0aX-Evil:1", "/\\evil.example"])
def test_the_link_leads_nowhere_else(guarded: Site, path: str) -> None:
    reply = guarded.get(f"{path}?token={TOKEN}")
    assert reply.headers["refresh"].startswith("0; url=/")
    assert not reply.headers["refresh"].startswith("0; url=//")
    assert "x-evil" not in reply.headers


def test_a_token_is_made_once_where_it_is_needed_and_private(cli: Cli, tmp_path: Path) -> None:
    settings = resolve({"data_dir": tmp_path}, config=Path("/dev/null"), environ={})
    assert required_token(settings, Address("127.0.0.1", 1)) is None
    made = required_token(settings, Address("192.168.1.9", 1))
    assert made == page_token(tmp_path, None, {})
    assert len(made) >= 32
    assert stat.S_IMODE((tmp_path / "page.token").stat().st_mode) == 0o600
    link = ("page", "--link", "--data-dir", tmp_path)
    assert cli(*link).stdout == "http://127.0.0.1:9180/\n"
    done = cli(*link, "--listen", "192.168.1.9:80")
    assert done.stdout == f"http://192.168.1.9:80/?token={made}\n"
    assert made not in done.stderr


def test_a_race_or_a_full_disk_leaves_no_second_or_empty_token(tmp_path: Path) -> None:
    others = []

    def full() -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    def slowly() -> str:
        others.append(page_token(tmp_path, None, {}))
        return "a-token-of-sixteen-or-more"

    with pytest.raises(SettingsError, match="cannot be created: No space left"):
        page_token(tmp_path, None, {}, full)
    assert list(tmp_path.iterdir()) == []
    assert [page_token(tmp_path, None, {}, slowly)] == others
    assert [file.name for file in tmp_path.iterdir()] == ["page.token"]


def test_a_file_comes_before_the_environment_and_must_hold_a_token(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text(f"{TOKEN}\n")
    environ = {"ALLOMFREE_PAGE_TOKEN": "from-the-environment"}
    assert page_token(tmp_path, mine, environ) == TOKEN
    assert page_token(tmp_path, None, environ) == "from-the-environment"
    assert not (tmp_path / "page.token").exists()
    for token in ("", "short", "x" * 15, "with a space inside it", "ünicode" * 5):
        mine.write_text(token)
        with pytest.raises(SettingsError, match="holds no usable token") as refused:
            page_token(tmp_path, mine, {})
        assert not token or token not in str(refused.value)
    with pytest.raises(SettingsError, match="cannot be read"):
        page_token(tmp_path, tmp_path / "nosuch", {})
