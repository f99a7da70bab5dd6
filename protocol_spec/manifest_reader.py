"""From a decoded document to checked fields: every refusal names field, value and remedy.

All problems of a manifest are collected before it is refused, so that its author fixes them in
one go. The same reader serves TOML (dates, "6h") and the wire (integers); defaults fill what the
author left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from protocol_spec import limits
from protocol_spec.attributes import Attribute, bin_labels
from protocol_spec.chances import LONGITUDINAL, METHODS
from protocol_spec.errors import InfeasibleBudget, ManifestError, ParameterError, Problem
from protocol_spec.fields import (
    Duration,
    Edges,
    Exactly,
    Instant,
    Name,
    Number,
    OneOf,
    Table,
    Tables,
    Text,
    Values,
    Whole,
    Wrong,
)
from protocol_spec.names import ATTRIBUTE, SLUG
from protocol_spec.schedule import Schedule

__all__ = [
    "ATTRIBUTE_FIELDS",
    "FORMAT",
    "MANIFEST_FIELDS",
    "ROUNDS_FIELDS",
    "Field",
    "read_manifest",
]

FORMAT: Final = 1
_MORE: Final = limits.MAX_NAME_LENGTH - 1
_MISSING: Final = object()


class Field(NamedTuple):
    """What a field may hold, and what it is when its author leaves it out."""

    kind: Callable[[Any], Any]
    default: object = _MISSING

    @property
    def required(self) -> bool:
        """Whether it has no default of its own."""
        return self.default is _MISSING


# `created`, `expires` and `grace` have defaults too, that follow from the rounds.
MANIFEST_FIELDS: Final[Mapping[str, Field]] = {
    "format": Field(Exactly(FORMAT)),
    "slug": Field(Name(SLUG, f"use 1 to {limits.MAX_SLUG_LENGTH} of a-z, 0-9 and inner hyphens")),
    "title": Field(Text(limits.MAX_TITLE_LENGTH)),
    "purpose": Field(Text(limits.MAX_PURPOSE_LENGTH)),
    "owner": Field(Text(limits.MAX_OWNER_LENGTH)),
    "contact": Field(Text(limits.MAX_CONTACT_LENGTH)),
    "created": Field(Instant()),
    "expires": Field(Instant()),
    "retention": Field(Duration(0, limits.MAX_RETENTION_SECONDS), 30 * 86_400),
    "eps_inf": Field(Number(limits.MIN_EPSILON, limits.MAX_EPS_INF)),
    "eps_1": Field(Number(limits.MIN_EPSILON, limits.MAX_EPS_INF)),
    "min_reports": Field(Whole(1, limits.MAX_MIN_REPORTS), 200),
    "max_values": Field(Whole(1, limits.MAX_VALUES), 1),
    "receipt_pages": Field(Whole(1, limits.MAX_RECEIPT_PAGES), 16),
    "rounds": Field(Table()),
    "attributes": Field(Tables()),
}
ROUNDS_FIELDS: Final[Mapping[str, Field]] = {
    "first": Field(Instant()),
    "period": Field(Duration(1, limits.MAX_PERIOD_SECONDS)),
    "count": Field(Whole(1, limits.MAX_ROUNDS)),
    "grace": Field(Duration(0, limits.MAX_PERIOD_SECONDS)),
}
# `values`, or `edges` and `unit`.
ATTRIBUTE_FIELDS: Final[Mapping[str, Field]] = {
    "name": Field(Name(ATTRIBUTE, f"use a-z first, then up to {_MORE} of a-z, 0-9, _ and -")),
    "question": Field(Text(limits.MAX_QUESTION_LENGTH)),
    "values": Field(Values()),
    "edges": Field(Edges()),
    "unit": Field(Text(limits.MAX_UNIT_LENGTH, shortest=0), ""),
    "protocol": Field(OneOf(("auto", *LONGITUDINAL)), "auto"),
    "calibration": Field(OneOf(METHODS), "exact"),
}


class _Reader:
    """One table of the document, read field by field; problems go to the shared list."""

    def __init__(
        self,
        fields: Mapping[str, Field],
        document: Mapping[str, Any],
        path: str,
        problems: list[Problem],
    ) -> None:
        self._fields = fields
        self._document = document
        self._path = path
        self._problems = problems
        self._asked: list[str] = []

    def read(self, name: str, default: object = _MISSING) -> Any:
        """The checked field, its default when absent, or a stand-in after noting a problem."""
        self._asked.append(name)
        field = self._fields[name]
        default = field.default if default is _MISSING else default
        value = self._document.get(name, _MISSING)
        if value is _MISSING:
            if default is _MISSING:
                self.note(name, None, "is required")
            return default
        try:
            return field.kind(value)
        except Wrong as wrong:
            self.note(name, value, str(wrong))
            return default

    def note(self, name: str, value: object, remedy: str) -> None:
        self._problems.append(Problem(f"{self._path}{name}", value, remedy))

    def has(self, name: str) -> bool:
        return name in self._document

    def finish(self) -> None:
        """Refuse what nobody asked for: a misspelt field must not silently be a default."""
        for name in self._document:
            if name not in self._asked:
                remedy = f"is not a field of a manifest{_nearest(str(name), self._asked)}"
                self.note(str(name), self._document[name], remedy)


def _nearest(name: str, known: list[str]) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 - 0.3 MB that a sound manifest spares

    near = get_close_matches(name, known, 1)
    return f"; did you mean {near[0]!r}?" if near else ""


_PLAIN: Final = ("slug", "title", "purpose", "owner", "contact", "eps_inf", "eps_1")
_PLAIN_WITH_DEFAULT: Final = ("min_reports", "max_values", "receipt_pages", "retention")


def read_manifest(document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `Manifest`, or `ManifestError` with every problem found."""
    problems: list[Problem] = []
    top = _Reader(MANIFEST_FIELDS, document, "", problems)
    top.read("format")
    fields = {name: top.read(name) for name in (*_PLAIN, *_PLAIN_WITH_DEFAULT)}
    rounds = fields["rounds"] = _read_rounds(top, problems)
    fields["attributes"] = _read_attributes(top, problems)
    fields["created"] = top.read("created", rounds.first if rounds else None)
    fields["expires"] = top.read("expires", rounds.end if rounds else None)
    top.finish()
    if not problems:
        _check_together(fields, problems)
    if problems:
        raise ManifestError(problems)
    return fields


def _read_rounds(top: _Reader, problems: list[Problem]) -> Schedule | None:
    document = top.read("rounds")
    if not isinstance(document, Mapping):  # absent or wrong: noted already
        return None
    before = len(problems)
    table = _Reader(ROUNDS_FIELDS, document, "rounds.", problems)
    first, period, count = (table.read(name) for name in ("first", "period", "count"))
    grace = table.read("grace", period if len(problems) == before else 0)
    table.finish()
    return Schedule(first, period, count, grace) if len(problems) == before else None


def _read_attributes(top: _Reader, problems: list[Problem]) -> tuple[Attribute, ...]:
    documents = top.read("attributes")
    if not isinstance(documents, list | tuple):
        return ()
    return tuple(
        _read_attribute(_Reader(ATTRIBUTE_FIELDS, document, f"attributes[{i}].", problems))
        for i, document in enumerate(documents)
    )


def _read_attribute(table: _Reader) -> Attribute:
    name, question = table.read("name"), table.read("question")
    edges, unit = None, ""
    if table.has("edges"):
        edges, unit = table.read("edges", (0.0, 1.0, 2.0)), table.read("unit")
        values = bin_labels(edges, unit)
        if table.has("values"):
            table.note("values", "", "give either values or edges, not both")
    else:
        values = table.read("values")
    protocol, method = table.read("protocol"), table.read("calibration")
    table.finish()
    return Attribute(name, question, values, edges, unit, protocol, method)


def _check_together(fields: Mapping[str, Any], problems: list[Problem]) -> None:
    """Checks that need more than one field, once each of them is sound by itself."""
    _check_times(fields, problems)
    _check_attributes(fields, problems)
    _check_budget(fields, problems)


def _check_times(fields: Mapping[str, Any], problems: list[Problem]) -> None:
    rounds = fields["rounds"]
    if rounds.end > limits.MAX_INSTANT:
        problems.append(Problem("rounds.count", rounds.count, "the last round is after year 9999"))
    if fields["created"] > rounds.first:
        remedy = f"must not be after rounds.first = {rounds.first}"
        problems.append(Problem("created", fields["created"], remedy))
    if fields["expires"] < rounds.end:
        remedy = f"must not be before the last round's deadline, {rounds.end}"
        problems.append(Problem("expires", fields["expires"], remedy))


def _check_attributes(fields: Mapping[str, Any], problems: list[Problem]) -> None:
    names = [attribute.name for attribute in fields["attributes"]]
    for i, name in enumerate(names):
        if name in names[:i]:
            problems.append(Problem(f"attributes[{i}].name", name, "is taken; choose another"))
    largest = max(attribute.k for attribute in fields["attributes"])
    if fields["max_values"] > largest:
        remedy = f"no attribute has more than {largest} values"
        problems.append(Problem("max_values", fields["max_values"], remedy))


def _check_budget(fields: Mapping[str, Any], problems: list[Problem]) -> None:
    for i, attribute in enumerate(fields["attributes"]):
        try:
            attribute.calibration(fields["eps_inf"], fields["eps_1"])
        except ParameterError as error:
            if not isinstance(error, InfeasibleBudget):
                problems.append(Problem(error.field, error.value, error.remedy))
                break
            path = f"attributes[{i}].protocol"
            problems.append(Problem(path, attribute.protocol, f"{error.field}: {error.remedy}"))
