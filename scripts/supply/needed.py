"""Which packages each way of installing needs: the project's own, and what they need in turn."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from importlib.metadata import requires
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).resolve().parents[2]

# Each is a file in scripts/requirements: what a device, the collector, a collector with PostgreSQL
# and the tests install, and what builds the wheel.
SETS: Final[dict[str, tuple[str, ...]]] = {
    "edge": (),
    "collector": ("collector", "broker"),
    "postgres": ("collector", "broker", "postgres"),
    "dev": ("dev",),
    "build": (),
}


def direct(name: str) -> set[Requirement]:
    """What a set asks for by itself."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    if name == "build":
        return {Requirement(text) for text in project["build-system"]["requires"]}
    wanted = set(map(Requirement, project["project"]["dependencies"]))
    waiting, extras = list(SETS[name]), project["project"]["optional-dependencies"]
    while waiting:
        for requirement in map(Requirement, extras[waiting.pop()]):
            if requirement.name == "allomfree":
                waiting += requirement.extras
            else:
                wanted.add(requirement)
    return wanted


def closure(name: str) -> dict[str, set[str]]:
    """Every package of a set, with what it needs; as the installed packages say."""
    found: dict[str, set[str]] = {}
    waiting = [*direct(name), *(direct("build") if name == "dev" else ())]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        requirement = waiting.pop()
        package = canonicalize_name(requirement.name)
        if (package, frozenset(requirement.extras)) in seen:
            continue
        seen.add((package, frozenset(requirement.extras)))
        needs = [] if package in _BUILDS else list(_needs(package, requirement.extras))
        found.setdefault(package, set()).update(canonicalize_name(each.name) for each in needs)
        waiting += needs
    return found


_BUILDS: Final = frozenset({"setuptools"})  # needs nothing, and may not be installed


def _needs(package: str, extras: Iterable[str]) -> Iterable[Requirement]:
    for text in requires(package) or []:
        requirement = Requirement(text)
        marker = requirement.marker
        wanted = marker is None or any(marker.evaluate({"extra": e}) for e in ("", *extras))
        if wanted and requirement.name != "pip":  # which comes with Python, and does the checking
            yield requirement
