"""What the owner reads, in every language: nothing is missing, and it means the same."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from gettext import NullTranslations
from pathlib import Path
from string import Formatter

import pytest

from edge_client import EdgeClient
from edge_client.explain import fraction, times
from edge_client.language import (
    ENGLISH,
    LANGUAGES,
    Catalogue,
    in_language,
    language_of,
    load,
    number,
    say,
    say_count,
)
from edge_client.page import statement_page
from edge_client.sources import unreadable
from edge_client.statement import invitation_facts, joined_facts, show_facts
from edge_client.text import asked_text, joined_text, show_text
from protocol_spec import Manifest, Reporting
from protocol_spec.mechanisms import MECHANISMS
from tests.support.command_line import Cli
from tests.support.edge import (
    FUEL,
    ROOM,
    FakeClock,
    Joined,
    daily,
    draw_rounds,
    only,
)
from tests.support.harness import every
from tests.support.messages import MESSAGES, PACKAGE

OTHERS = [code for code in LANGUAGES if code != ENGLISH]
EVERY_OTHER = pytest.mark.parametrize("code", OTHERS)


# --- the catalogues ------------------------------------------------------------------------------


def translations(code: str) -> dict[str, tuple[str, ...]]:
    """The messages of a catalogue: each with one text, or with singular and plural."""
    found: dict[str, tuple[str, ...]] = {}
    catalogue: dict[str | tuple[str, int], str] = load(code).messages._catalog  # type: ignore[attr-defined]
    for key in catalogue:
        name = key if isinstance(key, str) else key[0]
        plurals = tuple(catalogue[name, i] for i in (0, 1) if (name, i) in catalogue)
        found[name] = plurals or (catalogue[name],)
    del found[""]  # the header
    return found


@EVERY_OTHER
@pytest.mark.needs("msgfmt")
def test_the_compiled_catalogue_is_made_of_the_one_that_people_edit(
    code: str, tmp_path: Path
) -> None:
    source = PACKAGE / "language" / f"{code}.po"
    subprocess.run(["msgfmt", "--check", "-o", tmp_path / "made.mo", source], check=True)
    assert (tmp_path / "made.mo").read_bytes() == source.with_suffix(".mo").read_bytes()


def placeholders(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name is not None}


@EVERY_OTHER
def test_no_message_is_missing_and_none_is_left_over(code: str) -> None:
    assert len(MESSAGES) > 190
    assert translations(code).keys() == MESSAGES.keys()


@EVERY_OTHER
@every("message", MESSAGES)
def test_a_translation_fills_in_the_same(code: str, message: str) -> None:
    """Numbers and names are neither lost nor added, and a plural is one in both."""
    originals, texts = MESSAGES[message], translations(code)[message]
    assert len(texts) == len(originals)
    for original, text in zip(originals, texts, strict=True):
        assert placeholders(text) == placeholders(original)
        assert text.strip() == text or original.strip() != original
        assert "`" not in original or sorted(re.findall("`.*?`", text)) == sorted(
            re.findall("`.*?`", original)
        ), "commands are typed in English"


@EVERY_OTHER
def test_no_message_is_left_in_english(code: str) -> None:
    """Words that are the same in both are named; and no English little word is in a text."""
    messages = translations(code)
    unchanged = {m for m, t in messages.items() if t == MESSAGES[m] and re.search("[a-z; ]{2}", m)}
    same = {"de": {"Topic", "Status", "Bytes"}, "fr": {"source", "epsilon"}}[code]
    assert {m for m in unchanged if re.sub(r"\{\w+\}", "", m).strip(" .:,;")} == same
    english = re.compile(r"\b(the|of|and|you|your|is|are|this|with|that|report|round)\b")
    for texts in messages.values():
        plain = [re.sub(r"\{\w+\}|`[^`]*`", "", text) for text in texts]
        assert not any(map(english.search, plain)), texts


@EVERY_OTHER
def test_plurals_follow_the_language_and_what_is_missing_is_english(code: str) -> None:
    one, many = translations(code)["{count} report"]
    with in_language(code):
        counted = [say_count(n, "{count} report", "{count} reports") for n in (0, 1, 2)]
        assert say("Never translated: {command}", command="x") == "Never translated: x"
        assert say_count(2, "{count} thing", "{count} things") == "2 things"
    none = one if code == "fr" else many
    assert counted == [none.format(count=0), one.format(count=1), many.format(count=2)]


# --- the locale ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "code"),
    [
        ({}, "en"),
        ({"LANG": "de_DE.UTF-8"}, "de"),
        ({"LANG": "de_AT@euro"}, "de"),
        ({"LANG": "fr"}, "fr"),
        ({"LANG": "it_IT.UTF-8"}, "en"),
        ({"LANG": "de_DE", "LC_ALL": "fr_CH.UTF-8"}, "fr"),
        ({"LANG": "de_DE", "LC_MESSAGES": "fr_FR"}, "fr"),
        ({"LANG": "de_DE", "LC_ALL": "C.UTF-8"}, "en"),
        ({"LANG": "de_DE", "LC_ALL": ""}, "de"),
        ({"LANG": "it_IT", "LANGUAGE": "it:fr:de"}, "fr"),
        ({"LANG": "C", "LANGUAGE": "de"}, "en"),
        ({"LANG": "POSIX"}, "en"),
        ({"LANG": "../../etc/passwd"}, "en"),
    ],
)
def test_the_locale_says_which(environ: dict[str, str], code: str) -> None:
    assert language_of(environ) == code


def test_numbers_are_written_as_each_language_does() -> None:
    assert number(1234.5, ",.2f") == "1,234.50"
    with in_language("de"):
        assert number(1234.5, ",.2f") == "1.234,50"
    with in_language("fr"):
        assert number(1234.5, ",.2f") == "1\u00a0234,50"
    assert number(0.5) == "0.5", "English again"


# --- odds ----------------------------------------------------------------------------------------


ODDS = [
    (0.65, "about 2 times in 3 (65 %)", "in etwa 2 von 3 Fällen", "environ 2 fois sur 3"),
    (0.5, "about once in 2 (50 %)", "in etwa einem von 2 Fällen", "environ une fois sur 2"),
    (0.092, "about once in 11 (9.2 %)", "einem von 11 Fällen (9,2 %)", "sur 11 (9,2 %)"),
    (0.999, "practically always", "praktisch immer", "pratiquement toujours"),
    (1e-6, "less than once in 100,000", "einem von 100.000 Fällen", "une fois sur 100 000"),
]


@pytest.mark.parametrize(("probability", "english", "german", "french"), ODDS)
def test_odds_in_everyday_words(probability: float, english: str, german: str, french: str) -> None:
    for code, expected in (("en", english), ("de", german), ("fr", french)):
        with in_language(code):
            assert expected in times(probability).replace("\u00a0", " ")


def test_everyday_odds_are_near_the_truth() -> None:
    """Within the words' own precision, over all probabilities; never nothing, never all."""
    for thousandth in range(1, 995):
        probability = thousandth / 1000
        many, of = fraction(probability)
        assert 0 < many < of
        tolerance = 0.02 if probability >= 0.1 else 0.05 * probability
        assert abs(many / of - probability) <= tolerance


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
    for attribute in (q for each in manifest.attributes for q in (each, *each.cross)):
        own += [attribute.question, *attribute.values, attribute.name]
    yield from (re.escape(text) for text in sorted(own, key=len, reverse=True))
    yield from (r"allomfree-edge \w+", r"`[\w -]+`", r"mqtts?://[\w.:]+", r"\b(L-)?[A-Z]{2,6}\b")
    yield from (r"allomfree/v1/\S+", r"\b\d{4}-\d\d-\d\d[T ]?[\d:]+Z?", r"~/\S+")
    yield from (r"\[sources\.\w*\]", "value = ", 'kind = "command"', r"command = \[.*?\]")
    yield from ("[a-z2-7]{16}", "ADDRESS", r"\b([0-9a-f]{2} ?)+\b")


def words_left(text: str, manifest: Manifest) -> list[str]:
    text = " ".join(text.split())
    for pattern in foreign(manifest):
        text = re.sub(pattern, "", text)
    return re.findall(r"[A-Za-z]{2,}", text)


@pytest.mark.parametrize(
    ("attributes", "cross"),
    [(FUEL, ()), (FUEL + "changes = true\n" + ROOM, ()), (FUEL + ROOM, ("fuel", "room"))],
)
@pytest.mark.parametrize("reporting", MECHANISMS)
@pytest.mark.parametrize("drawn", [0, 2])
def test_all_that_is_shown_is_translated(
    joined: Joined,
    state: Path,
    clock: FakeClock,
    reporting: Reporting,
    attributes: str,
    cross: tuple[str, ...],
    drawn: int,
) -> None:
    """Whatever the mechanism: the invitation, the joining, the statement and the page."""
    asked = daily(
        reporting=reporting, attributes=attributes, cross=cross, count=8, each=8, max_values=1
    )
    agent = joined(asked)
    draw_rounds(agent, drawn)
    member = only(agent)
    agent.store.close()
    with EdgeClient(state, clock=clock, exclusive=False) as client, in_language(DISGUISE):
        invitation = client.invitation(manifest=asked, broker="mqtts://b.example", check=False)
        missing = unreadable(asked.attributes, {})
        page = statement_page(client, client.memberships())
        texts = [
            asked_text(invitation_facts(invitation, None, sources=missing), None),
            joined_text(joined_facts(member)),
            show_text(show_facts(client, client.memberships())),
            re.sub("<style>.*?</style>|<code>.*?</code>|<[^>]*>", " ", page, flags=re.S),
        ]
    for text in texts:
        assert words_left(text, asked) == []


# --- consent -------------------------------------------------------------------------------------


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
    join: Cli, state: Path, code: str, answer: str, agrees: bool
) -> None:
    """Nothing but a yes is a yes, in any language; any other answer is asked for again."""
    done = join("--language", code, answer=answer)
    assert done.exit_code == (0 if agrees else 3), done.output
    with EdgeClient(state) as client:
        assert len(client.memberships()) == agrees


@pytest.mark.parametrize(
    ("code", "question", "otherwise"),
    [
        ("de", "Stimmen Sie zu? [j/N]: ", "Nicht beigetreten; nichts wurde gezogen"),
        ("fr", "Êtes-vous d’accord ? [o/N]: ", "Participation refusée ; rien n’a été tiré"),
    ],
)
def test_the_owner_is_asked_in_the_language_of_the_locale(
    join: Cli, monkeypatch: pytest.MonkeyPatch, code: str, question: str, otherwise: str
) -> None:
    monkeypatch.setenv("LC_ALL", f"{code}_XX.UTF-8")
    done = join(answer="n\n")
    assert question in done.output.replace("\u00a0", " ")
    assert otherwise in done.stderr.replace("\u00a0", " ")
    assert "Do you agree?" in join("--language", "en", answer="n\n").output


@EVERY_OTHER
def test_json_is_the_same_in_every_language(
    cli: Cli, join: Cli, state: Path, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    preview, speak = ("--json", "--preview"), ("--language", code)
    show, status = ("show", "--state-dir", state, "--json"), ("status", "--state-dir", state)
    assert join(*preview, *speak).stdout == join(*preview).stdout
    join("--yes", *speak)
    assert cli(*show, *speak).stdout == cli(*show).stdout
    plain = cli(*status).stdout
    monkeypatch.setenv("LC_ALL", code)
    assert cli(*status).stdout == plain


@EVERY_OTHER
def test_the_numbers_are_the_same_in_every_language(
    state: Path, clock: FakeClock, code: str
) -> None:
    """What an owner agrees to does not depend on the language."""
    marks = replace(load(code), decimal=".", group=",")
    with EdgeClient(state, clock=clock) as client:
        invitation = client.invitation(manifest=daily(), broker="mqtts://b.example")
        numbers = []
        for language in (ENGLISH, marks):
            with in_language(language):
                text = asked_text(invitation_facts(invitation, "me"), None)
            numbers.append(sorted(re.findall(r"[\d.]*\d", text)))
    assert numbers[0] == numbers[1]
