"""Pairs through the published path: intervals of sums hold, and a relation is not imagined."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest

from collector.results.estimates import margins_of, relation_of
from protocol_spec import Manifest, Result, decode_result
from simulation.campaigns import as_statistics
from simulation.population import Behaviour
from tests.support.protocol.statistics import LIMIT, binomial_z
from tests.support.simulation import campaign

pytestmark = pytest.mark.slow

RUNS = 250
Table = npt.NDArray[np.float64]


def question(name: str, k: int) -> str:
    values = ", ".join(f'"{name}{i}"' for i in range(k))
    return f'[[attributes]]\nname = "{name}"\nquestion = "?"\nvalues = [{values}]\n'


@dataclass(frozen=True)
class Case:
    """A pair, its margins as powers of 1/place, and how many devices answer how often."""

    reporting: str
    shape: tuple[int, int]
    eps: tuple[float, float]
    rounds: int
    devices: int
    slope: float
    dropout: float = 0.0

    def manifest(self) -> Manifest:
        rows, columns = self.shape
        return campaign(
            self.reporting,
            question("row", rows) + question("column", columns),
            cross=("row", "column"),
            eps_inf=self.eps[0],
            eps_1=self.eps[1],
            count=self.rounds,
        )

    def table(self, related: bool) -> Table:
        rows, columns = (np.arange(1, n + 1.0) ** -self.slope for n in self.shape)
        table: Table = np.outer(rows / rows.sum(), columns / columns.sum())
        if related:
            moved = 0.9 * min(table[0, 1], table[1, 0])
            table[:2, :2] += [[moved, -moved], [-moved, moved]]
        return table


CASES = {
    "once, few": Case("once", (2, 2), (2.0, 2.0), 1, 200, 1.0),
    "once, OUE": Case("once", (5, 5), (2.0, 2.0), 1, 10_000, 1.0),
    "memoized, much noise": Case("memoized", (5, 5), (2.0, 0.6), 1, 2000, 1.0),
    "memoized, pooled": Case("memoized", (3, 4), (4.0, 1.2), 5, 1500, 1.0, 0.3),
    "hashed": Case("hashed", (3, 3), (4.0, 2.0), 3, 2000, 0.5, 0.2),
    "nested": Case("nested", (3, 4), (4.0, 1.2), 4, 2000, 1.0, 0.3),
}


@cache
def published(name: str, related: bool) -> tuple[Manifest, Table, list[Result]]:
    """Results as they come from the broker, of fleets drawn anew."""
    case, rng = CASES[name], np.random.default_rng(list(CASES).index(name))
    manifest, table, made = case.manifest(), case.table(related), []
    for seed in range(RUNS // 5 if related else RUNS):
        held = rng.multinomial(case.devices, table.ravel())
        found = as_statistics(
            manifest, (held,), Behaviour(dropout=case.dropout), rounds=case.rounds, seed=seed
        )
        result = found.results_of(0).pooled(found.outcomes[0])
        assert result is not None
        read = decode_result(result.encode())
        assert isinstance(read, Result)
        made.append(read)
    return manifest, table, made


@pytest.mark.parametrize("name", CASES)
def test_intervals_of_sums_hold(name: str) -> None:
    """One value at a time, over runs; and all values of a question at once."""
    manifest, table, made = published(name, False)
    one: list[npt.NDArray[np.bool_]] = []
    every = 0
    for result in made:
        for axis, (_, margin) in zip((1, 0), margins_of(manifest, result)):
            truth = table.sum(axis=axis)
            (low, high), (low_all, high_all) = margin.both_intervals(result.confidence)
            one.append((low <= truth) & (truth <= high))
            every += bool(((low_all <= truth) & (truth <= high_all)).all())
    shares = np.array([held.mean() for held in one])
    z = (shares.mean() - 0.95) / (shares.std(ddof=1) / len(made) ** 0.5)
    assert z > -LIMIT, f"{shares.mean():.3f} covered, z = {z:.2f}"
    at_once = binomial_z(every, 2 * len(made), 0.95)
    assert at_once > -LIMIT * 2**0.5, f"all at once, z = {at_once:.2f}"  # two of each run


@pytest.mark.parametrize("name", CASES)
def test_a_relation_is_not_imagined(name: str) -> None:
    manifest, _, made = published(name, False)
    found = [relation_of(manifest, result) for result in made]
    for level in (0.01, 0.05, 0.2):
        alarms = sum(each is not None and each.p_value <= level for each in found)
        z = binomial_z(alarms, len(made), level)
        assert z < LIMIT, f"{alarms} of {len(made)} at {level}, z = {z:.2f}"


@pytest.mark.parametrize("name", ["once, OUE", "memoized, pooled", "nested"])
def test_a_relation_is_found(name: str) -> None:
    manifest, _, made = published(name, True)
    found = [relation_of(manifest, result) for result in made]
    assert sum(each is not None and each.shown for each in found) > 0.9 * len(made)
