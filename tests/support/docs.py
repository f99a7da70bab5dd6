"""Reading the pages: tables, sections, fenced blocks, links, and the commands they show."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.places import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/*.md")])


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def rows(text: str) -> list[list[str]]:
    """The cells of every table row of a page."""
    lines = (line.strip() for line in text.splitlines())
    return [[c.strip() for c in x.strip("|").split("|")] for x in lines if x.startswith("|")]


def row_with(text: str, cell: str) -> list[str]:
    """The one row of a text that has this cell."""
    found = [row for row in rows(text) if cell in row]
    assert len(found) == 1, f"{cell} has {len(found)} rows"
    return found[0]


def names_in(text: str) -> list[str]:
    """First cells of a table that are code, without their back quotes."""
    return [row[0].strip("`") for row in rows(text) if row[0].startswith("`")]


def section(page: Path, heading: str) -> str:
    """What stands below a heading that begins so, up to the next one of any level."""
    found = re.split(rf"(?m)^{re.escape(heading)}(?:$|[^\w].*$)", read(page), maxsplit=1)
    assert len(found) == 2, f"{name_of(page)} has no {heading}"
    return re.split(r"\n#+ ", found[1], maxsplit=1)[0]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
