"""`benchmark.py accuracy`: errors of the ways of reporting, beside each other and beside a peer.

multi-freq-ldpy's clients draw memo and report in one call and keep nothing, so what it can do is
one round; LOLOHA is its `L_LH`. Ratios are of mean squared errors: below 1, ours errs less.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks import changing_ways, static_ways
from benchmarks.accuracy import Budget, Ratio, ratio_of_means, squared_error, truth
from benchmarks.changing_ways import DAYS, DESIGNS, WINDOWS, Design
from benchmarks.measurements import Measurement
from benchmarks.peer_environment import Peers
from benchmarks.peers import Bench, population
from benchmarks.ways_figure import Drawn, draw
from paper.pipeline import clip_and_renormalise
from protocol_spec.estimation import Array, project_to_simplex
from simulation.model.datasets import load

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
PICTURE: Final = Path(__file__).parents[2] / "docs" / "pictures" / "mechanisms.svg"


@dataclass(frozen=True, slots=True)
class Effort:
    """How often everything is repeated: the peer's campaigns and days, and runs of ours."""

    peer_campaigns: int
    our_runs: int = OUR_RUNS
    seeds: tuple[int, ...] = SEEDS
    data_sets: tuple[str, ...] = static_ways.DATA_SETS

    @property
    def peer_days(self) -> int:
        """Runs of the peer for each day."""
        return max(1, self.peer_campaigns // 2)


def measure(peers: Peers, effort: Effort, picture: Path | None = None) -> list[Measurement]:
    """All sections; with a picture, drawn into that file."""
    drawn = Drawn()
    with tempfile.TemporaryDirectory(prefix="allomfree-inputs-") as scratch:
        bench = Bench(peers, Path(scratch), 0, 1)
        rows = [
            *nested_over_memoized(effort),
            *beside_allomfree(bench, effort, drawn),
            *changing(bench, effort, drawn),
        ]
    if picture is not None:
        draw(drawn, picture)
    return rows


# --- values that do not change -------------------------------------------------------------------


def nested_over_memoized(effort: Effort) -> list[Measurement]:
    """The ratio for each data set and budget, beside what it was worked out to be."""
    rows = []
    for rounds, expected in static_ways.EXPECTED.items():
        for budget, wanted in expected.items():
            for name, value in zip(static_ways.DATA_SETS, wanted):
                if name in effort.data_sets:
                    rows.append(_nested(effort, name, budget, rounds, value))
    return rows


def _nested(effort: Effort, name: str, budget: Budget, rounds: int, expected: float) -> Measurement:
    data = load(name)
    _say(f"nested and memoized, {data.title}, {budget}, {rounds} rounds")
    found = static_ways.errors(data, budget, rounds, effort.our_runs, seed=rounds)
    ratio = ratio_of_means(found["nested"].own.tolist(), found["memoized"].own.tolist())
    judged = rounds == ROUNDS
    return Measurement(
        f"nested / memoized, {rounds} rounds, {data.title}: {budget}",
        ratio.value,
        "x",
        expected * (1 + static_ways.CLOSE) if judged else None,
        f"± {ratio.error:.2g}; worked out beforehand: {expected:.2f}",
        expected * (1 - static_ways.CLOSE) if judged else None,
    )


def beside_allomfree(bench: Bench, effort: Effort, drawn: Drawn) -> list[Measurement]:
    """Every way after five rounds over the peer's one round, at the same budget."""
    data = load("adult")
    users, sizes, true = population(data), [a.k for a in data.attributes], truth(data)
    given, rows = bench.inputs("users", users), []
    for number, budget in enumerate(static_ways.BUDGETS):
        _say(f"{PEER}'s ALLOMFREE, {data.title}, {budget}")
        asked = {"oracle": "campaign", "sizes": sizes}
        seeds = range(number * effort.peer_campaigns, (number + 1) * effort.peer_campaigns)
        told = [bench.ask(given, seed, budget, **asked).estimates for seed in seeds]
        theirs = [float(squared_error(estimates, true)) for estimates in told]
        for rounds in (1, ROUNDS):
            found = static_ways.errors(data, budget, rounds, effort.our_runs, seed=number)
            for way, errors in found.items():
                if rounds == ROUNDS or way == "memoized":
                    ratio = ratio_of_means(errors.population.tolist(), theirs)
                    drawn.static[way, rounds, budget] = ratio
                    rows.append(_beside(f"{data.title}, {way}", rounds, budget, ratio))
    return rows


def _beside(what: str, rounds: int, budget: Budget, ratio: Ratio) -> Measurement:
    said = "1 round" if rounds == 1 else f"{rounds} rounds"
    title = f"{what}, {said} / {PEER} ALLOMFREE: {budget}"
    return Measurement(title, ratio.value, "x", note=f"± {ratio.error:.2g}")


# --- values that change --------------------------------------------------------------------------


def changing(bench: Bench, effort: Effort, drawn: Drawn) -> list[Measurement]:
    """Errors of days, weeks and months, and of days beside the peer's LOLOHA."""
    rows = []
    for budget in changing_ways.BUDGETS:
        rows += _staying(effort, budget)
        for design in DESIGNS:
            _say(f"a changing value, {design.name}, {budget}")
            rows += _windows(design, budget, effort.seeds, drawn)
        _say(f"{PEER}'s LOLOHA, {budget}")
        for best in (False, True):
            theirs = _loloha(bench, effort, budget, best_cells=best)
            rows += _beside_loloha(effort, budget, theirs, best, drawn)
    return rows


def _staying(effort: Effort, budget: Budget) -> list[Measurement]:
    found = changing_ways.staying(budget, effort.our_runs)
    return [
        Measurement(f"staying, {way}, {window}-day error: {budget}", 100 * error, "points")
        for (way, window), error in found.items()
    ]


def _windows(
    design: Design, budget: Budget, seeds: Sequence[int], drawn: Drawn
) -> list[Measurement]:
    found = changing_ways.measure(design, budget, seeds)
    rows = []
    for window in WINDOWS:
        drawn.changing[design.name, window, budget] = 100 * found.error[window]
        known = design.reporting == "once" or window == 1
        note = f"95 % intervals held {100 * found.held[window]:.0f} %" if known else ""
        title = f"changing, {design.name}, {window}-day error: {budget}"
        rows.append(Measurement(title, 100 * found.error[window], "points", note=note))
    return rows


def _loloha(
    bench: Bench, effort: Effort, budget: Budget, *, best_cells: bool
) -> dict[int, list[float]]:
    """Squared errors of the peer, by day."""
    every, seed = DAYS // DAYS_OF_THE_PEER, effort.seeds[0]
    truths = changing_ways.campaign(HASHED, budget, seed).attributes[0].truth
    task = {"oracle": PEER, "protocol": "LOLOHA", "k": changing_ways.K, "best_cells": best_cells}
    found: dict[int, list[float]] = {}
    for day, values in changing_ways.days_of(HASHED, budget, seed, every):
        given, true = bench.inputs("day", values), truths[day] / truths[day].sum()
        told = [
            bench.ask(given, day * effort.peer_days + run, budget, **task).estimates
            for run in range(effort.peer_days)
        ]
        found[day] = [float(np.mean((np.ravel(estimates) - true) ** 2)) for estimates in told]
    return found


def _beside_loloha(
    effort: Effort, budget: Budget, theirs: dict[int, list[float]], best: bool, drawn: Drawn
) -> list[Measurement]:
    flat = [error for errors in theirs.values() for error in errors]
    cells = "its best number of cells" if best else "two cells"
    points = drawn.peer[best, budget] = 100 * float(np.sqrt(np.mean(flat)))
    own = f"changing, {PEER} LOLOHA, {cells}, 1-day error: {budget}"
    rows = [Measurement(own, points, "points", note=f"{len(flat)} runs")]
    for design in DESIGNS:
        for how, finish in FINISHES.items():
            if design is not HASHED and how != "projected":
                continue
            days = list(theirs)
            mine = (_fresh_days if design is HASHED else _daily)(
                effort, design, budget, days, finish
            )
            ratio = ratio_of_means(mine, flat)
            title = f"changing, {design.name}, {how}, a day / {PEER} LOLOHA, {cells}: {budget}"
            rows.append(Measurement(title, ratio.value, "x", note=f"± {ratio.error:.2g}"))
    return rows


def _fresh_days(
    effort: Effort, design: Design, budget: Budget, days: Sequence[int], finish: Finish
) -> list[float]:
    """Single days of devices that have just joined, as the peer's: one day has the same law."""
    rng, errors = np.random.default_rng(len(days)), []
    truths = changing_ways.campaign(design, budget, effort.seeds[0]).attributes[0].truth
    for day in days:
        held = np.tile(truths[day], (effort.our_runs, 1))
        raw = static_ways.hashed(rng, changing_ways.K, held, budget, 1)
        errors += np.mean((finish(raw) - held[0] / held[0].sum()) ** 2, axis=-1).tolist()
    return errors


def _daily(
    effort: Effort, design: Design, budget: Budget, days: Sequence[int], finish: Finish
) -> list[float]:
    """One number a year, because the days of a year share memos."""
    years = []
    for seed in effort.seeds:
        errors = []
        made = changing_ways.campaign(design, budget, seed)
        for day in days:
            held, result = made.attributes[0].truth[day], made.results_of(0)
            raw: Array = np.array(result.round(day, made.outcomes[day]).raw)
            errors.append(float(np.mean((finish(raw) - held / held.sum()) ** 2)))
        years.append(float(np.mean(errors)))
    return years


def _say(what: str) -> None:
    print(what, file=sys.stderr)
