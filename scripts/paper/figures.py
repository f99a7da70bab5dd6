"""The paper's five figures drawn again, each as two panels: eps_1 = 0.3 and 0.6 eps_inf.

The first is the variance of the four unary protocols; the other four are the errors measured on
the data sets, with the exact calibration and projection added to the paper's five. The same numbers
always give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paper.gains import HALVES, Errors, Half
from paper.variance import N
from protocol_spec import calibrate
from simulation.population import NAMES, Dataset, load

RATIOS: Final = ("0.3", "0.6")
BUDGETS: Final = tuple(map(float, HALVES[0].budgets))

Series = Mapping[str, Sequence[float]]

# Colours for any colour vision (Okabe and Ito), repeated by markers and dashes. Several curves
# nearly coincide: open markers show both.
_STYLES: Final[Mapping[str, dict[str, Any]]] = {
    "L-OUE": {"color": "#D55E00", "marker": "d", "linestyle": (0, (5, 2))},
    "L-SUE": {"color": "#000000", "marker": "D", "linestyle": (0, (4, 2, 1, 2))},
    "L-SOUE": {"color": "#CC79A7", "marker": "s", "linestyle": (0, (1, 1))},
    "L-OSUE": {"color": "#56B4E9", "marker": ">", "linestyle": (0, (3, 1))},
    "ALLOMFREE": {"color": "#0072B2", "marker": "o", "linestyle": "-"},
    "exact + projection": {"color": "#009E73", "marker": "*", "linestyle": "-"},
}
_LABELS: Final = {
    "ALLOMFREE": "ALLOMFREE (paper)",
    "exact + projection": "ALLOMFREE (exact + projection)",
}
_UNARY: Final = ("L-OUE", "L-SUE", "L-SOUE", "L-OSUE")
SETTINGS: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",  # text stays text: small, and it can be searched and read aloud
    "svg.hashsalt": "allomfree",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana"],  # the same width, for who lacks the first
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


@contextmanager
def drawing(
    path: Path, size: tuple[float, float], settings: Mapping[Any, Any] | None = None
) -> Iterator[Figure]:
    """A figure that is written to the path at the end, without the date and the versions that the
    libraries would write into the file."""
    with mpl.rc_context({**SETTINGS, **(settings or {})}):
        figure = Figure(figsize=size, layout="constrained")
        yield figure
        figure.savefig(path, metadata={"Date": None, "Creator": None})


def draw_all(experiments: Mapping[Half, Sequence[Errors]], directory: Path) -> list[Path]:
    """Write every figure whose experiments are there, and the variance; return the paths."""
    directory.mkdir(parents=True, exist_ok=True)
    title = f"Variance of an estimated frequency, n = {N:,}, f = 0"
    variances: dict[str, Series] = {ratio: _variances(ratio) for ratio in RATIOS}
    pages = [("variance", title, "variance", variances)]
    for name in NAMES:
        panels: dict[str, Series] = {
            half.ratio: {arm: [float(x[arm].mean()) for x in ran] for arm in _STYLES}
            for half, ran in experiments.items()
            if half.data_set == name
        }
        if panels:
            runs = next(ran[0]["ALLOMFREE"].size for ran in experiments.values())
            title = f"{_described(load(name))}, mean of {runs:,} runs"
            pages.append((name.replace("_", "-"), title, "MSE_avg", panels))
    paths = []
    for name, title, quantity, panels in pages:
        paths.append(directory / f"paper-{name}.svg")
        with drawing(paths[-1], (6.4, 7.0)) as figure:
            _two_panels(figure, title, quantity, panels)
    return paths


def _variances(ratio: str) -> Series:
    """Closed forms of the unary protocols, which do not depend on the number of values."""
    return {
        protocol: [
            calibrate(protocol, k=2, eps_inf=eps_inf, eps_1=float(ratio) * eps_inf).variance(N)
            for eps_inf in BUDGETS
        ]
        for protocol in _UNARY
    }


def _described(data: Dataset) -> str:
    approximate = ", scaled counts" if data.note.startswith("Approximate") else ""
    return f"{data.title} (n = {data.n:,}, d = {len(data.attributes)}{approximate})"


def _two_panels(figure: Figure, title: str, quantity: str, panels: Mapping[str, Series]) -> None:
    figure.suptitle(title, fontsize="medium", fontweight="bold")
    axes: Sequence[Axes] = figure.subplots(len(panels), 1, sharex=True)
    for panel, (ratio, series) in zip(axes, panels.items(), strict=True):
        _curves(panel, series)
        panel.set(ylabel=quantity, yscale="log")
        panel.yaxis.set_major_formatter("{x:g}")  # plain text: no raised exponents in the SVG
        panel.set_title(f"eps_1 = {ratio} eps_inf", loc="left", fontsize="medium")
    axes[-1].set(xlabel="eps_inf", xticks=BUDGETS)
    axes[0].legend(frameon=False)
    figure.align_ylabels()


def _curves(panel: Axes, series: Series) -> None:
    for name, values in series.items():
        panel.plot(
            BUDGETS,
            values,
            label=_LABELS.get(name, name),
            linewidth=1.4,
            markersize=7,
            markerfacecolor="none",
            **_STYLES[name],
        )
    panel.grid(color="0.9", linewidth=0.6)
