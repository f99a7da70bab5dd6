"""Reading what is in deploy/: Dockerfiles, unit files, and the commands in them."""

from __future__ import annotations

import json
import re
import tomllib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

import collector.commands
import edge_client.__main__
from tests.support.places import ROOT

DEPLOY = ROOT / "deploy"
PROGRAMS: dict[str, click.Group] = {
    "allomfree-edge": edge_client.__main__.main,
    "allomfree-collector": collector.commands.main,
}


def can_be_typed(words: list[str]) -> None:
    """Raises what click would say about a program's command line."""
    group = PROGRAMS[Path(words[0]).name]
    group.commands[words[1]].make_context(words[0], words[2:])


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def unit(file: Path) -> dict[str, list[str]]:
    """The settings of a unit; an empty value takes back what was set before."""
    keys: dict[str, list[str]] = defaultdict(list)
    for line in file.read_text(encoding="utf-8").splitlines():
        if line and line[0] not in "#[":
            key, _, value = line.partition("=")
            keys[key].append(value)
    return dict(keys)


@dataclass(frozen=True, slots=True)
class Dockerfile:
    """The instructions of a Dockerfile, in order; comments and continued lines resolved."""

    path: Path

    @property
    def instructions(self) -> list[tuple[str, str]]:
        text = re.sub(r"(?m)^\s*#.*\n", "", self.path.read_text(encoding="utf-8"))
        lines = re.sub(r"\\\n\s*", "", text).splitlines()
        return [(name, rest) for name, _, rest in (x.partition(" ") for x in lines if x)]

    def all(self, name: str) -> list[str]:
        return [rest for instruction, rest in self.instructions if instruction == name]

    def words(self, name: str) -> list[str]:
        """An instruction in its exec form, which needs no shell."""
        (text,) = self.all(name)
        found: list[str] = json.loads(text[text.index("[") :])
        return found

    @property
    def environment(self) -> dict[str, str]:
        pairs = [pair for text in self.all("ENV") for pair in text.split()]
        return dict(pair.split("=", 1) for pair in pairs)

    @property
    def user(self) -> int:
        return int(self.all("USER")[-1])


DOCKERFILES = {name: Dockerfile(DEPLOY / f"Dockerfile.{name}") for name in ("edge", "collector")}
