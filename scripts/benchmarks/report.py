"""Measurements with their limits, and how they are reported: as text, as JSON, in the docs."""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final, TypeVar

T = TypeVar("T")
DOCS: Final = Path(__file__).parents[2] / "docs"
PAGE: Final = DOCS / "benchmarks.md"


@dataclass(frozen=True, slots=True)
class Measurement:
    """One number. Without a limit it is for information; without a value it was not available.

    `of` is what was measured where several are compared: a broker, a budget. `low` and `high` are
    the least and the greatest of the repeats whose median is the value.
    """

    what: str
    value: float | None
    unit: str = ""
    limit: float | None = None
    note: str = ""
    at_least: float | None = None
    low: float | None = None
    high: float | None = None
    of: str = ""

    @property
    def broken(self) -> bool:
        if self.value is None:
            return False
        too_high = self.limit is not None and self.value > self.limit
        return too_high or (self.at_least is not None and self.value < self.at_least)

    def cells(self) -> tuple[str, str, str]:
        """The value with its range, the limit, the note."""
        shown = "not available" if self.value is None else f"{_number(self.value)} {self.unit}"
        if self.low is not None and self.high is not None and self.low != self.high:
            shown += f" ({_number(self.low)}–{_number(self.high)})"
        bounds = (("≥", self.at_least), ("≤", self.limit))
        limit = ", ".join(f"{sign}{_number(n)}" for sign, n in bounds if n is not None)
        return shown.strip(), f"{limit} BROKEN" if self.broken else limit, self.note


def _number(value: float) -> str:
    """Three digits are all that a benchmark supports; a number of reports keeps its own."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def median_of(what: str, values: Sequence[float], unit: str = "", **more: Any) -> Measurement:
    middle = statistics.median(values)
    return Measurement(what, middle, unit, low=min(values), high=max(values), **more)


def ratio_of(what: str, above: Sequence[float], below: Sequence[float], **more: Any) -> Measurement:
    """`above` divided by `below`, repeat by repeat: the two of a pair were run in turns."""
    return median_of(what, [a / b for a, b in zip(above, below, strict=True)], "x", **more)


def medians(
    rows: Mapping[str, tuple[str, str]], runs: Sequence[Mapping[str, float]], **more: Any
) -> list[Measurement]:
    """A row for each field that the runs have; `rows` gives its text and unit."""
    known = [name for name in rows if name in runs[0]]
    return [median_of(rows[n][0], [run[n] for run in runs], rows[n][1], **more) for n in known]


def in_turns(
    repeats: int, ours: Callable[[int], T], theirs: Callable[[int], T]
) -> tuple[list[T], list[T]]:
    """Run both sides `repeats` times, each given the repeat's number; who goes first alternates, so
    that a machine that slows down for a while does so for both."""
    mine, other = [], []
    for repeat in range(repeats):
        if repeat % 2:
            other.append(theirs(repeat))
        mine.append(ours(repeat))
        if not repeat % 2:
            other.append(theirs(repeat))
    return mine, other


def progress(text: str) -> None:
    print(text, file=sys.stderr)


def as_json(name: str, measured: Sequence[Measurement], **more: object) -> str:
    rows = [{**asdict(m), "broken": m.broken} for m in measured]
    ok = not any(m.broken for m in measured)
    facts = {"benchmark": name, "ok": ok, "measurements": rows, **more}
    return json.dumps(facts, ensure_ascii=False)


def as_text(measured: Sequence[Measurement]) -> str:
    rows = [("what", "measured", "limit", "note")]
    rows += [(f"{m.of}: {m.what}" if m.of else m.what, *m.cells()) for m in measured]
    wide = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = (f"{a:<{wide[0]}}  {b:>{wide[1]}}  {c:>{wide[2]}}  {d}" for a, b, c, d in rows)
    return "\n".join(line.rstrip() for line in lines)


def as_markdown(measured: Sequence[Measurement]) -> Iterator[str]:
    """Tables: a row a measurement, or a column for each `of`."""
    compared: dict[str, dict[str, Measurement]] = {}
    for m in measured:
        compared.setdefault(m.what, {})[m.of] = m
    for columns, whats in groupby(compared, key=lambda what: list(compared[what])):
        head = ["", *(columns if columns != [""] else ("measured", "limit", "note"))]
        yield f"| {' | '.join(head)} |"
        yield "|---" * len(head) + "|"
        for what in whats:
            cells = [m.cells() for m in compared[what].values()]
            shown = [" ".join(filter(None, cell)) for cell in cells]
            yield f"| {' | '.join([what, *(shown if columns != [''] else cells[0])])} |"
        yield ""


def write(
    name: str,
    command: str,
    measured: Sequence[Measurement],
    machine: Mapping[str, str],
    versions: Mapping[str, str],
    page: Path = PAGE,
) -> None:
    """Replace a benchmark's numbers on the page: what is between its comment and the next `end`.
    The text around them is written by people and stays."""
    where = "; ".join(machine.values())
    compared = ", ".join(f"{peer} {version}" for peer, version in versions.items())
    lines = [f"    {command}", "", f"{where}{f'; {compared}' if compared else ''}."]
    block = "\n".join([f"<!-- {name} -->", "", *lines, "", *as_markdown(measured), "<!-- end -->"])
    before = page.read_text(encoding="utf-8")
    found = re.compile(rf"<!-- {name} -->.*?<!-- end -->", re.DOTALL)
    after = found.sub(lambda _: block, before, count=1)
    if not found.search(before):
        after = f"{before.rstrip()}\n\n## {name}\n\n{block}\n"
    page.write_text(after, encoding="utf-8")


def machine() -> dict[str, str]:
    """What the numbers were measured on, and how busy it was when the benchmark began. Libraries
    are those of scripts/requirements."""
    known = Path("/proc/cpuinfo")
    lines = known.read_text(encoding="utf-8").splitlines() if known.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    cores = len(os.sched_getaffinity(0))
    return {
        "processor": f"{next(names, platform.machine())}, {cores} cores",
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "load": f"load {os.getloadavg()[0]:.1f}",
    }
