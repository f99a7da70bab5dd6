"""The decorator that makes a command, and what several commands share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from collector.settings import SETTINGS, resolve
from protocol_spec.programs import cli
from protocol_spec.programs.cli import command_of, completed

Facts = dict[str, Any]  # what a command prints with --json, and its text is made of
Shown = TypeVar("Shown")


class Duration(click.ParamType[int]):
    """Seconds, written as in a manifest: 90s, 15m, 6h."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from protocol_spec import parse_duration  # noqa: PLC0415 - `health` does without it

        seconds = value if isinstance(value, int) else parse_duration(str(value))
        if not seconds:
            self.fail(f"{value!r} is not a duration such as 90s, 15m or 6h", param, ctx)
        return seconds


command: Final = command_of(SETTINGS, resolve, "collector")

CAMPAIGN: Final = click.argument("campaign", required=False)
MANIFEST: Final = click.argument("manifest", type=click.Path(path_type=Path))
ATTRIBUTE: Final = click.option("--attribute", metavar="NAME", help="Only this attribute.")
YES: Final = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
DURATION: Final = Duration()
FILE: Final = click.Path(path_type=Path)


def show(facts: Shown, as_json: bool, text: Callable[[Shown], str]) -> None:
    """Print facts as JSON or as text; our commands in it are completed, to be pasted."""
    cli.print_facts(facts, as_json, lambda given: completed(text(given)))


def confirm(question: str, yes: bool) -> None:
    """Ask, unless `--yes` was given; exit 1 if the answer is no."""
    try:
        agreed = yes or click.confirm(question, default=False, err=True)
    except click.Abort:  # nobody answered
        agreed = False
    if not agreed:
        click.echo("Nothing was changed. (--yes agrees without being asked)", err=True)
        sys.exit(1)
