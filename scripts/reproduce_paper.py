"""Compute the paper's results again and compare them with what it printed."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import click

if find_spec("protocol_spec") is None:  # a checkout that is not installed
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from paper import variance, variance_report


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Compute the paper's results again and compare them with what it printed.

    \b
    Example:
      python scripts/reproduce_paper.py variance
    """


@main.command("variance")
@click.option("--json", "form", flag_value="json", help="Print one JSON object.")
@click.option("--markdown", "form", flag_value="markdown", help="Print Markdown tables.")
@click.pass_context
def variance_tables(context: click.Context, form: str | None) -> None:
    """Both variance tables, cell by cell.

    The exact calibration stands beside the paper's. Exit status 1 when a printed number cannot be
    explained.

    \b
    Examples:
      python scripts/reproduce_paper.py variance | less
      python scripts/reproduce_paper.py variance --json | jq '.tables[].verdicts'
    """
    comparisons = variance.compare_all()
    click.echo(variance_report.FORMS[form or "text"](comparisons))
    context.exit(0 if variance.reproduced(comparisons) else 1)


if __name__ == "__main__":
    main()
