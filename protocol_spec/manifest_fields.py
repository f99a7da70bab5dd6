"""The fields of a manifest: what each may hold, and what it is when left out.

The order is that of the wire. The tables of the specification are made from these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from protocol_spec import limits
from protocol_spec.adaptive import READINGS
from protocol_spec.chances import LONGITUDINAL, METHODS
from protocol_spec.fields import (
    Duration,
    Edges,
    Finite,
    Flag,
    Instant,
    Key,
    Levels,
    Name,
    Number,
    OneOf,
    Table,
    Tables,
    Text,
    Values,
    Version,
    Whole,
)
from protocol_spec.names import ATTRIBUTE, SLUG
from protocol_spec.reporting import NESTABLE
from protocol_spec.schedule import DEFAULT_DRAIN_SECONDS
from protocol_spec.ways import WAYS

__all__ = ["FIELDS", "MISSING", "Field", "Fields"]

MISSING: Final = object()


class Field(NamedTuple):
    """What a field may hold, and what it is when its author leaves it out."""

    kind: Callable[[Any], Any]
    default: object = MISSING

    @property
    def required(self) -> bool:
        """Whether it has no default of its own."""
        return self.default is MISSING


class Fields(NamedTuple):
    """The tables of a manifest."""

    manifest: Mapping[str, Field]
    rounds: Mapping[str, Field]
    attribute: Mapping[str, Field]


_MORE: Final = limits.MAX_NAME_LENGTH - 1
_VERSION: Final = Field(Version((1,)))
_SLUG: Final = Name(SLUG, f"use 1 to {limits.MAX_SLUG_LENGTH} of a-z, 0-9 and inner hyphens")
_NAME: Final = Name(ATTRIBUTE, f"use a-z first, then up to {_MORE} of a-z, 0-9, _ and -")
_EPSILON: Final = Number(limits.MIN_EPSILON, limits.MAX_EPS_INF)
_DEFAULT_PAGES: Final = 16


_TEXTS: Final = {
    "title": Field(Text(limits.MAX_TITLE_LENGTH)),
    "purpose": Field(Text(limits.MAX_PURPOSE_LENGTH)),
    "owner": Field(Text(limits.MAX_OWNER_LENGTH)),
    "contact": Field(Text(limits.MAX_CONTACT_LENGTH)),
}

# `created`, `expires`, `grace`, `eps_1` (once), `receipt_pages`, `each`, `changes` and `levels`
# have defaults that follow from other fields.
FIELDS: Final = Fields(
    manifest={
        "format": _VERSION,
        "slug": Field(_SLUG),
        **_TEXTS,
        "created": Field(Instant()),
        "expires": Field(Instant()),
        "retention": Field(Duration(0, limits.MAX_RETENTION_SECONDS), 30 * 86_400),
        "reporting": Field(OneOf(WAYS), "memoized"),
        "eps_inf": Field(_EPSILON),
        "eps_1": Field(_EPSILON),
        "choose_for": Field(OneOf(READINGS), "round"),
        "min_reports": Field(Whole(1, limits.MAX_MIN_REPORTS), 200),
        "max_values": Field(Whole(1, limits.MAX_VALUES), 1),
        "devices": Field(Whole(0, limits.MAX_DEVICES), 0),
        "receipt_pages": Field(Whole(1, limits.MAX_RECEIPT_PAGES), _DEFAULT_PAGES),
        "operator": Field(Key(), b""),
        "rounds": Field(Table()),
        "attributes": Field(Tables()),
    },
    rounds={
        "first": Field(Instant(or_now=True)),
        "period": Field(Duration(1, limits.MAX_PERIOD_SECONDS)),
        "count": Field(Whole(1, limits.MAX_ROUNDS)),
        "grace": Field(Duration(0, limits.MAX_PERIOD_SECONDS)),
        "each": Field(Whole(0, limits.MAX_ROUNDS), 0),
        "drain": Field(Duration(1, limits.MAX_DRAIN_SECONDS), DEFAULT_DRAIN_SECONDS),
    },
    attribute={
        "name": Field(_NAME),
        "question": Field(Text(limits.MAX_QUESTION_LENGTH)),
        "values": Field(Values()),
        "edges": Field(Edges()),
        "unit": Field(Text(limits.MAX_UNIT_LENGTH, shortest=0), ""),
        "low": Field(Finite(), None),
        "high": Field(Finite(), None),
        "changes": Field(Flag()),
        "protocol": Field(OneOf(("auto", *LONGITUDINAL, *NESTABLE)), "auto"),
        "calibration": Field(OneOf(METHODS), "exact"),
        "levels": Field(Levels(), ()),
    },
)
