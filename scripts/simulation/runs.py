"""Finished runs: shown, stored, drawn and compared; and the progress of those that are not."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import click

from collector.charts import EVERY, MOST_BARS, Chart, largest, named_bars, png, svg
from collector.errors import CollectorError
from collector.results.display import share_of
from collector.results.tables import write_rows
from protocol_spec.estimation import critical_value
from protocol_spec.mechanisms import DEFAULT_MECHANISM
from simulation.campaigns import TRUTH_COLUMNS
from simulation.population import SimulationError

LINE_SECONDS: Final = 10.0  # between two lines of progress
FACTS, ROWS = "run.json", "results.ndjson"
CONFIDENCE: Final = 0.999  # two runs of the same thing disagree by chance once in a thousand
MOST_LINES: Final = 12  # values of one attribute in the summary

Row = Mapping[str, Any]


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, else a line now and then, on standard error. Yields a function to call
    with what has been done since."""
    done, next_line = 0, time.monotonic() + LINE_SECONDS

    def advance(more: int) -> None:
        nonlocal done, next_line
        done += more
        if time.monotonic() >= next_line:
            next_line = time.monotonic() + LINE_SECONDS
            print(f"{what}: {done:,} of {total:,}", file=sys.stderr, flush=True)

    if not sys.stderr.isatty():
        yield advance
        return
    with click.progressbar(length=total, label=what, show_pos=True, file=sys.stderr) as bar:
        yield bar.update


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run: how it was made, and what came out."""

    facts: Mapping[str, Any]
    rows: Sequence[Row]

    def save(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        rows = write_rows(self.rows, TRUTH_COLUMNS, "ndjson")
        facts = json.dumps(self.facts, ensure_ascii=False, indent=1) + "\n"
        (directory / ROWS).write_text(rows, encoding="utf-8")
        (directory / FACTS).write_text(facts, encoding="utf-8")

    @classmethod
    def load(cls, directory: Path) -> Run:
        try:
            facts = json.loads((directory / FACTS).read_text(encoding="utf-8"))
            lines = (directory / ROWS).read_text(encoding="utf-8").splitlines()
            return cls(facts, [json.loads(line) for line in lines])
        except (OSError, ValueError):
            raise SimulationError(
                f"{directory} does not hold a run; keep one there with --store {directory}"
            ) from None

    @property
    def title(self) -> str:
        facts = self.facts
        rounds = "1 round" if facts["rounds"] == 1 else f"{facts['rounds']} rounds"
        people = f"{facts['devices']:,} devices, {', '.join(facts['population'])}"
        mechanism = facts.get("reporting", DEFAULT_MECHANISM)
        name = facts["campaign"] + ("" if mechanism == DEFAULT_MECHANISM else f" ({mechanism})")
        return f"{name}: {people}, {rounds} (seed {facts['seed']})"


def pooled(rows: Iterable[Row]) -> list[Row]:
    """All rounds of each attribute together: of what spans several rounds, that with the most."""
    spanning = [row for row in rows if row["round"] is None]
    most: dict[str, int] = {}
    for row in spanning:
        most[row["attribute"]] = max(row["n"], most.get(row["attribute"], 0))
    chosen = {
        (row["attribute"], row["value"]): row
        for row in reversed(spanning)
        if row["n"] == most[row["attribute"]]
    }
    return [row for row in spanning if chosen[row["attribute"], row["value"]] is row]


def by_attribute(rows: Iterable[Row]) -> list[tuple[str, list[Row]]]:
    return [(name, list(group)) for name, group in groupby(rows, key=itemgetter("attribute"))]


def rms(numbers: Sequence[float]) -> float:
    return math.sqrt(math.fsum(x * x for x in numbers) / len(numbers)) if numbers else 0.0


# --- shown ---------------------------------------------------------------------------------------


_ENDINGS: Final = {"": "csv", ".csv": "csv", ".json": "json", ".ndjson": "ndjson"}


def check(
    figure: Path | None, store: Path | None, output: Path | None, file_format: str | None
) -> None:
    """Reject before the run what would fail after it."""
    if output is not None and file_format is None and output.suffix not in _ENDINGS:
        raise SimulationError(
            f"--output {output}: the name must end in .csv, .json or .ndjson, unless --format says "
            "what it is; nothing was simulated"
        )
    if figure is not None and figure.suffix not in (".svg", ".png"):
        raise SimulationError(f"--figure {figure}: the name must end in .svg or .png")
    if store is not None and (store / FACTS).exists():
        raise SimulationError(f"{store} already holds a run; choose another directory for --store")


def show(
    run: Run,
    *,
    file_format: str | None,
    output: Path | None,
    figure: Path | None,
    store: Path | None,
) -> None:
    """The summary on standard output; rows in a file, or in its place if a format is asked for."""
    if store is not None:
        run.save(store)
    if output is not None:
        named = file_format or _ENDINGS[output.suffix]
        _write(output, write_rows(run.rows, TRUTH_COLUMNS, named).encode())
    if figure is not None:
        _write(figure, draw(run.rows, figure, run.title))
    rows_wanted = file_format is not None and output is None
    if rows_wanted:
        click.echo(write_rows(run.rows, TRUTH_COLUMNS, file_format or "csv"), nl=False)
    click.echo(summary(run), err=rows_wanted)


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise SimulationError(f"{path} cannot be written: {error.strerror}") from None


def summary(run: Run) -> str:
    """All rounds together: what each value's bar would be, next to the truth."""
    outcomes = ", ".join(f"{n:,} {name}" for name, n in run.facts["outcomes"].items())
    lines = [run.title, f"{run.facts['depth']}: {outcomes} in {run.facts['seconds']:g} s"]
    for name, rows in by_attribute(pooled(run.rows)):
        first = rows[0]
        lines += [
            "",
            f"{name}: {len(rows)} values, {first['devices']:,} devices, {first['protocol']}",
        ]
        if first["withheld"]:
            lines.append("  withheld: too few devices reported")
            continue
        width = max([5, *(len(row["value"]) for row in rows)])
        lines.append(f"  {'value':<{width}}    truth  estimate  interval, all at once")
        kept = sorted(rows, key=itemgetter("projected"), reverse=True)[:MOST_LINES]
        for row in (row for row in rows if row in kept):
            truth, bar, low, high = (
                100 * row[column] for column in ("truth", "projected", "low_all", "high_all")
            )
            lines.append(
                f"  {row['value']:<{width}}  {truth:5.1f} %  {bar:6.1f} %  {low:5.1f} … {high:.1f}"
            )
        if len(rows) > MOST_LINES:
            lines.append(f"  and {len(rows) - MOST_LINES} rarer values")
        lines.append(f"  {_verdict(rows)}")
    return "\n".join(lines)


def _verdict(rows: Sequence[Row]) -> str:
    bars, raw = ([row[name] - row["truth"] for row in rows] for name in ("projected", "raw"))
    inside = sum(row["low_all"] <= row["truth"] <= row["high_all"] for row in rows)
    known = [abs(row["z"]) for row in rows if row["z"] is not None]
    furthest = f", largest |z| {max(known):.1f}" if known else ""
    return (
        f"off by {100 * rms(bars):.2f} points (root mean square; raw {100 * rms(raw):.2f}"
        f"{furthest}); {inside} of {len(rows)} intervals hold the truth"
    )


def draw(rows: Sequence[Row], path: Path, title: str) -> bytes:
    """The pooled histogram of every attribute, as SVG or PNG. The intervals hold for all bars
    together: a reader picks a bar by its length."""
    released = [row for row in pooled(rows) if not row["withheld"]]
    if not released:
        raise SimulationError("every histogram is withheld: there is nothing to draw")
    charts = []
    for name, mine in by_attribute(released):
        found = [share_of(r["projected"], r["low_all"], r["high_all"]) for r in mine]
        bars = named_bars([r["value"] for r in mine], found, [r["truth"] for r in mine])
        first = mine[0]
        rounds = "1 round" if first["rounds"] == 1 else f"{first['rounds']} rounds pooled"
        reports = f"{first['n']:,} reports of {first['devices']:,} devices, {first['protocol']}"
        kept = tuple(largest(bars, MOST_BARS))
        charts.append(Chart(name, f"{rounds}, {reports}", kept, intervals=EVERY, values=len(bars)))
    try:
        return svg(charts, title).encode() if path.suffix == ".svg" else png(charts, title)
    except CollectorError as error:
        raise SimulationError(str(error)) from None


# --- compared ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pair:
    """The same histogram in two runs: of each, reports and root mean squares of the raw error and
    of z. `apart` is the largest difference of two z-scores, which has a standard deviation of 1
    when both runs have one distribution and are independent."""

    attribute: str
    round: int | None
    n: tuple[int, int]
    error: tuple[float, float]
    rms_z: tuple[float, float]
    apart: float
    limit: float

    @property
    def agree(self) -> bool:
        return self.apart <= self.limit

    def facts(self) -> dict[str, Any]:
        return {**asdict(self), "agree": self.agree}


def compare(left: Run, right: Run) -> list[Pair]:
    """Every histogram that both runs released."""
    ours, theirs = _histograms(left), _histograms(right)
    common = [
        key
        for key, rows in ours.items()
        if key in theirs and [r["value"] for r in rows] == [r["value"] for r in theirs[key]]
    ]
    if not common:
        raise SimulationError("the two runs have no histogram in common; nothing can be compared")
    limit = critical_value(CONFIDENCE, sum(len(ours[key]) for key in common))
    pairs = []
    for key in common:
        sides = ours[key], theirs[key]
        both = [(a["z"], b["z"]) for a, b in zip(*sides) if None not in (a["z"], b["z"])]
        apart = max((abs(a - b) / math.sqrt(2.0) for a, b in both), default=0.0)
        n, other = (side[0]["n"] for side in sides)
        error, off = (rms([row["raw"] - row["truth"] for row in side]) for side in sides)
        scores = rms([a for a, _ in both]), rms([b for _, b in both])
        pairs.append(Pair(*key, (n, other), (error, off), scores, apart, limit))
    return pairs


def _histograms(run: Run) -> dict[tuple[str, int | None], list[Row]]:
    """Of single rounds, and of all together."""
    found: dict[tuple[str, int | None], list[Row]] = {}
    together = set(map(id, pooled(run.rows)))
    for row in run.rows:
        wanted = row["round"] is not None or id(row) in together
        if wanted and not row["withheld"]:
            found.setdefault((row["attribute"], row["round"]), []).append(row)
    return found


def comparison(pairs: Sequence[Pair], names: tuple[Path, Path]) -> str:
    """Two runs, a line for each histogram."""
    head = (
        f"{'attribute':<24} {'round':>6} {'n':>21} {'error, points':>17} {'rms z':>11} {'apart':>6}"
    )
    lines = [f"left {names[0]}, right {names[1]}", head]
    for pair in pairs:
        number = "all" if pair.round is None else str(pair.round)
        errors, scores = (f"{100 * pair.error[i]:8.2f}" for i in (0, 1)), pair.rms_z
        lines.append(
            f"{pair.attribute:<24} {number:>6} {pair.n[0]:>10} {pair.n[1]:>10} {' '.join(errors)} "
            f"{scores[0]:5.2f} {scores[1]:5.2f} {pair.apart:6.2f}{'' if pair.agree else '  !'}"
        )
    verdict = "agree" if all(pair.agree for pair in pairs) else "do NOT agree"
    lines.append(f"The runs {verdict}: chance keeps every difference below {pairs[0].limit:.2f}.")
    return "\n".join(lines)
