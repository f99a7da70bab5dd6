"""One question of a campaign: its domain, and the place of a device's value in it.

Claim: the domain of a question is total. Every value has a place, so that a device answers in every
round and its silence discloses nothing about the value.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from protocol_spec.errors import UnknownValue
from protocol_spec.probabilities import Method

NOT_KNOWN: Final = "none of these / not known"
CROSS: Final = " × "  # between the two values of a pair
OTHERS: Final = "others"  # the group of devices with another label, or none
LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,31}")


@dataclass(frozen=True, slots=True)
class Groups:
    """Results are also given by the value of a public label, such as the region, which devices
    get from their operator when they are enrolled: one group for each of `values`, and `OTHERS`.
    """

    label: str
    values: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return *self.values, OTHERS

    def number(self, value: str | None) -> int:
        """The place of a device's group in `names`; without a label it is one of the others."""
        return self.values.index(value) if value in self.values else len(self.values)


@dataclass(frozen=True, slots=True)
class Attribute:
    """A question with k possible answers: named values, or numbers sorted into bins; or a pair of
    two such questions, which `paired` makes: one answer to both.

    `edges` are the ends of the bins, the first and last possibly infinite; a bin includes its lower
    end, and the last one a finite upper end as well. `low` and `high` are where bins without an
    end are taken to end, for a mean; `changes` says whether a device's value changes over time.

    The last of `values` is for everything that is none of the others, unless there are bins from
    -inf to inf.
    """

    name: str
    question: str
    values: tuple[str, ...]
    edges: tuple[float, ...] | None = None
    unit: str = ""
    protocol: str = "auto"
    method: Method = "exact"
    low: float | None = None
    high: float | None = None
    changes: bool = False
    levels: tuple[float, ...] = ()
    cross: tuple[Attribute, ...] = ()

    @property
    def parts(self) -> tuple[Attribute, ...]:
        """What has a source of its own: both questions of a pair, or the question itself."""
        return self.cross or (self,)

    @property
    def k(self) -> int:
        """Number of possible answers."""
        return len(self.values)

    @property
    def otherwise(self) -> int | None:
        """The index of the value that catches everything else, if there is one."""
        if any(part.otherwise is None for part in self.cross):
            return None
        endless = self.edges is not None and self.bins == self.k
        return None if endless else self.k - 1

    @property
    def bins(self) -> int:
        """Number of bins of a numeric question, 0 for named values."""
        return len(self.edges) - 1 if self.edges else 0

    @property
    def finite_edges(self) -> tuple[float, ...] | None:
        """The ends of the bins with `low` and `high` for infinite ones; None if one is missing."""
        if self.edges is None:
            return None
        first = self.low if math.isinf(self.edges[0]) else self.edges[0]
        last = self.high if math.isinf(self.edges[-1]) else self.edges[-1]
        return None if first is None or last is None else (first, *self.edges[1:-1], last)

    @property
    def shape(self) -> tuple[int, ...]:
        """How many values each of `parts` has."""
        return tuple(part.k for part in self.parts)

    def joined(self, places: Sequence[int]) -> int:
        """The index of a pair from those of its two values, rows before columns."""
        return places[0] * self.cross[1].k + places[1] if self.cross else places[0]

    def index_of(self, value: object) -> int:
        """The place of a value in the domain. The error names the attribute, never the value.

        With a value that catches everything else nothing is refused. Of a pair, both values.
        """
        if self.cross:
            both: Any = value
            return self.joined([part.index_of(v) for part, v in zip(self.cross, both)])
        place = self._category(value) if self.edges is None else self._bin(value, self.edges)
        if isinstance(place, int):
            return place
        if self.otherwise is None:
            raise UnknownValue(self.name, f"{place}; it is not used, and reports go on without it")
        return self.otherwise

    def _category(self, value: object) -> int | str:
        """An index, or why there is none."""
        try:
            return self.values.index(str(value).lower() if isinstance(value, bool) else str(value))
        except ValueError:  # also for a whole number of thousands of digits
            return f"the value is none of its {self.k} values"

    def _bin(self, value: object, edges: tuple[float, ...]) -> int | str:
        try:
            number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if math.isnan(number):
            return "the value is not a number"
        if not edges[0] <= number <= edges[-1]:
            return f"the value is outside [{edges[0]:g}, {edges[-1]:g}]"
        return min(bisect_right(edges, number), len(edges) - 1) - 1


def paired(first: Attribute, second: Attribute, **noise: Any) -> Attribute:
    """Two questions answered together: every value of the first with every value of the second."""
    return Attribute(
        f"{first.name}-{second.name}",
        f"{first.question} {second.question}",
        tuple(f"{a}{CROSS}{b}" for a in first.values for b in second.values),
        changes=first.changes or second.changes,
        cross=(first, second),
        **noise,
    )


def bin_labels(edges: tuple[float, ...], unit: str) -> tuple[str, ...]:
    """Names of the bins, such as '< 40 °C', '40 to 50 °C', '≥ 60 °C'."""
    labels = []
    for low, high in pairwise(edges):
        first, last = (repr(edge).removesuffix(".0") for edge in (low, high))
        if math.isinf(low):
            label = f"< {last}"
        else:
            label = f"≥ {first}" if math.isinf(high) else f"{first} to {last}"
        labels.append(f"{label} {unit}" if unit else label)
    return tuple(labels)
