"""The four data sets of the paper, as counts per attribute.

Counts are all that an experiment needs, because every device reports one attribute only. Each data
set says in its `note` how faithful its counts are. Attributes stand in the paper's order.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

DATA: Final = Path(__file__).with_name("data")
NAMES: Final = ("nursery", "adult", "ms_fimu", "census_income")


@dataclass(frozen=True, slots=True)
class Marginal:
    """How many rows hold each value of one attribute."""

    name: str
    values: tuple[str, ...]
    counts: tuple[int, ...]

    @property
    def k(self) -> int:
        """Number of values."""
        return len(self.values)


@dataclass(frozen=True, slots=True)
class Dataset:
    """One data set: n rows, and the counts of every attribute, each adding up to n."""

    name: str
    title: str
    note: str
    n: int
    attributes: tuple[Marginal, ...]


@cache
def load(name: str) -> Dataset:
    """One of `NAMES`."""
    if name not in NAMES:
        raise LookupError(f"there is no data set {name!r}; known are {', '.join(NAMES)}")
    document = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    marginals = tuple(
        Marginal(a["name"], tuple(a["values"]), tuple(a["counts"])) for a in document["attributes"]
    )
    return Dataset(name, document["title"], document["note"], document["n"], marginals)
