"""`benchmark.py accuracy`: errors of the mechanisms, against each other and against a peer.

Ratios are of mean squared errors: below 1, ours is smaller. multi-freq-ldpy's clients draw memo and
report in one call and keep nothing, so what it can do is one round; LOLOHA is its `L_LH`.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from benchmarks.peers import (
    Bench,
    Budget,
    Peers,
    Ratio,
    Values,
    peer_campaign_errors,
    population,
    ratio_of_means,
    squared_error,
    truth,
)
from benchmarks.report import DOCS, Measurement, progress
from paper.gains import clip_and_renormalise
from protocol_spec import Manifest, Result, as_drawn, calibrate
from protocol_spec.estimation import Array, Channel, project_to_simplex
from protocol_spec.mechanisms import Hashed, Nested, Reporting, better_once, default_levels
from simulation.counts import Counts, memoized_fleet, one_round, sample_groups
from simulation.depths import as_reports
from simulation.fleet import Fleet
from simulation.population import Behaviour, Dataset, change_probability, load
from simulation.results import Simulated

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STATIC_BUDGETS: Final = (Budget(1.0, 0.3), Budget(2.0, 0.6), Budget(4.0, 1.2), Budget(4.0, 2.0))
DATA_SETS: Final = ("nursery", "adult", "census_income")
# Nested over memoized, computed independently, for DATA_SETS, by rounds and budget
EXPECTED: Final[Mapping[int, Mapping[Budget, tuple[float, ...]]]] = {
    5: dict(zip(STATIC_BUDGETS, ((0.31, 0.40, 0.41), (0.25, 0.26, 0.30), (0.13, 0.10, 0.12),
                          (0.32, 0.33, 0.33)))),
    20: dict(zip(STATIC_BUDGETS, ((0.55, 0.66, 0.67), (0.55, 0.50, 0.56), (0.35, 0.25, 0.29),
                           (0.68, 0.67, 0.60)))),
}  # fmt: skip
CLOSE: Final = 0.15

# --- values that do not change -------------------------------------------------------------------
# Each run draws again who reports which attribute. Two targets: the devices that reported an
# attribute (`own`), which leaves only the privacy noise, and the whole population, which is the
# paper's metric and the only one that the peer's estimates allow. Histograms are projected.


class Errors(NamedTuple):
    own: Array
    population: Array


Rounds = Callable[[np.random.Generator, int, Counts, Budget, int], Array]


def _raw(counts: Counts, reports: Counts, channel: Channel) -> Array:
    p1, q1, p2, q2 = map(float, channel.exact)
    support = q1 * p2 + (1.0 - q1) * q2
    raw: Array = (counts / reports[..., np.newaxis] - support) / ((p1 - q1) * (p2 - q2))
    return raw


def _pooled(rng: np.random.Generator, channel: Channel, held: Counts, rounds: int) -> Array:
    fleet = memoized_fleet(rng, channel, held)
    total = sum(fleet.round().counts for _ in range(rounds))
    return _raw(np.asarray(total), rounds * held.sum(axis=-1), channel)


def memoized(rng: np.random.Generator, k: int, held: Counts, budget: Budget, rounds: int) -> Array:
    """All rounds pooled."""
    channel = as_drawn(calibrate("ALLOMFREE", k=k, **budget._asdict()))
    return _pooled(rng, channel, held, rounds)


def nested(rng: np.random.Generator, k: int, held: Counts, budget: Budget, rounds: int) -> Array:
    """The latest report of each device, which contains all earlier ones."""
    schedule = default_levels(k, *budget)
    protocol = better_once(k, budget.eps_inf).protocol
    made = Nested.calibrate(protocol, k=k, schedule=schedule)
    level = made.as_drawn().levels[made.level_of(rounds) - 1]
    return _raw(one_round(rng, level, held), held.sum(axis=-1), level)


def once(rng: np.random.Generator, k: int, held: Counts, budget: Budget, _rounds: int) -> Array:
    """All rounds of the campaign together: by then every device has answered with eps_inf."""
    channel = as_drawn(better_once(k, budget.eps_inf))
    return _raw(one_round(rng, channel, held), held.sum(axis=-1), channel)


def hashed(rng: np.random.Generator, k: int, held: Counts, budget: Budget, rounds: int) -> Array:
    """All rounds pooled."""
    channel = Hashed.calibrate(k=k, **budget._asdict()).as_drawn()
    return _pooled(rng, channel, held, rounds)


MECHANISMS: Final[Mapping[str, Rounds]] = {
    "memoized": memoized,
    "nested": nested,
    "once": once,
    "hashed": hashed,
}


def static_errors(
    data: Dataset, budget: Budget, rounds: int, runs: int, seed: int
) -> dict[str, Errors]:
    """The metric of every mechanism, over many runs."""
    rng = np.random.default_rng(seed)
    d = len(data.attributes)
    sizes = rng.multinomial(data.n, [1 / d] * d, size=runs)
    held = sample_groups(rng, [a.counts for a in data.attributes], sizes)
    own = [h / h.sum(axis=-1, keepdims=True) for h in held]
    population = [np.asarray(a.counts) / data.n for a in data.attributes]
    found = {}
    for name, run in MECHANISMS.items():
        estimates = [project_to_simplex(run(rng, h.shape[-1], h, budget, rounds)) for h in held]
        found[name] = Errors(squared_error(estimates, own), squared_error(estimates, population))
    return found


# --- values that change --------------------------------------------------------------------------
# Five thousand devices hold one of six values, change it eight times a year, and what they change
# to drifts with the season. Every report of every device is simulated, for a year of days. Errors
# are of windows of 1, 7 and 28 days.


DEVICES, K, DAYS, DAY_SECONDS = 5_000, 6, 364, 86_400
CHANGES_PER_YEAR: Final = 8.0
WINDOWS: Final = (1, 7, 28)
START: Final = np.array([0.35, 0.25, 0.17, 0.11, 0.07, 0.05])
CHANGING_BUDGETS: Final = (Budget(2.0, 0.6), Budget(4.0, 2.0))


class Design(NamedTuple):
    """A mechanism; `memos` is `max_values`, for the memo per value."""

    name: str
    reporting: Reporting
    memos: int = 1


DESIGNS: Final = (
    Design("memoized, 1 value", "memoized"),
    Design("memoized, 3 values", "memoized", 3),
    Design("hashed", "hashed"),
    Design("once", "once"),
)


def changing_manifest(design: Design, budget: Budget) -> Manifest:
    names = ", ".join(f'"v{i}"' for i in range(K))
    report = "" if design.reporting == "once" else f"eps_1 = {budget.eps_1}"
    memos = f"max_values = {design.memos}" if design.reporting == "memoized" else ""
    return Manifest.from_toml(f"""
format = 1
slug = "changing"
title = "A value that changes"
purpose = "Measure errors"
owner = "The benchmark"
contact = "nobody@example.org"
reporting = "{design.reporting}"
eps_inf = {budget.eps_inf}
{report}
{memos}
min_reports = 1
[rounds]
first = 2027-01-01T00:00:00Z
period = "1d"
count = {DAYS}
[[attributes]]
name = "value"
question = "Which?"
values = [{names}]
otherwise = "v{K - 1}"
""")


@lru_cache(maxsize=8)
def campaign(design: Design, budget: Budget, seed: int) -> Simulated:
    """A whole year, report by report."""
    return as_reports(fleet(design, budget, seed))


def fleet(design: Design, budget: Budget, seed: int) -> Fleet:
    """The devices; they hold the same values whatever the design."""
    counts = np.round(START * DEVICES).astype(np.int64)
    behaviour = Behaviour(changes=change_probability(CHANGES_PER_YEAR, DAY_SECONDS))
    asked = changing_manifest(design, budget)
    return Fleet(asked, (counts,), behaviour, seed, DAYS, DEVICES, (START[::-1],))


def window_errors(
    design: Design, budget: Budget, seeds: Sequence[int]
) -> tuple[dict[int, float], dict[int, float]]:
    """By window: root mean square error of raw estimates, against what the devices held on average
    in the window, and coverage of the published 95 % interval."""
    errors: dict[int, list[Array]] = {window: [] for window in WINDOWS}
    holds: dict[int, list[float]] = {window: [] for window in WINDOWS}
    for seed in seeds:
        made = campaign(design, budget, seed)
        days = [made.results_of(0).round(t, Counter()) for t in range(DAYS)]
        for window in WINDOWS:
            for first in range(0, DAYS - window + 1, window):
                true, raw, low, high = _window(made, days, first, first + window - 1)
                errors[window].append((raw - true) ** 2)
                holds[window].append(float(((low <= true) & (true <= high)).mean()))
    error = {w: float(np.sqrt(np.mean(e))) for w, e in errors.items()}
    return error, {w: float(np.mean(h)) for w, h in holds.items()}


def _window(
    made: Simulated, days: Sequence[Result], first: int, last: int
) -> tuple[Array, Array, Array, Array]:
    """Truth, estimate and ends of the interval. A window of fresh answers has one; of others, days
    are averaged, and only a day has an interval."""
    held = made.attributes[0].truth[first : last + 1]
    true = held.mean(axis=0) / held[0].sum()
    if first == last or made.manifest.reporting == "once":
        shown = days[first]
        if first != last:
            shown = made.results_of(0).window(first, last, Counter())
        return true, *(np.array(x) for x in (shown.raw, shown.low, shown.high))
    raw = np.mean([day.raw for day in days[first : last + 1]], axis=0)
    return true, raw, np.full(K, np.nan), np.full(K, np.nan)


def constant_errors(budget: Budget, runs: int) -> dict[tuple[str, int], float]:
    """The same fleet if nothing changed: root mean square error of raw estimates after the window's
    days; of `once` from those that have answered by then."""
    rng, held = np.random.default_rng(DAYS), np.round(START * DEVICES).astype(np.int64)
    found = {}
    for window in WINDOWS:
        for name, run in MECHANISMS.items():
            everyone = np.tile(held, (runs, 1))
            if name == "once":
                everyone = rng.binomial(everyone, window / DAYS)
            raw = run(rng, K, everyone, budget, window)
            found[name, window] = float(np.sqrt(np.mean((raw - START) ** 2)))
    return found


def days_of(design: Design, budget: Budget, seed: int, every: int) -> Iterator[tuple[int, Values]]:
    """What each device held, on some days: inputs for the peer."""
    (batch,) = fleet(design, budget, seed).batches()
    for day in range(DAYS):
        batch.reports(only_state=True)
        if day % every == every // 2:
            yield day, batch.values.copy()


# --- the picture ---------------------------------------------------------------------------------


_STYLES: Final[dict[str, dict[str, Any]]] = {
    "memoized": {"color": "#0072B2", "marker": "o"},
    "memoized, 1 value": {"color": "#0072B2", "marker": "o"},
    "memoized, 3 values": {"color": "#56B4E9", "marker": "v"},
    "nested": {"color": "#009E73", "marker": "*"},
    "once": {"color": "#D55E00", "marker": "s"},
    "hashed": {"color": "#CC79A7", "marker": "D"},
}


@dataclass(slots=True)
class Plotted:
    """What the picture shows, gathered while it is measured."""

    static: dict[tuple[str, int, Budget], Ratio] = field(default_factory=dict)
    changing: dict[tuple[str, int, Budget], float] = field(default_factory=dict)  # points
    peer: dict[tuple[bool, Budget], float] = field(default_factory=dict)  # points


def plot(drawn: Plotted, path: Path) -> None:
    """Values that stay on the left, values that change on the right."""
    import matplotlib as mpl  # noqa: PLC0415 - half a second, only when drawing
    from matplotlib.figure import Figure  # noqa: PLC0415

    from paper.figures import SETTINGS  # noqa: PLC0415

    budgets = list(dict.fromkeys(budget for *_, budget in drawn.changing))
    with mpl.rc_context({**SETTINGS, "font.size": 9}):
        figure = Figure(figsize=(11.0, 3.9), layout="constrained")
        left, *rest = figure.subplots(1, 1 + len(budgets), squeeze=False)[0]
        _static(left, drawn)
        for axes, budget in zip(rest, budgets):
            _changing(axes, drawn, budget)
        figure.savefig(path, metadata={"Date": None, "Creator": None})


def _static(axes: Axes, drawn: Plotted) -> None:
    lines: dict[tuple[str, int], dict[Budget, float]] = {}
    for (name, rounds, budget), ratio in drawn.static.items():
        lines.setdefault((name, rounds), {})[budget] = ratio.value
    for (name, rounds), found in lines.items():
        style = {**_STYLES[name], **({"linestyle": ":", "mfc": "none"} if rounds == 1 else {})}
        label = f"{name}, {rounds} round{'s' * (rounds > 1)}"
        axes.plot([_short(budget) for budget in found], list(found.values()), label=label, **style)
    axes.axhline(1.0, color="0.5", linewidth=0.8)
    over_theirs = "MSE / multi-freq-ldpy's ALLOMFREE"
    axes.set(yscale="log", xlabel="(eps_inf, eps_1)", ylabel=over_theirs)
    _ticks(axes, (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0))
    axes.set_title("Adult: values that stay", loc="left", fontsize="medium")
    axes.legend(frameon=False, fontsize=7, loc="upper center", ncols=2)


def _changing(axes: Axes, drawn: Plotted, budget: Budget) -> None:
    lines: dict[str, dict[int, float]] = {}
    for (name, window, at), points in drawn.changing.items():
        if at == budget:
            lines.setdefault(name, {})[window] = points
    for name, found in lines.items():
        axes.plot([str(w) for w in found], list(found.values()), label=name, **_STYLES[name])
    if (False, budget) in drawn.peer:
        theirs = drawn.peer[False, budget]
        axes.plot(["1"], [theirs], "kx", label="multi-freq-ldpy's LOLOHA")
    axes.set(yscale="log", xlabel="days in a window", ylabel="error, points")
    _ticks(axes, (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0))
    title = f"8 changes a year, {_short(budget)}"
    axes.set_title(title, loc="left", fontsize="medium")
    axes.legend(frameon=False, fontsize=7, loc="upper right")


def _ticks(axes: Axes, places: Sequence[float]) -> None:
    """Plain numbers; the highest leave space for the legend."""
    axes.set_yticks(places, [f"{place:g}" for place in places])
    axes.minorticks_off()
    axes.set_ylim(0.8 * places[0], places[-1])


def _short(budget: Budget) -> str:
    return f"({budget.eps_inf:g}, {budget.eps_1:g})"


# --- the rows ------------------------------------------------------------------------------------

PEER: Final = "multi-freq-ldpy"
DAYS_OF_THE_PEER: Final = 13
ROUNDS: Final = 5
OUR_RUNS: Final = 200
SEEDS: Final = (1, 2, 3)
Finish = Callable[[Array], Array]
FINISHES: Final[dict[str, Finish]] = {
    "clipped as the peer does": clip_and_renormalise,
    "projected": project_to_simplex,
}
HASHED: Final = next(design for design in DESIGNS if design.reporting == "hashed")
PICTURE: Final = DOCS / "pictures" / "mechanisms.svg"


def measure(peers: Peers, campaigns: int, picture: Path | None = None) -> list[Measurement]:
    """`campaigns` runs of the peer for each budget; with a picture, drawn into that file."""
    drawn = Plotted()
    with tempfile.TemporaryDirectory(prefix="allomfree-inputs-") as scratch:
        bench = Bench(peers, Path(scratch), 0, 1)
        rows = [
            *nested_over_memoized(),
            *compared_with_allomfree(bench, campaigns, drawn),
            *changing(bench, max(1, campaigns // 2), drawn),
        ]
    if picture is not None:
        plot(drawn, picture)
    return rows


def nested_over_memoized() -> list[Measurement]:
    """The ratio for each data set and budget, compared with EXPECTED."""
    rows = []
    cases = (
        (rounds, budget, name, value)
        for rounds, by_budget in EXPECTED.items()
        for budget, values in by_budget.items()
        for name, value in zip(DATA_SETS, values)
    )
    for rounds, budget, name, expected in cases:
        data = load(name)
        progress(f"nested and memoized, {data.title}, {budget}, {rounds} rounds")
        found = static_errors(data, budget, rounds, OUR_RUNS, seed=rounds)
        ratio = ratio_of_means(found["nested"].own.tolist(), found["memoized"].own.tolist())
        judged = rounds == ROUNDS
        rows.append(
            Measurement(
                f"nested / memoized, {rounds} rounds, {data.title}: {budget}",
                ratio.value,
                "x",
                expected * (1 + CLOSE) if judged else None,
                f"± {ratio.error:.2g}; expected: {expected:.2f}",
                expected * (1 - CLOSE) if judged else None,
            )
        )
    return rows


def compared_with_allomfree(bench: Bench, campaigns: int, drawn: Plotted) -> list[Measurement]:
    """Every mechanism after five rounds over the peer's one round, at the same budget."""
    data = load("adult")
    sizes, true = [a.k for a in data.attributes], truth(data)
    given, rows = bench.inputs("users", population(data)), []
    for number, budget in enumerate(STATIC_BUDGETS):
        progress(f"{PEER}'s ALLOMFREE, {data.title}, {budget}")
        theirs = peer_campaign_errors(bench, given, sizes, true, budget, number, campaigns)
        for rounds in (1, ROUNDS):
            found = static_errors(data, budget, rounds, OUR_RUNS, seed=number)
            for name, errors in found.items():
                if rounds == ROUNDS or name == "memoized":
                    ratio = ratio_of_means(errors.population.tolist(), theirs)
                    drawn.static[name, rounds, budget] = ratio
                    what = f"{data.title}, {name}, {rounds} round{'s' * (rounds > 1)}"
                    rows.append(_ratio_row(f"{what} / {PEER} ALLOMFREE: {budget}", ratio))
    return rows


def _ratio_row(title: str, ratio: Ratio) -> Measurement:
    return Measurement(title, ratio.value, "x", note=f"± {ratio.error:.2g}")


def changing(bench: Bench, runs: int, drawn: Plotted) -> list[Measurement]:
    """Errors of days, weeks and months, and of days against the peer's LOLOHA."""
    rows = []
    for budget in CHANGING_BUDGETS:
        for (name, window), error in constant_errors(budget, OUR_RUNS).items():
            title = f"constant, {name}, {window}-day error: {budget}"
            rows.append(Measurement(title, 100 * error, "points"))
        for design in DESIGNS:
            progress(f"a changing value, {design.name}, {budget}")
            rows += _window_rows(design, budget, drawn)
        progress(f"{PEER}'s LOLOHA, {budget}")
        for best in (False, True):
            rows += _loloha_rows(bench, runs, budget, best, drawn)
    return rows


def _window_rows(design: Design, budget: Budget, drawn: Plotted) -> list[Measurement]:
    error, coverage = window_errors(design, budget, SEEDS)
    rows = []
    for window in WINDOWS:
        drawn.changing[design.name, window, budget] = 100 * error[window]
        known = design.reporting == "once" or window == 1
        note = f"coverage of 95 % intervals: {100 * coverage[window]:.0f} %" if known else ""
        title = f"changing, {design.name}, {window}-day error: {budget}"
        rows.append(Measurement(title, 100 * error[window], "points", note=note))
    return rows


def _loloha_rows(
    bench: Bench, runs: int, budget: Budget, best: bool, drawn: Plotted
) -> list[Measurement]:
    """Single days of the peer on the same values, with two cells or its best number of them."""
    truths = campaign(HASHED, budget, SEEDS[0]).attributes[0].truth
    task = {"oracle": PEER, "protocol": "LOLOHA", "k": K, "best_cells": best}
    theirs: list[float] = []
    days = []
    for day, values in days_of(HASHED, budget, SEEDS[0], DAYS // DAYS_OF_THE_PEER):
        given, true = bench.inputs("day", values), truths[day] / truths[day].sum()
        days.append(day)
        for run in range(runs):
            estimates = bench.ask(given, day * runs + run, budget, **task).estimates
            theirs.append(float(np.mean((np.ravel(estimates) - true) ** 2)))
    cells = "its best number of cells" if best else "two cells"
    points = drawn.peer[best, budget] = 100 * float(np.sqrt(np.mean(theirs)))
    own = f"changing, {PEER} LOLOHA, {cells}, 1-day error: {budget}"
    rows = [Measurement(own, points, "points", note=f"{len(theirs)} runs")]
    for design in DESIGNS:
        for how, finish in FINISHES.items():
            if design is HASHED:
                ratio = ratio_of_means(_new_device_errors(budget, days, finish), theirs)
            elif how == "projected":
                ratio = ratio_of_means(_yearly_errors(design, budget, days, finish), theirs)
            else:
                continue
            title = f"changing, {design.name}, {how}, a day / {PEER} LOLOHA, {cells}: {budget}"
            rows.append(_ratio_row(title, ratio))
    return rows


def _new_device_errors(budget: Budget, days: Sequence[int], finish: Finish) -> list[float]:
    """Single days of devices that have just joined, like the peer's, with the same distribution."""
    rng, errors = np.random.default_rng(len(days)), []
    truths = campaign(HASHED, budget, SEEDS[0]).attributes[0].truth
    for day in days:
        held = np.tile(truths[day], (OUR_RUNS, 1))
        raw = hashed(rng, K, held, budget, 1)
        errors += np.mean((finish(raw) - held[0] / held[0].sum()) ** 2, axis=-1).tolist()
    return errors


def _yearly_errors(
    design: Design, budget: Budget, days: Sequence[int], finish: Finish
) -> list[float]:
    """One number a year, because the days of a year share memos."""
    years = []
    for seed in SEEDS:
        made = campaign(design, budget, seed)
        held, result = made.attributes[0].truth, made.results_of(0)
        errors = []
        for day in days:
            raw: Array = np.array(result.round(day, made.outcomes[day]).raw)
            errors.append(float(np.mean((finish(raw) - held[day] / held[day].sum()) ** 2)))
        years.append(float(np.mean(errors)))
    return years
