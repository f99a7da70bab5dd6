"""The picture of `benchmark.py accuracy`: what each way of reporting is good at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.accuracy import Budget, Ratio

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STYLES: Final[dict[str, dict[str, Any]]] = {
    "memoized": {"color": "#0072B2", "marker": "o"},
    "memoized, 1 value": {"color": "#0072B2", "marker": "o"},
    "memoized, 3 values": {"color": "#56B4E9", "marker": "v"},
    "nested": {"color": "#009E73", "marker": "*"},
    "once": {"color": "#D55E00", "marker": "s"},
    "hashed": {"color": "#CC79A7", "marker": "D"},
}
_SETTINGS: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "allomfree",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


@dataclass(slots=True)
class Drawn:
    """What is drawn, gathered while it is measured."""

    static: dict[tuple[str, int, Budget], Ratio] = field(default_factory=dict)
    changing: dict[tuple[str, int, Budget], float] = field(default_factory=dict)  # points
    peer: dict[tuple[bool, Budget], float] = field(default_factory=dict)  # points


def draw(drawn: Drawn, path: Path) -> None:
    """Values that stay on the left, values that change on the right."""
    import matplotlib as mpl  # noqa: PLC0415 - half a second, for those who draw
    from matplotlib.figure import Figure  # noqa: PLC0415

    budgets = list(dict.fromkeys(budget for *_, budget in drawn.changing))
    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=(11.0, 3.9), layout="constrained")
        left, *rest = figure.subplots(1, 1 + len(budgets), squeeze=False)[0]
        _static(left, drawn)
        for axes, budget in zip(rest, budgets):
            _changing(axes, drawn, budget)
        figure.savefig(path, metadata={"Date": None, "Creator": None})


def _static(axes: Axes, drawn: Drawn) -> None:
    lines: dict[tuple[str, int], dict[Budget, float]] = {}
    for (way, rounds, budget), ratio in drawn.static.items():
        lines.setdefault((way, rounds), {})[budget] = ratio.value
    for (way, rounds), found in lines.items():
        style = {**_STYLES[way], **({"linestyle": ":", "mfc": "none"} if rounds == 1 else {})}
        label = f"{way}, {rounds} round{'s' * (rounds > 1)}"
        axes.plot([_short(budget) for budget in found], list(found.values()), label=label, **style)
    axes.axhline(1.0, color="0.5", linewidth=0.8)
    over_theirs = "MSE / multi-freq-ldpy's ALLOMFREE"
    axes.set(yscale="log", xlabel="(eps_inf, eps_1)", ylabel=over_theirs)
    _ticks(axes, (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0))
    axes.set_title("Adult: values that stay", loc="left", fontsize="medium")
    axes.legend(frameon=False, fontsize=7, loc="upper center", ncols=2)


def _changing(axes: Axes, drawn: Drawn, budget: Budget) -> None:
    lines: dict[str, dict[int, float]] = {}
    for (name, window, at), points in drawn.changing.items():
        if at == budget:
            lines.setdefault(name, {})[window] = points
    for name, found in lines.items():
        axes.plot([str(w) for w in found], list(found.values()), label=name, **_STYLES[name])
    if (False, budget) in drawn.peer:
        theirs = drawn.peer[False, budget]
        axes.plot(["1"], [theirs], "kx", label="multi-freq-ldpy's LOLOHA")
    axes.set(yscale="log", xlabel="days in a window", ylabel="error, points")
    _ticks(axes, (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0))
    title = f"8 changes a year, {_short(budget)}"
    axes.set_title(title, loc="left", fontsize="medium")
    axes.legend(frameon=False, fontsize=7, loc="upper right")


def _ticks(axes: Axes, places: Sequence[float]) -> None:
    """Plain numbers; the highest leave room for the legend."""
    axes.set_yticks(places, [f"{place:g}" for place in places])
    axes.minorticks_off()
    axes.set_ylim(0.8 * places[0], places[-1])


def _short(budget: Budget) -> str:
    return f"({budget.eps_inf:g}, {budget.eps_1:g})"
