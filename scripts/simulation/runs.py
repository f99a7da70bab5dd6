"""Finished runs: stored, shown, drawn and compared; and the progress of those that are not."""

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
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from collector.charts import EVERY, MOST_BARS, Chart, largest, named_bars, png, svg
from collector.errors import CollectorError
from collector.results.display import share_of
from collector.results.tables import write_rows
from protocol_spec.estimation import critical_value
from protocol_spec.mechanisms import DEFAULT_MECHANISM
from simulation.population import SimulationError
from simulation.results import TRUTH_COLUMNS

LINE_SECONDS: Final = 10.0  # between two lines of progress
FACTS, ROWS = "run.json", "results.ndjson"
CONFIDENCE: Final = 0.999  # two runs of the same thing disagree by chance once in a thousand

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
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=total)
        yield lambda more: bar.advance(task, more)


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


# --- two runs compared ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Score:
    """How one histogram of a run did: errors about the truth, and z-scores over its values."""

    n: int
    mse: float
    mse_projected: float
    rms_z: float
    largest_z: float

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Score:
        def mean_square(numbers: Sequence[float]) -> float:
            return sum(x * x for x in numbers) / len(numbers) if numbers else 0.0

        scores = [row["z"] for row in rows if row["z"] is not None]
        return cls(
            rows[0]["n"],
            mean_square([row["raw"] - row["truth"] for row in rows]),
            mean_square([row["projected"] - row["truth"] for row in rows]),
            math.sqrt(mean_square(scores)),
            max(map(abs, scores), default=0.0),
        )


@dataclass(frozen=True, slots=True)
class Pair:
    """The same histogram in two runs; `apart` is the largest difference of two z-scores, which
    has a standard deviation of 1 when both runs have one distribution and are independent."""

    attribute: str
    round: int | None
    left: Score
    right: Score
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
        both = zip(ours[key], theirs[key])
        scores = [(a["z"], b["z"]) for a, b in both if None not in (a["z"], b["z"])]
        apart = max((abs(a - b) / math.sqrt(2.0) for a, b in scores), default=0.0)
        pairs.append(Pair(*key, Score.of(ours[key]), Score.of(theirs[key]), apart, limit))
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
    head = f"{'attribute':<24} {'round':>6} {'n':>21} {'MSE':>19} {'rms z':>11} {'apart':>6}"
    lines = [f"left {names[0]}, right {names[1]}", head]
    for pair in pairs:
        number = "all" if pair.round is None else str(pair.round)
        ours, theirs = pair.left, pair.right
        lines.append(
            f"{pair.attribute:<24} {number:>6} {ours.n:>10} {theirs.n:>10} {ours.mse:9.2e} "
            f"{theirs.mse:9.2e} {ours.rms_z:5.2f} {theirs.rms_z:5.2f} {pair.apart:6.2f}"
            f"{'' if pair.agree else '  !'}"
        )
    verdict = "agree" if all(pair.agree for pair in pairs) else "do NOT agree"
    lines.append(f"The runs {verdict}: chance keeps every difference below {pairs[0].limit:.2f}.")
    return "\n".join(lines)


# --- pictures and tables -------------------------------------------------------------------------


def draw(rows: Sequence[Row], path: Path, title: str) -> None:
    """The pooled histogram of every attribute, into an .svg or .png file. The intervals hold for
    all bars together: a reader picks a bar by its length."""
    released = [row for row in pooled(rows) if not row["withheld"]]
    if not released:
        raise SimulationError("every histogram is withheld: there is nothing to draw")
    charts = []
    for name in dict.fromkeys(row["attribute"] for row in released):
        mine = [row for row in released if row["attribute"] == name]
        found = [share_of(r["projected"], r["low_all"], r["high_all"]) for r in mine]
        bars = named_bars([r["value"] for r in mine], found, [r["truth"] for r in mine])
        first = mine[0]
        rounds = "1 round" if first["rounds"] == 1 else f"{first['rounds']} rounds pooled"
        reports = f"{first['n']:,} reports of {first['devices']:,} devices, {first['protocol']}"
        kept = tuple(largest(bars, MOST_BARS))
        charts.append(Chart(name, f"{rounds}, {reports}", kept, intervals=EVERY, values=len(bars)))
    try:
        drawn = svg(charts, title).encode() if path.suffix == ".svg" else png(charts, title)
        path.write_bytes(drawn)
    except CollectorError as error:
        raise SimulationError(str(error)) from None
    except OSError as error:
        raise SimulationError(f"{path} cannot be written: {error.strerror}") from None


def check(figure: Path | None, store: Path | None) -> None:
    """Reject before the run what would fail after it."""
    if figure is not None and figure.suffix not in (".svg", ".png"):
        raise SimulationError(f"--figure {figure}: the name must end in .svg or .png")
    if store is not None and (store / FACTS).exists():
        raise SimulationError(f"{store} already holds a run; choose another directory for --store")


def show(
    run: Run, *, file_format: str, output: Path | None, figure: Path | None, store: Path | None
) -> None:
    """Results on standard output or in a file, the summary on standard error."""
    if store is not None:
        run.save(store)
    text = write_rows(run.rows, TRUTH_COLUMNS, file_format)
    if output is None:
        click.echo(text, nl=False)
    else:
        try:
            output.write_text(text, encoding="utf-8")
        except OSError as error:
            raise SimulationError(f"{output} cannot be written: {error.strerror}") from None
    if figure is not None:
        draw(run.rows, figure, run.title)
    click.echo(summary(run), err=True)


def summary(run: Run) -> str:
    """All rounds together, a line for each attribute."""
    outcomes = ", ".join(f"{n:,} {name}" for name, n in run.facts["outcomes"].items())
    lines = [run.title, f"{run.facts['depth']}: {outcomes} in {run.facts['seconds']:g} s"]
    together = groupby(pooled(run.rows), key=itemgetter("attribute"))
    groups = [(name, list(rows)) for name, rows in together]
    width = max([9, *(len(name) for name, _ in groups)])
    lines.append(
        f"{'attribute':<{width}}  protocol  values      devices  error %  projected %  "
        "largest |z|  in intervals"
    )
    for name, rows in groups:
        first = rows[0]
        head = f"{name:<{width}}  {first['protocol']:<8} {len(rows):>7} {first['devices']:>12,}"
        if first["withheld"]:
            lines.append(f"{head}  withheld: fewer than {first['min_reports']} devices")
            continue
        made = Score.of(rows)
        inside = sum(row["low_all"] <= row["truth"] <= row["high_all"] for row in rows)
        lines.append(
            f"{head} {100 * made.mse**0.5:>8.2f} {100 * made.mse_projected**0.5:>12.2f} "
            f"{made.largest_z:>12.1f}  {inside:>6} of {len(rows)}"
        )
    return "\n".join(lines)
