"""Campaigns and fleets of the simulator's tests, and samples against exact distributions."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import combinations, product
from typing import Any, TypeVar

import numpy as np

from protocol_spec import Calibration, Manifest
from simulation.devices import Fleet
from simulation.population import Behaviour
from tests.support.campaigns import manifest
from tests.support.protocol.statistics import chi_square_z

FIRST = 1_800_000_000
FUEL = '[[attributes]]\nname = "fuel"\nquestion = "?"\nvalues = ["wood", "gas", "oil", "pump"]\n'
NUMERIC = '[[attributes]]\nname = "heat"\nquestion = "?"\nedges = [-inf, 40, 60, inf]\n'


def question(k: int, name: str = "value", protocol: str = "auto") -> str:
    values = ", ".join(f'"{name[0]}{i}"' for i in range(k))
    head = f'[[attributes]]\nname = "{name}"\nquestion = "?"\nprotocol = "{protocol}"\n'
    return f"{head}values = [{values}]\n"


HOURS = question(20, "hour")


def campaign(reporting: str = "memoized", attributes: str = FUEL, **options: Any) -> Manifest:
    usual: dict[str, object] = {"first": FIRST, "period": 86_400, "count": 20}
    return manifest(**{**usual, "reporting": reporting, "attributes": attributes, **options})


def both(**options: Any) -> Manifest:
    """L-GRR for fuel, L-OSUE for hour."""
    return campaign(**{"attributes": FUEL + HOURS, **options})


def fleet(
    asked: Manifest, devices: int = 400, *, seed: int = 1, rounds: int = 2, batch: int = 150,
    **behaviour: Any,
) -> Fleet:  # fmt: skip
    """An equal part of the devices for each attribute; more of them hold the first values."""
    truth = []
    for attribute in asked.attributes:
        weights = 1.0 / np.arange(1, attribute.k + 1)
        counts = np.floor(devices // len(asked.attributes) * weights / weights.sum())
        counts[0] += devices // len(asked.attributes) - counts.sum()
        truth.append(counts.astype(np.int64))
    return Fleet(asked, tuple(truth), Behaviour(**behaviour), seed, rounds, batch)


# --- exact distributions of tiny fleets by enumeration, and samples against them ------------------

Vector = tuple[int, ...]
Distribution = dict[Vector, float]
Outcome = TypeVar("Outcome")


def one_report(c: Calibration, value: int) -> Distribution:
    """Every report that a device with this value can send, as the values it supports."""
    if not c.unary:
        having, lacking = math.comb(c.k - 1, c.size - 1), math.comb(c.k - 1, c.size)
        return {
            tuple(int(v in some) for v in range(c.k)): (
                c.ps / having if value in some else (1 - c.ps) / lacking
            )
            for some in combinations(range(c.k), c.size)
        }
    probabilities = [c.ps if v == value else c.qs for v in range(c.k)]
    return {
        bits: math.prod(p if bit else 1 - p for p, bit in zip(probabilities, bits))
        for bits in product((0, 1), repeat=c.k)
    }


def together(parts: Iterable[Distribution]) -> Distribution:
    """The sum of independent vectors."""
    total: Distribution = {}
    for part in parts:
        if not total:
            total = part
            continue
        mixed: dict[Vector, float] = defaultdict(float)
        for (left, p), (right, q) in product(total.items(), part.items()):
            mixed[tuple(a + b for a, b in zip(left, right))] += p * q
        total = dict(mixed)
    return total


def fit_z(table: np.ndarray, expected: Mapping[Vector, float]) -> float:
    """Pearson's chi-square of a table's rows against their distribution, in standard deviations.
    Rare outcomes count together; one that cannot happen is infinitely far."""
    sample = Counter(map(tuple, table.tolist()))
    runs = sample.total()
    if any(outcome not in expected for outcome in sample):
        return math.inf
    cells = [(sample[o], runs * p) for o, p in expected.items() if runs * p >= 10]
    rest = runs - sum(n for n, _ in cells), runs - math.fsum(e for _, e in cells)
    cells += [rest] if rest[1] >= 10 else []
    return chi_square_z(math.fsum((n - e) ** 2 / e for n, e in cells), len(cells) - 1)


def same_z(left: Counter[Outcome], right: Counter[Outcome]) -> float:
    """Two samples of one distribution? Chi-square of homogeneity, in standard deviations."""
    pairs = [(left[key], right[key]) for key in left | right if left[key] + right[key] >= 20]
    rest = left.total() - sum(a for a, _ in pairs), right.total() - sum(b for _, b in pairs)
    pairs += [rest] if sum(rest) >= 20 else []
    n, m = (sum(side) for side in zip(*pairs))
    chi = math.fsum((a * math.sqrt(m / n) - b * math.sqrt(n / m)) ** 2 / (a + b) for a, b in pairs)
    return chi_square_z(chi, len(pairs) - 1)
