"""Any mechanism, also one outside of the repository, against `memoized` at the same budgets.

Both answer for the data set Nursery, report by report, on the same devices, and results are those
that a collector publishes. A ratio below 1 means that the mechanism errs or costs less.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Final, NamedTuple

import numpy as np

from benchmarks.report import Measurement, in_turns, median_of, progress, ratio_of
from protocol_spec import Manifest, Reporting
from simulation.campaigns import as_reports
from simulation.devices import Fleet
from simulation.population import Behaviour, for_dataset, populate

DATA: Final = "nursery"
ROUNDS: Final = (1, 5, 20)


class Run(NamedTuple):
    """Mean squared error of the published bars, in squared points; the share of values inside of
    their 95 % intervals; processor microseconds of a report."""

    error: float
    coverage: float
    cost: float


def measure(name: Reporting, devices: int, runs: int) -> list[Measurement]:
    rows = []
    for rounds in ROUNDS:
        progress(f"{name} and memoized, {rounds} rounds")
        ours, theirs = in_turns(
            runs,
            lambda seed, r=rounds: one_run(name, devices, r, seed),  # type: ignore[misc]
            lambda seed, r=rounds: one_run("memoized", devices, r, seed),  # type: ignore[misc]
        )
        errors, costs = (
            [[run[field] for run in side] for side in (ours, theirs)] for field in (0, 2)
        )
        of, note = f"{rounds} round{'s' if rounds > 1 else ''}", f"{devices:,} devices, {runs} runs"
        rows += [
            ratio_of(f"error, {name} / memoized", *errors, of=of, note=note),
            ratio_of(f"CPU time of a report, {name} / memoized", *costs, of=of),
            median_of(f"coverage of 95 % intervals, {name}", [run.coverage for run in ours], of=of),
        ]
    return rows


def one_run(name: Reporting, devices: int, rounds: int, seed: int) -> Run:
    toml = for_dataset(DATA, eps_inf=2.0, eps_1=0.6, rounds=max(ROUNDS), reporting=name)
    asked = Manifest.from_toml(toml)
    truth = populate(asked, [DATA], devices, seed).drawn(seed)
    begin = time.process_time()
    made = as_reports(Fleet(asked, truth, Behaviour(), seed, rounds))
    seconds = time.process_time() - begin
    off, inside = [], []
    for index in range(len(asked.attributes)):
        result = made.results_of(index).pooled(Counter())
        if result is not None and not result.withheld:
            f = made.true_frequencies(index)
            off.append(np.square(100 * (np.array(result.projected) - f)).mean())
            inside.append(((f >= result.low) & (f <= result.high)).mean())
    sent = sum(int(each.sent.sum()) for each in made.attributes)
    return Run(float(np.mean(off)), float(np.mean(inside)), seconds / sent * 1e6)
