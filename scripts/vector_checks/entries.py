"""One entry of a file of reference values, which knows what of it nobody has looked at."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


class Compared(NamedTuple):
    """One number of the code beside the reference's; `difference` is relative, or absolute at 0."""

    name: str
    got: float
    wanted: float

    @property
    def difference(self) -> float:
        error = abs(self.got - self.wanted)
        if math.isnan(error):
            return float("inf")
        return error / abs(self.wanted) if self.wanted else error


def same(name: str, got: object, wanted: object) -> Compared:
    """For what is equal or not: a word, or an integer to its last digit."""
    return Compared(name, 0.0 if got == wanted else float("inf"), 0.0)


class Entry:
    """The fields of a JSON object. Whoever reads a field has looked at it."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        if not isinstance(fields, Mapping):
            raise TypeError("an entry is an object with named fields")
        self._fields = fields
        self._seen: set[str] = set()
        self._inner: list[Entry] = []

    def __getitem__(self, name: str) -> Any:
        if name not in self._fields:
            raise ValueError(f"the field {name!r} is missing")
        self._seen.add(name)
        return self._fields[name]

    def __contains__(self, name: object) -> bool:
        return name in self._fields

    def number(self, name: str) -> float:
        """A number, or its digits as text."""
        return float(self[name])

    def get(self, name: str, default: Any) -> Any:
        return self[name] if name in self._fields else default

    def inner(self, name: str) -> Entry:
        """A field that is an object itself."""
        return self._watched(Entry(self[name]))

    def each(self, name: str) -> list[Entry]:
        """A field that is a list of objects."""
        return [self._watched(Entry(fields)) for fields in self[name]]

    def _watched(self, entry: Entry) -> Entry:
        self._inner.append(entry)
        return entry

    def matching(self, pattern: str) -> Iterator[tuple[str, re.Match[str]]]:
        """Fields whose whole name fits a pattern."""
        for name in self._fields:
            match = re.fullmatch(pattern, name)
            if match:
                yield name, match

    def unseen(self) -> set[str]:
        """Fields that nobody looked at; texts are remarks."""
        own = {
            name
            for name, value in self._fields.items()
            if name not in self._seen and not isinstance(value, str)
        }
        return own.union(*(entry.unseen() for entry in self._inner))
