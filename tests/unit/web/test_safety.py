"""The page can change nothing, runs no script but its own, and answers only under its own name."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from urllib.parse import quote

import pytest

from collector.records import Campaign
from collector.web.app import LONGEST_HEAD
from collector.web.server import LONGEST_ADDRESS
from tests.support.campaigns import manifest
from tests.support.collector_fakes import FIRST
from tests.support.page_data import Own
from tests.support.site import Site, serving
from tests.support.stores import rows

HOSTILE = "<script>alert(1)</script>\\\"'>{{ 7*7 }}"


@pytest.fixture
def paths(campaign: Campaign, fuel: str) -> list[str]:
    pages = ["/", f"/campaigns/{campaign.name}", fuel, f"{fuel}/rounds/0", "/planner", "/nosuch"]
    files = ["/index.json", f"{fuel}/rounds/0.csv", "/health", "/metrics", "/static/page.js"]
    return pages + files


def test_every_answer_forbids_what_it_does_not_need(site: Site, paths: list[str]) -> None:
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


def test_no_page_has_an_inline_script_or_style_or_foreign_address(
    site: Site, paths: list[str]
) -> None:
    for path in paths[:6]:
        page = site.get(path).text.lower()
        assert page.count("<script") == page.count('<script src="/static/')
        assert "<style" not in page
        assert " style=" not in page
        assert " onclick=" not in page
        assert "//" not in page.replace("http://www.w3.org", "").replace("<!doctype html>", "")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "PURGE"])
def test_nothing_can_be_changed(site: Site, data: Path, paths: list[str], method: str) -> None:
    before = rows(data / "collector.db")
    for path in paths:
        reply = site.get(path, method=method)
        assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD"), path
    assert rows(data / "collector.db") == before


def test_head_is_get_without_a_body(site: Site, paths: list[str]) -> None:
    for path in paths:
        reply = site.get(path, method="HEAD")
        assert (reply.status, reply.body) == (site.get(path).status, b""), path


@pytest.fixture
def hostile(own: Own) -> Campaign:
    """A campaign whose author would like to run something in the analyst's browser."""
    text = f'name = "fuel"\nquestion = "{HOSTILE}"\nvalues = ["{HOSTILE}", "=1+1"]\n'
    made = manifest(first=FIRST, attributes="[[attributes]]\n" + text)
    return own.store.open_campaign(made, FIRST)


def test_a_hostile_manifest_stays_text(own: Own, hostile: Campaign) -> None:
    question = hostile.manifest.attributes[0].question
    assert question.startswith("<script>")
    with serving(own.data) as site:
        for path in (f"/campaigns/{hostile.name}", f"/campaigns/{hostile.name}/attributes/fuel"):
            page = site.get(path).text
            assert "<script>alert" not in page
            assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
            assert "{{ 7*7 }}" in page
        assert site.get("/planner?campaign=<script>").text.count("<script>") == 0


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "LOCALHOST", "localhost:80"])
def test_names_of_this_machine_are_answered(site: Site, host: str) -> None:
    assert site.get("/", {"Host": host}).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:9180", "", "[::2]"]
)
def test_other_names_are_not(site: Site, host: str) -> None:
    """A web site that gives its own name this machine's address reads nothing."""
    for path in ("/", "/index.json", "/health"):
        reply = site.get(path, {"Host": host})
        assert reply.status == 421
        assert "test-" not in reply.text


def test_an_address_has_a_longest_length(site: Site) -> None:
    start = "/planner.json?protocol="
    longest = start + "x" * (LONGEST_ADDRESS - len(start) + 1)
    assert site.get(longest).status == 400
    assert site.get(longest + "x").status == 414
    assert site.get("/" + "y" * LONGEST_ADDRESS).status == 414


def test_a_head_has_a_longest_length(site: Site) -> None:
    with socket.create_connection(("127.0.0.1", site.port), 30) as endless:
        endless.sendall(b"GET / HTTP/1.1\r\nX-Long: " + b"z" * LONGEST_HEAD)
        assert endless.recv(100).startswith(b"HTTP/1.1 400 ")
    assert site.get("/").status == 200


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("k=1", "k = 1: must be a whole number from 2"),
        ("k=4097", "must be at most 4,096"),
        ("k=2.5", "must be a whole number"),
        ("n=0", "n = '0': must be 1 or more"),
        ("n=9999999999", "must be at most 1,000,000,000"),
        ("n=" + "9" * 500, "must be a whole number"),
        ("n=²", "must be a whole number"),
        ("d=129", "must be at most 128"),
        ("f=2", "a frequency lies between 0 and 1"),
        ("f=nan", "a frequency lies between 0 and 1"),
        ("eps_1=3", "must be smaller than eps_inf"),
        ("eps_inf=inf", "eps_inf = inf: must lie between"),
        ("eps_inf=wide", "eps_inf = 'wide': must be a number"),
        ("precision=0", "a half-width lies between 0 and 1"),
        ("protocol=RAPPOR", "choose auto, L-GRR"),
        ("protocol=L-OUE&eps_1=1.9", "L-OUE"),
    ],
)
def test_parameters_beyond_reason_get_a_sentence(site: Site, query: str, told: str) -> None:
    reply = site.get(f"/planner.json?{quote(query, safe='=&')}")
    assert reply.status == 400
    assert told in json.loads(reply.text)["error"]


@pytest.mark.parametrize("query", ["last=0", "last=1001", "last=x", "last=", "value=peat"])
def test_other_parameters_out_of_range(site: Site, fuel: str, query: str) -> None:
    assert site.get(f"{fuel}?{query}").status == 400


@pytest.mark.parametrize(
    "path",
    ["/static/../page.py", "/static/%2e%2e/guard.py", "/static/guard.py", "/campaigns/..", "//x/"],
)
def test_no_other_file_is_served(site: Site, path: str) -> None:
    reply = site.get(path)
    assert reply.status == 404
    assert "Traceback" not in reply.text


def test_a_database_that_is_none_gives_a_sentence(tmp_path: Path) -> None:
    """And the log a line, without a traceback in either."""
    (tmp_path / "collector.db").write_bytes(b"")
    with serving(tmp_path) as site:
        for path in ("/", "/index.json", "/campaigns/x.csv", "/metrics"):
            reply = site.get(path)
            assert reply.status == 503, path
            assert "cannot be shown just now" in reply.text
        assert site.get("/index.json").headers["content-type"] == "application/json"
        assert site.get("/planner").status == 200
