"""Tests use `tests.support` and public names; they patch no module and reach into no object."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

import pytest

from tests.support.source import PRODUCT, Facts, assert_none, facts_of, package_of, sources

TESTS = sources("tests")


def test_tests_share_code_only_through_support() -> None:
    assert_none(
        f"{source.shown}:{found.line} imports {found.module}"
        for source in TESTS
        for found in source.imports
        if package_of(found.module) == "tests"
        and not f"{found.module}.".startswith("tests.support.")
    )


# --- what is patched -----------------------------------------------------------------------------


def patches(facts: Facts) -> Iterator[tuple[int, str]]:
    """Lines that replace something in a module of the product, however it was imported."""
    modules = _product_modules(facts)
    for node in facts.changes:
        if isinstance(node, ast.Call):
            target = _place(node.args[0], modules) if node.args else None
            if target is not None:
                yield node.lineno, f"patches {target}"
        else:
            targets = [node.target] if isinstance(node, ast.AugAssign) else node.targets
            for each in targets:
                if isinstance(each, ast.Attribute) and _place(each.value, modules) is not None:
                    yield node.lineno, f"sets {each.attr} of {_place(each.value, modules)}"


def _product_modules(facts: Facts) -> dict[str, str]:
    """Local names that stand for modules of the product, wherever they are imported."""
    known = _known()
    found = {}
    for each in facts.imports:
        if each.name is None:
            if package_of(each.module) in PRODUCT:
                local = each.local or package_of(each.module)
                found[local] = each.module if each.local else local
        elif f"{each.module}.{each.name}" in known:
            found[each.local or each.name] = f"{each.module}.{each.name}"
    return found


@cache
def _known() -> frozenset[str]:
    return frozenset(source.module for source in sources(*PRODUCT))


def _place(node: ast.expr, modules: dict[str, str]) -> str | None:
    """The module of the product that an expression or a dotted string names."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value if package_of(node.value) in PRODUCT and "." in node.value else None
    if isinstance(node, ast.Name):
        return modules.get(node.id)
    if isinstance(node, ast.Attribute):  # collector.service, when `import collector.service`
        outer = _place(node.value, modules)
        return f"{outer}.{node.attr}" if f"{outer}.{node.attr}" in _known() else None
    return None


@pytest.mark.parametrize(
    "code",
    [
        "from collector import service\nmonkeypatch.setattr(service, 'STEP', 0)",
        "from collector import service as s\nmonkeypatch.setattr(s, 'STEP', 0)",
        "import collector.service\nmonkeypatch.setattr(collector.service, 'STEP', 0)",
        "monkeypatch.setattr('collector.service.STEP', 0)",
        "from edge_client import daemon\nwith mock.patch.object(daemon, 'STEP', 0): pass",
        "from unittest.mock import patch\npatch('edge_client.cli.STEP')",
        "def f():\n from collector import service\n service.STEP = 0",
    ],
)
def test_a_patched_module_is_seen(code: str) -> None:
    assert list(patches(facts_of(ast.parse(code))))


def test_a_patch_of_something_else_is_not() -> None:
    code = """
import os
from collector.service import Service
monkeypatch.setattr(os, "sep", "")
monkeypatch.setattr("sys.path", [])
monkeypatch.setenv("collector.x", "")
client.service = 1
"""
    assert not list(patches(facts_of(ast.parse(code))))


def test_no_test_patches_a_module_of_the_product() -> None:
    assert_none(
        f"{source.shown}:{line} {what}" for source in TESTS for line, what in patches(source.facts)
    )


# --- what is reached into ------------------------------------------------------------------------


def private_names(*packages: str) -> set[str]:
    """Attributes, methods and functions with an underscore that these packages define."""
    found = {name for source in sources(*packages) for name in source.facts.defined}
    return {name for name in found if name.startswith("_") and not name.startswith("__")}


def reaches(facts: Facts, private: set[str]) -> Iterator[tuple[int, str]]:
    """Lines that use a private attribute of anything but the object they are a method of."""
    for line, owner, name in facts.attributes:
        if name in private and owner not in ("self", "cls"):
            yield line, f"uses {name}"


def test_a_reach_is_seen() -> None:
    private = private_names("collector")
    assert "_db" in private
    assert list(reaches(facts_of(ast.parse("store._db.execute('SELECT 1')")), private))
    assert not list(reaches(facts_of(ast.parse("self._db.execute('SELECT 1')")), private))


def test_no_test_reaches_into_the_product() -> None:
    private = private_names(*PRODUCT)
    forbidden = private - (private_names("tests", "scripts") - {"_db"})
    assert_none(
        f"{source.shown}:{line} {what}"
        for source in TESTS
        for line, what in reaches(source.facts, forbidden)
    )
