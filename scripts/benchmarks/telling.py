"""How a benchmark tells what it measured: as text or JSON, and on the page."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

import click

from benchmarks import machine
from benchmarks.document import section, updated
from benchmarks.measurements import Measurement, as_text, facts, kept
from benchmarks.peer_environment import Peers
from testbed.processes import TestbedError

NOT_SHOWN: Final = ("in_json", "write", "peer_python")  # they change no number

AS_JSON = click.option("--json", "in_json", is_flag=True, help="Print one JSON object.")
WRITE = click.option("--write", is_flag=True, help="Write the numbers into docs/benchmarks.md.")
PEER_PYTHON = click.option(
    "--peer-python",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Python that has the other libraries, instead of a temporary environment.",
)


def tell(
    context: click.Context,
    name: str,
    measure: Callable[[], list[Measurement]],
    in_json: bool,
    write: bool,
    driver: Peers | None = None,
) -> NoReturn:
    """Measure, show, write if asked to, and end with what the limits say."""
    described, load = machine.describe(), machine.load()
    versions = driver.versions() if driver else {}
    try:
        measured = measure()
    except TestbedError as error:
        raise click.ClickException(f"{error}; nothing was written") from None
    if in_json:
        around = {"machine": described, "load": load, "peers": versions}
        click.echo(json.dumps({**facts(name, measured), **around}, ensure_ascii=False))
    else:
        click.echo(as_text(measured))
    if write:
        text = section(name, _command(context), measured, load, versions)
        page: Path = context.obj.page
        before = page.read_text(encoding="utf-8") if page.exists() else ""
        page.write_text(updated(before, described, name, text), encoding="utf-8")
    context.exit(0 if kept(measured) else 1)


def _command(context: click.Context) -> str:
    """How to measure the same again: the command with what was not left to its default."""
    words = ["python scripts/benchmark.py", str(context.info_name)]
    for option in context.command.params:
        value = context.params.get(str(option.name))
        if option.name in NOT_SHOWN or value == option.get_default(context):
            continue
        shown = value.name if isinstance(value, Path) else value  # its place is this machine's
        words += [option.opts[0]] if value is True else [option.opts[0], str(shown)]
    return " ".join(words)
