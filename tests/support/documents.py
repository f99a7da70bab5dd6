"""Reading pages and deployed files: tables, sections, Dockerfiles, units, templates, pictures."""

from __future__ import annotations

import json
import re
import struct
import tomllib
from collections import defaultdict
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import click
import jinja2

import collector.commands
import edge_client.__main__
from tests.support.harness import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/*.md")])


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def rows(text: str) -> list[list[str]]:
    lines = (line.strip() for line in text.splitlines())
    return [[c.strip() for c in x.strip("|").split("|")] for x in lines if x.startswith("|")]


def row_with(text: str, cell: str) -> list[str]:
    found = [row for row in rows(text) if cell in row]
    assert len(found) == 1, f"{cell} has {len(found)} rows"
    return found[0]


def names_in(text: str) -> list[str]:
    """First cells of a table that are code, without their back quotes."""
    return [row[0].strip("`") for row in rows(text) if row[0].startswith("`")]


def section(page: Path, heading: str) -> str:
    """The text below a heading with this beginning, up to the next heading of any level."""
    found = re.split(rf"(?m)^{re.escape(heading)}(?:$|[^\w].*$)", read(page), maxsplit=1)
    assert len(found) == 2, f"{name_of(page)} has no {heading}"
    return re.split(r"\n#+ ", found[1], maxsplit=1)[0]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


# --- deploy/: Dockerfiles, unit files, and the commands in them -----------------------------------

DEPLOY = ROOT / "deploy"
PROGRAMS: dict[str, click.Group] = {
    "allomfree-edge": edge_client.__main__.main,
    "allomfree-collector": collector.commands.main,
}


def can_be_typed(words: list[str]) -> None:
    """Raises what click would say about a program's command line."""
    group = PROGRAMS[Path(words[0]).name]
    group.commands[words[1]].make_context(words[0], words[2:])


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def unit(file: Path) -> dict[str, list[str]]:
    """The settings of a unit; an empty value takes back what was set before."""
    keys: dict[str, list[str]] = defaultdict(list)
    for line in file.read_text(encoding="utf-8").splitlines():
        if line and line[0] not in "#[":
            key, _, value = line.partition("=")
            keys[key].append(value)
    return dict(keys)


@dataclass(frozen=True, slots=True)
class Dockerfile:
    """The instructions of a Dockerfile, in order; comments and continued lines resolved."""

    path: Path

    @property
    def instructions(self) -> list[tuple[str, str]]:
        text = re.sub(r"(?m)^\s*#.*\n", "", self.path.read_text(encoding="utf-8"))
        lines = re.sub(r"\\\n\s*", "", text).splitlines()
        return [(name, rest) for name, _, rest in (x.partition(" ") for x in lines if x)]

    def all(self, name: str) -> list[str]:
        return [rest for instruction, rest in self.instructions if instruction == name]

    def words(self, name: str) -> list[str]:
        """An instruction in its exec form, which needs no shell."""
        (text,) = self.all(name)
        found: list[str] = json.loads(text[text.index("[") :])
        return found

    @property
    def environment(self) -> dict[str, str]:
        pairs = [pair for text in self.all("ENV") for pair in text.split()]
        return dict(pair.split("=", 1) for pair in pairs)

    @property
    def user(self) -> int:
        return int(self.all("USER")[-1])


DOCKERFILES = {name: Dockerfile(DEPLOY / f"Dockerfile.{name}") for name in ("edge", "collector")}


# --- Home Assistant's templates -------------------------------------------------------------------


def rendered(template: str, payload: bytes) -> str:
    """A template as Home Assistant renders it: with the bytes, and with the JSON they may be."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)  # noqa: S701 - no HTML
    environment.filters["unpack"] = lambda value, form, offset=0: struct.unpack_from(
        form, value, offset
    )[0]
    values = {"value": payload, "value_json": None}
    if payload[:1] == b"{":
        values["value_json"] = json.loads(payload)
    return environment.from_string(template).render(values)


# --- two SVG pictures compared: the same but for coordinates, which are nearly so -----------------

# In the picture's unit, a point of 1/72 inch: about a hundredth of a screen's pixel, too little to
# see. On the paper's logarithmic axes it is 0.03 % of a value; another seed moves a value by 1 %.
TOLERANCE = 0.01
NUMBER = re.compile(r"(-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)")


def differences(left: str, right: str) -> list[tuple[str | None, str | None]]:
    """The parts that differ; every second part is a number."""
    ours, theirs = (NUMBER.split(_numbered_ids(ET.canonicalize(text))) for text in (left, right))
    return [
        (a, b)
        for i, (a, b) in enumerate(zip_longest(ours, theirs))
        if a != b and not (i % 2 and a and b and abs(float(a) - float(b)) <= TOLERANCE)
    ]


def _numbered_ids(text: str) -> str:
    """Every id named by its place in the file, and so what refers to it."""
    names = {name: f"id-{place}" for place, name in enumerate(re.findall(r'\bid="([^"]+)"', text))}
    return re.sub(
        r'(\bid="|#)([^")]+)', lambda found: found[1] + names.get(found[2], found[2]), text
    )
