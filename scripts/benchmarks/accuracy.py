"""`benchmark.py accuracy`: errors of the mechanisms, against each other and against a peer.

Ratios are of mean squared errors: below 1, ours is smaller. multi-freq-ldpy's clients draw memo and
report in one call and keep nothing, so what it can do is one round; LOLOHA is its `L_LH`.
"""

from __future__ import annotations

import math
import statistics
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.peers import Bench, Budget, Peers, Values
from benchmarks.report import DOCS, Measurement, progress
from benchmarks.workload import manifest
from paper.gains import clip_and_renormalise
from protocol_spec import as_drawn, choose
from protocol_spec.estimation import Array, Channel, project_to_simplex
from protocol_spec.mechanisms import Hashed, Nested, better_once, default_levels
from simulation.campaigns import Simulated, as_reports
from simulation.counts import Counts, memoized_fleet, sample_groups
from simulation.devices import Fleet
from simulation.population import Behaviour, Dataset, change_probability, load

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PICTURE: Final = DOCS / "pictures" / "mechanisms.svg"
PEER: Final = "multi-freq-ldpy"
MECHANISMS: Final = ("memoized", "nested", "once", "hashed")
STATIC_BUDGETS: Final = (Budget(1.0, 0.3), Budget(2.0, 0.6), Budget(4.0, 1.2), Budget(4.0, 2.0))
PEER_BUDGETS: Final = tuple(Budget(e, round(a * e, 2)) for a in (0.3, 0.6) for e in (1.0, 4.0))
SIZES: Final = (5, 41, 100, 1000)
READ_AFTER: Final = (1, 5, 20, 365)
OVER_FLOOR: Final = 1.15
ROUNDS: Final = 5
OUR_RUNS: Final = 200
LARGEST_ERROR: Final = 0.88  # of the exact calibration, projected, over the peer's
Finish = Callable[[Array], Array]
CLIPPED, PROJECTED = "clipped as the peer does", "projected"
FINISHES: Final[dict[str, Finish]] = {CLIPPED: clip_and_renormalise, PROJECTED: project_to_simplex}


class Ratio(NamedTuple):
    """A ratio of two means and its standard error, to first order."""

    value: float
    error: float

    @classmethod
    def of_means(cls, above: Sequence[float], below: Sequence[float]) -> Ratio:
        means = [statistics.fmean(sample) for sample in (above, below)]
        relative = [
            statistics.stdev(sample) / math.sqrt(len(sample)) / mean
            for sample, mean in zip((above, below), means)
        ]
        value = means[0] / means[1]
        return cls(value, value * math.hypot(*relative))

    def row(self, what: str, budget: Budget, note: str = "", **more: Any) -> Measurement:
        text = f"± {self.error:.2g}{note}"
        return Measurement(what, self.value, "x", note=text, of=str(budget), **more)


def squared_error(estimates: Sequence[npt.ArrayLike], true: Sequence[Array]) -> Array:
    """The paper's metric: averaged over the values of an attribute and then over attributes, for
    one run or for as many as the estimates' leading axis holds."""
    errors = [np.mean((np.asarray(e) - f) ** 2, axis=-1) for e, f in zip(estimates, true)]
    mean: Array = np.mean(errors, axis=0)
    return mean


# --- values that do not change -------------------------------------------------------------------
# Each run draws again who reports which attribute. The target is the whole population, which is the
# paper's metric and the only one that the peer's estimates allow.


def _channel(name: str, k: int, budget: Budget, rounds: int) -> Channel:
    """What all reports of a device in that many rounds were drawn with."""
    if name == "memoized":
        return as_drawn(choose(k=k, **budget._asdict()))
    if name == "hashed":
        return Hashed.calibrate(k=k, **budget._asdict()).as_drawn()
    if name == "once":
        return as_drawn(better_once(k, budget.eps_inf))
    made = Nested.calibrate("SS", k=k, schedule=default_levels(*budget))
    return made.channels[made.level_of(rounds) - 1]


def raw_estimates(
    name: str, rng: np.random.Generator, held: Counts, budget: Budget, rounds: int
) -> Array:
    """Of memoized and hashed reports all rounds pooled; of nested ones the latest, which contains
    all earlier ones; of `once` when every device has answered with eps_inf."""
    channel = _channel(name, held.shape[-1], budget, rounds)
    reports = rounds if name in ("memoized", "hashed") else 1
    fleet = memoized_fleet(rng, channel, held)
    counts = np.asarray(sum(fleet.round().counts for _ in range(reports)))
    p1, q1, p2, q2 = map(float, channel.exact)
    support = q1 * p2 + (1.0 - q1) * q2
    n = reports * held.sum(axis=-1, keepdims=True)
    raw: Array = (counts / n - support) / ((p1 - q1) * (p2 - q2))
    return raw


def static_errors(
    data: Dataset, budget: Budget, rounds: int, runs: int, seed: int
) -> dict[tuple[str, str], Array]:
    """The metric in every run, by mechanism and by how the histogram is finished."""
    rng, d = np.random.default_rng(seed), len(data.attributes)
    sizes = rng.multinomial(data.n, [1 / d] * d, size=runs)
    held = sample_groups(rng, [a.counts for a in data.attributes], sizes)
    true = _truth(data)
    found = {}
    for name in MECHANISMS:
        raw = [raw_estimates(name, rng, h, budget, rounds) for h in held]
        for how, finish in FINISHES.items():
            found[name, how] = squared_error([finish(r) for r in raw], true)
    return found


def _truth(data: Dataset) -> list[Array]:
    return [np.asarray(a.counts) / data.n for a in data.attributes]


def headroom() -> list[Measurement]:
    """Variance of `nested`, summed over all values, over the least that any one answer with the
    epsilon disclosed by then can have; and the same with GRR or OUE at all levels. The greatest of
    what is read after different numbers of rounds."""
    greatest: dict[tuple[str, Budget], Measurement] = {}
    for k, rounds, budget in product(SIZES, READ_AFTER, STATIC_BUDGETS):
        schedule = default_levels(*budget)
        sets, *plain = (Nested.calibrate(p, k=k, schedule=schedule) for p in ("SS", "GRR", "OUE"))
        level = sets.level_of(rounds) - 1
        floor = _floor(k, schedule[level])
        before = min(plain, key=lambda made: made.calibration.device_variance(False))
        for label, made, limit in (("nested", sets, OVER_FLOOR), ("GRR or OUE", before, None)):
            ratio = float(made.levels[level].total_variance()) / floor
            text, known = f"k {k}, {label} / the floor", greatest.get((f"{k} {label}", budget))
            if known is None or known.value is None or ratio > known.value:
                made_of = Measurement(text, ratio, "x", limit, of=str(budget))
                greatest[f"{k} {label}", budget] = made_of
    return list(greatest.values())


def _floor(k: int, epsilon: float) -> float:
    """Of sets of the best size, which is the least there is (Pan, arXiv 2603.11523)."""
    size, e = np.arange(1, k), math.exp(epsilon)
    p = size * e / (size * e + k - size)
    q = (size - p) / (k - 1)
    return float(((size - p**2 - (k - 1) * q**2) / (p - q) ** 2).min())


def compared_with_allomfree(bench: Bench, campaigns: int, drawn: Plotted) -> list[Measurement]:
    """Every mechanism after five rounds over the peer's one round, at the same budget."""
    data, rows = load("adult"), []
    for number, budget in enumerate(STATIC_BUDGETS):
        theirs = _peer_errors(bench, data, budget, number, campaigns)
        for rounds in (1, ROUNDS):
            for (name, how), errors in static_errors(
                data, budget, rounds, OUR_RUNS, seed=number
            ).items():
                if how == PROJECTED and (rounds == ROUNDS or name == "memoized"):
                    ratio = Ratio.of_means(errors.tolist(), theirs)
                    label = f"{name}, {rounds} round{'s' * (rounds > 1)}"
                    drawn.static[label][budget] = ratio.value
                    what = f"{data.title}, {label} / {PEER} ALLOMFREE"
                    rows.append(ratio.row(what, budget))
    return rows


def measure_errors(bench: Bench, campaigns: int, runs: int = 2000) -> list[Measurement]:
    """One round of the exact calibration over the peer's, both clipped and projected."""
    data = load("adult")
    ratios: dict[str, list[Ratio]] = {how: [] for how in FINISHES}
    for number, budget in enumerate(PEER_BUDGETS):
        theirs = _peer_errors(bench, data, budget, number, campaigns)
        found = static_errors(data, budget, 1, runs, number)
        for how in FINISHES:
            ratios[how].append(Ratio.of_means(found["memoized", how].tolist(), theirs))
    rows, note = [], f", {campaigns} runs of the peer, {runs:,} of ours"
    for how, each in ratios.items():
        mean = math.exp(statistics.fmean(math.log(r.value) for r in each))
        spread = mean * math.hypot(*(r.error / r.value for r in each)) / len(each)
        limit = LARGEST_ERROR if how == PROJECTED else None
        what = f"{data.title}, error, exact, {how}"
        rows.append(
            Measurement(f"{what}: geometric mean", mean, "x", limit, f"± {spread:.2g}{note}")
        )
        rows += [ratio.row(what, budget) for ratio, budget in zip(each, PEER_BUDGETS)]
    return sorted(rows, key=lambda row: bool(row.of))


def _peer_errors(
    bench: Bench, data: Dataset, budget: Budget, number: int, runs: int
) -> list[float]:
    """The metric of the peer's ALLOMFREE in `runs` campaigns; `number` selects their seeds."""
    progress(f"{PEER}'s ALLOMFREE, {data.title}, {budget}")
    given, sizes = bench.population(data), [a.k for a in data.attributes]
    found = []
    for seed in range(number * runs, (number + 1) * runs):
        done = bench.ask(given, seed, budget, oracle="campaign", sizes=sizes)
        found.append(float(squared_error(done.estimates, _truth(data))))
    return found


# --- values that change --------------------------------------------------------------------------
# Five thousand devices hold one of six values, change it eight times a year, and what they change
# to drifts with the season. Every report of every device is simulated, for a year of days. Errors
# are of windows of 1, 7 and 28 days.

DEVICES, K, DAYS, DAY_SECONDS = 5_000, 6, 364, 86_400
FIRST: Final = 1_798_761_600  # 2027; hashed codes follow from the manifest
CHANGES_PER_YEAR: Final = 8.0
WINDOWS: Final = (1, 7, 28)
START: Final = np.array([0.35, 0.25, 0.17, 0.11, 0.07, 0.05])
CHANGING_BUDGETS: Final = (Budget(2.0, 0.6), Budget(4.0, 2.0))
SEEDS: Final = (1, 2, 3)
DAYS_OF_THE_PEER: Final = 13
HASHED: Final = "hashed"
DESIGNS: Final[dict[str, dict[str, str | float | None]]] = {  # settings of the manifest
    "memoized, 1 value": {},
    "memoized, 3 values": {"max_values": 3},
    HASHED: {"reporting": "hashed"},
    "once": {"reporting": "once", "eps_1": None},
}


def fleet(design: str, budget: Budget, seed: int) -> Fleet:
    """The devices; they hold the same values whatever the design."""
    settings = {**budget._asdict(), "min_reports": 1, **DESIGNS[design]}
    asked = manifest(K, rounds=DAYS, first=FIRST, **settings)
    behaviour = Behaviour(changes=change_probability(CHANGES_PER_YEAR, DAY_SECONDS))
    counts = np.round(START * DEVICES).astype(np.int64)
    return Fleet(asked, (counts,), behaviour, seed, DAYS, DEVICES, (START[::-1],))


@lru_cache(maxsize=8)
def campaign(design: str, budget: Budget, seed: int) -> Simulated:
    """A whole year, report by report."""
    return as_reports(fleet(design, budget, seed))


def window_errors(
    design: str, budget: Budget, seeds: Sequence[int]
) -> Iterator[tuple[int, float, float]]:
    """By window: root mean square error of raw estimates, against what the devices held on average
    in the window, and coverage of the published 95 % interval."""
    errors, holds = defaultdict(list), defaultdict(list)
    for seed in seeds:
        made = campaign(design, budget, seed)
        days = [made.results_of(0).round(t, Counter()) for t in range(DAYS)]
        for window in WINDOWS:
            for first in range(0, DAYS - window + 1, window):
                last = first + window - 1
                held = made.attributes[0].truth[first : last + 1]
                true = held.mean(axis=0) / held[0].sum()
                raw = np.mean([day.raw for day in days[first : last + 1]], axis=0)
                if window == 1 or design == "once":  # the others have no interval of a window
                    shown = days[first]
                    if window > 1:
                        shown = made.results_of(0).window(first, last, Counter())
                    raw, low, high = (np.array(x) for x in (shown.raw, shown.low, shown.high))
                    holds[window].append(float(((low <= true) & (true <= high)).mean()))
                errors[window].append((raw - true) ** 2)
    for window in WINDOWS:
        coverage = float(np.mean(holds[window])) if window in holds else math.nan
        yield window, float(np.sqrt(np.mean(errors[window]))), coverage


def constant_errors(budget: Budget, runs: int) -> Iterator[Measurement]:
    """The same fleet if nothing changed: root mean square error of raw estimates after the window's
    days; of `once` from those that have answered by then."""
    rng, held = np.random.default_rng(DAYS), np.round(START * DEVICES).astype(np.int64)
    for window in WINDOWS:
        for name in MECHANISMS:
            everyone = np.tile(held, (runs, 1))
            if name == "once":
                everyone = rng.binomial(everyone, window / DAYS)
            raw = raw_estimates(name, rng, everyone, budget, window)
            error = 100 * float(np.sqrt(np.mean((raw - START) ** 2)))
            of = f"{budget}, {window} day{'s' * (window > 1)}"
            yield Measurement(f"constant, {name}", error, "points", of=of)


def changing(bench: Bench, runs: int, drawn: Plotted) -> list[Measurement]:
    """Errors of days, weeks and months, and of days against the peer's LOLOHA."""
    rows: list[Measurement] = []
    for budget in CHANGING_BUDGETS:
        rows += constant_errors(budget, OUR_RUNS)
        for design in DESIGNS:
            progress(f"a changing value, {design}, {budget}")
            for window, error, coverage in window_errors(design, budget, SEEDS):
                drawn.changing[budget][design][window] = 100 * error
                known = not math.isnan(coverage)
                note = f"coverage of 95 % intervals: {100 * coverage:.0f} %" if known else ""
                what, of = f"changing, {design}", f"{budget}, {window} day{'s' * (window > 1)}"
                rows.append(Measurement(what, 100 * error, "points", note=note, of=of))
        progress(f"{PEER}'s LOLOHA, {budget}")
        for best in (False, True):
            rows += _loloha_rows(bench, runs, budget, best, drawn)
    return rows


def _loloha_rows(
    bench: Bench, runs: int, budget: Budget, best: bool, drawn: Plotted
) -> Iterator[Measurement]:
    """Single days of the peer on the same values, with two cells or its best number of them."""
    truths = campaign(HASHED, budget, SEEDS[0]).attributes[0].truth
    task = {"oracle": PEER, "protocol": "LOLOHA", "k": K, "best_cells": best}
    theirs: list[float] = []
    days = []
    for day, values in _days(budget, DAYS // DAYS_OF_THE_PEER):
        given, true = bench.inputs("day", values), truths[day] / truths[day].sum()
        days.append(day)
        for run in range(runs):
            estimates = bench.ask(given, day * runs + run, budget, **task).estimates
            theirs.append(float(np.mean((np.ravel(estimates) - true) ** 2)))
    cells = "its best number of cells" if best else "two cells"
    points = 100 * float(np.sqrt(np.mean(theirs)))
    if not best:
        drawn.peer[budget] = points
    what, note = f"changing, {PEER} LOLOHA, {cells}, 1-day error", f"{len(theirs)} runs"
    yield Measurement(what, points, "points", note=note, of=str(budget))
    for design in DESIGNS:
        for how in FINISHES if design == HASHED else (PROJECTED,):
            ours = _day_errors(design, budget, days, FINISHES[how])
            what = f"changing, {design}, {how}, a day / {PEER} LOLOHA, {cells}"
            yield Ratio.of_means(ours, theirs).row(what, budget)


def _days(budget: Budget, every: int) -> Iterator[tuple[int, Values]]:
    """What each device held, on some days: inputs for the peer."""
    (batch,) = fleet(HASHED, budget, SEEDS[0]).batches()
    for day in range(DAYS):
        batch.reports(only_state=True)
        if day % every == every // 2:
            yield day, batch.values.copy()


def _day_errors(design: str, budget: Budget, days: Sequence[int], finish: Finish) -> list[float]:
    """Of hashed reports single days of devices that have just joined, like the peer's; of the
    others one number a year, because the days of a year share memos."""
    if design == HASHED:
        rng, errors = np.random.default_rng(len(days)), []
        truths = campaign(HASHED, budget, SEEDS[0]).attributes[0].truth
        for day in days:
            held = np.tile(truths[day], (OUR_RUNS, 1))
            raw = finish(raw_estimates(HASHED, rng, held, budget, 1))
            errors += np.mean((raw - held[0] / held[0].sum()) ** 2, axis=-1).tolist()
        return errors
    years = []
    for seed in SEEDS:
        made = campaign(design, budget, seed)
        held, result = made.attributes[0].truth, made.results_of(0)
        raws = [finish(np.array(result.round(d, made.outcomes[d]).raw)) for d in days]
        shares = [held[d] / held[d].sum() for d in days]
        years.append(float(np.mean([(r - f) ** 2 for r, f in zip(raws, shares)])))
    return years


# --- the picture ---------------------------------------------------------------------------------

_STYLES: Final[Mapping[str, dict[str, Any]]] = {
    "memoized, 1 round": {"color": "#0072B2", "marker": "o", "linestyle": ":", "mfc": "none"},
    "memoized": {"color": "#0072B2", "marker": "o"},
    "memoized, 3 values": {"color": "#56B4E9", "marker": "v"},
    "nested": {"color": "#009E73", "marker": "*"},
    "once": {"color": "#D55E00", "marker": "s"},
    "hashed": {"color": "#CC79A7", "marker": "D"},
}


class Plotted:
    """What the picture shows, gathered while it is measured: ratios and percentage points."""

    def __init__(self) -> None:
        self.static: dict[str, dict[Budget, float]] = defaultdict(dict)
        self.changing: dict[Budget, dict[str, dict[int, float]]] = {
            budget: defaultdict(dict) for budget in CHANGING_BUDGETS
        }
        self.peer: dict[Budget, float] = {}


def plot(drawn: Plotted, path: Path) -> None:
    """Values that stay on the left, values that change on the right."""
    from paper.figures import drawing  # noqa: PLC0415 - half a second, only when drawing

    with drawing(path, (11.0, 3.9), {"font.size": 9}) as figure:
        left, *rest = figure.subplots(1, 1 + len(drawn.changing))
        lines = {
            label: {str(b): ratio for b, ratio in found.items()}
            for label, found in drawn.static.items()
        }
        _curves(left, "Adult: values that stay", lines, (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0))
        left.axhline(1.0, color="0.5", linewidth=0.8)
        left.set(xlabel="(eps_inf, eps_1)", ylabel=f"MSE / {PEER}'s ALLOMFREE")
        left.set_xticks(range(4), [f"({b.eps_inf:g}, {b.eps_1:g})" for b in STATIC_BUDGETS])
        left.legend(frameon=False, fontsize=7, loc="upper center", ncols=2)
        for axes, (budget, found) in zip(rest, drawn.changing.items()):
            days = {
                name: {str(window): points for window, points in each.items()}
                for name, each in found.items()
            }
            title = f"8 changes a year, ({budget.eps_inf:g}, {budget.eps_1:g})"
            _curves(axes, title, days, (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0))
            if budget in drawn.peer:
                axes.plot(["1"], [drawn.peer[budget]], "kx", label=f"{PEER}'s LOLOHA")
            axes.set(xlabel="days in a window", ylabel="error, points")
            axes.legend(frameon=False, fontsize=7, loc="upper right")


def _curves(
    axes: Axes, title: str, lines: Mapping[str, Mapping[str, float]], ticks: Sequence[float]
) -> None:
    """Plain numbers on the axis; the highest leave space for the legend."""
    for label, found in lines.items():
        style = _STYLES.get(label) or _STYLES[label.partition(",")[0]]
        axes.plot(list(found), list(found.values()), label=label, **style)
    axes.set_yscale("log")
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(0.8 * ticks[0], ticks[-1])
    axes.set_title(title, loc="left", fontsize="medium")


def measure(peers: Peers, campaigns: int, picture: Path | None = None) -> list[Measurement]:
    """`campaigns` runs of the peer for each budget; with a picture, drawn into that file."""
    drawn = Plotted()
    with tempfile.TemporaryDirectory(prefix="allomfree-inputs-") as scratch:
        bench = Bench(peers, Path(scratch), 1)
        rows = [
            *headroom(),
            *compared_with_allomfree(bench, campaigns, drawn),
            *changing(bench, max(1, campaigns // 2), drawn),
        ]
    if picture is not None:
        plot(drawn, picture)
    return rows
