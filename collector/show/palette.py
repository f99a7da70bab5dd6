"""The colours of every figure: the page's, those of files, and what matplotlib draws.

The page's style sheet has the same ones, by day and by night, under the same names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Palette:
    """`bar` is also the band of an interval over rounds, where it is lighter by `BAND`."""

    ground: str
    panel: str
    ink: str
    quiet: str
    line: str
    accent: str
    bar: str
    interval: str
    projected: str
    pooled: str
    truth: str


LIGHT: Final = Palette(
    ground="#fbfaf8",
    panel="#ffffff",
    ink="#1f2328",
    quiet="#5b636d",
    line="#e2dfd9",
    accent="#1f5fa8",
    bar="#7fa6cf",
    interval="#1f2328",
    projected="#b4540a",
    pooled="#6b3fa0",
    truth="#0b7a4b",
)
DARK: Final = Palette(
    ground="#15181c",
    panel="#1c2026",
    ink="#e8e6e3",
    quiet="#a3abb5",
    line="#333a43",
    accent="#8bb8ee",
    bar="#4f7fb5",
    interval="#f2efea",
    projected="#f0a05a",
    pooled="#c3a2f0",
    truth="#5fd3a0",
)
BAND: Final = 0.35  # opacity of the band of a round's interval
POOLED_BAND: Final = 0.2  # of the pooled one
