"""The project's own source, read and not run: files, modules, imports, classes, names."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from tests.support.places import ROOT

PRODUCT = ("protocol_spec", "edge_client", "collector")
EVERYTHING = (*PRODUCT, "scripts", "tests")


@dataclass(frozen=True, slots=True)
class Import:
    """`from module import name` or, without a name, `import module`."""

    module: str
    name: str | None
    line: int
    local: str | None = None  # what comes after `as`


@dataclass(frozen=True, slots=True)
class Facts:
    """What rules about many files ask of one. The tree has a hundred times as many nodes: it is
    walked once and not kept."""

    imports: list[Import]
    classes: list[tuple[str, int]]  # and how many methods each has
    defined: set[str]  # functions, attributes of `self` and `cls`, and names that are set
    attributes: list[tuple[int, str | None, str]]  # the line, of which name, and which
    changes: list[ast.Call | ast.Assign | ast.AugAssign | ast.Delete]  # of attributes


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
        return ast.parse(self.path.read_text(encoding="utf-8"))

    @property
    def facts(self) -> Facts:
        return _facts(self.path)

    @property
    def lines(self) -> int:
        return len(self.path.read_text(encoding="utf-8").splitlines())

    @property
    def imports(self) -> list[Import]:
        """Everything it imports, wherever in the file."""
        return self.facts.imports


@cache
def _facts(path: Path) -> Facts:
    return facts_of(ast.parse(path.read_text(encoding="utf-8")))


def facts_of(tree: ast.Module) -> Facts:
    """Everything that rules ask of a file, from one walk."""
    found = Facts([], [], set(), [], [])
    for node in ast.walk(tree):
        note = _NOTING.get(type(node))  # of most kinds, nothing is asked
        if note is not None:
            note(node, found)
    return found


def _note_import(node: Any, found: Facts) -> None:
    found.imports.extend(_imports(node))


def _note_class(node: Any, found: Facts) -> None:
    methods = sum(type(inner) in (ast.FunctionDef, ast.AsyncFunctionDef) for inner in node.body)
    found.classes.append((node.name, methods))


def _note_function(node: Any, found: Facts) -> None:
    found.defined.add(node.name)


def _note_attribute(node: Any, found: Facts) -> None:
    owner = node.value.id if isinstance(node.value, ast.Name) else None
    found.attributes.append((node.lineno, owner, node.attr))
    if owner in ("self", "cls"):
        found.defined.add(node.attr)


def _note_name(node: Any, found: Facts) -> None:
    if isinstance(node.ctx, ast.Store):
        found.defined.add(node.id)


def _note_change(node: Any, found: Facts) -> None:
    if _changes(node):
        found.changes.append(node)


_NOTING: Final[dict[type[ast.AST], Callable[[Any, Facts], None]]] = {
    ast.Import: _note_import,
    ast.ImportFrom: _note_import,
    ast.ClassDef: _note_class,
    ast.FunctionDef: _note_function,
    ast.AsyncFunctionDef: _note_function,
    ast.Attribute: _note_attribute,
    ast.Name: _note_name,
    ast.Call: _note_change,
    ast.Assign: _note_change,
    ast.AugAssign: _note_change,
    ast.Delete: _note_change,
}


def _imports(node: ast.Import | ast.ImportFrom) -> Iterator[Import]:
    for alias in node.names:
        if isinstance(node, ast.Import):
            yield Import(alias.name, None, node.lineno, alias.asname)
        else:
            assert node.level == 0, "imports are absolute"
            yield Import(node.module or "", alias.name, node.lineno, alias.asname)


def _changes(node: ast.Call | ast.Assign | ast.AugAssign | ast.Delete) -> bool:
    """Whether it may change an attribute of something else: it sets or deletes one, or calls
    monkeypatch.setattr, monkeypatch.delattr, setattr, mock.patch or mock.patch.object."""
    if isinstance(node, ast.Call):
        return _patches(node.func)
    targets = [node.target] if isinstance(node, ast.AugAssign) else node.targets
    return any(isinstance(target, ast.Attribute) for target in targets)


def _patches(function: ast.expr) -> bool:
    match function:
        case ast.Attribute(attr="setattr" | "delattr" | "patch"):
            return True
        case ast.Attribute(value=ast.Attribute(attr="patch"), attr="object"):
            return True
        case ast.Attribute(value=ast.Name(id="patch"), attr="object"):
            return True
        case ast.Name(id="setattr" | "delattr" | "patch"):
            return True
    return False


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
