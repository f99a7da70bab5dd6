"""The map is complete: every id cited anywhere has its row, and every path it names exists."""

from __future__ import annotations

import re

from tests.support.places import ROOT

MAP = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
PICTURES = sorted((ROOT / "docs/pictures").glob("way-of-*.svg"))
CITED = re.compile(r"\b(?:I(?:[1-9]|1\d)|R[0-4]\d)\b")
ROW = re.compile(r"^\| ([IR]\d+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


def texts() -> dict[str, str]:
    """Everything people write: code, tests and pages, by path."""
    places = ("protocol_spec", "edge_client", "collector", "scripts", "tests", "docs", "deploy")
    found = [p for place in places for p in (ROOT / place).rglob("*")]
    found += [*ROOT.glob("*.md"), ROOT / "pyproject.toml"]
    return {
        str(p.relative_to(ROOT)): p.read_text(encoding="utf-8")
        for p in found
        if p.suffix in (".py", ".md", ".toml", ".sh", ".example") and p.is_file()
    }


def test_every_id_cited_anywhere_has_a_row() -> None:
    rows = [found[1] for found in ROW.finditer(MAP)]
    assert len(rows) == len(set(rows))
    cited = {(found, path) for path, text in texts().items() for found in CITED.findall(text)}
    assert len(cited) > len(rows), "the search finds them"
    assert [(found, path) for found, path in sorted(cited) if found not in rows] == []


def test_every_requirement_of_the_protocol_cited_anywhere_is_defined() -> None:
    defined = set(re.findall(r"\*\*(M\d+)\*\*", texts()["protocol_spec/README.md"]))
    for path, text in texts().items():
        assert set(re.findall(r"\bM\d{1,2}\b", text)) <= defined, path


def test_every_row_says_what_holds_it_and_the_test_exists() -> None:
    for number, meaning, held_by in ROW.findall(MAP):
        assert meaning.strip(), number
        paths = re.findall(r"`([^`]+)`", held_by)
        assert paths, number
        for path in paths:
            file, _, name = path.partition("::")
            assert file.startswith("tests/"), path
            assert (ROOT / file).is_file(), path
            assert not name or f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), path


def test_every_test_the_map_names_exists() -> None:
    for path in re.findall(r"tests/[\w/]+\.py", MAP):
        assert (ROOT / path).is_file(), path


def test_every_room_exists() -> None:
    """The first column of the tables of rooms, and the steps in the picture."""
    section = MAP.split("\n## Rooms\n")[1].split("\n## ")[0]
    package = ""
    for line in section.splitlines():
        if bold := re.match(r"\*\*`([\w/]+)/`\*\*", line):
            package = bold[1]
        elif line.startswith("| `"):
            for room in re.findall(r"`([^`]+)`", line.split("|")[1]):
                assert (ROOT / package / room).exists(), f"{package}/{room}"


def test_every_step_and_picture_names_files_that_exist() -> None:
    steps = MAP.split("\n## The way of a value\n")[1].split("\n## ")[0]
    for row in re.findall(r"^\| \d* \| (`.*?) \|", steps, re.MULTILINE):
        first, *others = re.findall(r"`([^`]+)`", row)
        assert (ROOT / first).exists(), first
        package, room = ROOT / first.split("/")[0], (ROOT / first).parent
        for other in others:
            assert (room / other).exists() or (package / other).exists(), other
    for picture in PICTURES:
        shown = re.findall(r"[\w/]+(?:\.py|/)(?=[,<])", picture.read_text(encoding="utf-8"))
        assert shown
        for name in shown:
            assert (ROOT / "collector" / name).exists() or (ROOT / "edge_client" / name).exists()
