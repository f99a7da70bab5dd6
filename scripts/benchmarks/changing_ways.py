"""Error of the ways of reporting for values that change: a year of days, windows of 1, 7 and 28.

Five thousand devices hold one of six values, change it eight times a year, and what they change to
drifts with the season. Every report of every device is simulated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from benchmarks import static_ways
from benchmarks.accuracy import Budget
from benchmarks.our_side import Values
from protocol_spec import Manifest, Result
from protocol_spec.estimation import Array
from protocol_spec.ways import Reporting
from simulation.collected import Simulated
from simulation.depths.reports import as_reports
from simulation.model.behaviour import Behaviour, chance_of_change
from simulation.model.fleet import Fleet

DEVICES, K, DAYS, DAY_SECONDS = 5_000, 6, 364, 86_400
CHANGES_PER_YEAR: Final = 8.0
WINDOWS: Final = (1, 7, 28)
START: Final = np.array([0.35, 0.25, 0.17, 0.11, 0.07, 0.05])
BUDGETS: Final = (Budget(2.0, 0.6), Budget(4.0, 2.0))


class Design(NamedTuple):
    """A way of reporting; `memos` is `max_values`, for the memo per value."""

    name: str
    reporting: Reporting
    memos: int = 1

    def bound(self, budget: Budget) -> float:
        """The most that a device's ledger is charged in its life."""
        return budget.eps_inf * (2 if self.reporting == "hashed" else self.memos)


DESIGNS: Final = (
    Design("memoized, 1 value", "memoized"),
    Design("memoized, 3 values", "memoized", 3),
    Design("hashed", "hashed"),
    Design("once", "once"),
)


class Found(NamedTuple):
    """Root mean square error and how often the published 95 % interval held, by window."""

    error: Mapping[int, float]
    held: Mapping[int, float]


def manifest(design: Design, budget: Budget) -> Manifest:
    """The campaign."""
    names = ", ".join(f'"v{i}"' for i in range(K))
    report = "" if design.reporting == "once" else f"eps_1 = {budget.eps_1}"
    memos = f"max_values = {design.memos}" if design.reporting == "memoized" else ""
    return Manifest.from_toml(f"""
format = 2
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
    behaviour = Behaviour(changes=chance_of_change(CHANGES_PER_YEAR, DAY_SECONDS))
    asked = manifest(design, budget)
    return Fleet(asked, (counts,), behaviour, seed, DAYS, DEVICES, (START[::-1],))


def measure(design: Design, budget: Budget, seeds: Sequence[int]) -> Found:
    """Of raw estimates about what the devices held on average in the window."""
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
    return Found(
        {w: float(np.sqrt(np.mean(e))) for w, e in errors.items()},
        {w: float(np.mean(h)) for w, h in holds.items()},
    )


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


def staying(budget: Budget, runs: int) -> dict[tuple[str, int], float]:
    """The same fleet if nothing changed: root mean square error of raw estimates after so many
    days, about the values of the fleet; of `once` from those that have answered by then."""
    rng, held = np.random.default_rng(DAYS), np.round(START * DEVICES).astype(np.int64)
    found = {}
    for window in WINDOWS:
        for way, run in static_ways.WAYS.items():
            everyone = np.tile(held, (runs, 1))
            if way == "once":
                everyone = rng.binomial(everyone, window / DAYS)
            raw = run(rng, K, everyone, budget, window)
            found[way, window] = float(np.sqrt(np.mean((raw - START) ** 2)))
    return found


def days_of(design: Design, budget: Budget, seed: int, every: int) -> Iterator[tuple[int, Values]]:
    """What each device held, on some days: inputs for the peer."""
    (batch,) = fleet(design, budget, seed).batches()
    for day in range(DAYS):
        batch.reports(only_state=True)
        if day % every == every // 2:
            yield day, batch.values.copy()
