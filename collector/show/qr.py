"""A link as a QR code: for a terminal, and as a picture on a page.

The code has its quiet zone of four modules, and black stands on white whatever the colours of
terminal or page are: many readers do not see one that is the other way round.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Final

BORDER: Final = 4
DARK_ON_LIGHT: Final = "\x1b[30m\x1b[47m"
AS_BEFORE: Final = "\x1b[0m"
HALVES: Final = {(0, 0): " ", (1, 0): "▀", (0, 1): "▄", (1, 1): "█"}


def modules(text: str) -> list[list[int]]:
    """The code's squares with the white around them; 1 is dark."""
    import segno  # noqa: PLC0415 - only when a code is drawn

    code = segno.make_qr(text, error="m", boost_error=False)
    return [[int(dark) for dark in row] for row in code.matrix_iter(border=BORDER)]


def terminal_code(text: str, *, colours: bool) -> str:
    """Two rows of squares in one line of half blocks; with colours, in black on white."""
    rows = modules(text)
    nothing = [0] * len(rows)
    lines = [
        "".join(HALVES[upper, lower] for upper, lower in zip(above, below, strict=True))
        for above, below in zip_longest(rows[::2], rows[1::2], fillvalue=nothing)
    ]
    if not colours:
        return "\n".join(lines)
    return "\n".join(f"{DARK_ON_LIGHT}{line}{AS_BEFORE}" for line in lines)


def svg_code(text: str, title: str) -> str:
    """The same as a picture without script or style; `title` is ours and needs no escaping."""
    rows = modules(text)
    size = len(rows)
    path = "".join(
        f"M{x} {y}h1v1h-1z" for y, row in enumerate(rows) for x, dark in enumerate(row) if dark
    )
    return (
        f'<svg class="code" viewBox="0 0 {size} {size}" width="{4 * size}" height="{4 * size}" '
        f'role="img" aria-label="{title}" shape-rendering="crispEdges">'
        f'<rect width="{size}" height="{size}" fill="#fff"/><path fill="#000" d="{path}"/></svg>'
    )
