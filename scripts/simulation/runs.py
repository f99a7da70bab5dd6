"""From the options of a command to a finished run; runs stored, shown, drawn and compared."""

from __future__ import annotations

import json
import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from collector.charts import EVERY, MOST_BARS, Bar, Chart, largest, png, svg
from collector.errors import CollectorError
from collector.results.tables import write_rows
from protocol_spec import Manifest
from protocol_spec.estimation import critical_value
from simulation.depths import (
    LiveCampaign,
    as_reports,
    as_statistics,
    collecting_live,
    holdings,
    into,
    real_agents,
    reports_through_broker,
    retimed,
)
from simulation.fleet import Fleet
from simulation.population import Behaviour, Population, SimulationError, Weights, populate, targets
from simulation.results import TRUTH_COLUMNS, Simulated

LINE_SECONDS: Final = 10.0  # seconds between two lines


@contextmanager
def shown(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, else a line now and then, on standard error. Yields a function to call
    with what has been done since."""
    if sys.stderr.isatty():
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task(what, total=total)
            yield lambda done: bar.advance(task, done)
    else:
        yield _lines(what, total)


def _lines(what: str, total: int) -> Callable[[int], None]:
    done, next_line = 0, time.monotonic() + LINE_SECONDS

    def advance(more: int) -> None:
        nonlocal done, next_line
        done += more
        if time.monotonic() >= next_line:
            next_line = time.monotonic() + LINE_SECONDS
            print(f"{what}: {done:,} of {total:,}", file=sys.stderr, flush=True)

    return advance


# --- a finished run ------------------------------------------------------------------------------

FACTS, ROWS = "run.json", "results.ndjson"
CONFIDENCE: Final = 0.999  # two runs of the same thing disagree by chance once in a thousand

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run: how it was made, and what came out."""

    facts: Mapping[str, Any]
    rows: Sequence[Row]

    def save(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / ROWS).write_text(
            write_rows(self.rows, TRUTH_COLUMNS, "ndjson"), encoding="utf-8"
        )
        text = json.dumps(self.facts, ensure_ascii=False, indent=1) + "\n"
        (directory / FACTS).write_text(text, encoding="utf-8")

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


@dataclass(frozen=True, slots=True)
class Score:
    """How one histogram of a run did: errors about the truth, and z-scores over its values."""

    n: int
    mse: float
    mse_projected: float
    rms_z: float
    largest_z: float


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


def score(rows: Sequence[Row]) -> Score:
    scores = [row["z"] for row in rows if row["z"] is not None]
    return Score(
        rows[0]["n"],
        _mean_square([row["raw"] - row["truth"] for row in rows]),
        _mean_square([row["projected"] - row["truth"] for row in rows]),
        math.sqrt(_mean_square(scores)),
        max(map(abs, scores), default=0.0),
    )


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
    comparisons = sum(len(ours[key]) for key in common)
    return [_pair(key, ours[key], theirs[key], comparisons) for key in common]


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


def _pair(
    key: tuple[str, int | None], ours: Sequence[Row], theirs: Sequence[Row], comparisons: int
) -> Pair:
    apart = [
        abs(a["z"] - b["z"]) / math.sqrt(2.0)
        for a, b in zip(ours, theirs)
        if a["z"] is not None and b["z"] is not None
    ]
    limit = critical_value(CONFIDENCE, comparisons)
    return Pair(*key, score(ours), score(theirs), max(apart, default=0.0), limit)


def _histograms(run: Run) -> dict[tuple[str, int | None], list[Row]]:
    """Of single rounds, and of all together."""
    found: dict[tuple[str, int | None], list[Row]] = {}
    together = set(map(id, pooled(run.rows)))
    for row in run.rows:
        wanted = row["round"] is not None or id(row) in together
        if wanted and not row["withheld"]:
            found.setdefault((row["attribute"], row["round"]), []).append(row)
    return found


def _mean_square(numbers: Sequence[float]) -> float:
    return sum(x * x for x in numbers) / len(numbers) if numbers else 0.0


# --- pictures and tables -------------------------------------------------------------------------


def draw(rows: Sequence[Row], path: Path, title: str) -> None:
    """The pooled histogram of every attribute, into an .svg or .png file."""
    shown = [row for row in pooled(rows) if not row["withheld"]]
    names = dict.fromkeys(row["attribute"] for row in shown)
    if not names:
        raise SimulationError("every histogram is withheld: there is nothing to draw")
    made = [_chart([row for row in shown if row["attribute"] == name]) for name in names]
    try:
        content = svg(made, title).encode() if path.suffix == ".svg" else png(made, title)
        path.write_bytes(content)
    except CollectorError as error:
        raise SimulationError(str(error)) from None
    except OSError as error:
        raise SimulationError(f"{path} cannot be written: {error.strerror}") from None


def _chart(rows: Sequence[Row]) -> Chart:
    """Bars with the intervals that hold for all of them: a reader picks a bar by its length."""
    first = rows[0]
    bars = [Bar(r["value"], r["raw"], r["low_all"], r["high_all"], r["truth"]) for r in rows]
    rounds = "1 round" if first["rounds"] == 1 else f"{first['rounds']} rounds pooled"
    note = f"{rounds}, {first['n']:,} reports of {first['devices']:,} devices, {first['protocol']}"
    kept = tuple(largest(bars, MOST_BARS))
    return Chart(first["attribute"], note, kept, intervals=EVERY, values=len(bars))


def check(figure: Path | None, store: Path | None) -> None:
    """Reject before the run what would fail after it."""
    if figure is not None and figure.suffix not in (".svg", ".png"):
        raise SimulationError(f"--figure {figure}: the name must end in .svg or .png")
    if store is not None and (store / FACTS).exists():
        raise SimulationError(f"{store} already holds a run; choose another directory for --store")


def show(
    run: Run, *, form: str, output: Path | None, figure: Path | None, store: Path | None
) -> None:
    """Results on standard output or in a file, the summary on standard error."""
    if store is not None:
        run.save(store)
    text = write_rows(run.rows, TRUTH_COLUMNS, form)
    if output is None:
        click.echo(text, nl=False)
    else:
        try:
            output.write_text(text, encoding="utf-8")
        except OSError as error:
            raise SimulationError(f"{output} cannot be written: {error.strerror}") from None
    if figure is not None:
        draw(run.rows, figure, title(run))
    click.echo(summary(run), err=True)


def title(run: Run) -> str:
    facts = run.facts
    rounds = "1 round" if facts["rounds"] == 1 else f"{facts['rounds']} rounds"
    people = f"{facts['devices']:,} devices, {', '.join(facts['population'])}"
    way = facts.get("reporting", "memoized")
    name = facts["campaign"] if way == "memoized" else f"{facts['campaign']} ({way})"
    return f"{name}: {people}, {rounds} (seed {facts['seed']})"


def summary(run: Run) -> str:
    """All rounds together, a line for each attribute."""
    outcomes = ", ".join(f"{n:,} {name}" for name, n in run.facts["outcomes"].items())
    lines = [title(run), f"{run.facts['depth']}: {outcomes} in {run.facts['seconds']:g} s"]
    together = groupby(pooled(run.rows), key=itemgetter("attribute"))
    groups = [(name, list(rows)) for name, rows in together]
    width = max([len(name) for name, _ in groups] or [0])
    lines.append(
        f"{'attribute':<{max(width, 9)}}  protocol  values      devices  error %  projected %  "
        "largest |z|  in intervals"
    )
    return "\n".join(lines + [f"{name:<{max(width, 9)}}  {_line(rows)}" for name, rows in groups])


def _line(rows: Sequence[Row]) -> str:
    first = rows[0]
    head = f"{first['protocol']:<8} {len(rows):>7} {first['devices']:>12,}"
    if first["withheld"]:
        return f"{head}  withheld: fewer than {first['min_reports']} devices"
    made = score(rows)
    inside = sum(row["low_all"] <= row["truth"] <= row["high_all"] for row in rows)
    return (
        f"{head} {100 * made.mse**0.5:>8.2f} {100 * made.mse_projected**0.5:>12.2f} "
        f"{made.largest_z:>12.1f}  {inside:>6} of {len(rows)}"
    )


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
    limit = max(pair.limit for pair in pairs)
    verdict = "agree" if all(pair.agree for pair in pairs) else "do NOT agree"
    lines.append(f"The runs {verdict}: chance keeps every difference below {limit:.2f}.")
    return "\n".join(lines)


# --- from options to a run -----------------------------------------------------------------------

SLOWEST_PER_SECOND = 5_000  # messages that any machine publishes in a second


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of a command, read."""

    manifest: Manifest
    words: tuple[str, ...]
    devices: int | None
    rounds: int
    seed: int
    behaviour: Behaviour
    drift: tuple[str, ...] = ()

    def targets(self) -> tuple[Weights, ...]:
        """What changing values drift to; nothing if they do not."""
        if self.drift and not self.behaviour.changes:
            raise SimulationError("--drift is about values that change; add --changes-per-year")
        return targets(self.manifest, self.drift, self.seed) if self.drift else ()

    def population(self) -> Population:
        count = self.manifest.rounds.count
        if not 1 <= self.rounds <= count:
            raise SimulationError(f"--rounds {self.rounds}: the manifest has {count} rounds")
        return populate(self.manifest, self.words, self.devices, self.seed)


def statistics(asked: Asked) -> Run:
    """Counts alone: no device exists."""
    population = asked.population()
    truth = population.drawn(asked.seed)
    with shown("rounds", asked.rounds * len(truth)) as progress:
        work = partial(
            as_statistics,
            asked.manifest,
            truth,
            asked.behaviour,
            rounds=asked.rounds,
            seed=asked.seed,
            progress=progress,
            drift=asked.targets(),
        )
        return _timed(asked, population, "statistics", work)


def reports(asked: Asked, directory: Path | None, batch: int) -> Run:
    """Every report; counted at once, or by a collector into a directory."""
    population = asked.population()
    fleet = _fleet(asked, population, asked.manifest, batch)
    with shown("reports", population.devices * asked.rounds) as progress:
        if directory is None:
            return _timed(asked, population, "reports", partial(as_reports, fleet, progress))
        work = partial(into, directory, fleet, progress)
        return _timed(asked, population, "reports, store", work)


def reports_live(
    asked: Asked, directory: Path | None, broker: str | None, period: int, batch: int
) -> Run:
    """Every report through a broker, in real time."""
    population = asked.population()
    period = max(period, -(-population.devices // SLOWEST_PER_SECOND))
    manifest = retimed(asked.manifest, rounds=asked.rounds, period_seconds=period, lead_seconds=8)
    fleet = _fleet(asked, population, manifest, batch)
    with _live(asked, population, manifest, directory, broker) as (live, progress):
        work = partial(reports_through_broker, live, fleet, progress)
        return _timed(asked, population, "reports, broker", work)


def agents(
    asked: Asked, directory: Path | None, broker: str | None, period: int, processes: int
) -> Run:
    """Real agents and a real broker, in real time."""
    population = asked.population()
    if asked.behaviour != Behaviour():
        raise SimulationError("agents are real devices; to simulate other behaviour, use reports")
    lead = 8 + population.devices // 30  # each agent makes its state and syncs it to the disk
    manifest = retimed(
        asked.manifest, rounds=asked.rounds, period_seconds=period, lead_seconds=lead
    )
    devices = holdings(manifest, population, asked.seed)
    with _live(asked, population, manifest, directory, broker) as (live, progress):
        work = partial(real_agents, live, devices, processes, progress)
        return _timed(asked, population, "agents", work)


@contextmanager
def _live(
    asked: Asked,
    population: Population,
    manifest: Manifest,
    directory: Path | None,
    broker: str | None,
) -> Iterator[tuple[LiveCampaign, Callable[[int], None]]]:
    """A real collector on the campaign, in the directory or a temporary one."""
    with ExitStack() as stack:
        where = directory
        if where is None:
            scratch = tempfile.TemporaryDirectory(prefix="allomfree-")
            where = Path(stack.enter_context(scratch))
        live = stack.enter_context(collecting_live(where, manifest, broker))
        yield live, stack.enter_context(shown("reports", population.devices * asked.rounds))


def _fleet(asked: Asked, population: Population, manifest: Manifest, batch: int) -> Fleet:
    if batch < 1:
        raise SimulationError(f"--batch {batch}: must be 1 or more")
    truth = population.drawn(asked.seed)
    drift = asked.targets()
    return Fleet(manifest, truth, asked.behaviour, asked.seed, asked.rounds, batch, drift)


def _timed(
    asked: Asked, population: Population, depth: str, simulate: Callable[[], Simulated]
) -> Run:
    began = time.perf_counter()
    made = simulate()
    seconds = time.perf_counter() - began
    outcomes = sum(made.outcomes, Counter({"late": made.late}))
    facts: dict[str, Any] = {
        "depth": depth,
        "campaign": made.manifest.campaign,
        "reporting": made.manifest.reporting,
        "population": list(asked.words),
        "devices": population.devices,
        "rounds": asked.rounds,
        "seed": asked.seed,
        "behaviour": asked.behaviour.facts(),
        "outcomes": {str(name): number for name, number in outcomes.items() if number},
        "seconds": round(seconds, 3),
    }
    return Run(facts, list(made.rows()))
