"""From a decoded document to checked fields: every refusal names field, value and remedy.

All problems of a manifest are collected before it is refused, so that its author fixes them in
one go. The same reader serves TOML (dates, "6h") and the wire (integers); defaults fill what the
author left out. Checks that need more than one field are in `manifest_checks`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from protocol_spec import limits
from protocol_spec.attributes import NOT_KNOWN, Attribute, bin_labels
from protocol_spec.errors import ManifestError, Problem
from protocol_spec.fields import Wrong
from protocol_spec.manifest_checks import check_together
from protocol_spec.manifest_fields import FIELDS, MISSING, Field
from protocol_spec.schedule import Schedule
from protocol_spec.shown import nearest

__all__ = ["read_fields", "read_manifest", "with_first"]

NOW: Final = "now"


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

    def read(self, name: str, default: object = MISSING) -> Any:
        """The checked field, its default when absent, or a stand-in after noting a problem."""
        self._asked.append(name)
        field = self._fields[name]
        default = field.default if default is MISSING else default
        value = self._document.get(name, MISSING)
        if value is MISSING:
            if default is MISSING:
                self.note(name, None, "is required")
            return default
        try:
            return field.kind(value)
        except Wrong as wrong:
            self.note(name, value, str(wrong))
            return default

    def take(self, name: str) -> Any:
        """A field that only authors write, as it is; None when absent."""
        self._asked.append(name)
        return self._document.get(name)

    def note(self, name: str, value: object, remedy: str) -> None:
        self._problems.append(Problem(f"{self._path}{name}", value, remedy))

    def has(self, name: str) -> bool:
        return name in self._document

    def finish(self) -> None:
        """Refuse what nobody asked for: a misspelt field must not silently be a default."""
        for name in self._document:
            if name not in self._asked:
                hint = _hint(str(name), self._asked, self._here())
                remedy = f"is not a field {self._here()}{hint}"
                self.note(str(name), self._document[name], remedy)

    def _here(self) -> str:
        table = self._path.partition(".")[0].partition("[")[0]
        return {"rounds": "of [rounds]", "attributes": "of [[attributes]]"}.get(
            table, "of a manifest"
        )


def with_first(document: Mapping[str, Any], now: int) -> Mapping[str, Any]:
    """The document with `first = "now"` resolved: what is published names an instant."""
    rounds = document.get("rounds")
    if not isinstance(rounds, Mapping) or rounds.get("first") != NOW:
        return document
    return {**document, "rounds": {**rounds, "first": now}}


def _hint(name: str, known: list[str], here: str) -> str:
    """What its author may have meant: a name much like it here, or the same in another table."""
    near = nearest(name, known)
    if near:
        return near
    places = (
        (FIELDS.manifest, "of a manifest", "before [rounds] and [[attributes]]"),
        (FIELDS.rounds, "of [rounds]", "below [rounds]"),
        ({**FIELDS.attribute, "otherwise": None}, "of [[attributes]]", "below [[attributes]]"),
    )
    found = {table: where for fields, table, where in places if name in fields}
    if here in found:
        return "; it is for another kind of question"
    return next((f"; it belongs {where}" for where in found.values()), "")


_PLAIN: Final = ("slug", "title", "purpose", "owner", "contact", "eps_inf")
_PLAIN_WITH_DEFAULT: Final = (
    "min_reports",
    "max_values",
    "retention",
    "reporting",
    "choose_for",
    "devices",
    "operator",
)


def read_manifest(document: Mapping[str, Any], *, authored: bool = False) -> dict[str, Any]:
    """The fields of a `Manifest`, or `ManifestError` with every problem found.

    An `authored` document is the analyst's: a domain that is not total yet becomes so.
    """
    fields, problems = read_fields(document, authored=authored)
    check_together(fields, problems)
    if problems:
        places = [*FIELDS.manifest]
        raise ManifestError(sorted(problems, key=lambda problem: _place(problem, places)))
    return fields


def read_fields(
    document: Mapping[str, Any], *, authored: bool = False
) -> tuple[dict[str, Any], list[Problem]]:
    """Each field by itself: checked or a stand-in, and every problem found."""
    problems: list[Problem] = []
    _check_format(document)
    return _Document(document, problems, authored).read(), problems


def _place(problem: Problem, fields: list[str]) -> int:
    """In the order of the wire, whatever order they were found in; unknown fields last."""
    top = re.split(r"[.\[]", problem.field, maxsplit=1)[0]
    return fields.index(top) if top in fields else len(fields)


def _check_format(document: Mapping[str, Any]) -> None:
    """Of another format nothing but the format is a problem: its other fields are not known."""
    problems: list[Problem] = []
    _Reader(FIELDS.manifest, document, "", problems).read("format", 1)
    if problems:
        raise ManifestError(problems)


class _Document:
    """One manifest, read table by table."""

    def __init__(
        self, document: Mapping[str, Any], problems: list[Problem], authored: bool
    ) -> None:
        self._problems = problems
        self._authored = authored
        self._top = self._table(FIELDS.manifest, document, "")

    def _table(
        self, fields: Mapping[str, Field], document: Mapping[str, Any], path: str
    ) -> _Reader:
        return _Reader(fields, document, path, self._problems)

    def read(self) -> dict[str, Any]:
        """All fields, sound by themselves or stand-ins beside noted problems."""
        top = self._top
        fields = {name: top.read(name) for name in ("format", *_PLAIN, *_PLAIN_WITH_DEFAULT)}
        once = fields.get("reporting") == "once"
        rounds = fields["rounds"] = self._rounds(once)
        fields["eps_1"] = top.read("eps_1", _share(fields["eps_inf"], rounds) if once else MISSING)
        fields["receipt_pages"] = top.read("receipt_pages", _pages(fields.get("devices")))
        fields["attributes"] = self._attributes()
        fields["created"] = top.read("created", rounds.first if rounds else None)
        fields["expires"] = top.read("expires", rounds.end if rounds else None)
        top.finish()
        return fields

    def _rounds(self, once: bool) -> Schedule | None:
        document = self._top.read("rounds")
        if not isinstance(document, Mapping):  # absent or wrong: noted already
            return None
        before = len(self._problems)
        table = self._table(FIELDS.rounds, document, "rounds.")
        first, period, count = (table.read(name) for name in ("first", "period", "count"))
        grace = table.read("grace", period if len(self._problems) == before else 0)
        each, drain = table.read("each", int(once)), table.read("drain")
        table.finish()
        if len(self._problems) > before:
            return None
        return Schedule(first, period, count, grace, each, drain)

    def _attributes(self) -> tuple[Attribute, ...]:
        documents = self._top.read("attributes")
        if not isinstance(documents, list | tuple):
            return ()
        return tuple(
            self._attribute(self._table(FIELDS.attribute, document, f"attributes[{i}]."))
            for i, document in enumerate(documents)
        )

    def _attribute(self, table: _Reader) -> Attribute:
        name, question = table.read("name"), table.read("question")
        numeric = table.has("edges")
        domain = self._bins(table) if numeric else self._named_values(table)
        protocol, method = table.read("protocol"), table.read("calibration")
        domain |= {"changes": table.read("changes", numeric), "levels": table.read("levels")}
        table.finish()
        return Attribute(name, question, protocol=protocol, method=method, **domain)

    def _named_values(self, table: _Reader) -> dict[str, Any]:
        values = table.read("values")
        if self._authored:
            if isinstance(values, tuple):
                values = _with_otherwise(table, values)
            elif table.has("values"):
                table.take("otherwise")  # it may be one of them, once they are sound
        return {"values": values}

    def _bins(self, table: _Reader) -> dict[str, Any]:
        read, unit = table.read("edges", None), table.read("unit")
        edges = read or (0.0, 1.0, 2.0)
        values = bin_labels(edges, unit)
        if table.has("values"):
            table.note("values", None, "give either values or edges, not both")
        ends = {"low": table.read("low"), "high": table.read("high")}
        if read:
            _check_ends(table, edges, **ends)
        values = _with_not_known(table, edges, values)
        return {"values": values, "edges": edges, "unit": unit, **ends}


def _share(eps_inf: object, rounds: Schedule | None) -> float:
    """What one answer may tell if each of a device's answers gets the same; a stand-in if unknown.

    In float64, rounded to nearest: thresholds are calculated for the next float64 below, so that
    all answers together stay within eps_inf.
    """
    return eps_inf / (rounds.each or 1) if isinstance(eps_inf, float) and rounds else 1.0


def _pages(devices: object) -> object:
    """About a thousand devices on each page of receipts, if their number is stated."""
    if not isinstance(devices, int) or devices == 0:
        return MISSING
    return min(-(-devices // limits.DEVICES_PER_PAGE), limits.MAX_RECEIPT_PAGES)


def _with_otherwise(table: _Reader, values: tuple[str, ...]) -> tuple[str, ...]:
    """The author's values with the one that catches everything else in the last place."""
    named = table.take("otherwise")
    if named is not None and named not in values:
        table.note("otherwise", named, "must be one of the values, or left out")
    last = NOT_KNOWN if named is None else named
    found = (*(value for value in values if value != last), last)
    if len(found) > limits.MAX_VALUES:
        remedy = f'"{NOT_KNOWN}" is one more value; name one of yours in `otherwise`, or drop one'
        table.note("values", len(values), remedy)
    return found


def _with_not_known(
    table: _Reader, edges: tuple[float, ...], bins: tuple[str, ...]
) -> tuple[str, ...]:
    """What is outside finite ends, or no number, has a place of its own behind the bins."""
    if math.isinf(edges[0]) and math.isinf(edges[-1]):
        return bins
    if len(bins) == limits.MAX_VALUES:
        remedy = f'"{NOT_KNOWN}" is one more value; use fewer bins, or -inf and inf at the ends'
        table.note("edges", len(edges), remedy)
    return (*bins, NOT_KNOWN)


def _check_ends(
    table: _Reader, edges: tuple[float, ...], low: float | None, high: float | None
) -> None:
    """`low` and `high` stand for infinite ends, and lie outside the other edges."""
    for name, end, given, outside in (
        ("low", edges[0], low, low is None or low < edges[1]),
        ("high", edges[-1], high, high is None or high > edges[-2]),
    ):
        if given is not None and not math.isinf(end):
            table.note(name, given, f"the bins end at {end:g} already; leave it out")
        elif not outside:
            inner = edges[1] if name == "low" else edges[-2]
            table.note(name, given, f"must lie beyond the outermost inner edge, {inner:g}")
