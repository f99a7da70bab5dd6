"""The group that every command of `allomfree-collector` belongs to."""

from __future__ import annotations

import click

from collector.settings import SETTINGS, resolve
from protocol_spec.programs.commands import STYLE, command_of, version_option


@click.group(context_settings=STYLE)
@version_option("allomfree-collector")
def main() -> None:
    """Count what devices know without learning what any one of them knows.

    \b
    allomfree-collector plan heat.toml --devices 10000
    allomfree-collector open heat.toml
    allomfree-collector run
    allomfree-collector estimate
    """


command = command_of(main, SETTINGS, resolve, "collector")
