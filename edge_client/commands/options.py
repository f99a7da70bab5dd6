"""The decorator that makes a command, and the arguments that several commands take."""

from __future__ import annotations

from typing import Final

import click

from edge_client.settings import SETTINGS, resolve
from protocol_spec.programs.commands import command_of

command: Final = command_of(SETTINGS, resolve, "edge")

CAMPAIGN: Final = click.argument("campaign", required=False)
