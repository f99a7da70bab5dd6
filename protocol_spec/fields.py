"""What one field of a manifest may hold: a value in, the checked value out.

A `Kind` shows its limits, because the tables of the specification are made from them. A value that
cannot be used raises `Wrong` with what would be right.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any, Final

from protocol_spec import limits
from protocol_spec.attributes import LABEL_VALUE, OTHERS
from protocol_spec.errors import CONTROLS, INVISIBLE, as_toml, nearest, pattern_for

_HEX: Final = re.compile(r"(?:[0-9a-fA-F]{2})*")
_DURATION: Final = re.compile(r"([0-9]{1,12})([smhdw])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_DURATION_REMEDY: Final = 'write a duration such as "90s", "15m", "6h", "1d" or "2w"'
_INSTANT: Final = "as in 2027-01-01T00:00:00Z"


class Wrong(Exception):
    """A field's value cannot be used; the argument says what would be right."""


@dataclass(frozen=True, slots=True)
class Kind:
    """`low` and `high` bound a number, the length of a text or the number of items; `each` is the
    kind of the items, `words` are all that is allowed, `pattern` what a name matches as a whole."""

    name: str
    parse: Callable[[Any], Any]
    low: float = 0
    high: float = 0
    each: Kind | None = None
    words: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None


def parse_duration(text: str) -> int | None:
    """Seconds of a duration such as "6h" (s, m, h, d, w), or None when the text is not one."""
    match = _DURATION.fullmatch(text)
    return int(match[1]) * _SECONDS[match[2]] if match else None


def _only(sound: Callable[[Any], object], remedy: str) -> Callable[[Any], Any]:
    """A value as it is, if it is sound."""

    def parse(value: Any) -> Any:
        if not sound(value):
            raise Wrong(remedy)
        return value

    return parse


def constant(number: int) -> Kind:
    """The version of the format."""
    remedy = f"must be {number}: this version reads no other format"
    sound = _only(lambda value: type(value) is int and value == number, remedy)
    return Kind("format", sound, number, number)


def text(longest: int, shortest: int = 1) -> Kind:
    """One line of text without hidden characters; its length is counted in code points."""

    def parse(value: Any) -> str:
        if not isinstance(value, str) or value != value.strip(" ") or _found(CONTROLS, value):
            raise Wrong("must be one line of printable text without blanks around it")
        hidden = _found(INVISIBLE, value)
        if hidden:
            raise Wrong(f"must not hold the invisible character U+{ord(hidden[0]):04X}; delete it")
        if not shortest <= len(value) <= longest:
            raise Wrong(f"must have from {shortest} to {longest} characters")
        return value

    return Kind("text", parse, shortest, longest)


def _found(characters: str, text: str) -> re.Match[str] | None:
    return pattern_for(text, characters).search(text)


def name(pattern: re.Pattern[str], remedy: str) -> Kind:
    """A text that matches a pattern as a whole; the remedy says the pattern in words."""
    sound = _only(lambda value: isinstance(value, str) and pattern.fullmatch(value), remedy)
    return Kind("name", sound, pattern=pattern)


def one_of(*allowed: str) -> Kind:
    """One of a few words."""

    def parse(value: Any) -> str:
        if not isinstance(value, str) or value not in allowed:
            near = nearest(value, allowed) if isinstance(value, str) else ""
            raise Wrong(f"choose one of {', '.join(allowed)}{near}")
        return value

    return Kind("word", parse, words=allowed)


def whole(low: int, high: int) -> Kind:
    remedy = f"must be a whole number from {low} to {high}"
    sound = _only(lambda value: type(value) is int and low <= value <= high, remedy)
    return Kind("int", sound, low, high)


def number(low: float, high: float) -> Kind:
    """A number within bounds; the author may write it without a point."""
    remedy = f"must be a number from {low:g} to {high:g}"
    sound = _only(lambda value: type(value) in (int, float) and low <= value <= high, remedy)
    return Kind("float", lambda value: float(sound(value)), low, high)


def duration(low: int, high: int) -> Kind:
    """Whole seconds within bounds; the author may write "6h"."""

    def parse(value: Any) -> int:
        seconds = parse_duration(value) if isinstance(value, str) else value
        if type(seconds) is not int:
            raise Wrong(_DURATION_REMEDY)
        if not low <= seconds <= high:
            raise Wrong(f"must be from {low} to {high} seconds; {_DURATION_REMEDY}")
        return seconds

    return Kind("duration", parse, low, high)


def instant(*, or_now: bool = False) -> Kind:
    """Whole seconds of Unix time; the author writes a date and time with its zone.

    With `or_now` the author may also write "now", which was resolved before.
    """

    def parse(value: Any) -> int:
        if isinstance(value, str):
            more = f', or write "now"{nearest(value, ["now"])}' if or_now else ""
            raise Wrong(f"write it without quotation marks, {_INSTANT}{more}")
        seconds = value
        if isinstance(value, datetime):
            if value.tzinfo is None:
                raise Wrong(f"add the time zone, {_INSTANT}")
            if value.microsecond:
                raise Wrong("must be a whole second")
            seconds = int(value.timestamp())
        if type(seconds) is not int or not 0 <= seconds <= limits.MAX_INSTANT:
            raise Wrong(f"write a date and time with its zone, {_INSTANT}")
        return seconds

    return Kind("instant", parse, 0, limits.MAX_INSTANT)


def _finite(value: Any) -> float | None:
    if value is None:
        return None
    if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:
        raise Wrong("must be a finite number")
    return float(value) + 0.0  # there is one zero


def _key(value: Any) -> bytes:
    written = isinstance(value, str) and _HEX.fullmatch(value) is not None
    key = bytes.fromhex(value) if written else value
    if type(key) is not bytes or len(key) not in (0, limits.KEY_BYTES):
        raise Wrong(f"must be an Ed25519 public key, {2 * limits.KEY_BYTES} hexadecimal digits")
    return key


_table: Final = _only(lambda value: isinstance(value, Mapping), "must be a table")


def _listed(value: Any, low: int, high: int, what: str) -> list[Any]:
    if not isinstance(value, list | tuple) or not low <= len(value) <= high:
        raise Wrong(f"must be {what.format(f'{low} to {high}')}")
    return list(value)


def _tables(value: Any) -> list[Mapping[str, Any]]:
    tables = _listed(value, 1, limits.MAX_ATTRIBUTES, "from {} [[attributes]] tables")
    return [_table(item) for item in tables]


def _two_tables(value: Any) -> list[Mapping[str, Any]]:
    return [_table(item) for item in _listed(value, 2, 2, "a list of both questions")]


def _values(value: Any) -> tuple[str, ...]:
    given = _listed(value, limits.MIN_VALUES, limits.MAX_VALUES, "a list of {} values")
    names = []
    for item in given:
        try:
            names.append(_VALUE.parse(item))
        except Wrong as wrong:
            raise Wrong(f"{as_toml(item)} {wrong}") from None
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise Wrong(f"must not repeat {as_toml(twice)}")
    return tuple(names)


def _edges(value: Any) -> tuple[float, ...]:
    what = "a list of {} numbers, the ends of the bins"
    given = _listed(value, limits.MIN_VALUES + 1, limits.MAX_VALUES + 1, what)
    if any(type(edge) not in (int, float) for edge in given):
        raise Wrong("must be numbers; -inf and inf are allowed at the ends")
    try:
        edges = tuple(float(edge) + 0.0 for edge in given)  # + 0.0: there is one zero
    except OverflowError:
        raise Wrong("must be numbers that a float64 can hold") from None
    rising = all(low < high for low, high in pairwise(edges))
    if not rising or any(math.isinf(edge) for edge in edges[1:-1]):
        raise Wrong("must rise strictly, with -inf only first and inf only last")
    return edges


def _levels(value: Any) -> tuple[float, ...]:
    given = _listed(value, limits.MIN_LEVELS, limits.MAX_LEVELS, "a list of {} numbers")
    levels = tuple(EPSILON.parse(level) for level in given)
    if not all(low < high for low, high in pairwise(levels)):
        raise Wrong("must rise strictly")
    return levels


def _groups(value: Any) -> tuple[str, ...]:
    given = _listed(value, 1, limits.MAX_GROUPS, "a list of {} values of the label")
    for item in given:
        if not isinstance(item, str) or not LABEL_VALUE.fullmatch(item) or item == OTHERS:
            remedy = "1 to 32 letters, digits, spaces, . _ and -"
            raise Wrong(f'{as_toml(item)} is none: {remedy}, and not "{OTHERS}"')
    if len(set(given)) < len(given):
        raise Wrong("must not repeat a value")
    return tuple(given)


_VALUE: Final = text(limits.MAX_VALUE_LENGTH)
EPSILON: Final = number(limits.MIN_EPSILON, limits.MAX_EPS_INF)
FINITE: Final = Kind("finite", _finite)
FLAG: Final = Kind("flag", _only(lambda value: type(value) is bool, "must be true or false"))
KEY: Final = Kind("key", _key, 0, limits.KEY_BYTES)
TABLE: Final = Kind("table", _table)
TABLES: Final = Kind("tables", _tables, 1, limits.MAX_ATTRIBUTES)
PAIR: Final = Kind("cross", _two_tables, 2, 2)
VALUES: Final = Kind("values", _values, limits.MIN_VALUES, limits.MAX_VALUES, _VALUE)
EDGES: Final = Kind("edges", _edges, limits.MIN_VALUES + 1, limits.MAX_VALUES + 1)
GROUPS: Final = Kind("groups", _groups, 1, limits.MAX_GROUPS)
LEVELS: Final = Kind("levels", _levels, limits.MIN_LEVELS, limits.MAX_LEVELS, EPSILON)
