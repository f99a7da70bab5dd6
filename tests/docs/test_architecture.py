"""The architecture page: what it names exists, and every cited id is defined once, with a test."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest

from tests.support.harness import ROOT

PAGE = ROOT / "docs/architecture.md"
CONTRACT = ROOT / "protocol_spec/README.md"
TOPS = ("protocol_spec", "edge_client", "collector", "scripts", "tests", "docs", "deploy")
TEXTS = (".py", ".md", ".toml", ".html", ".js", ".yaml", ".json", ".service", ".conf", ".sh")
# Invariants, requirements, and the contract's own numbered MUSTs.
CITED = re.compile(r"(?<![\w#&\\{/-])([IRM]\d{1,2})(?![\w(/-])")


def rows() -> list[list[str]]:
    """Rows of the page's tables that begin with an id: `| I6 | meaning | test |`."""
    found = re.findall(r"(?m)^\|\s*\**([A-Z]\d{1,2})\**\s*\|(.*)\|$", PAGE.read_text("utf-8"))
    return [[number, *(cell.strip() for cell in rest.split("|"))] for number, rest in found]


def cited() -> dict[str, set[str]]:
    """Where each id is cited, anywhere in the project but on the page itself."""
    below = [path for top in TOPS for path in sorted((ROOT / top).rglob("*"))]
    found = defaultdict(set)
    for path in (*ROOT.glob("*.md"), *below):
        if path.suffix in TEXTS and path not in (PAGE, Path(__file__)):
            for number in CITED.findall(path.read_text(encoding="utf-8")):
                found[number].add(str(path.relative_to(ROOT)))
    return found


def test_every_cited_id_is_defined_once() -> None:
    numbers = [row[0] for row in rows()]
    assert sorted(numbers) == sorted(set(numbers))
    contract = re.findall(r"(?m)^- \*\*(M\d+)\*\* ", CONTRACT.read_text(encoding="utf-8"))
    found = cited()
    assert len(found) > 50, "the search must find what is known to be there"
    assert {n: where for n, where in found.items() if n not in {*numbers, *contract}} == {}


def test_every_id_has_a_meaning_and_a_test_that_exists() -> None:
    assert [row[0] for row in rows() if len(row) < 3 or not row[1] or not row[2]] == []
    named = re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", str(rows()))
    assert named
    missing = [
        (file, test)
        for file, test in named
        if not (ROOT / file).exists() or f"def {test}" not in (ROOT / file).read_text("utf-8")
    ]
    assert missing == []


@pytest.mark.parametrize("page", [PAGE, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_every_path_that_is_named_exists(page: Path) -> None:
    """Except for the example's, which the reader makes."""
    named = re.findall(rf"`((?:{'|'.join(TOPS)})/[\w/.-]+)`", page.read_text(encoding="utf-8"))
    assert len(named) > 20
    missing = {name for name in named if not (ROOT / name).exists()}
    assert missing - {"edge_client/sources/text_file.py"} == set()
