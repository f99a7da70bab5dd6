"""From a decoded document to checked fields: every refusal names field, value and remedy.

All problems of a manifest are collected before it is refused, so that its author fixes them in
one go. The same reader serves TOML (dates, "6h") and the wire (integers); defaults fill what the
author left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from itertools import pairwise
from typing import Any, Final, TypeVar

from protocol_spec.attributes import Attribute, bin_labels
from protocol_spec.calibration import LONGITUDINAL
from protocol_spec.errors import InfeasibleBudget, ManifestError, ParameterError, Problem
from protocol_spec.schedule import Schedule

MAX_ATTRIBUTES: Final = 128
MAX_VALUES: Final = 4096
MAX_ROUNDS: Final = 65_536
MAX_EPS_INF: Final = 20.0
MAX_INSTANT: Final = 253_402_300_799  # the last second of the year 9999
MAX_RECEIPT_PAGES: Final = 65_536
YEAR: Final = 366 * 86_400

SLUG: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?")
NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,31}")
DURATION: Final = re.compile(r"([0-9]{1,12})([smhdw])")
# Controls, line separators, direction overrides and lone surrogates: what could hide or disguise
# text on a terminal. Listed by number, so that every implementation refuses the same.
UNPRINTABLE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}

Read = TypeVar("Read")
_MISSING: Final = object()
_DURATION_REMEDY: Final = 'write a duration such as "90s", "15m", "6h", "1d" or "2w"'


class _Wrong(Exception):
    """A field's value cannot be used; the argument says what would be right."""


class _Table:
    """One table of the document, read field by field; problems go to the shared list."""

    def __init__(self, document: Mapping[str, Any], path: str, problems: list[Problem]) -> None:
        self._document = document
        self._path = path
        self._problems = problems
        self._asked: list[str] = []

    def read(self, field: str, convert: Callable[[Any], Read], default: object = _MISSING) -> Read:
        """The converted field, the default when absent, or a stand-in after noting a problem."""
        self._asked.append(field)
        value = self._document.get(field, _MISSING)
        if value is _MISSING:
            if default is _MISSING:
                self.note(field, None, "is required")
            return default  # type: ignore[return-value]
        try:
            return convert(value)
        except _Wrong as wrong:
            self.note(field, value, str(wrong))
            return default  # type: ignore[return-value]

    def note(self, field: str, value: object, remedy: str) -> None:
        self._problems.append(Problem(f"{self._path}{field}", value, remedy))

    def has(self, field: str) -> bool:
        return field in self._document

    def finish(self) -> None:
        """Refuse what nobody asked for: a misspelt field must not silently be a default."""
        for field in self._document:
            if field not in self._asked:
                remedy = f"is not a field of a manifest{_nearest(str(field), self._asked)}"
                self.note(str(field), self._document[field], remedy)


def _nearest(field: str, known: list[str]) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 - 0.3 MB that a sound manifest spares

    near = get_close_matches(field, known, 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def read_manifest(document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `Manifest`, or `ManifestError` with every problem found."""
    problems: list[Problem] = []
    top = _Table(document, "", problems)
    top.read("format", _exactly(1))
    fields: dict[str, Any] = {
        "slug": top.read("slug", _matching(SLUG, "use 1 to 32 of a-z, 0-9 and inner hyphens")),
        "title": top.read("title", _text(100)),
        "purpose": top.read("purpose", _text(1000)),
        "owner": top.read("owner", _text(100)),
        "contact": top.read("contact", _text(200)),
        "eps_inf": top.read("eps_inf", _number(1e-9, MAX_EPS_INF)),
        "eps_1": top.read("eps_1", _number(1e-9, MAX_EPS_INF)),
        "min_reports": top.read("min_reports", _whole(1, 10**12), 200),
        "max_values": top.read("max_values", _whole(1, MAX_VALUES), 1),
        "receipt_pages": top.read("receipt_pages", _whole(1, MAX_RECEIPT_PAGES), 16),
        "retention": top.read("retention", _duration(0, 100 * YEAR), 30 * 86_400),
        "rounds": _read_rounds(top, problems),
        "attributes": _read_attributes(top, problems),
    }
    rounds = fields["rounds"]
    fields["created"] = top.read("created", _instant, rounds.first if rounds else None)
    fields["expires"] = top.read("expires", _instant, rounds.end if rounds else None)
    top.finish()
    if not problems:
        _check_together(fields, problems)
    if problems:
        raise ManifestError(problems)
    return fields


def _read_rounds(top: _Table, problems: list[Problem]) -> Schedule | None:
    document = top.read("rounds", _table)
    if not isinstance(document, Mapping):  # absent or wrong: noted already
        return None
    before = len(problems)
    table = _Table(document, "rounds.", problems)
    first = table.read("first", _instant)
    period = table.read("period", _duration(1, YEAR))
    count = table.read("count", _whole(1, MAX_ROUNDS))
    grace = table.read("grace", _duration(0, YEAR), period if len(problems) == before else 0)
    table.finish()
    return Schedule(first, period, count, grace) if len(problems) == before else None


def _read_attributes(top: _Table, problems: list[Problem]) -> tuple[Attribute, ...]:
    documents = top.read("attributes", _tables)
    if not isinstance(documents, list | tuple):
        return ()
    return tuple(
        _read_attribute(_Table(document, f"attributes[{i}].", problems))
        for i, document in enumerate(documents)
    )


def _read_attribute(table: _Table) -> Attribute:
    name = table.read("name", _matching(NAME, "use a-z first, then up to 31 of a-z, 0-9, _ and -"))
    question = table.read("question", _text(300))
    edges, unit = None, ""
    if table.has("edges"):
        edges = table.read("edges", _edges, (0.0, 1.0, 2.0))
        unit = table.read("unit", _text(16, empty=True), "")
        values = bin_labels(edges, unit)
        if table.has("values"):
            table.note("values", "", "give either values or edges, not both")
    else:
        values = table.read("values", _values)
    protocol = table.read("protocol", _one_of("auto", *LONGITUDINAL), "auto")
    method = table.read("calibration", _one_of("exact", "paper"), "exact")
    table.finish()
    return Attribute(name, question, values, edges, unit, protocol, method)  # type: ignore[arg-type]


def _check_together(fields: Mapping[str, Any], problems: list[Problem]) -> None:
    """Checks that need more than one field, once each of them is sound by itself."""
    rounds, attributes = fields["rounds"], fields["attributes"]
    if rounds.end > MAX_INSTANT:
        problems.append(Problem("rounds.count", rounds.count, "the last round is after year 9999"))
    if fields["created"] > rounds.first:
        remedy = f"must not be after rounds.first = {rounds.first}"
        problems.append(Problem("created", fields["created"], remedy))
    if fields["expires"] < rounds.end:
        remedy = f"must not be before the last round's deadline, {rounds.end}"
        problems.append(Problem("expires", fields["expires"], remedy))
    names = [attribute.name for attribute in attributes]
    for i, name in enumerate(names):
        if name in names[:i]:
            problems.append(Problem(f"attributes[{i}].name", name, "is taken; choose another"))
    largest = max(attribute.k for attribute in attributes)
    if fields["max_values"] > largest:
        remedy = f"no attribute has more than {largest} values"
        problems.append(Problem("max_values", fields["max_values"], remedy))
    for i, attribute in enumerate(attributes):
        try:
            attribute.calibration(fields["eps_inf"], fields["eps_1"])
        except ParameterError as error:
            if not isinstance(error, InfeasibleBudget):
                problems.append(Problem(error.field, error.value, error.remedy))
                break
            path = f"attributes[{i}].protocol"
            problems.append(Problem(path, attribute.protocol, f"{error.field}: {error.remedy}"))


# --- converters: a value in, the checked value out, or _Wrong with what would be right ---------


def _exactly(wanted: int) -> Callable[[Any], int]:
    def convert(value: Any) -> int:
        if type(value) is not int or value != wanted:
            raise _Wrong(f"must be {wanted}, the only format this version reads")
        return value

    return convert


def _text(longest: int, *, empty: bool = False) -> Callable[[Any], str]:
    def convert(value: Any) -> str:
        if not isinstance(value, str) or UNPRINTABLE.search(value) or value != value.strip(" "):
            raise _Wrong("must be one line of printable text without blanks around it")
        if len(value) > longest or (not value and not empty):
            raise _Wrong(f"must have from {0 if empty else 1} to {longest} characters")
        return value

    return convert


def _matching(pattern: re.Pattern[str], remedy: str) -> Callable[[Any], str]:
    def convert(value: Any) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise _Wrong(remedy)
        return value

    return convert


def _one_of(*allowed: str) -> Callable[[Any], str]:
    def convert(value: Any) -> str:
        if value not in allowed:
            raise _Wrong(f"choose one of {', '.join(allowed)}")
        return str(value)

    return convert


def _whole(smallest: int, largest: int) -> Callable[[Any], int]:
    def convert(value: Any) -> int:
        if type(value) is not int or not smallest <= value <= largest:
            raise _Wrong(f"must be a whole number from {smallest} to {largest}")
        return value

    return convert


def _number(smallest: float, largest: float) -> Callable[[Any], float]:
    def convert(value: Any) -> float:
        if type(value) not in (int, float) or not smallest <= value <= largest:
            raise _Wrong(f"must be a number from {smallest:g} to {largest:g}")
        return float(value)

    return convert


def _duration(smallest: int, largest: int) -> Callable[[Any], int]:
    def convert(value: Any) -> int:
        match = DURATION.fullmatch(value) if isinstance(value, str) else None
        if type(value) is not int and match is None:
            raise _Wrong(_DURATION_REMEDY)
        seconds = int(match[1]) * SECONDS[match[2]] if match else value
        if not smallest <= seconds <= largest:
            raise _Wrong(f"must be from {smallest} to {largest} seconds; {_DURATION_REMEDY}")
        return int(seconds)

    return convert


def _instant(value: Any) -> int:
    seconds = value
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise _Wrong("add the time zone, as in 2027-01-01T00:00:00Z")
        if value.microsecond:
            raise _Wrong("must be a whole second")
        seconds = int(value.timestamp())
    if type(seconds) is not int or not 0 <= seconds <= MAX_INSTANT:
        raise _Wrong("write a date and time with its zone, as in 2027-01-01T00:00:00Z")
    return seconds


def _table(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _Wrong("must be a table")
    return value


def _tables(value: Any) -> list[Mapping[str, Any]]:
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= MAX_ATTRIBUTES:
        raise _Wrong(f"must be from 1 to {MAX_ATTRIBUTES} [[attributes]] tables")
    return [_table(item) for item in value]


def _values(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not 2 <= len(value) <= MAX_VALUES:
        raise _Wrong(f"must be a list of 2 to {MAX_VALUES} values")
    names = tuple(_text(100)(item) for item in value)
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise _Wrong(f"must not repeat {twice!r}")
    return names


def _edges(value: Any) -> tuple[float, ...]:
    if not isinstance(value, list | tuple) or not 3 <= len(value) <= MAX_VALUES + 1:
        raise _Wrong(f"must be a list of 3 to {MAX_VALUES + 1} numbers, the ends of the bins")
    if any(type(edge) not in (int, float) for edge in value):
        raise _Wrong("must be numbers; -inf and inf are allowed at the ends")
    try:
        edges = tuple(float(edge) + 0.0 for edge in value)  # + 0.0: there is one zero
    except OverflowError:
        raise _Wrong("must be numbers that a float64 can hold") from None
    rising = all(low < high for low, high in pairwise(edges))
    if not rising or any(math.isinf(edge) for edge in edges[1:-1]):
        raise _Wrong("must rise strictly, with -inf only first and inf only last")
    return edges
