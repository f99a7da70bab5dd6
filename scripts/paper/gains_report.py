"""The comparison of the accuracy gains as plain text, as Markdown and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from textwrap import wrap
from typing import Final

from paper.gains import LARGEST_RMS_Z, Cell, Comparison, reproduced
from paper.printed_gains import REFERENCES, RUNS, Half
from simulation.model.datasets import load

_COLUMNS: Final = ("printed", "ours", "sd", "z", "exact", "both")
_HEADER: Final = ("eps_inf", *_COLUMNS, *_COLUMNS)
_FIELD: Final = "{:>7} {:>6} {:>5} {:>5} {:>6} {:>6}"
_LINE: Final = "  {:<7}  " + _FIELD + "   " + _FIELD

LEGEND: Final = {
    "printed": "the gain in the paper, in percent: 1 - MSE of ALLOMFREE / MSE of the other",
    "ours": "the same measured again with the authors' pipeline",
    "sd": f"standard deviation that the gain has in an experiment of {RUNS} runs, as the paper's",
    "z": "printed - ours, in standard deviations of that difference",
    "exact": "our gain when ALLOMFREE uses the exact calibration of L-GRR",
    "both": "our gain with the exact calibration and the projection on the simplex",
}

_SUMMARY: Final = (
    "data set",
    "eps_1/eps_inf",
    "rms z",
    "largest z",
    "rms z, text only",
    "error, exact",
    "error, both",
)
_SUMMARY_LINE: Final = "{:<13}  {:>13}  {:>5}  {:>9}  {:>16}  {:>12}  {:>11}"
SUMMARY_LEGEND: Final = {
    "rms z": f"root mean square of the 16 z; {LARGEST_RMS_Z} or less counts as agreement",
    "rms z, text only": "the same if estimates are not clipped and renormalised: the paper's text",
    "error, exact": "MSE relative to the paper's ALLOMFREE, geometric mean over the eight budgets",
    "error, both": "the same with the projection too; below 1 is better than the paper",
}


def as_text(comparisons: Sequence[Comparison], seed: int) -> str:
    """For a terminal, at most 100 columns wide."""
    lines = [
        f"Accuracy gains of ALLOMFREE: the paper's tables against {_ran(comparisons, seed)}.",
        "",
    ]
    lines += [f"  {name:<8} {meaning}" for name, meaning in LEGEND.items()]
    for comparison in comparisons:
        lines += ["", heading(comparison.half), ""]
        lines += wrap(note(comparison.half), 98, initial_indent="  ", subsequent_indent="  ")
        lines += ["", *_text_table(comparison)]
    lines += ["", "Summary", "", *(f"  {line}" for line in summary(comparisons))]
    return "\n".join(line.rstrip() for line in lines)


def summary(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """One line for each half table, what its columns mean, and what follows."""
    header, *rows = (_SUMMARY_LINE.format(*fields) for fields in _summary_rows(comparisons))
    yield from (header, "-" * len(header), *rows, "")
    yield from (f"{name:<16} {meaning}" for name, meaning in SUMMARY_LEGEND.items())
    yield from ("", *conclusions(comparisons))


def _text_table(comparison: Comparison) -> Iterator[str]:
    over = [f"over {reference}" for reference in REFERENCES]
    yield "  {:<7}  {:<40}   {}".format("", *over)
    header = _LINE.format(*_HEADER)
    yield header
    yield "  " + "-" * (len(header) - 2)
    yield from (_LINE.format(*fields) for fields in _fields(comparison))


def as_markdown(comparisons: Sequence[Comparison], seed: int) -> str:
    """The same tables and summary, for a document."""
    lines = [f"From {_ran(comparisons, seed)}:", ""]
    lines += [*(f"- {line}" for line in conclusions(comparisons)), ""]
    lines += [*_markdown_table(_summary_rows(comparisons)), ""]
    lines += [f"- {name}: {meaning}" for name, meaning in SUMMARY_LEGEND.items()]
    for comparison in comparisons:
        lines += ["", f"### {heading(comparison.half)}", "", note(comparison.half), ""]
        over = [(f"{reference}: printed", *_COLUMNS[1:]) for reference in REFERENCES]
        lines += _markdown_table(chain([("eps_inf", *over[0], *over[1])], _fields(comparison)))
    return "\n".join(lines)


def as_json(comparisons: Sequence[Comparison], seed: int) -> str:
    """One object; gains are in percent and unrounded, printed ones are text."""
    halves = [
        {
            "data_set": comparison.half.data_set,
            "ratio": float(comparison.half.ratio),
            "label": comparison.half.label,
            "note": note(comparison.half),
            "rms_z": comparison.rms_z,
            "rms_z_text_only": comparison.rms_z_unprocessed,
            "relative_error": {"exact": comparison.exact, "both": comparison.projected},
            "cells": [_json_cell(cell) for cell in comparison.cells],
            "means": [_json_cell(comparison.mean(reference)) for reference in REFERENCES],
        }
        for comparison in comparisons
    ]
    how = {"runs": comparisons[0].runs, "seed": seed, "reproduced": reproduced(comparisons)}
    return json.dumps(how | {"halves": halves}, indent=2)


def heading(half: Half) -> str:
    """The data set and the budget of a half table."""
    return f"{load(half.data_set).title}, eps_1 = {half.ratio} eps_inf"


def note(half: Half) -> str:
    """How faithful the counts of the data set are."""
    return load(half.data_set).note


def conclusions(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """What the comparison says, in sentences."""
    count = len(comparisons)
    agree = sum(comparison.agrees for comparison in comparisons)
    better = sum(comparison.improved for comparison in comparisons)
    yield f"{agree} of {count} half tables agree with the paper's (rms z at most {LARGEST_RMS_Z})"
    yield f"{better} of {count} have less error than the paper's ALLOMFREE with exact + projection"
    means = [(half, half.mean(reference)) for half in comparisons for reference in REFERENCES]
    worst, mean = max(means, key=lambda pair: abs(pair[1].z))
    where = f"{heading(worst.half)}, over {mean.reference}"
    yield f"of the {len(means)} printed means {where} is furthest from ours: z = {mean.z:z.1f}"


def _json_cell(cell: Cell) -> dict[str, object]:
    return {
        "eps_inf": None if cell.eps_inf == "mean" else float(cell.eps_inf),
        "over": cell.reference,
        "printed": cell.printed,
        "ours": cell.ours.gain,
        "sd": cell.ours.sd,
        "z": cell.z,
        "exact": cell.exact,
        "both": cell.projected,
    }


def _fields(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    """The texts of each line: both columns of the paper's table, and their means."""
    cells = [*comparison.cells, *(comparison.mean(reference) for reference in REFERENCES)]
    for first, second in zip(cells[::2], cells[1::2], strict=True):
        yield first.eps_inf, *_cell_fields(first), *_cell_fields(second)


def _cell_fields(cell: Cell) -> tuple[str, ...]:
    numbers = (cell.ours.gain, cell.ours.sd, cell.z, cell.exact, cell.projected)
    return cell.printed, *(f"{number:z.1f}" for number in numbers)  # z: never "-0.0"


def _summary_rows(comparisons: Sequence[Comparison]) -> Iterator[tuple[str, ...]]:
    yield _SUMMARY
    for comparison in comparisons:
        yield (
            load(comparison.half.data_set).title,
            comparison.half.ratio,
            f"{comparison.rms_z:.2f}",
            f"{comparison.largest_z:z.1f}",
            f"{comparison.rms_z_unprocessed:.1f}",
            f"{comparison.exact:.3f}",
            f"{comparison.projected:.3f}",
        )


def _markdown_table(rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    header = next(rows)
    rule = ("---", *("--:" for _ in header[1:]))
    yield from (f"| {' | '.join(fields)} |" for fields in (header, rule, *rows))


def _ran(comparisons: Sequence[Comparison], seed: int) -> str:
    return f"{comparisons[0].runs:,} runs, seed {seed}"


FORMS: Final[dict[str, Callable[[Sequence[Comparison], int], str]]] = {
    "text": as_text,
    "markdown": as_markdown,
    "json": as_json,
}
