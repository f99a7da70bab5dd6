"""The commands that compute the paper's results again and compare them with what it printed.

The paper: Arcolezi, Couchot, Al Bouna and Xiao, "Improving the utility of locally differentially
private protocols for longitudinal and multidimensional frequency estimates".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from paper import gains, variance
from paper.gains import HALVES, Comparison, Errors, Half
from paper.variance import VARIANCES, Cell, PrintedVariance

OUTPUT: Final = Path("reproduction")
DIRECTORY: Final = click.Path(file_okay=False, path_type=Path)
_FIGURES: Final = {
    "variance": "Variance of the unary protocols (the paper's Fig. `analysis_var`)",
    "nursery": "Nursery (`results_nursery`)",
    "adult": "Adult (`results_adults`)",
    "ms-fimu": "MS-FIMU (`results_vhs`)",
    "census-income": "Census-Income (`results_census`)",
}
# It holds no date, no path and no time: running the command again changes nothing.
_PAGE: Final = """\
# The paper's results, reproduced

Written by `allomfree-sim reproduce-paper all --runs {runs} --seed {seed} --output docs`; the same
command writes the same page.

The paper is Arcolezi, Couchot, Al Bouna and Xiao, "Improving the utility of locally differentially
private protocols for longitudinal and multidimensional frequency estimates". Its two variance
tables follow from closed forms, so they are compared digit by digit. Its two tables of accuracy
gains are averages over {printed_runs} random runs, so they are compared in standard deviations (z).

## Gains

In one run the n devices of a data set are split into d groups of equal size, and each group reports
one attribute once. A gain is 1 - MSE_avg of ALLOMFREE / MSE_avg of L-SUE or L-OUE, averaged over
the runs. Reports are drawn as counts, with exactly the distribution of simulated devices.

The printed gains need a step that is in the authors' code and not in the paper's text: negative
estimates are set to 0, and the rest are divided by their sum. "Exact" is our calibration of L-GRR;
"both" also replaces that step with the projection on the simplex, which collectors of this project
publish. It gains most where many values are rare. The counts of Census-Income are those of its test
split, scaled to the full number of rows, so its frequencies are only close to the paper's. Every
printed gain beside ours: `allomfree-sim reproduce-paper gains`, with `--json` also its z.

{gains}

## Figures

Each figure has the two panels and the axes of the paper's; the exact calibration with the
projection is added. On Nursery, where most values are frequent, L-SUE has less error than L-OSUE at
large budgets although its variance in the first figure is larger: that figure, like the paper's, is
about a value that nobody holds.

{figures}

## Variance tables

Every cell, and which printed numbers are truncated or rounded twice:
`allomfree-sim reproduce-paper variance`.

{variance}
"""


def compose(
    cells: Sequence[Cell], comparisons: Sequence[Comparison], pictures: Sequence[Path], seed: int
) -> str:
    """The whole document; `pictures` are paths relative to its directory."""
    names = [(picture, picture.stem.removeprefix("paper-")) for picture in pictures]
    return _PAGE.format(
        runs=comparisons[0].runs,
        seed=seed,
        printed_runs=gains.RUNS,
        gains="\n".join(gains.as_lines(comparisons, seed, means=True)),
        figures="\n\n".join(f"![{_FIGURES[name]}]({path.as_posix()})" for path, name in names),
        variance="\n".join(variance.summary(cells)),
    )


@dataclass(frozen=True, slots=True)
class Printed:
    """What the paper printed, and what is compared with it."""

    variances: Sequence[PrintedVariance] = VARIANCES
    halves: Sequence[Half] = HALVES

    def experiments(self, runs: int, seed: int) -> dict[Half, list[Errors]]:
        """Run them all, with progress on standard error."""
        ran = {}
        for place, half in enumerate(self.halves, start=1):
            what = f"{half.data_set}, eps_1 = {half.ratio} eps_inf, {runs:,} runs"
            click.echo(f"{place} of {len(self.halves)}: {what}", err=True)
            ran[half] = gains.experiments(half, runs=runs, seed=seed)
        return ran


Command = Callable[..., None]


_AS_JSON: Final = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


def _simulation(command: Command) -> Command:
    runs = click.option(
        "--runs",
        type=click.IntRange(min=2),
        default=500,
        show_default=True,
        help="Runs of each experiment; the paper's were 100.",
    )
    seed = click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True)
    return runs(seed(command))


def _output(default: Path) -> Callable[[Command], Command]:
    text = "Directory to write to; --output docs updates a checkout's own page."
    return click.option("--output", type=DIRECTORY, default=default, show_default=True, help=text)


@click.group("reproduce-paper", context_settings={"help_option_names": ["-h", "--help"]})
@click.pass_context
def main(context: click.Context) -> None:
    """Compute the paper's results again and compare them with what it printed.

    Exit status 1 when something of the paper is not reproduced.

    \b
    Examples:
      allomfree-sim reproduce-paper variance
      allomfree-sim reproduce-paper all
    """
    context.obj = context.obj or Printed()


@main.command("variance")
@_AS_JSON
@click.pass_context
def variance_tables(context: click.Context, as_json: bool) -> None:
    """Both variance tables, cell by cell, with the exact calibration next to the paper's.

    \b
    Examples:
      allomfree-sim reproduce-paper variance | less
      allomfree-sim reproduce-paper variance --json | jq '.cells[].verdict'
    """
    cells = variance.compare(context.obj.variances)
    done = variance.reproduced(cells)
    if as_json:
        facts = {"n": variance.N, "reproduced": done, "cells": [cell.facts() for cell in cells]}
        click.echo(json.dumps(facts, indent=2))
    else:
        click.echo("\n".join(variance.as_lines(cells)))
    context.exit(0 if done else 1)


@main.command("gains")
@_simulation
@_AS_JSON
@click.pass_context
def gain_tables(context: click.Context, runs: int, seed: int, as_json: bool) -> None:
    """Both tables of accuracy gains on the four data sets.

    \b
    Examples:
      allomfree-sim reproduce-paper gains | less
      allomfree-sim reproduce-paper gains --runs 200 --json | jq '.halves[].rms_z'
    """
    found = [gains.compare(*pair) for pair in context.obj.experiments(runs, seed).items()]
    done = gains.reproduced(found)
    if as_json:
        how = {"runs": runs, "seed": seed, "reproduced": done}
        click.echo(json.dumps(how | {"halves": [half.facts() for half in found]}, indent=2))
    else:
        click.echo("\n".join(gains.as_lines(found, seed)))
    context.exit(0 if done else 1)


@main.command("figures")
@_simulation
@_output(OUTPUT / "pictures")
@click.pass_obj
def draw_figures(paper: Printed, runs: int, seed: int, output: Path) -> None:
    """All five figures of the paper, as SVG.

    \b
    Examples:
      allomfree-sim reproduce-paper figures
      allomfree-sim reproduce-paper figures --runs 100 --output figures
    """
    from paper import figures  # noqa: PLC0415 - matplotlib takes half a second

    for path in figures.draw_all(paper.experiments(runs, seed), output):
        click.echo(path)


@main.command("all")
@_simulation
@_output(OUTPUT)
@click.pass_context
def everything(context: click.Context, runs: int, seed: int, output: Path) -> None:
    """Every table and figure, as a page (reproduction.md) and pictures.

    \b
    Examples:
      allomfree-sim reproduce-paper all
      allomfree-sim reproduce-paper all --output docs
    """
    from paper import figures  # noqa: PLC0415 - matplotlib takes half a second

    cells = variance.compare(context.obj.variances)
    experiments = context.obj.experiments(runs, seed)
    comparisons = [gains.compare(*pair) for pair in experiments.items()]
    drawn = figures.draw_all(experiments, output / "pictures")
    page = output / "reproduction.md"
    text = compose(cells, comparisons, [path.relative_to(output) for path in drawn], seed)
    page.write_text(text, encoding="utf-8")
    for line in (*variance.summary(cells), *gains.summary(comparisons)):
        click.echo(line)
    for path in (page, *drawn):
        click.echo(f"wrote {path}")
    context.exit(0 if variance.reproduced(cells) and gains.reproduced(comparisons) else 1)
