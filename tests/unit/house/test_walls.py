"""Who may import whom: no circles, two programs that never meet, a contract with few doors."""

from __future__ import annotations

import importlib

import pytest

from tests.support.source import (
    EVERYTHING,
    PRODUCT,
    assert_none,
    cycles,
    module_graph,
    package_of,
    sources,
)

# Where the contract can be entered. Estimation needs numpy, which devices do not have; the names
# of topics, limits and ways of reporting read well only beside each other.
DOORS = {
    "protocol_spec",
    "protocol_spec.estimation",
    "protocol_spec.limits",
    "protocol_spec.reporting",
    "protocol_spec.topics",
    "protocol_spec.ways",
}
PROGRAMS = "protocol_spec.programs"
OUTSIDERS = ("edge_client", "collector", "scripts")
INSIDER = "specification"  # scripts/specification describes the contract, so it looks inside


@pytest.mark.parametrize("package", EVERYTHING)
def test_no_module_imports_itself_in_a_circle(package: str) -> None:
    graph = module_graph(package)
    assert any(graph.values())
    assert cycles(graph) == []


@pytest.mark.parametrize("package", PRODUCT)
def test_no_room_imports_itself_in_a_circle(package: str) -> None:
    """A room is a directory of the package or a module beside it; the package itself is a door."""
    rooms: dict[str, set[str]] = {}
    for module, targets in module_graph(package).items():
        if module != package:
            inner = {_room(target) for target in targets - {package}}
            rooms.setdefault(_room(module), set()).update(inner - {_room(module)})
    assert cycles(rooms) == []


def _room(module: str) -> str:
    return ".".join(module.split(".")[:2])


def test_a_circle_is_found() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}) == [["a", "b", "c"]]
    assert cycles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


@pytest.mark.parametrize(
    ("package", "never"),
    [
        ("edge_client", {"collector"}),
        ("collector", {"edge_client"}),
        ("protocol_spec", {"edge_client", "collector"}),
        *((package, {"tests", "scripts"}) for package in PRODUCT),
    ],
)
def test_a_package_stands_without_the_others(package: str, never: set[str]) -> None:
    scripts = {package_of(source.module) for source in sources("scripts")}
    forbidden = never | scripts if "scripts" in never else never
    assert_none(
        f"{source.shown}:{found.line} imports {found.module}"
        for source in sources(package)
        for found in source.imports
        if package_of(found.module) in forbidden
    )


def test_scripts_import_no_tests() -> None:
    """What both need lives in `scripts/testbed`."""
    assert_none(
        f"{source.shown}:{found.line} imports {found.module}"
        for source in sources("scripts")
        for found in source.imports
        if package_of(found.module) == "tests"
    )


def test_the_contract_needs_neither_a_command_line_nor_a_network() -> None:
    """What both programs share may need them: `protocol_spec.programs`, beside the contract."""
    contract = [s for s in sources("protocol_spec") if not s.module.startswith(PROGRAMS)]
    assert contract
    assert_none(
        f"{source.shown}:{found.line} imports {found.module}"
        for source in contract
        for found in source.imports
        if package_of(found.module) in {"click", "paho"} or found.module.startswith(PROGRAMS)
    )


def test_outsiders_import_only_public_names_of_the_contract() -> None:
    assert_none(
        f"{source.shown}:{found.line} imports {found.name} from {found.module}"
        for source in sources(*OUTSIDERS)
        for found in source.imports
        if package_of(found.module) == "protocol_spec"
        and package_of(source.module) != INSIDER
        and not _public(found.module, found.name)
    )


def _public(module: str, name: str | None) -> bool:
    if module == PROGRAMS or module.startswith(f"{PROGRAMS}."):
        return not (name or "").startswith("_")
    if module not in DOORS:
        return False
    return name is None or name in importlib.import_module(module).__all__


@pytest.mark.parametrize("package", EVERYTHING)
def test_nobody_imports_a_private_name_of_another_module(package: str) -> None:
    assert_none(
        f"{source.shown}:{found.line} imports {found.name} from {found.module}"
        for source in sources(package)
        for found in source.imports
        if package_of(found.module) in {*PRODUCT, "tests"}
        and any(_private(part) for part in (*found.module.split("."), found.name or ""))
    )


def _private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def test_every_module_of_the_contract_says_what_is_public() -> None:
    """A package inside the contract says so once, in its own `__init__`."""
    for source in sources("protocol_spec"):
        if source.module.count(".") <= 1 and source.module != PROGRAMS:
            module = importlib.import_module(source.module)
            assert module.__all__, source.shown
            assert all(hasattr(module, name) for name in module.__all__), source.shown
