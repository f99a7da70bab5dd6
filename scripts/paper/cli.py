"""The commands that compute the paper's results again and compare them with what it printed.

`docs/reproduction.md` is written in full from the comparisons. It holds no date, no path and no
time, so running the command again changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from paper import gains, variance
from paper.gains import Comparison, Experiment
from paper.printed import HALVES, RUNS, VARIANCES, Half, PrintedVariance
from paper.variance import Cell

_PAGES: Final = Path(__file__).resolve().parents[2] / "docs"
# A checkout's own pages are written again; elsewhere everything goes to a directory of its own.
OUTPUT: Final = _PAGES if (_PAGES / "reproduction.md").exists() else Path("reproduction")
DIRECTORY: Final = click.Path(file_okay=False, path_type=Path)
_FIGURES: Final = {
    "variance": "Variance of the unary protocols (the paper's Fig. `analysis_var`)",
    "nursery": "Nursery (`results_nursery`)",
    "adult": "Adult (`results_adults`)",
    "ms-fimu": "MS-FIMU (`results_vhs`)",
    "census-income": "Census-Income (`results_census`)",
}
_PAGE: Final = """\
# The paper's results, reproduced

This page was written by `allomfree-sim reproduce-paper all --runs {runs} --seed {seed}`. Do not
edit it: run the command again, which gives the same page.

The paper is Arcolezi, Couchot, Al Bouna and Xiao, "Improving the utility of locally differentially
private protocols for longitudinal and multidimensional frequency estimates". Its two variance
tables follow from closed forms, so they are compared digit by digit. Its two tables of accuracy
gains are averages over {printed_runs} random runs, so they are compared in standard deviations.

## How the gains were measured

In one run the n devices of a data set are split into d groups of equal size, and each group reports
one attribute once. MSE_avg is the mean over the attributes of the mean squared error over their
values. A gain is 1 - MSE_avg of ALLOMFREE / MSE_avg of L-SUE or L-OUE, both averaged over the runs.

The printed gains need a step that is in the authors' code and not in the paper's text: negative
estimates are set to 0, and the rest are divided by their sum. The column "rms z, text only" shows
how far off the unbiased estimates of the text are. In the column "both" the projection on the
simplex, which collectors of this project publish, replaces that step. It gains most where many
values are rare; on Nursery, whose attributes are nearly uniform, the calibration does it all.

Reports are drawn as counts (hypergeometric, binomial, multinomial), with exactly the distribution
that simulating every device would give for each attribute. The counts of Census-Income are those of
its test split, scaled to the full number of rows: rows, attributes and values are as many as in the
paper, but the frequencies are only close to its own.

| column | meaning |
| --- | --- |
{legend}

## Gains

{gains}

## Figures

Each figure has the two panels and the axes of the paper's; the exact calibration with the
projection is added. On Nursery, where most values are frequent, L-SUE has less error than L-OSUE at
large budgets although its variance in the first figure is larger: that figure, like the paper's, is
about a value that nobody holds.

{figures}

## Variance tables

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
        printed_runs=RUNS,
        legend="\n".join(f"| {name} | {text} |" for name, text in gains.LEGEND.items()),
        gains="\n".join(gains.as_lines(comparisons, seed, markdown=True)),
        figures="\n\n".join(f"![{_FIGURES[name]}]({path.as_posix()})" for path, name in names),
        variance="\n".join(variance.as_lines(cells, markdown=True)),
    )


@dataclass(frozen=True, slots=True)
class Printed:
    """What the paper printed, and what is compared with it."""

    variances: Sequence[PrintedVariance] = VARIANCES
    halves: Sequence[Half] = HALVES

    def experiments(self, runs: int, seed: int) -> list[Experiment]:
        """Run them all, with progress on standard error."""
        ran: list[Experiment] = []
        for place, half in enumerate(self.halves, start=1):
            what = f"{half.data_set}, eps_1 = {half.ratio} eps_inf, {runs:,} runs"
            click.echo(f"{place} of {len(self.halves)}: {what}", err=True)
            ran += gains.experiments(half, runs=runs, seed=seed)
        return ran


Command = Callable[..., None]


def _form(command: Command) -> Command:
    json = click.option("--json", "file_format", flag_value="json", help="Print one JSON object.")
    markdown = click.option(
        "--markdown", "file_format", flag_value="markdown", help="Print Markdown tables."
    )
    return json(markdown(command))


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


@click.group("reproduce-paper", context_settings={"help_option_names": ["-h", "--help"]})
@click.pass_context
def main(context: click.Context) -> None:
    """Compute the paper's results again and compare them with what it printed.

    \b
    Examples:
      allomfree-sim reproduce-paper variance
      allomfree-sim reproduce-paper all
    """
    context.obj = context.obj or Printed()


@main.command("variance")
@_form
@click.pass_context
def variance_tables(context: click.Context, file_format: str | None) -> None:
    """Both variance tables, cell by cell.

    The exact calibration is shown next to the paper's. Exit status 1 when a printed number cannot
    be explained.

    \b
    Examples:
      allomfree-sim reproduce-paper variance | less
      allomfree-sim reproduce-paper variance --json | jq '.tables[].verdicts'
    """
    cells = variance.compare(context.obj.variances)
    lines = variance.as_lines(cells, markdown=file_format == "markdown")
    click.echo(variance.as_json(cells) if file_format == "json" else "\n".join(lines))
    context.exit(0 if variance.reproduced(cells) else 1)


@main.command("gains")
@_simulation
@_form
@click.pass_context
def gain_tables(context: click.Context, runs: int, seed: int, file_format: str | None) -> None:
    """Both tables of accuracy gains on the four data sets.

    The exact calibration, and that with the projection, are shown next to the paper's. Exit status
    1 when a half table does not agree with the printed one or is not improved upon.

    \b
    Examples:
      allomfree-sim reproduce-paper gains | less
      allomfree-sim reproduce-paper gains --runs 200 --json | jq '.halves[].rms_z'
    """
    comparisons = gains.compare_all(context.obj.experiments(runs, seed), context.obj.halves)
    lines = gains.as_lines(comparisons, seed, markdown=file_format == "markdown")
    click.echo(gains.as_json(comparisons, seed) if file_format == "json" else "\n".join(lines))
    context.exit(0 if gains.reproduced(comparisons) else 1)


@main.command("figures")
@_simulation
@click.option("--format", "file_format", type=click.Choice(["svg", "png"]), default="svg")
@click.option(
    "--output",
    type=DIRECTORY,
    default=OUTPUT / "pictures",
    help=f"Directory to write to.  [default: {OUTPUT.name}/pictures]",
)
@click.pass_obj
def draw_figures(paper: Printed, runs: int, seed: int, file_format: str, output: Path) -> None:
    """All five figures of the paper, as SVG or PNG.

    \b
    Examples:
      allomfree-sim reproduce-paper figures
      allomfree-sim reproduce-paper figures --runs 100 --format png --output figures
    """
    from paper import figures  # noqa: PLC0415 - matplotlib takes half a second

    for path in figures.draw_all(paper.experiments(runs, seed), output, file_format):
        click.echo(path)


@main.command("all")
@_simulation
@click.option(
    "--output",
    type=DIRECTORY,
    default=OUTPUT,
    help=f"Directory for reproduction.md and pictures/.  [default: {OUTPUT.name}]",
)
@click.pass_context
def everything(context: click.Context, runs: int, seed: int, output: Path) -> None:
    """Every table and figure, as a page (reproduction.md) and pictures.

    Exit status 1 when something of the paper is not reproduced.

    \b
    Example:
      allomfree-sim reproduce-paper all
    """
    from paper import figures  # noqa: PLC0415 - matplotlib takes half a second

    cells = variance.compare(context.obj.variances)
    experiments = context.obj.experiments(runs, seed)
    comparisons = gains.compare_all(experiments, context.obj.halves)
    drawn = figures.draw_all(experiments, output / "pictures")
    page = output / "reproduction.md"
    text = compose(cells, comparisons, [path.relative_to(output) for path in drawn], seed)
    page.write_text(text, encoding="utf-8")
    for line in (*variance.summary(cells), *gains.summary(comparisons)):
        click.echo(line)
    for path in (page, *drawn):
        click.echo(f"wrote {path}")
    context.exit(0 if variance.reproduced(cells) and gains.reproduced(comparisons) else 1)
