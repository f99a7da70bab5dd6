#!/usr/bin/env python3
"""The tutorial as a notebook: docs/tutorial.ipynb, made of docs/tutorial.md.

python scripts/tutorial_notebook.py          write it
python scripts/tutorial_notebook.py --check  only compare

A block of `sh` or `console` becomes a cell of bash, one of `python` a cell of Python; a block
without a language after one of them is its output. `[...]` marks what may differ. Blocks of
`sh for-real` stay text: they are for a campaign with devices.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import needs  # noqa: F401 - first: it explains what is not installed

# isort: split
import click

ROOT: Final = Path(__file__).resolve().parents[1]
TUTORIAL: Final = ROOT / "docs" / "tutorial.md"
NOTEBOOK: Final = ROOT / "docs" / "tutorial.ipynb"
BLOCK: Final = re.compile(r"(?ms)^```([^\n]*)\n(.*?)^```\n")
BASH: Final = "%%bash\n"
HERE: Final = "%cd -q .."  # a notebook runs in docs/, the tutorial in the directory above


@dataclass(frozen=True, slots=True)
class Cell:
    """Text, or a program with its output."""

    source: str
    code: bool = False
    printed: str = ""


def cells(tutorial: str) -> list[Cell]:
    """The tutorial as cells; a block of output belongs to the one before it."""
    made: list[Cell] = [Cell(HERE, code=True)]
    for cell in _pieces(tutorial):
        if cell.code and not cell.source:
            made[-1] = replace(made[-1], printed=cell.printed)
        elif cell.source.strip():
            made.append(cell)
    return made


def _pieces(tutorial: str) -> Iterator[Cell]:
    end = 0
    for found in BLOCK.finditer(tutorial):
        language, body = found[1], found[2]
        if language not in ("", "sh", "console", "python"):
            continue  # it stays in the text around it
        yield Cell(tutorial[end : found.start()])
        end = found.end()
        yield _block(language, body)
    yield Cell(tutorial[end:])


def _block(language: str, body: str) -> Cell:
    if language == "console":
        lines = body.splitlines(keepends=True)
        commands = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        printed = [line for line in lines if not line.startswith("$ ")]
        return Cell(BASH + "".join(commands), code=True, printed="".join(printed))
    if language == "":
        return Cell("", code=True, printed=body)
    return Cell((BASH if language == "sh" else "") + body, code=True)


def notebook(tutorial: str) -> str:
    """The notebook as Jupyter keeps it."""
    made = {
        "cells": [_as_json(i, cell) for i, cell in enumerate(cells(tutorial))],
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(made, ensure_ascii=False, indent=1) + "\n"


def _as_json(number: int, cell: Cell) -> dict[str, Any]:
    lines = cell.source.strip("\n").splitlines(keepends=True)
    head: dict[str, Any] = {"id": f"cell-{number}", "metadata": {}, "source": lines}
    if not cell.code:
        return {"cell_type": "markdown", **head}
    printed = cell.printed.splitlines(keepends=True)
    stream = {"name": "stdout", "output_type": "stream", "text": printed}
    outputs = [stream] if printed else []
    return {"cell_type": "code", "execution_count": None, **head, "outputs": outputs}


@click.command(help=__doc__)
@click.option("--check", is_flag=True, help="Write nothing; fail if it would change.")
def main(check: bool) -> None:
    made = notebook(TUTORIAL.read_text(encoding="utf-8"))
    there = NOTEBOOK.read_text(encoding="utf-8") if NOTEBOOK.exists() else ""
    if check and made != there:
        raise click.ClickException(
            f"{NOTEBOOK} differs from {TUTORIAL}; nothing was written. Run this without --check"
        )
    if not check:
        NOTEBOOK.write_text(made, encoding="utf-8")
        click.echo(f"wrote {NOTEBOOK}")


if __name__ == "__main__":
    main()
