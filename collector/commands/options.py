"""The decorator that makes a command, and the arguments that several commands take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from collector.settings import SETTINGS, resolve
from protocol_spec.programs import cli
from protocol_spec.programs.cli import command_of, completed

Facts = TypeVar("Facts")


class Duration(click.ParamType[int]):
    """Seconds, written as in a manifest: 90s, 15m, 6h."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """A whole number of seconds, from 1 on."""
        from protocol_spec import parse_duration  # noqa: PLC0415 - `health` does without it

        seconds = value if isinstance(value, int) else parse_duration(str(value))
        if not seconds:
            self.fail(f"{value!r} is no duration such as 90s, 15m or 6h", param, ctx)
        return seconds


command: Final = command_of(SETTINGS, resolve, "collector")

CAMPAIGN: Final = click.argument("campaign", required=False)
MANIFEST: Final = click.argument("manifest", type=click.Path(path_type=Path))
ATTRIBUTE: Final = click.option("--attribute", metavar="NAME", help="Only this attribute.")
DURATION: Final = Duration()
FILE: Final = click.Path(path_type=Path)


def show(facts: Facts, as_json: bool, text: Callable[[Facts], str]) -> None:
    """Print facts as JSON or as text, in which every command of ours can be pasted."""
    cli.print_facts(facts, as_json, lambda told: completed(text(told)))
