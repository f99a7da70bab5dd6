"""QR codes read by a decoder that shares no code with the encoder."""

from __future__ import annotations

import numpy as np
import zxingcpp


def read_code(squares: list[list[int]]) -> str:
    """What a camera would see of them, read; 1 is dark."""
    picture = np.kron(255 * (1 - np.array(squares, dtype=np.uint8)), np.ones((4, 4), np.uint8))
    (found,) = zxingcpp.read_barcodes(picture)
    assert found.format is zxingcpp.BarcodeFormat.QRCode
    return str(found.text)


def squares_of(lines: list[str]) -> list[list[int]]:
    """Two rows of squares from each line of half blocks."""
    halves = {" ": (0, 0), "▀": (1, 0), "▄": (0, 1), "█": (1, 1)}
    return [[halves[c][half] for c in line] for line in lines for half in (0, 1)]
