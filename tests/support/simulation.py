"""Campaigns and fleets for these tests: one attribute of L-GRR, one of L-OSUE."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import product
from typing import TypeVar

import numpy as np

from protocol_spec import Calibration, Manifest
from protocol_spec.mechanisms import Reporting
from simulation.fleet import Fleet
from simulation.population import Behaviour
from tests.support.campaigns import manifest

FIRST = 1_800_000_000
FUEL = '[[attributes]]\nname = "fuel"\nquestion = "?"\nvalues = ["wood", "gas", "oil", "pump"]\n'
NUMERIC = '[[attributes]]\nname = "heat"\nquestion = "?"\nedges = [-inf, 40, 60, inf]\n'


def hours(k: int = 20) -> str:
    values = ", ".join(f'"h{i}"' for i in range(k))
    return f'[[attributes]]\nname = "hour"\nquestion = "?"\nvalues = [{values}]\n'


def both(**options: object) -> Manifest:
    """L-GRR for fuel, L-OSUE for hour."""
    return manifest(**{"first": FIRST, "attributes": FUEL + hours(), **options})


def fleet(
    campaign: Manifest, devices: int = 400, *, seed: int = 1, rounds: int = 2, batch: int = 150,
    **behaviour: object,
) -> Fleet:  # fmt: skip
    """Half the devices ask for each attribute; more of them hold the first values."""
    truth = []
    for attribute in campaign.attributes:
        weights = 1.0 / np.arange(1, attribute.k + 1)
        counts = np.floor(devices // len(campaign.attributes) * weights / weights.sum())
        counts[0] += devices // len(campaign.attributes) - counts.sum()
        truth.append(counts.astype(np.int64))
    does = Behaviour(**behaviour)  # type: ignore[arg-type]
    return Fleet(campaign, tuple(truth), does, seed, rounds, batch)


# --- exact distributions of tiny fleets by enumeration, and samples against them ------------------

Vector = tuple[int, ...]
Law = dict[Vector, float]
Outcome = TypeVar("Outcome")


def one_report(c: Calibration, value: int) -> Law:
    """Every report that a device with this value can send, as the values it supports."""
    if not c.unary:
        rows = np.eye(c.k, dtype=int).tolist()
        return {tuple(row): c.ps if v == value else c.qs for v, row in enumerate(rows)}
    probabilities = [c.ps if v == value else c.qs for v in range(c.k)]
    return {
        bits: math.prod(p if bit else 1 - p for p, bit in zip(probabilities, bits))
        for bits in product((0, 1), repeat=c.k)
    }


def together(laws: Iterable[Law]) -> Law:
    """The sum of independent vectors."""
    total: Law = {}
    for law in laws:
        if not total:
            total = law
            continue
        mixed: dict[Vector, float] = defaultdict(float)
        for left, p in total.items():
            for right, q in law.items():
                mixed[tuple(a + b for a, b in zip(left, right))] += p * q
        total = dict(mixed)
    return total


def fit_z(sample: Counter[Vector], law: Mapping[Vector, float]) -> float:
    """Pearson's chi-square of a sample against its law, in standard deviations. Rare outcomes
    count together; one that cannot happen is infinitely far."""
    runs = sample.total()
    if any(outcome not in law for outcome in sample):
        return math.inf
    cells = [(sample[o], runs * p) for o, p in law.items() if runs * p >= 10]
    rest = runs - sum(n for n, _ in cells), runs - math.fsum(e for _, e in cells)
    cells += [rest] if rest[1] >= 10 else []
    return _normal(math.fsum((n - e) ** 2 / e for n, e in cells), len(cells) - 1)


def same_z(left: Counter[Outcome], right: Counter[Outcome]) -> float:
    """Two samples of one law? Chi-square of homogeneity, in standard deviations."""
    common = [key for key in left | right if left[key] + right[key] >= 20]
    pairs = [(left[key], right[key]) for key in common]
    pairs.append(
        (left.total() - sum(a for a, _ in pairs), right.total() - sum(b for _, b in pairs))
    )
    pairs = [(a, b) for a, b in pairs if a + b >= 20]
    n, m = (sum(side) for side in zip(*pairs))
    chi = math.fsum((a * math.sqrt(m / n) - b * math.sqrt(n / m)) ** 2 / (a + b) for a, b in pairs)
    return _normal(chi, len(pairs) - 1)


def vectors(table: np.ndarray) -> Counter[Vector]:
    """Rows of a table, counted."""
    return Counter(map(tuple, table.tolist()))


def _normal(chi_square: float, freedom: int) -> float:
    """Wilson and Hilferty's cube root."""
    part = 2 / (9 * freedom)
    return float(((chi_square / freedom) ** (1 / 3) - (1 - part)) / math.sqrt(part))


BUDGETS = {"memoized": "eps_1 = 0.6", "once": "", "hashed": "eps_1 = 0.6", "nested": "eps_1 = 0.6"}


def questions(k: int, protocol: str = "auto") -> str:
    """One question with k values and none besides."""
    values = ", ".join(f'"v{i}"' for i in range(k))
    asked = f'[[attributes]]\nname = "value"\nquestion = "?"\nvalues = [{values}]\n'
    return f'{asked}otherwise = "v{k - 1}"\nprotocol = "{protocol}"\n'


def campaign(
    reporting: Reporting,
    *,
    attributes: str = FUEL,
    eps_inf: float = 2.0,
    count: int = 20,
    each: int = 1,
    min_reports: int = 1,
    max_values: int = 1,
) -> Manifest:
    answers = f"each = {each}" if reporting == "once" else ""
    memos = f"max_values = {max_values}" if reporting == "memoized" else ""
    return Manifest.from_toml(f"""
format = 1
slug = "mechanisms"
title = "Mechanisms"
purpose = "Testing"
owner = "The tests"
contact = "tests@example.org"
reporting = "{reporting}"
eps_inf = {eps_inf}
{BUDGETS[reporting]}
min_reports = {min_reports}
{memos}
[rounds]
first = {FIRST}
period = 86400
count = {count}
{answers}
{attributes}""")
