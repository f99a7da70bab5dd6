"""The project's own source, read and not run: files, modules, imports, classes, names."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.support.places import ROOT

PRODUCT = ("protocol_spec", "edge_client", "collector")
EVERYTHING = (*PRODUCT, "scripts", "tests")


@dataclass(frozen=True, slots=True)
class Import:
    """`from module import name` or, without a name, `import module`."""

    module: str
    name: str | None
    line: int


@dataclass(frozen=True)
class Source:
    """One Python file."""

    path: Path

    @property
    def shown(self) -> str:
        """Where it is, from the root."""
        return str(self.path.relative_to(ROOT))

    @property
    def module(self) -> str:
        """Its dotted name; scripts are imported from inside their directory."""
        parts = self.path.relative_to(ROOT).with_suffix("").parts
        parts = parts[1:] if parts[0] == "scripts" else parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def tree(self) -> ast.Module:
        return _parsed(self.path)

    @property
    def lines(self) -> int:
        return len(self.path.read_text(encoding="utf-8").splitlines())

    @property
    def imports(self) -> list[Import]:
        """Everything it imports, wherever in the file."""
        return _imported(self.path)


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def _imported(path: Path) -> list[Import]:
    return [found for node in ast.walk(_parsed(path)) for found in _imports(node)]


def _imports(node: ast.AST) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        yield from (Import(alias.name, None, node.lineno) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        yield from (Import(node.module or "", alias.name, node.lineno) for alias in node.names)


@cache
def sources(*packages: str) -> tuple[Source, ...]:
    """Every Python file below these directories of the project."""
    return tuple(Source(path) for name in packages for path in sorted((ROOT / name).rglob("*.py")))


def assert_none(offences: Iterable[str]) -> None:
    """Fail with every offence on a line of its own."""
    lines = list(offences)
    assert not lines, "\n" + "\n".join(lines)


def package_of(module: str) -> str:
    """The top-level package that a dotted name begins with."""
    return module.partition(".")[0]


def module_graph(*packages: str) -> dict[str, set[str]]:
    """Which module imports which others of the same packages."""
    files = {source.module: source for source in sources(*packages)}
    return {
        module: {target for found in source.imports if (target := _target(found, files))} - {module}
        for module, source in files.items()
    }


def _target(found: Import, known: Mapping[str, object]) -> str | None:
    inner = f"{found.module}.{found.name}"
    return inner if inner in known else found.module if found.module in known else None


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of nodes that can all reach each other (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in sorted(graph.get(node, ())):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            place = stack.index(node)
            if len(stack) - place > 1:
                found.append(sorted(stack[place:]))
            del stack[place:]

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found
