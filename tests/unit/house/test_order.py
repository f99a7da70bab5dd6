"""A room imports only rooms below it, in the order that docs/architecture.md lists."""

from __future__ import annotations

import re

import pytest

from tests.support.places import ROOT
from tests.support.source import assert_none, module_graph

PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
PACKAGES = ("protocol_spec", "protocol_spec.programs", "edge_client", "collector", "scripts")
ENTRIES = ("__main__",)  # they start the program, so nothing may import them

Order = dict[str, int]
Imports = dict[str, set[str]]


def listed(package: str) -> Order:
    """Each room with the number of its line in the page's list; the bottom is 0."""
    block = re.search(rf"^Inside `{re.escape(package)}`:\n\n((?:    .+\n)+)", PAGE, re.MULTILINE)
    assert block, f"the page has no list for {package}"
    lines = [line.strip().split(", ") for line in block[1].splitlines()]
    return {room: number for number, line in enumerate(lines) for room in line}


def imports(package: str) -> Imports:
    """Which room of a package imports which others; the package itself is the door to them."""
    prefix = "" if package == "scripts" else f"{package}."
    found: Imports = {}
    for module, targets in module_graph(package.replace(".", "/")).items():
        if module not in ("", package):
            room = _room(module, prefix)
            inner = {_room(target, prefix) for target in targets}
            found.setdefault(room, set()).update(inner - {room})
    return {room: targets for room, targets in found.items() if room not in ENTRIES}


def _room(module: str, prefix: str) -> str:
    return module.removeprefix(prefix).split(".")[0]


def offences(order: Order, imported: Imports) -> list[str]:
    """Imports that do not lead to a lower line. What is not listed is above everything."""
    top = len(order)
    return [
        f"{room} imports {target}"
        for room, targets in sorted(imported.items())
        for target in sorted(targets)
        if order.get(target, top) >= order.get(room, top)
    ]


def test_an_offence_is_seen() -> None:
    order = {"errors": 0, "store": 1, "mqtt": 1, "service": 2}
    assert offences(order, {"service": {"store", "errors"}, "store": {"errors"}}) == []
    assert offences(order, {"store": {"service"}}) == ["store imports service"]
    assert offences(order, {"store": {"mqtt"}}) == ["store imports mqtt"]
    assert offences(order, {"store": {"collector"}}) == ["store imports collector"]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_room_has_its_line(package: str) -> None:
    assert set(imports(package)) == set(listed(package))


@pytest.mark.parametrize("package", PACKAGES)
def test_a_room_imports_only_rooms_below_it(package: str) -> None:
    found = imports(package)
    assert any(found.values())
    assert_none(offences(listed(package), found))
