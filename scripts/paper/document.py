"""`docs/reproduction.md`, written in full from the comparisons: nothing in it is typed by hand.

It holds no date, no path and no time, so running the command again changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paper import gains_report, variance_report
from paper.gains import Comparison
from paper.printed_gains import RUNS
from paper.variance import Comparison as VarianceComparison

_FIGURES = {
    "variance": "Variance of the unary protocols (the paper's Fig. `analysis_var`)",
    "nursery": "Nursery (`results_nursery`)",
    "adult": "Adult (`results_adults`)",
    "ms-fimu": "MS-FIMU (`results_vhs`)",
    "census-income": "Census-Income (`results_census`)",
}
_REMARK = """\
Each has the two panels of the paper's. Both axes' quantities are the paper's too; the exact
calibration with the projection is added. On Nursery, where most values are frequent, L-SUE has less
error than L-OSUE at large budgets although its variance in the first figure is larger: that figure,
as the paper's, is about a value that nobody holds.
"""


def compose(
    tables: Sequence[VarianceComparison],
    comparisons: Sequence[Comparison],
    pictures: Sequence[Path],
    seed: int,
) -> str:
    """The whole document; `pictures` are paths as seen from where it stands."""
    parts = [
        _opening(comparisons[0].runs, seed),
        _method(),
        "## Accuracy gains\n",
        gains_report.as_markdown(comparisons, seed),
        f"\n## Figures\n\n{_REMARK}",
        *(_figure(picture) for picture in pictures),
        "## Variance tables\n",
        variance_report.as_markdown(tables),
    ]
    return "\n".join(parts) + "\n"


def _opening(runs: int, seed: int) -> str:
    return f"""\
# The paper, computed again

This page was written by `allomfree-sim reproduce-paper all --runs {runs} --seed {seed}`. Do not
edit it: run the command again, which gives the same page.

The paper is Arcolezi, Couchot, Al Bouna and Xiao, "Improving the utility of locally differentially
private protocols for longitudinal and multidimensional frequency estimates". Its two variance
tables follow from closed forms, so they are compared digit by digit. Its two tables of accuracy
gains are averages over {RUNS} random runs, so they are compared in standard deviations. Beside each
of the paper's numbers stands what this project gets at the same eps_inf and eps_1.
"""


def _method() -> str:
    legend = "\n".join(f"| {name} | {text} |" for name, text in gains_report.LEGEND.items())
    return f"""\
## How the gains were measured

One run: the n devices of a data set are split into d groups of equal size, each group reports one
attribute once, and MSE_avg is the mean over the attributes of the mean squared error over their
values. A gain is 1 - MSE_avg of ALLOMFREE / MSE_avg of L-SUE or L-OUE, both averaged over the runs.

The printed numbers come out only with what the authors' code does and the paper's text leaves out:
negative estimates are set to 0 and the rest are divided by their sum. The column "rms z, text only"
shows how far off the unbiased estimates of the text would be. The projection on the simplex, which
collectors of this project publish, replaces that step in the column "both". It gains most where
many values are rare; on Nursery, whose attributes are nearly uniform, the calibration does it all.

Reports are drawn as counts (hypergeometric, binomial, multinomial); for each attribute they have
exactly the distribution that simulating every device would give. The counts of Census-Income are
those of its test split, scaled to the full number of rows: its numbers of rows, attributes and
values are the paper's, its frequencies are only close to them.

| column | meaning |
| --- | --- |
{legend}
"""


def _figure(picture: Path) -> str:
    caption = _FIGURES[picture.stem.removeprefix("paper-")]
    return f"![{caption}]({picture.as_posix()})\n"
