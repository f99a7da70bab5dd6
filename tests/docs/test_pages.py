"""Every page: links lead somewhere, Python compiles, decisions are numbered."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.docs import PAGES, anchors, blocks, name_of, read, without_code
from tests.support.places import ROOT

DECISIONS = sorted(ROOT.glob("docs/decisions/[0-9]*.md"))


def test_the_pages_are_found() -> None:
    assert len(PAGES) > 20


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        assert other.exists(), f"{name_of(page)} links to {target}"
        assert not anchor or anchor in anchors(other), f"{name_of(page)} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_examples_compile(page: Path) -> None:
    for block in blocks(read(page), "python"):
        compile(block, name_of(page), "exec")


def test_the_decisions_are_there() -> None:
    numbers = [int(page.name[:4]) for page in DECISIONS]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert numbers[-1] >= 11


@pytest.mark.parametrize("page", [p for p in DECISIONS if p.name >= "0006"], ids=name_of)
def test_a_decision_says_why(page: Path) -> None:
    assert {"context", "decision", "consequences"} <= anchors(page)
