"""The picture of `benchmark.py soak`: what should be flat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SETTINGS: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "allomfree",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_PANELS: Final = (
    ("resident memory, MiB", "memory of the "),
    ("open files", "open files of the "),
    ("on disk, MiB", ""),
)
_COLOURS: Final = ("#0072B2", "#D55E00")


def draw(seconds: Sequence[float], series: Mapping[str, Sequence[float]], path: Path) -> None:
    """Memory, open files and sizes beside each other; what is judged is right of the line."""
    import matplotlib as mpl  # noqa: PLC0415 - half a second, for those who draw
    from matplotlib.figure import Figure  # noqa: PLC0415

    minutes = [second / 60 for second in seconds]
    names = list(series)
    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=(11.0, 3.4), layout="constrained")
        for place, axes in enumerate(figure.subplots(1, 3)):
            title, prefix = _PANELS[place]
            for name, colour in zip(names[2 * place : 2 * place + 2], _COLOURS):
                axes.plot(minutes, series[name], color=colour, label=name.removeprefix(prefix))
            _finish(axes, title, minutes)
        figure.savefig(path, metadata={"Date": None, "Creator": None})


def _finish(axes: Axes, title: str, minutes: Sequence[float]) -> None:
    axes.axvline(minutes[len(minutes) // 2], color="0.5", linewidth=0.8, linestyle=":")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("minutes")
    axes.set_title(title, loc="left", fontsize="medium")
    axes.legend(frameon=False, fontsize=7, loc="lower right")
