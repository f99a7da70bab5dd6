"""All that is shown is translated, and agreeing means the same in every language."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from gettext import NullTranslations
from pathlib import Path

import pytest

from edge_client import EdgeClient
from edge_client.language import (
    ENGLISH,
    LANGUAGES,
    Catalogue,
    load,
    speaking,
)
from edge_client.page import statement_page
from edge_client.sources import unreadable
from edge_client.statement import invitation_facts, joined_facts, show_facts
from edge_client.text import asked_text, joined_text, show_text
from protocol_spec import Manifest, Reporting
from tests.support.command_line import Cli
from tests.support.edge import (
    ALL_WAYS,
    FUELS,
    NOBODY,
    ROOM,
    FakeClock,
    daily,
    draw_rounds,
    joined_agent,
    only,
    way_manifest,
    way_text,
)
from tests.support.messages import MESSAGES

OTHERS = [code for code in LANGUAGES if code != ENGLISH]
EVERY_OTHER = pytest.mark.parametrize("code", OTHERS)

# --- nothing that is shown stays English ----------------------------------------------------------

LATIN = str.maketrans(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "абцдефгхижклмнопярстувшхызАБЦДЕФГХИЖКЛМНОПЯРСТУВШХЫЗ",
)


def disguised(text: str) -> str:
    """A text in letters of another alphabet, all but what is filled in and typed."""
    kept = re.split(r"(\{\w+\}|`[^`]*`)", text)
    return "".join(p if i % 2 else p.translate(LATIN) for i, p in enumerate(kept))


class Disguise(NullTranslations):
    """Every message that the code is known to say, and no other, in those letters."""

    def gettext(self, message: str) -> str:
        return disguised(message) if message in MESSAGES else message

    def ngettext(self, msgid1: str, msgid2: str, n: int) -> str:
        return disguised(msgid1 if n == 1 else msgid2) if msgid1 in MESSAGES else msgid1


DISGUISE = Catalogue("xx", Disguise())


def foreign(manifest: Manifest) -> Iterator[str]:
    """What is not ours to translate: the campaign's own words, names and commands."""
    own = [manifest.title, manifest.purpose, manifest.owner, manifest.contact]
    own += [manifest.campaign, manifest.digest.hex()]
    for attribute in manifest.attributes:
        own += [attribute.question, *attribute.values, attribute.name]
    yield from (re.escape(text) for text in sorted(own, key=len, reverse=True))
    yield from (r"allomfree-edge \w+", r"`[\w -]+`", r"mqtts?://[\w.:]+", r"\b(L-)?[A-Z]{3,6}\b")
    yield from (
        r"allomfree/v1/\S+",
        r"\b\d{4}-\d\d-\d\d[T ]?[\d:]+Z?",
        r"~/\S+",
        r"\[sources\.\w*\]",
    )
    yield from ("value = ", 'kind = "command"', r"command = \[.*?\]", "[a-z2-7]{16}", "ADDRESS")
    yield r"\b([0-9a-f]{2} ?)+\b"


def words_left(text: str, manifest: Manifest) -> list[str]:
    text = " ".join(text.split())
    for pattern in foreign(manifest):
        text = re.sub(pattern, "", text)
    return re.findall(r"[A-Za-z]{2,}", text)


@pytest.mark.parametrize("attributes", [FUELS, FUELS + "changes = true\n" + ROOM])
@pytest.mark.parametrize("reporting", ALL_WAYS)
@pytest.mark.parametrize("drawn", [0, 2])
def test_all_that_is_shown_is_translated(
    state: Path, clock: FakeClock, reporting: Reporting, attributes: str, drawn: int
) -> None:
    """Whatever the way of reporting: the invitation, the joining, the statement and the page."""
    asked = way_manifest(reporting, attributes=attributes, count=8, each=8, max_values=1)
    agent = joined_agent(state, clock, asked)
    draw_rounds(agent, clock, drawn)
    member = only(agent)
    agent.store.close()
    with EdgeClient(state, clock=clock, exclusive=False) as client, speaking(DISGUISE):
        invitation = client.invitation(manifest=asked, broker="mqtts://b.example")
        missing, shown = (
            unreadable(asked.attributes, {}),
            statement_page(client, client.memberships()),
        )
        told = [
            asked_text(invitation_facts(invitation, None, sources=missing), None),
            joined_text(joined_facts(member)),
            show_text(show_facts(client, client.memberships())),
            re.sub("<style>.*?</style>|<code>.*?</code>|<[^>]*>", " ", shown, flags=re.S),
        ]
    for text in told:
        assert words_left(text, asked) == []


# --- consent -------------------------------------------------------------------------------------


@pytest.fixture
def asked(tmp_path: Path) -> Path:
    path = tmp_path / "asked.toml"
    path.write_text(way_text("memoized", attributes=FUELS, first=None), encoding="utf-8")
    return path


def joining(cli: Cli, asked: Path, state: Path, code: str, answer: str) -> tuple[int, str]:
    words = ("--manifest", asked, "--broker", NOBODY, "--state-dir", state, "--language", code)
    done = cli("join", *words, answer=answer)
    return done.exit_code, done.output


@pytest.mark.parametrize(
    ("code", "answer", "agrees"),
    [
        *((code, answer, True) for code in LANGUAGES for answer in ("y\n", "YES\n", " yes \n")),
        *((code, no, False) for code in LANGUAGES for no in ("n\n", "\n", "", "no\n", "\ny\n")),
        *(("de", answer, True) for answer in ("j\n", "Ja\n", "vielleicht\nja\n")),
        *(("fr", answer, True) for answer in ("o\n", "OUI\n")),
        *((code, "nein\nn\n", False) for code in LANGUAGES),
        *((code, "j\no\n", code != "en") for code in LANGUAGES),
    ],
)
def test_yes_and_no_are_understood(
    cli: Cli, asked: Path, state: Path, code: str, answer: str, agrees: bool
) -> None:
    """Nothing but a yes is a yes, in any language; whoever says something else is asked again."""
    exit_code, said = joining(cli, asked, state, code, answer)
    assert exit_code == (0 if agrees else 3), said
    with EdgeClient(state) as client:
        assert len(client.memberships()) == agrees


@EVERY_OTHER
def test_the_owner_is_asked_in_the_language_of_the_locale(
    cli: Cli, asked: Path, state: Path, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", f"{code}_XX.UTF-8")
    words = ("--manifest", asked, "--broker", NOBODY, "--state-dir", state)
    done = cli("join", *words, answer="n\n")
    question, otherwise = {
        "de": ("Stimmen Sie zu? [j/N]: ", "Nicht beigetreten; nichts wurde gezogen"),
        "fr": (
            "Êtes-vous d’accord\u00a0? [o/N]: ",
            "Participation refusée\u00a0; rien n’a été tiré",
        ),
    }[code]
    assert question in done.output
    assert otherwise in done.stderr
    assert "Do you agree?" in cli("join", *words, "--language", "en", answer="n\n").output


@EVERY_OTHER
def test_programs_are_told_the_same_in_every_language(
    cli: Cli, asked: Path, state: Path, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--manifest", asked, "--broker", NOBODY, "--state-dir", state, "--json")
    plain = cli("join", *words, "--preview").stdout
    assert cli("join", *words, "--preview", "--language", code).stdout == plain
    cli("join", *words, "--yes", "--language", code)
    shown = cli("show", "--state-dir", state, "--json").stdout
    assert cli("show", "--state-dir", state, "--json", "--language", code).stdout == shown
    status = cli("status", "--state-dir", state).stdout
    monkeypatch.setenv("LC_ALL", code)
    assert cli("status", "--state-dir", state).stdout == status


@EVERY_OTHER
def test_the_numbers_are_the_same_in_every_language(
    state: Path, clock: FakeClock, code: str
) -> None:
    """What an owner agrees to does not depend on the language."""
    marks = replace(load(code), decimal=".", group=",")
    with EdgeClient(state, clock=clock) as client:
        invitation = client.invitation(manifest=daily(), broker="mqtts://b.example")
        told = []
        for language in (ENGLISH, marks):
            with speaking(language):
                text = asked_text(invitation_facts(invitation, "me"), None)
            told.append(sorted(re.findall(r"[\d.]*\d", text)))
    assert told[0] == told[1]


def test_a_language_that_there_is_not(cli: Cli, state: Path) -> None:
    done = cli("show", "--state-dir", state, "--language", "it")
    assert done.exit_code == 2
    assert "--language = 'it': must be one of en, de, fr" in done.stderr
