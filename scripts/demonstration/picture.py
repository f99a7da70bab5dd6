"""The demonstration's histograms: the collector's picture with the truth in it."""

from __future__ import annotations

import numpy as np

from collector.show.terminal import Bar, draw_bars
from protocol_spec import Result

CELLS = 50


def draw(result: Result, names: tuple[str, ...], true: np.ndarray) -> str:
    """One line per value, scaled to the largest number in it."""
    columns = zip(names, result.projected, result.low, result.high, true.tolist(), strict=True)
    return "\n".join(draw_bars([Bar(*column) for column in columns], cells=CELLS))
