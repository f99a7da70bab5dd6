"""The map shows what is there: every room, step and picture names files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.places import ROOT

MAP = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PICTURES = sorted((ROOT / "docs/pictures").glob("way-of-*.svg"))
PROGRAMS = ("edge_client", "collector")


def section(heading: str) -> str:
    return MAP.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def rooms() -> list[str]:
    """The first column of the tables of rooms, each below its package's paragraph."""
    found, package = [], ""
    for line in section("Rooms").splitlines():
        if bold := re.match(r"\*\*`([\w/]+)/`\*\*", line):
            package = bold[1]
        elif line.startswith("| `"):
            found += [f"{package}/{name}" for name in re.findall(r"`([^`]+)`", line.split("|")[1])]
    return found


def test_every_room_on_the_map_exists() -> None:
    assert len(rooms()) > 40
    assert [room for room in rooms() if not (ROOT / room).exists()] == []


@pytest.mark.parametrize(
    "package", ["protocol_spec", "protocol_spec/programs", *PROGRAMS, "scripts"]
)
def test_every_room_is_on_the_map(package: str) -> None:
    there = {p.name for p in (ROOT / package).iterdir() if p.suffix == ".py"}
    there |= {p.parent.name + "/" for p in (ROOT / package).glob("*/__init__.py")}
    unnamed = {"__init__.py", "__main__.py", "programs/"}
    told = {room.removeprefix(f"{package}/") for room in rooms()}
    assert there - unnamed - told == set()


def test_every_step_names_files_that_exist() -> None:
    steps = re.findall(r"^\| \d* \| (`.*?) \|", section("The way of a value"), re.MULTILINE)
    assert len(steps) > 9
    for step in steps:
        first, *others = re.findall(r"`([^`]+)`", step)
        package, room = ROOT / first.split("/")[0], (ROOT / first).parent
        assert (ROOT / first).exists(), first
        for other in others:
            assert (room / other).exists() or (package / other).exists(), other


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.stem)
def test_every_picture_names_files_that_exist(picture: Path) -> None:
    shown = re.findall(r"[\w/]+(?:\.py|/)(?=[,<])", picture.read_text(encoding="utf-8"))
    assert len(shown) > 5
    for name in shown:
        assert any((ROOT / package / name).exists() for package in PROGRAMS), name


@pytest.mark.parametrize("page", [MAP, GUIDE], ids=["map", "guide"])
def test_every_path_that_is_named_exists(page: str) -> None:
    """Those of a toy example aside, which the reader makes."""
    toys = {"edge_client/sources/text_file.py"}
    tops = "protocol_spec|edge_client|collector|scripts|tests|deploy|docs"
    named = set(re.findall(rf"`((?:{tops})/[\w/.-]+)`", page)) - toys
    assert len(named) > 20
    assert sorted(name for name in named if not (ROOT / name).exists()) == []


def test_every_link_of_the_guide_leads_to_a_file() -> None:
    links = re.findall(r"\]\(([^)#\s]+)", GUIDE)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
