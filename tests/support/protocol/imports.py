"""Which modules a package's source imports, read from the syntax tree: nothing is run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.support.harness import ROOT


def sources(package: str) -> list[Path]:
    """Every Python file of a package of this distribution."""
    return sorted((ROOT / package).rglob("*.py"))


@cache
def imported(path: Path) -> set[str]:
    """Dotted names of all that a file imports, wherever in the file it does."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {name for node in ast.walk(tree) for name in _names(node)}


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        module = node.module or ""
        yield module
        yield from (f"{module}.{alias.name}" for alias in node.names)


def offenders(package: str, *forbidden: str) -> list[str]:
    """'file imports name' for each import of a forbidden module or anything inside it."""
    return [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sources(package)
        for name in sorted(imported(path))
        if any(name == module or name.startswith(f"{module}.") for module in forbidden)
    ]
