"""The decorator that makes a command, and the arguments that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from collector.settings import SETTINGS, resolve
from protocol_spec.programs.commands import command_of

command: Final = command_of(SETTINGS, resolve, "collector")

CAMPAIGN: Final = click.argument("campaign", required=False)
MANIFEST: Final = click.argument("manifest", type=click.Path(path_type=Path))
ATTRIBUTE: Final = click.option("--attribute", metavar="NAME", help="Only this attribute.")
FILE: Final = click.Path(path_type=Path)
