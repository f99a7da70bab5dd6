"""Figures in the terminal: histograms and QR codes.

A bar is the raw estimate, brackets its interval, a dot the truth. A QR code has its quiet zone of
four modules, and is black on white whatever the colours of the terminal: many readers do not see
an inverted one.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, zip_longest
from typing import Final, TextIO

import click

from collector.charts import Bar
from collector.results.facts import ResultFacts
from collector.results.words import heading, withheld_text

NARROWEST: Final = 10
SHORTEST_LABEL: Final = 6
LONGEST_LABEL: Final = 0.35  # of the width


@dataclass(frozen=True, slots=True)
class Ink:
    """The characters of a picture and whether they have colours."""

    bar: str = "█"
    line: str = "─"
    true: str = "●"
    between: str = "…"
    colour: bool = False

    def write(self, text: str) -> str:
        """A text as far as it can be written; where only ASCII can, the rest are question marks."""
        return text.encode("ascii", "replace").decode() if self.bar.isascii() else text

    def paint(self, cells: Sequence[str]) -> str:
        """The cells as text, runs of a kind in their colour."""
        if not self.colour:
            return "".join(cells)
        colours = {self.bar: "blue", self.true: "yellow"}
        runs = (("".join(run), colours.get(cell)) for cell, run in groupby(cells))
        return "".join(click.style(text, fg=fg) if fg else text for text, fg in runs)


UNICODE: Final = Ink()
ASCII: Final = Ink("#", "-", "o", "to")


def ink_of(stream: TextIO, environ: Mapping[str, str]) -> Ink:
    """What a stream can show: ASCII unless it is UTF-8, colours only where somebody looks."""
    encoding = (stream.encoding or "ascii").lower().replace("-", "")
    colour = stream.isatty() and not environ.get("NO_COLOR")
    return replace(UNICODE if encoding == "utf8" else ASCII, colour=colour)


def plot_text(
    facts: ResultFacts, *, width: int, ink: Ink = UNICODE, true: Sequence[float] | None = None
) -> str:
    """One result as a picture that is no wider than the terminal."""
    lines = heading(facts)
    if facts["withheld"]:
        return "\n".join(
            ink.write(line) for line in [*lines, f"  {withheld_text(facts)}; withheld"]
        )
    truths: Sequence[float | None] = true or [None] * len(facts["histogram"])
    bars = [
        Bar(ink.write(row["value"]), row["raw"], row["low"], row["high"], t)
        for row, t in zip(facts["histogram"], truths, strict=True)
    ]
    space = width - 5 - _columns(_numbers(bars[0], ink))  # for names and bars
    longest = min(int(LONGEST_LABEL * width), max(SHORTEST_LABEL, space - NARROWEST))
    label = min(longest, max(_columns(bar.name) for bar in bars))
    drawn = draw_bars(bars, cells=max(NARROWEST, space - label), label=label, ink=ink)
    return "\n".join([*map(ink.write, lines), *drawn, "", f"  {_legend(ink, true is not None)}"])


def draw_bars(
    bars: Sequence[Bar], *, cells: int, label: int | None = None, ink: Ink = UNICODE
) -> list[str]:
    """A line for each bar, all scaled to the largest number among them."""
    scale = max(1e-9, *(max(bar.high, bar.raw, bar.true or 0.0) for bar in bars))
    label = label or max(_columns(bar.name) for bar in bars)
    return [
        f"  {ink.write(_padded(bar.name, label))}  {ink.paint(_cells(bar, scale, cells, ink))}"
        f"{_numbers(bar, ink)}"
        for bar in bars
    ]


def _cells(bar: Bar, scale: float, width: int, ink: Ink) -> list[str]:
    def at(share: float) -> int:
        return max(0, min(width, round(share / scale * width)))

    cells = [" "] * (width + 1)
    for x in range(at(bar.raw) + 1 if bar.raw > 0 else 0):
        cells[x] = ink.bar
    for x in range(at(bar.low), at(bar.high) + 1):
        cells[x] = cells[x] if cells[x] == ink.bar else ink.line
    cells[at(bar.low)], cells[at(bar.high)] = "[", "]"
    if bar.true is not None:
        cells[at(bar.true)] = ink.true
    return cells


def _numbers(bar: Bar, ink: Ink) -> str:
    more = f"{100 * bar.low:5.1f} {ink.between} {100 * bar.high:5.1f}"
    if bar.true is not None:
        more = f"true {100 * bar.true:5.1f} %"
    return f"  {100 * bar.raw:5.1f} %  {more}"


def _legend(ink: Ink, with_truth: bool) -> str:
    truth = f"   {ink.true} truth of the simulation" if with_truth else ""
    return f"{ink.bar} raw estimate   [ ] 95 % interval{truth}"


def _columns(text: str) -> int:
    """Columns of a terminal that a text takes: letters of some scripts take two."""
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide - sum(unicodedata.combining(letter) > 0 for letter in text)


def _padded(name: str, label: int) -> str:
    kept = name
    while _columns(kept) > label:
        kept = kept.removesuffix("…")[:-1] + "…"
    return kept + " " * (label - _columns(kept))


# --- QR codes -----------------------------------------------------------------------------------


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
