"""Every invariant that code, tests or docs cite by its number is defined once, with its test."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest

from tests.support.places import ROOT
from tests.support.source import EVERYTHING, assert_none

ARCHITECTURE = ROOT / "docs/architecture.md"
CONTRACT = ROOT / "protocol_spec/README.md"
TEXTS = (".py", ".md", ".toml", ".html", ".js", ".yaml", ".json", ".service", ".conf", ".sh")
# Invariants, requirements, and the contract's own numbered MUSTs.
CITED = re.compile(r"(?<![\w#&\\{/-])([IRM]\d{1,2})(?![\w(/-])")


def texts() -> list[Path]:
    places = [ROOT / name for name in (*EVERYTHING, "docs", "deploy")]
    below = [path for place in places for path in sorted(place.rglob("*"))]
    return [path for path in (*ROOT.glob("*.md"), *below) if path.suffix in TEXTS]


def cited() -> dict[str, list[str]]:
    found = defaultdict(list)
    for path in texts():
        if path not in (ARCHITECTURE, Path(__file__)):
            for number in CITED.findall(path.read_text(encoding="utf-8")):
                found[number].append(str(path.relative_to(ROOT)))
    return found


def rows() -> list[list[str]]:
    """Rows of the page's tables that begin with a number: `| I6 | meaning | test |`."""
    text = ARCHITECTURE.read_text(encoding="utf-8")
    return [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in text.splitlines()
        if re.match(r"\|\s*\**[A-Z]\d{1,2}\**\s*\|", line)
    ]


def test_every_cited_number_is_defined() -> None:
    """The contract defines its own, and every other one has its row in the table."""
    defined = {row[0].strip("*") for row in rows()}
    defined |= set(re.findall(r"^- \*\*(M\d+)\*\* ", CONTRACT.read_text(encoding="utf-8"), re.M))
    assert_none(
        f"{number} is cited in {', '.join(sorted(set(files)))}"
        for number, files in sorted(cited().items())
        if number not in defined
    )
    assert len(cited()) > 50, "the search must find what is known to be there"


def test_no_number_is_defined_twice() -> None:
    numbers = [row[0].strip("*") for row in rows()]
    assert sorted(numbers) == sorted(set(numbers))


@pytest.mark.parametrize("place", [1, 2])
def test_every_number_has_a_meaning_and_a_test(place: int) -> None:
    assert rows()
    assert [row[0] for row in rows() if len(row) <= place or not row[place]] == []


def test_the_tests_that_are_named_exist() -> None:
    text = "\n".join("|".join(row) for row in rows())
    named = re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", text)
    assert named
    assert [file for file, _ in named if not (ROOT / file).exists()] == []
    missing = [
        f"{file}::{test}"
        for file, test in named
        if test and f"def {test}(" not in (ROOT / file).read_text(encoding="utf-8")
    ]
    assert missing == []
