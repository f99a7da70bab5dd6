"""What one field of a manifest may hold: a value in, the checked value out.

Each kind is an object that shows its limits, because the tables of the specification are made
from them. A value that cannot be used raises `Wrong` with what would be right.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any, Final

from protocol_spec.limits import (
    KEY_BYTES,
    MAX_ATTRIBUTES,
    MAX_EPS_INF,
    MAX_INSTANT,
    MAX_LEVELS,
    MAX_VALUE_LENGTH,
    MAX_VALUES,
    MIN_EPSILON,
    MIN_LEVELS,
    MIN_VALUES,
)
from protocol_spec.shown import CONTROLS, INVISIBLE, as_toml, nearest, pattern_for

__all__ = [
    "Duration",
    "Edges",
    "Finite",
    "Flag",
    "Instant",
    "Key",
    "Levels",
    "Name",
    "Number",
    "OneOf",
    "Table",
    "Tables",
    "Text",
    "Values",
    "Version",
    "Whole",
    "Wrong",
    "nearest",
    "parse_duration",
]

_HEX: Final = re.compile(r"(?:[0-9a-fA-F]{2})*")
_DURATION: Final = re.compile(r"([0-9]{1,12})([smhdw])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_DURATION_REMEDY: Final = 'write a duration such as "90s", "15m", "6h", "1d" or "2w"'


class Wrong(Exception):
    """A field's value cannot be used; the argument says what would be right."""


def parse_duration(text: str) -> int | None:
    """Seconds of a duration such as "6h" (s, m, h, d, w), or None when the text is none."""
    match = _DURATION.fullmatch(text)
    return int(match[1]) * _SECONDS[match[2]] if match else None


@dataclass(frozen=True, slots=True)
class Version:
    """The version of the format: one of a few whole numbers, rising."""

    known: tuple[int, ...]

    def __call__(self, value: Any) -> int:
        if type(value) is not int or value not in self.known:
            known = " or ".join(map(str, self.known))
            raise Wrong(f"must be {known}: this version reads no other format")
        return value


@dataclass(frozen=True, slots=True)
class Text:
    """One line of text that is seen as it is; its length is counted in code points."""

    longest: int
    shortest: int = 1

    def __call__(self, value: Any) -> str:
        if not isinstance(value, str) or value != value.strip(" ") or _find(CONTROLS, value):
            raise Wrong("must be one line of printable text without blanks around it")
        hidden = _find(INVISIBLE, value)
        if hidden:
            raise Wrong(f"must not hold the invisible character U+{ord(hidden[0]):04X}; delete it")
        if not self.shortest <= len(value) <= self.longest:
            raise Wrong(f"must have from {self.shortest} to {self.longest} characters")
        return value


def _find(characters: str, text: str) -> re.Match[str] | None:
    return pattern_for(text, characters).search(text)


@dataclass(frozen=True, slots=True)
class Name:
    """A text that matches a pattern as a whole; the remedy says the pattern in words."""

    pattern: re.Pattern[str]
    remedy: str

    def __call__(self, value: Any) -> str:
        if not isinstance(value, str) or not self.pattern.fullmatch(value):
            raise Wrong(self.remedy)
        return value


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of a few words."""

    allowed: tuple[str, ...]

    def __call__(self, value: Any) -> str:
        if value not in self.allowed:
            near = nearest(str(value), self.allowed) if isinstance(value, str) else ""
            raise Wrong(f"choose one of {', '.join(self.allowed)}{near}")
        return str(value)


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number within bounds."""

    smallest: int
    largest: int

    def __call__(self, value: Any) -> int:
        if type(value) is not int or not self.smallest <= value <= self.largest:
            raise Wrong(f"must be a whole number from {self.smallest} to {self.largest}")
        return value


@dataclass(frozen=True, slots=True)
class Number:
    """A number within bounds; the author may write it without a point."""

    smallest: float
    largest: float

    def __call__(self, value: Any) -> float:
        if type(value) not in (int, float) or not self.smallest <= value <= self.largest:
            raise Wrong(f"must be a number from {self.smallest:g} to {self.largest:g}")
        return float(value)


@dataclass(frozen=True, slots=True)
class Finite:
    """A finite number, or nil where none is stated."""

    def __call__(self, value: Any) -> float | None:
        if value is None:
            return None
        if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:
            raise Wrong("must be a finite number")
        return float(value) + 0.0  # there is one zero


@dataclass(frozen=True, slots=True)
class Flag:
    """Yes or no."""

    def __call__(self, value: Any) -> bool:
        if type(value) is not bool:
            raise Wrong("must be true or false")
        return value


@dataclass(frozen=True, slots=True)
class Key:
    """A public key, or nothing; the author writes it in hexadecimal."""

    length: int = KEY_BYTES

    def __call__(self, value: Any) -> bytes:
        written = isinstance(value, str) and _HEX.fullmatch(value) is not None
        key = bytes.fromhex(value) if written else value
        if type(key) is not bytes or len(key) not in (0, self.length):
            raise Wrong(f"must be an Ed25519 public key, {2 * self.length} hexadecimal digits")
        return key


@dataclass(frozen=True, slots=True)
class Levels:
    """What the first reports, the first two, and so on tell together."""

    fewest: int = MIN_LEVELS
    most: int = MAX_LEVELS
    each: Number = Number(MIN_EPSILON, MAX_EPS_INF)

    def __call__(self, value: Any) -> tuple[float, ...]:
        if not isinstance(value, list | tuple) or not self.fewest <= len(value) <= self.most:
            raise Wrong(f"must be a list of {self.fewest} to {self.most} numbers")
        levels = tuple(self.each(level) for level in value)
        if not all(low < high for low, high in pairwise(levels)):
            raise Wrong("must rise strictly")
        return levels


@dataclass(frozen=True, slots=True)
class Duration:
    """Whole seconds within bounds; the author may write "6h"."""

    smallest: int
    largest: int

    def __call__(self, value: Any) -> int:
        seconds = parse_duration(value) if isinstance(value, str) else value
        if type(seconds) is not int:
            raise Wrong(_DURATION_REMEDY)
        if not self.smallest <= seconds <= self.largest:
            raise Wrong(
                f"must be from {self.smallest} to {self.largest} seconds; {_DURATION_REMEDY}"
            )
        return seconds


@dataclass(frozen=True, slots=True)
class Instant:
    """Whole seconds of Unix time; the author writes a date and time with its zone.

    With `or_now` the author may also write "now", which was resolved before.
    """

    smallest: int = 0
    largest: int = MAX_INSTANT
    or_now: bool = False

    def __call__(self, value: Any) -> int:
        seconds = _timestamp(value) if isinstance(value, datetime) else value
        if isinstance(value, str):
            more = f', or write "now"{nearest(value, ["now"])}' if self.or_now else ""
            raise Wrong(f"write it without quotation marks, as in 2027-01-01T00:00:00Z{more}")
        if type(seconds) is not int or not self.smallest <= seconds <= self.largest:
            raise Wrong("write a date and time with its zone, as in 2027-01-01T00:00:00Z")
        return seconds


def _timestamp(moment: datetime) -> int:
    if moment.tzinfo is None:
        raise Wrong("add the time zone, as in 2027-01-01T00:00:00Z")
    if moment.microsecond:
        raise Wrong("must be a whole second")
    return int(moment.timestamp())


@dataclass(frozen=True, slots=True)
class Table:
    """A table of fields."""

    def __call__(self, value: Any) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise Wrong("must be a table")
        return value


@dataclass(frozen=True, slots=True)
class Tables:
    """A list of tables."""

    fewest: int = 1
    most: int = MAX_ATTRIBUTES

    def __call__(self, value: Any) -> list[Mapping[str, Any]]:
        if not isinstance(value, list | tuple) or not self.fewest <= len(value) <= self.most:
            raise Wrong(f"must be from {self.fewest} to {self.most} [[attributes]] tables")
        return [Table()(item) for item in value]


@dataclass(frozen=True, slots=True)
class Values:
    """The named answers to a question, none twice."""

    fewest: int = MIN_VALUES
    most: int = MAX_VALUES
    each: Text = Text(MAX_VALUE_LENGTH)

    def __call__(self, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list | tuple) or not self.fewest <= len(value) <= self.most:
            raise Wrong(f"must be a list of {self.fewest} to {self.most} values")
        names = tuple(self._one(item) for item in value)
        if len(set(names)) < len(names):
            twice = next(name for i, name in enumerate(names) if name in names[:i])
            raise Wrong(f"must not repeat {as_toml(twice)}")
        return names

    def _one(self, item: Any) -> str:
        try:
            return self.each(item)
        except Wrong as wrong:
            raise Wrong(f"{as_toml(item)} {wrong}") from None


@dataclass(frozen=True, slots=True)
class Edges:
    """The ends of the bins that a question's numbers are sorted into."""

    fewest: int = MIN_VALUES + 1
    most: int = MAX_VALUES + 1

    def __call__(self, value: Any) -> tuple[float, ...]:
        if not isinstance(value, list | tuple) or not self.fewest <= len(value) <= self.most:
            raise Wrong(
                f"must be a list of {self.fewest} to {self.most} numbers, the ends of the bins"
            )
        if any(type(edge) not in (int, float) for edge in value):
            raise Wrong("must be numbers; -inf and inf are allowed at the ends")
        try:
            edges = tuple(float(edge) + 0.0 for edge in value)  # + 0.0: there is one zero
        except OverflowError:
            raise Wrong("must be numbers that a float64 can hold") from None
        rising = all(low < high for low, high in pairwise(edges))
        if not rising or any(math.isinf(edge) for edge in edges[1:-1]):
            raise Wrong("must rise strictly, with -inf only first and inf only last")
        return edges
