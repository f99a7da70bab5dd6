"""What the owner reads, in every language: nothing is missing, and it means the same."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from string import Formatter

import pytest

from edge_client.explain import fraction, times
from edge_client.language import (
    ENGLISH,
    LANGUAGES,
    language_of,
    load,
    number,
    say,
    say_count,
    speaking,
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


def test_the_messages_are_found() -> None:
    assert len(MESSAGES) > 190
    assert MESSAGES["{count} report"] == ("{count} report", "{count} reports")


@EVERY_OTHER
def test_no_message_is_missing_and_none_is_left_over(code: str) -> None:
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


SAME = {
    "de": {"Topic", "Status", "Bytes", "; "},
    "fr": {"source", "epsilon"},
}


@EVERY_OTHER
def test_no_message_is_left_in_english(code: str) -> None:
    """Words that are the same in both are named; and no English little word is in a text."""
    messages = translations(code)
    unchanged = {m for m, t in messages.items() if t == MESSAGES[m] and re.search("[a-z; ]{2}", m)}
    assert {m for m in unchanged if re.sub(r"\{\w+\}", "", m).strip(" .:,;")} == SAME[code] - {"; "}
    english = re.compile(r"\b(the|of|and|you|your|is|are|this|with|that|report|round)\b")
    assert [t for texts in messages.values() for t in texts if english.search(_plain(t))] == []


def _plain(text: str) -> str:
    return re.sub(r"\{\w+\}|`[^`]*`", "", text)


@EVERY_OTHER
def test_plurals_follow_the_language(code: str) -> None:
    one, many = translations(code)["{count} report"]
    with speaking(code):
        said = [say_count(n, "{count} report", "{count} reports") for n in (0, 1, 2)]
    none = one if code == "fr" else many
    assert said == [none.format(count=0), one.format(count=1), many.format(count=2)]


@EVERY_OTHER
def test_what_is_missing_is_said_in_english(code: str) -> None:
    with speaking(code):
        assert say("Never translated: {command}", command="x") == "Never translated: x"
        assert say_count(2, "{count} thing", "{count} things") == "2 things"


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
    with speaking("de"):
        assert number(1234.5, ",.2f") == "1.234,50"
    with speaking("fr"):
        assert number(1234.5, ",.2f") == "1\u00a0234,50"
    assert number(0.5) == "0.5", "English again"


# --- odds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chance", "english", "german", "french"),
    [
        (
            0.65,
            "about 2 times in 3 (65 %)",
            "in etwa 2 von 3 Fällen (65 %)",
            "environ 2 fois sur 3 (65 %)",
        ),
        (
            0.5,
            "about once in 2 (50 %)",
            "in etwa einem von 2 Fällen (50 %)",
            "environ une fois sur 2 (50 %)",
        ),
        (
            0.092,
            "about once in 11 (9.2 %)",
            "in etwa einem von 11 Fällen (9,2 %)",
            "environ une fois sur 11 (9,2 %)",
        ),
        (0.999, "practically always", "praktisch immer", "pratiquement toujours"),
        (
            1e-6,
            "less than once in 100,000",
            "in weniger als einem von 100.000 Fällen",
            "moins d’une fois sur 100 000",
        ),
    ],
)
def test_odds_in_everyday_words(chance: float, english: str, german: str, french: str) -> None:
    for code, expected in (("en", english), ("de", german), ("fr", french)):
        with speaking(code):
            assert times(chance).replace("\u00a0", " ") == expected


def test_everyday_odds_are_near_the_truth() -> None:
    """Within the words' own roundness, over all chances; never nothing, never all."""
    for thousandth in range(1, 995):
        chance = thousandth / 1000
        many, of = fraction(chance)
        assert 0 < many < of
        assert abs(many / of - chance) <= (0.02 if chance >= 0.1 else 0.05 * chance)
