"""A campaign's manifest: what is asked, of whom, how often, and with how much noise. Immutable.

The analyst writes TOML; the wire carries canonical msgpack; the SHA-256 of those bytes names the
campaign. A changed manifest is another campaign with other topics, so nothing that a device agreed
to can change later.

Claim: a `Manifest` that exists is valid. `from_toml` and `from_bytes` apply the same checks, and
`from_bytes` accepts only the one canonical encoding. All problems of a manifest are collected
before it is refused, so that its author can fix them together.
"""

from __future__ import annotations

import hashlib
import math
import re
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

from protocol_spec import fields as kinds
from protocol_spec import limits
from protocol_spec.attributes import NOT_KNOWN, Attribute, Groups, bin_labels, paired
from protocol_spec.calibration import READINGS, Calibration, ChooseFor
from protocol_spec.encoding import BodyFormat, Undecodable, pack, unpack
from protocol_spec.errors import (
    InfeasibleBudget,
    ManifestError,
    ParameterError,
    Problem,
    as_toml,
    nearest,
)
from protocol_spec.fields import Kind, Wrong
from protocol_spec.mechanisms import (
    DEFAULT_MECHANISM,
    MECHANISMS,
    Budget,
    Mechanism,
    Reporting,
    Rules,
    default_levels,
    make_mechanism,
)
from protocol_spec.probabilities import METHODS
from protocol_spec.schedule import DEFAULT_DRAIN_SECONDS, Schedule
from protocol_spec.topics import ATTRIBUTE, SLUG

_MISSING: Final = object()
_NOW: Final = "now"

# --- the fields, in the order of the wire ---------------------------------------------------------


class Field(NamedTuple):
    """What a field may hold, and what it is when its author leaves it out."""

    kind: Kind
    default: object = _MISSING

    @property
    def required(self) -> bool:
        return self.default is _MISSING


class Fields(NamedTuple):
    """The tables of a manifest."""

    manifest: Mapping[str, Field]
    rounds: Mapping[str, Field]
    attribute: Mapping[str, Field]
    groups: Mapping[str, Field]


DEFAULT_ROUNDS: Final = 90
DEFAULT_SHARE: Final = 0.3  # of eps_inf, for one report
LONG_SECONDS: Final = 30 * 86_400  # a campaign that is longer is read as a whole

_NAMED: Final = dict.fromkeys(name for each in MECHANISMS.values() for name in each.rules.named)
_SLUG: Final = f"use 1 to {limits.MAX_SLUG_LENGTH} of a-z, 0-9 and inner hyphens"
_NAME: Final = f"use a-z first, then up to {limits.MAX_NAME_LENGTH - 1} of a-z, 0-9, _ and -"

# `created`, `expires`, `grace`, `eps_1` (once), `choose_for`, `receipt_pages`, `each`, `changes`
# and `levels` have defaults that follow from other fields; without `groups` there are none. An
# analyst may also leave out what `_completed` adds.
FIELDS: Final = Fields(
    manifest={
        "format": Field(kinds.constant(1)),
        "slug": Field(kinds.name(SLUG, _SLUG)),
        "title": Field(kinds.text(limits.MAX_TITLE_LENGTH)),
        "purpose": Field(kinds.text(limits.MAX_PURPOSE_LENGTH)),
        "owner": Field(kinds.text(limits.MAX_OWNER_LENGTH)),
        "contact": Field(kinds.text(limits.MAX_CONTACT_LENGTH)),
        "created": Field(kinds.instant()),
        "expires": Field(kinds.instant()),
        "retention": Field(kinds.duration(0, limits.MAX_RETENTION_SECONDS), 30 * 86_400),
        "reporting": Field(kinds.one_of(*MECHANISMS), DEFAULT_MECHANISM),
        "eps_inf": Field(kinds.EPSILON),
        "eps_1": Field(kinds.EPSILON),
        "choose_for": Field(kinds.one_of(*READINGS)),
        "min_reports": Field(kinds.whole(1, limits.MAX_MIN_REPORTS), 200),
        "max_values": Field(kinds.whole(1, limits.MAX_VALUES), 1),
        "devices": Field(kinds.whole(0, limits.MAX_DEVICES), 0),
        "receipt_pages": Field(kinds.whole(1, limits.MAX_RECEIPT_PAGES), 16),
        "operator": Field(kinds.KEY, b""),
        "rounds": Field(kinds.TABLE),
        "attributes": Field(kinds.TABLES),
        "groups": Field(kinds.TABLE, None),
    },
    rounds={
        "first": Field(kinds.instant(or_now=True)),
        "period": Field(kinds.duration(1, limits.MAX_PERIOD_SECONDS)),
        "count": Field(kinds.whole(1, limits.MAX_ROUNDS)),
        "grace": Field(kinds.duration(0, limits.MAX_PERIOD_SECONDS)),
        "each": Field(kinds.whole(0, limits.MAX_ROUNDS), 0),
        "drain": Field(kinds.duration(1, limits.MAX_DRAIN_SECONDS), DEFAULT_DRAIN_SECONDS),
    },
    attribute={
        "cross": Field(kinds.PAIR),
        "name": Field(kinds.name(ATTRIBUTE, _NAME)),
        "question": Field(kinds.text(limits.MAX_QUESTION_LENGTH)),
        "values": Field(kinds.VALUES),
        "edges": Field(kinds.EDGES),
        "unit": Field(kinds.text(limits.MAX_UNIT_LENGTH, shortest=0), ""),
        "low": Field(kinds.FINITE, None),
        "high": Field(kinds.FINITE, None),
        "changes": Field(kinds.FLAG),
        "protocol": Field(kinds.one_of("auto", *_NAMED), "auto"),
        "calibration": Field(kinds.one_of(*METHODS), "exact"),
        "levels": Field(kinds.LEVELS, ()),
    },
    groups={
        "label": Field(kinds.name(ATTRIBUTE, _NAME)),
        "values": Field(kinds.GROUPS),
    },
)


@dataclass(frozen=True)
class Manifest:
    """A valid campaign. Build one with `from_toml`, `from_file` or `from_bytes`.

    `devices` is the expected number of them, 0 if it is not stated; `operator` is the public key
    of whoever signs, empty if nobody does.
    """

    format: int
    slug: str
    title: str
    purpose: str
    owner: str
    contact: str
    created: int
    expires: int
    retention: int
    reporting: Reporting
    eps_inf: float
    eps_1: float
    choose_for: ChooseFor
    min_reports: int
    max_values: int
    devices: int
    receipt_pages: int
    operator: bytes
    rounds: Schedule
    attributes: tuple[Attribute, ...]
    groups: Groups | None = None

    @classmethod
    def from_toml(cls, text: str, *, now: int | None = None) -> Manifest:
        """Read the analyst's file. Raises `ManifestError` listing every problem found.

        `now` is the instant that `first = "now"` means, the present unless it is given.
        """
        try:
            document = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # also absurd numbers and nesting
            raise _refused(f"is not TOML: {error}") from None
        return cls.from_authored(document, now=now)

    @classmethod
    def from_authored(cls, document: Mapping[str, Any], *, now: int | None = None) -> Manifest:
        """Read what the analyst wrote, as TOML was parsed."""
        written = _completed(document, int(time.time()) if now is None else now)
        manifest = cls(**read_manifest(written, authored=True))
        size = len(manifest.to_bytes())
        if size > limits.MAX_MANIFEST_BYTES:
            most = limits.MAX_MANIFEST_BYTES
            raise _refused(f"must encode to at most {most} bytes: shorten the values' names", size)
        return manifest

    @classmethod
    def from_file(cls, path: str | Path, *, now: int | None = None) -> Manifest:
        """Read the analyst's file from disk; errors name the file."""
        try:
            return cls.from_toml(Path(path).read_text(encoding="utf-8"), now=now)
        except OSError as error:
            problems = _refused(f"cannot be read: {error.strerror}").problems
        except UnicodeDecodeError:
            problems = _refused("must be UTF-8 text").problems
        except ManifestError as error:
            problems = error.problems
        raise ManifestError(problems, str(path))

    @classmethod
    def from_bytes(cls, payload: bytes) -> Manifest:
        """Read canonical bytes from the broker or a device's store."""
        if len(payload) > limits.MAX_MANIFEST_BYTES:
            raise _refused(f"must be at most {limits.MAX_MANIFEST_BYTES} bytes", len(payload))
        document = unpack_manifest(payload)
        if not isinstance(document, dict):
            raise _refused("must be a msgpack map")
        manifest = cls(**read_manifest(document))
        if manifest.to_bytes() != payload:
            raise _refused("must be the canonical encoding")
        return manifest

    def to_bytes(self) -> bytes:
        """The one canonical encoding: every field, in this order, shortest integers, float64."""
        document: dict[str, Any] = {name: getattr(self, name) for name in FIELDS.manifest}
        document["rounds"] = {name: getattr(self.rounds, name) for name in FIELDS.rounds}
        document["attributes"] = [_written(attribute) for attribute in self.attributes]
        if self.groups is None:
            del document["groups"]
        else:
            document["groups"] = {name: getattr(self.groups, name) for name in FIELDS.groups}
        return pack(document)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the canonical bytes."""
        return hashlib.sha256(self.to_bytes()).digest()

    @property
    def campaign(self) -> str:
        """The campaign's name in topics: slug and the first eight hex digits of the digest."""
        return f"{self.slug}-{self.digest.hex()[:8]}"

    @property
    def full_name(self) -> str:
        """The slug and all of the digest, as in an invitation."""
        return f"{self.slug}-{self.digest.hex()}"

    @cached_property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        """How each attribute is answered, in order: what devices draw with and collectors count."""
        return tuple(make_mechanism(each, self.budget, self.digest) for each in self.attributes)

    @cached_property
    def budget(self) -> Budget:
        return _budget(vars(self))

    @cached_property
    def calibrations(self) -> tuple[Calibration, ...]:
        return tuple(mechanism.calibration for mechanism in self.mechanisms)

    @cached_property
    def body_formats(self) -> tuple[BodyFormat, ...]:
        """How the values that each attribute's reports support are written, in order."""
        return tuple(mechanism.counted for mechanism in self.mechanisms)

    @cached_property
    def answer_lengths(self) -> tuple[int, ...]:
        """Bytes of the answer in a body, for each attribute; zeros may follow it."""
        return tuple(mechanism.answer_bytes for mechanism in self.mechanisms)

    @cached_property
    def body_bytes(self) -> int:
        """Bytes of every report's body: those of the longest answer to any of the questions."""
        return max(self.answer_lengths)

    @cached_property
    def lifetime_epsilon(self) -> float:
        """The most that a device can ever spend on this campaign."""
        return max(mechanism.lifetime_epsilon for mechanism in self.mechanisms)


def _completed(document: Mapping[str, Any], now: int) -> dict[str, Any]:
    """With what an analyst may leave out, and a device must be told; what is published names an
    instant in place of "now"."""
    written: dict[str, Any] = {"format": 1, **document}
    rounds = {"first": _NOW, "count": DEFAULT_ROUNDS}
    if isinstance(document.get("rounds"), Mapping):
        rounds |= document["rounds"]
        written["rounds"] = {**rounds, "first": now if rounds["first"] == _NOW else rounds["first"]}
    eps_inf, named = document.get("eps_inf"), document.get("reporting", DEFAULT_MECHANISM)
    mechanism = next((each for name, each in MECHANISMS.items() if name == named), None)
    drawn = mechanism is None or mechanism.rules.draws_rounds
    if "eps_1" not in document and isinstance(eps_inf, int | float) and not drawn:
        written["eps_1"] = eps_inf * DEFAULT_SHARE
    return written


def unpack_manifest(payload: bytes) -> Any:
    """Decode a manifest's bytes into plain values."""
    most, key = limits.MAX_VALUES + 1, limits.KEY_BYTES
    try:
        return unpack(payload, array=most, text=4096, binary=key, maps=32)
    except Undecodable:
        raise _refused("must be msgpack; these bytes are not") from None


def _refused(remedy: str, value: object = None) -> ManifestError:
    return ManifestError([Problem("manifest", value, remedy)])


def _written(attribute: Attribute) -> dict[str, Any]:
    """In the order of the wire; `levels` only where there are some."""
    noise: dict[str, Any] = {"protocol": attribute.protocol, "calibration": attribute.method}
    if attribute.levels:
        noise["levels"] = attribute.levels
    if attribute.cross:
        return {"cross": [_written_part(part) for part in attribute.cross], **noise}
    return {**_written_part(attribute), **noise}


def _written_part(attribute: Attribute) -> dict[str, Any]:
    named = ("values",) if attribute.edges is None else ("edges", "unit", "low", "high")
    return {name: getattr(attribute, name) for name in ("name", "question", *named, "changes")}


# --- reading --------------------------------------------------------------------------------------


def read_manifest(document: Mapping[str, Any], *, authored: bool = False) -> dict[str, Any]:
    """The fields of a `Manifest`, or `ManifestError` with every problem found.

    An `authored` document is the analyst's: a domain that is not total yet becomes so.
    """
    fields, problems = read_fields(document, authored=authored)
    _check_together(fields, problems)
    if problems:
        order = {name: i for i, name in enumerate(FIELDS.manifest)}
        raise ManifestError(sorted(problems, key=lambda p: order.get(_top(p), len(order))))
    return fields


def read_fields(
    document: Mapping[str, Any], *, authored: bool = False
) -> tuple[dict[str, Any], list[Problem]]:
    """Each field by itself: checked or a placeholder, and every problem found."""
    problems: list[Problem] = []
    top = _Table(FIELDS.manifest, document, "", problems)
    if "format" in document:
        top.read("format")
        if problems:  # what the other fields of another format are is not known
            raise ManifestError(problems)
    derived = {"eps_1", "choose_for", "receipt_pages", "created", "expires", "rounds"}
    derived |= {"attributes", "groups"}
    fields = {name: top.read(name) for name in FIELDS.manifest if name not in derived}
    rules = MECHANISMS[fields["reporting"]].rules
    rounds = fields["rounds"] = _rounds(top, draws_rounds=rules.draws_rounds)
    share: Any = _MISSING
    if rules.draws_rounds:
        # In float64, rounded to nearest: thresholds are calculated for the next float64 below, so
        # that all answers together stay within eps_inf.
        known = isinstance(fields["eps_inf"], float) and rounds
        share = fields["eps_inf"] / (rounds.each or 1) if known and rounds else 1.0
    devices, pages = fields["devices"], _MISSING
    if isinstance(devices, int) and devices:
        pages = min(-(-devices // limits.DEVICES_PER_PAGE), limits.MAX_RECEIPT_PAGES)
    if authored and not isinstance(document.get("eps_inf"), int | float):
        share = 1.0  # written from eps_inf, whose problem is noted
    fields["eps_1"] = top.read("eps_1", share)
    fields["receipt_pages"] = top.read("receipt_pages", pages)
    fields["attributes"] = tuple(_questions(top, authored))
    given = top.read("groups")
    if isinstance(given, Mapping):
        table = top.inner(FIELDS.groups, given, "groups.")
        fields["groups"] = Groups(table.read("label"), table.read("values"))
        table.finish()
    fields["choose_for"] = top.read("choose_for", _reading(rules, rounds, fields["attributes"]))
    fields["created"] = top.read("created", rounds.first if rounds else None)
    fields["expires"] = top.read("expires", rounds.end if rounds else None)
    top.finish()
    return fields, problems


def _reading(rules: Rules, rounds: Schedule | None, attributes: Sequence[Attribute]) -> ChooseFor:
    """What `auto` is chosen for unless the author says: of a long campaign, all rounds pooled."""
    chooses = rules.memo_per_value and any(each.protocol == "auto" for each in attributes)
    long = rounds is not None and rounds.count * rounds.period > LONG_SECONDS
    return "pooled" if chooses and long else "round"


def _top(problem: Problem) -> str:
    """The top-level field that a problem is in."""
    return re.split(r"[.\[]", problem.field, maxsplit=1)[0]


class _Table:
    """One table of the document, read field by field; problems go to the shared list."""

    def __init__(
        self,
        fields: Mapping[str, Field],
        document: Mapping[str, Any],
        path: str,
        problems: list[Problem],
    ) -> None:
        self._fields = fields
        self.document = document
        self.path = path
        self.problems = problems
        self._asked: dict[str, None] = {}

    def read(self, name: str, default: object = _MISSING) -> Any:
        """The checked field, its default when absent, or a placeholder after noting a problem."""
        field, value = self._fields[name], self.take(name, _MISSING)
        default = field.default if default is _MISSING else default
        if value is _MISSING:
            if default is _MISSING:
                self.note(name, None, "is required")
            return default
        try:
            return field.kind.parse(value)
        except Wrong as wrong:
            self.note(name, value, str(wrong))
            return default

    def take(self, name: str, default: object = None) -> Any:
        """A field as it is, without a check."""
        self._asked[name] = None
        return self.document.get(name, default)

    def inner(self, fields: Mapping[str, Field], document: Mapping[str, Any], path: str) -> _Table:
        return _Table(fields, document, path, self.problems)

    def note(self, name: str, value: object, remedy: str) -> None:
        self.problems.append(Problem(f"{self.path}{name}", value, remedy))

    def finish(self) -> None:
        """Refuse unknown fields: a misspelt one must not silently be a default."""
        table = self.path.partition(".")[0].partition("[")[0]
        for name in self.document:
            if name not in self._asked:
                near = nearest(str(name), self._asked) or _elsewhere(str(name), table)
                remedy = f"is not a field {_TABLES[table][0]}{near}"
                self.note(str(name), self.document[name], remedy)


_TABLES: Final = {
    "": (
        "of a manifest",
        dict.fromkeys((*FIELDS.manifest, "cross")),
        "before [rounds] and [[attributes]]",
    ),
    "rounds": ("of [rounds]", FIELDS.rounds, "below [rounds]"),
    "groups": ("of [groups]", FIELDS.groups, "below [groups]"),
    "attributes": (
        "of [[attributes]]",
        dict.fromkeys(({*FIELDS.attribute} - {"cross"}) | {"otherwise"}),
        "below [[attributes]]",
    ),
}


def _elsewhere(name: str, here: str) -> str:
    """The same name in another table, or with another kind of question."""
    if name in _TABLES[here][1]:
        return "; it is for another kind of question"
    return next(
        (f"; it belongs {where}" for _, fields, where in _TABLES.values() if name in fields), ""
    )


def _rounds(top: _Table, *, draws_rounds: bool) -> Schedule | None:
    document = top.read("rounds")
    if not isinstance(document, Mapping):  # absent or wrong: noted already
        return None
    before = len(top.problems)
    table = top.inner(FIELDS.rounds, document, "rounds.")
    first, period, count = (table.read(name) for name in ("first", "period", "count"))
    grace = table.read("grace", period if len(top.problems) == before else 0)
    each, drain = table.read("each", int(draws_rounds)), table.read("drain")
    table.finish()
    if len(top.problems) > before:
        return None
    return Schedule(first, period, count, grace, each, drain)


def _questions(top: _Table, authored: bool) -> Iterator[Attribute]:
    """All of them; the two that an author names in `cross` become one, the last."""
    tables = top.read("attributes")
    read = [
        top.inner(FIELDS.attribute, table, f"attributes[{i}].")
        for i, table in enumerate(tables if isinstance(tables, list) else ())
    ]
    crossed = _crossed(top, read) if authored else []
    for table in read:
        if table not in crossed:
            yield _attribute(table, authored)
    if crossed:
        yield _pair(top, crossed, authored=authored)


def _crossed(top: _Table, read: list[_Table]) -> list[_Table]:
    """The two tables that are one question."""
    names = top.take("cross")
    listed = names if isinstance(names, list) else []
    found = [table for name in listed for table in read if table.document.get("name") == name]
    if names is None or (len(listed) == len(found) == 2 and found[0] is not found[1]):
        return found
    top.note("cross", names, 'name two of the [[attributes]], as in cross = ["model", "fuel"]')
    return []


def _attribute(table: _Table, authored: bool) -> Attribute:
    if "cross" in table.document and not authored:
        return _read_pair(table)
    part = _part(table, authored)
    attribute = replace(part, **_noise(table))
    table.finish()
    return attribute


def _noise(table: _Table) -> dict[str, Any]:
    method = table.read("calibration")
    return {"protocol": table.read("protocol"), "method": method, "levels": table.read("levels")}


def _part(table: _Table, authored: bool) -> Attribute:
    """A question and its domain."""
    numeric = "edges" in table.document
    name, question = table.read("name"), table.read("question")
    domain = _bins(table) if numeric else {"values": _named_values(table, authored)}
    return Attribute(name, question, **domain, changes=table.read("changes", numeric))


def _read_pair(table: _Table) -> Attribute:
    """As devices are told: both questions in a list."""
    tables, noise = table.read("cross"), _noise(table)
    table.finish()
    inner = [
        table.inner(FIELDS.attribute, each, f"{table.path}cross[{i}].")
        for i, each in enumerate(tables if isinstance(tables, list) else ())
    ]
    return _pair(table, inner, authored=False, **noise)


def _pair(table: _Table, two: list[_Table], *, authored: bool, **noise: Any) -> Attribute:
    """Two questions as one; a placeholder if either of them, or their product, is wrong."""
    before, parts = len(table.problems), []
    for each in two:
        parts.append(_part(each, authored))
        each.finish()
    if two and len(table.problems) == before:
        length, most = sum(len(part.name) for part in parts), limits.MAX_NAME_LENGTH - 1
        pairs, largest = math.prod(part.k for part in parts), limits.MAX_VALUES
        if pairs <= largest and length <= most:
            return paired(*parts, **noise)
        remedy = f"has {pairs} pairs of values, at most {largest}, and names of {length} characters"
        table.note("cross", None, f"{remedy} together, at most {most}; use fewer")
    return Attribute("", "", (NOT_KNOWN, NOT_KNOWN))


def _named_values(table: _Table, authored: bool) -> Any:
    """The author's values with the one that catches everything else in the last place."""
    values = table.read("values")
    if not authored:
        return values
    if not isinstance(values, tuple):
        if "values" in table.document:
            table.take("otherwise")  # it may be one of them, once they are sound
        return values
    named = table.take("otherwise")
    if named is not None and named not in values:
        table.note("otherwise", named, "must be one of the values, or left out")
    last = NOT_KNOWN if named is None else named
    found = (*(value for value in values if value != last), last)
    if len(found) > limits.MAX_VALUES:
        remedy = f'"{NOT_KNOWN}" is one more value; name one of yours in `otherwise`, or drop one'
        table.note("values", len(values), remedy)
    return found


def _bins(table: _Table) -> dict[str, Any]:
    """Bins, followed by the value for what is outside finite ends, or not a number."""
    read, unit = table.read("edges", None), table.read("unit")
    edges = read or (0.0, 1.0, 2.0)
    if "values" in table.document:
        table.note("values", None, "give either values or edges, not both")
    low, high = table.read("low"), table.read("high")
    ends = (("low", low, edges[0], edges[1]), ("high", high, edges[-1], edges[-2]))
    for name, given, end, inner in ends if read else ():
        if given is None:
            continue
        if not math.isinf(end):
            table.note(name, given, f"the bins end at {end:g} already; leave it out")
        elif not (given < inner if name == "low" else given > inner):
            table.note(name, given, f"must lie beyond the outermost inner edge, {inner:g}")
    values = bin_labels(edges, unit)
    if not (math.isinf(edges[0]) and math.isinf(edges[-1])):
        if len(values) == limits.MAX_VALUES:
            remedy = f'"{NOT_KNOWN}" is one more value; use fewer bins, or -inf and inf at the ends'
            table.note("edges", len(edges), remedy)
        values = (*values, NOT_KNOWN)
    return {"values": values, "edges": edges, "unit": unit, "low": low, "high": high}


# --- fields that depend on each other -------------------------------------------------------------

Found = Mapping[str, Any]


def _check_together(fields: dict[str, Any], problems: list[Problem]) -> None:
    """Note every problem; give nested questions without levels the default ones.

    Fields that are not sound by themselves are left out, so that the others are still checked.
    """
    wrong = {_top(problem) for problem in problems}
    for check, needed in _CHECKS:
        if not wrong & needed:
            problems += check(fields)
    if wrong & _RULED:
        if not wrong & {"reporting", "eps_inf", "eps_1"}:
            problems += _eps_1_too_large(fields)
        return
    ruled = list(_rules_of_the_mechanism(fields))
    problems += ruled
    if not ruled:
        if MECHANISMS[fields["reporting"]].rules.has_levels:
            eps_inf, eps_1 = fields["eps_inf"], fields["eps_1"]
            fields["attributes"] = tuple(
                replace(each, levels=each.levels or default_levels(eps_inf, eps_1))
                for each in fields["attributes"]
            )
        problems += _infeasible(fields)


def _budget(fields: Found) -> Budget:
    """What the attributes' noise follows from."""
    rounds = fields["rounds"]
    names = ("reporting", "eps_inf", "eps_1", "max_values", "choose_for")
    return Budget(**{name: fields[name] for name in names}, rounds=rounds.count, each=rounds.each)


def _times(fields: Found) -> Iterator[Problem]:
    rounds = fields["rounds"]
    if rounds.end > limits.MAX_INSTANT:
        yield Problem("rounds.count", rounds.count, "the last round is after year 9999")
    if fields["created"] > rounds.first:
        remedy = f"must not be after rounds.first = {as_toml(_instant(rounds.first))}"
        yield Problem("created", _instant(fields["created"]), remedy)
    if fields["expires"] < rounds.end:
        remedy = f"must not be before the last round's deadline, {as_toml(_instant(rounds.end))}"
        yield Problem("expires", _instant(fields["expires"]), remedy)


def _instant(seconds: int) -> datetime | int:
    """As its author wrote it; a number where it is not a date."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return seconds


def _names(fields: Found) -> Iterator[Problem]:
    taken: set[str] = set()
    for i, attribute in enumerate(fields["attributes"]):
        for name in (attribute.name, *(part.name for part in attribute.cross)):
            if name in taken:
                yield Problem(f"attributes[{i}].name", name, "is taken; choose another")
            taken.add(name)


def _memos(fields: Found) -> Iterator[Problem]:
    largest, most = max(each.k for each in fields["attributes"]), fields["max_values"]
    if most > largest:
        yield Problem("max_values", most, f"no attribute has more than {largest} values")


_CHECKS: Final = (
    (_times, {"rounds", "created", "expires"}),
    (_names, {"attributes"}),
    (_memos, {"attributes", "max_values"}),
)
_RULED: Final = frozenset(
    {"reporting", "max_values", "choose_for", "rounds", "eps_inf", "eps_1", "attributes"}
)


def _rules_of_the_mechanism(fields: Found) -> Iterator[Problem]:
    """What means nothing to the mechanism must not be stated: its author may expect something."""
    reporting, rules = fields["reporting"], MECHANISMS[fields["reporting"]].rules
    chosen = f'reporting = "{reporting}"'
    if not rules.memo_per_value and fields["max_values"] != 1:
        remedy = f"{chosen} has no memo for each value; leave it out"
        yield Problem("max_values", fields["max_values"], remedy)
    automatic = any(attribute.protocol == "auto" for attribute in fields["attributes"])
    if fields["choose_for"] != "round" and not (rules.memo_per_value and automatic):
        remedy = 'only for reporting = "memoized" and an attribute of protocol "auto"; leave it out'
        yield Problem("choose_for", fields["choose_for"], remedy)
    if rules.draws_rounds:
        yield from _drawn_rounds(fields, chosen)
    else:
        if fields["rounds"].each:
            remedy = f'{chosen} answers in every round; leave it out, or choose "once"'
            yield Problem("rounds.each", fields["rounds"].each, remedy)
        yield from _eps_1_too_large(fields)
    for i, attribute in enumerate(fields["attributes"]):
        for name, value, remedy in _of_attribute(fields, attribute, chosen):
            yield Problem(f"attributes[{i}].{name}", value, remedy)


def _drawn_rounds(fields: Found, chosen: str) -> Iterator[Problem]:
    each, count = fields["rounds"].each, fields["rounds"].count
    eps_inf, eps_1 = fields["eps_inf"], fields["eps_1"]
    if not 1 <= each <= count:
        remedy = f"must be from 1 to rounds.count = {count}, for {chosen}"
        yield Problem("rounds.each", each, remedy)
    if each and eps_1 != eps_inf / each:
        remedy = f"must be eps_inf / rounds.each = {eps_inf / each!r}; leave it out"
        yield Problem("eps_1", eps_1, remedy)
    elif eps_1 < limits.MIN_EPSILON:
        remedy = f"leaves less than {limits.MIN_EPSILON:g} of eps_inf for each answer; choose fewer"
        yield Problem("rounds.each", each, remedy)


def _eps_1_too_large(fields: Found) -> Iterator[Problem]:
    """This needs no other field than the two, and the mechanism."""
    eps_inf, eps_1 = fields["eps_inf"], fields["eps_1"]
    if not MECHANISMS[fields["reporting"]].rules.draws_rounds and eps_1 >= eps_inf:
        remedy = f"must be smaller than eps_inf = {eps_inf!r}: one report discloses less than all"
        yield Problem("eps_1", eps_1, remedy)


def _of_attribute(
    fields: Found, attribute: Attribute, chosen: str
) -> Iterator[tuple[str, object, str]]:
    rules = MECHANISMS[fields["reporting"]].rules
    allowed = ("auto", *rules.named)
    if attribute.protocol not in allowed:
        yield "protocol", attribute.protocol, f"{chosen} has {', '.join(allowed)}"
    if not rules.memo_per_value and attribute.method != "exact":
        yield "calibration", attribute.method, f"{chosen} is always exact; leave it out"
    levels, ends = attribute.levels, (fields["eps_1"], fields["eps_inf"])
    if levels and not rules.has_levels:
        yield "levels", levels, f'{chosen} has no levels; leave it out, or choose "nested"'
    elif levels and (levels[0], levels[-1]) != ends:
        remedy = f"must begin with eps_1 = {ends[0]!r} and end with eps_inf = {ends[1]!r}"
        yield "levels", levels, remedy


def _infeasible(fields: Found) -> Iterator[Problem]:
    """Questions for which the budget allows no noise to draw with."""
    budget = _budget(fields)
    for i, attribute in enumerate(fields["attributes"]):
        try:
            make_mechanism(attribute, budget, b"")
        except InfeasibleBudget as error:
            remedy = f"{error.field}: {error.remedy}"
            yield Problem(f"attributes[{i}].protocol", attribute.protocol, remedy)
        except ParameterError as error:
            yield Problem(error.field, error.value, error.remedy)
            return
