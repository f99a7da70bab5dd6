"""Where others can connect, nothing but the health is read without the token."""

from __future__ import annotations

import errno
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from collector.records import Campaign
from collector.settings import Address, resolve
from collector.web.process import needed, new_token, page_token
from collector.web.server import COOKIE
from protocol_spec.programs.settings import SettingsError
from tests.support.command_line import Cli
from tests.support.site import Site, serving

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
    for path in (*paths, "/?token=wrong", f"/campaigns/{campaign.name}.csv"):
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


@pytest.mark.parametrize(
    "headers", [{"Authorization": f"Bearer {TOKEN}"}, {"Cookie": f"x=1; {COOKIE}={TOKEN}"}]
)
def test_with_the_token_all_is_read(guarded: Site, headers: dict[str, str]) -> None:
    for path in ("/", "/metrics", "/index.json"):
        assert guarded.get(path, headers).status == 200
    assert guarded.get("/", {"Host": "stats.example", **headers}).status == 200


def test_the_link_leaves_a_cookie_and_loses_the_token(guarded: Site) -> None:
    reply = guarded.get(f"/planner?n=5&token={TOKEN}")
    assert reply.headers["refresh"] == "0; url=/planner?n=5"
    kept, *flags = reply.headers["set-cookie"].split("; ")
    assert kept == f"{COOKIE}={TOKEN}"
    assert {"HttpOnly", "SameSite=strict"} <= set(flags)
    assert TOKEN not in reply.text
    assert guarded.get("/planner?n=5", {"Cookie": kept}).status == 200


@pytest.mark.parametrize("path", ["//evil.example/", "/%0d%0aX-Evil:1", "/\\evil.example"])
def test_the_link_leads_nowhere_else(guarded: Site, path: str) -> None:
    reply = guarded.get(f"{path}?token={TOKEN}")
    assert reply.headers["refresh"].startswith("0; url=/")
    assert not reply.headers["refresh"].startswith("0; url=//")
    assert "x-evil" not in reply.headers


# --- where it comes from ----------------------------------------------------------------------


def test_loopback_needs_none(tmp_path: Path) -> None:
    settings = resolve({"data_dir": tmp_path}, config=Path("/dev/null"), environ={})
    assert needed(settings, Address("127.0.0.1", 1)) is None
    assert needed(settings, Address("192.168.1.9", 1)) == page_token(tmp_path, None, {})


def test_one_is_made_once_and_kept_to_its_owner(tmp_path: Path) -> None:
    made = page_token(tmp_path, None, {})
    assert len(made) >= 32
    assert page_token(tmp_path, None, {}) == made
    assert stat.S_IMODE((tmp_path / "page.token").stat().st_mode) == 0o600


def test_of_two_that_make_one_at_once_both_have_the_same(tmp_path: Path) -> None:
    others = []

    def slowly() -> str:
        others.append(page_token(tmp_path, None, {}))
        return new_token()

    assert [page_token(tmp_path, None, {}, slowly)] == others
    assert [file.name for file in tmp_path.iterdir()] == ["page.token"]


def test_a_disk_that_is_full_leaves_no_empty_token(tmp_path: Path) -> None:
    def full() -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(SettingsError, match="cannot be created: No space left"):
        page_token(tmp_path, None, {}, full)
    assert list(tmp_path.iterdir()) == []


def test_a_file_comes_before_the_environment_before_the_kept_one(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text(f"{TOKEN}\n")
    environ = {"ALLOMFREE_PAGE_TOKEN": "from-the-environment"}
    assert page_token(tmp_path, tmp_path / "mine", environ) == TOKEN
    assert page_token(tmp_path, None, environ) == "from-the-environment"
    assert not (tmp_path / "page.token").exists()


@pytest.mark.parametrize("token", ["", "short", "x" * 15, "with a space inside it", "ünicode" * 5])
def test_a_token_that_is_none_is_refused(tmp_path: Path, token: str) -> None:
    (tmp_path / "mine").write_text(token)
    with pytest.raises(SettingsError, match="holds no usable token") as refused:
        page_token(tmp_path, tmp_path / "mine", {})
    assert not token or token not in str(refused.value)


def test_a_token_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        page_token(tmp_path, tmp_path / "nosuch", {})


def test_the_owner_gets_a_link(cli: Cli, data: Path, campaign: Campaign) -> None:
    where = ("page", "--link", "--data-dir", data)
    assert cli(*where).stdout == "http://127.0.0.1:9180/\n"
    shown = cli(*where, "--listen", "192.168.1.9:80")
    token = (data / "page.token").read_text()
    assert shown.stdout == f"http://192.168.1.9:80/?token={token}\n"
    assert token not in shown.stderr
