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
from collections.abc import Sequence
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


def notebook(tutorial: str) -> str:
    """The notebook as Jupyter keeps it."""
    cells: list[dict[str, Any]] = [_cell(HERE, code=True)]
    end = 0
    for found in BLOCK.finditer(tutorial):
        language, body = found[1], found[2]
        if language not in ("", "sh", "console", "python"):
            continue  # it stays in the text around it
        cells.append(_cell(tutorial[end : found.start()]))
        end = found.end()
        lines = body.splitlines(keepends=True)
        printed = [line for line in lines if not (language == "console" and line[:2] == "$ ")]
        if language == "console":
            typed = "".join(line[2:] for line in lines if line[:2] == "$ ")
            cells.append(_cell(BASH + typed, code=True, printed=printed))
        elif language:
            cells.append(_cell((BASH if language == "sh" else "") + body, code=True))
        else:  # the output of the block before it
            cells.pop()
            cells[-1] = _cell("".join(cells[-1]["source"]), code=True, printed=printed)
    kept = [cell for cell in [*cells, _cell(tutorial[end:])] if "".join(cell["source"]).strip()]
    made = {
        "cells": [{**cell, "id": f"cell-{i}"} for i, cell in enumerate(kept)],
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(made, ensure_ascii=False, indent=1) + "\n"


def _cell(source: str, *, code: bool = False, printed: Sequence[str] = ()) -> dict[str, Any]:
    """Text, or a program with its output."""
    lines = source.strip("\n").splitlines(keepends=True)
    if not code:
        return {"cell_type": "markdown", "metadata": {}, "source": lines}
    stream = {"name": "stdout", "output_type": "stream", "text": list(printed)}
    outputs = [stream] if printed else []
    more = {"execution_count": None, "outputs": outputs}
    return {"cell_type": "code", "metadata": {}, "source": lines, **more}


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
