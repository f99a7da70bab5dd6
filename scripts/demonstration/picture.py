"""Histograms in the terminal: a bar for the estimate, brackets for its interval, a dot: truth."""

from __future__ import annotations

import numpy as np

from protocol_spec import Result

WIDTH = 50


def draw(result: Result, names: tuple[str, ...], true: np.ndarray) -> str:
    """One line per value, scaled to the largest upper end."""
    scale = max(*result.high, float(true.max()), 1e-9)
    label = max(len(name) for name in names)
    lines = [
        _line(names[i].ljust(label), scale, result.projected[i], result.low[i], result.high[i], t)
        for i, t in enumerate(true.tolist())
    ]
    return "\n".join(lines)


def _line(name: str, scale: float, bar: float, low: float, high: float, true: float) -> str:
    cells = [" "] * (WIDTH + 1)
    for x in range(_at(bar, scale) + 1):
        cells[x] = "█" if bar > 0 else " "
    for x in range(_at(low, scale), _at(high, scale) + 1):
        cells[x] = cells[x] if cells[x] == "█" else "─"
    cells[_at(low, scale)], cells[_at(high, scale)] = "[", "]"
    cells[_at(true, scale)] = "●"
    return f"  {name}  {''.join(cells)}  {100 * bar:5.1f} %  true {100 * true:5.1f} %"


def _at(share: float, scale: float) -> int:
    return max(0, min(WIDTH, round(share / scale * WIDTH)))
