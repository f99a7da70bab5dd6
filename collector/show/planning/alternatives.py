"""The four ways of reporting side by side, and the adaptive choice for either reading."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from collector.show.planning.expected import Terms, expected, half_width, way_of
from collector.show.planning.records import COMPARED_ROUNDS, ChoicePlan, WayPlan
from protocol_spec import Attribute, ParameterError, Reporting
from protocol_spec.ways import WAYS

STEADY: Final[tuple[Reporting, ...]] = ("memoized", "nested")
USUAL_SHARE: Final = 0.3  # eps_1 of eps_inf, where the terms do not say

HIDES: Final[dict[Reporting, str]] = {
    "memoized": "the value; a second value is never answered",
    "once": "the whole history, whatever changes",
    "hashed": "values, but not that they changed",
    "nested": "the value; a late report alone tells more than eps_1",
}


def hides(reporting: Reporting, max_values: int) -> str:
    """What stays hidden, in a few words."""
    if reporting == "memoized" and max_values > 1:
        return f"up to {max_values} values, but not that they changed"
    return HIDES[reporting]


def suits(reporting: Reporting, changes: bool) -> bool:
    """Whether a way is right for values that change, or for those that do not."""
    return reporting not in STEADY if changes else True


def alternative(terms: Terms, reporting: Reporting) -> Terms:
    """The same eps_inf spent in another way."""
    if reporting == terms.reporting:
        return terms
    if reporting == "once":
        return replace(
            terms, reporting="once", each=1, eps_1=terms.eps_inf, max_values=1, choose_for="round"
        )
    eps_1 = terms.eps_1 if terms.eps_1 < terms.eps_inf else USUAL_SHARE * terms.eps_inf
    return replace(
        terms, reporting=reporting, each=0, eps_1=eps_1, max_values=1, choose_for="round"
    )


def alternatives(
    attribute: Attribute, terms: Terms, changes: bool, devices: int, f: float
) -> tuple[WayPlan, ...]:
    """Every way that is possible with this budget, the chosen one among them."""
    return tuple(_ways(attribute, terms, changes, devices, f))


def _ways(
    attribute: Attribute, terms: Terms, changes: bool, devices: int, f: float
) -> Iterator[WayPlan]:
    for reporting in WAYS:
        chosen = reporting == terms.reporting
        other = alternative(terms, reporting)
        try:
            way = way_of(attribute if chosen else unnamed(attribute), other)
        except ParameterError:  # this budget is outside what the way can be calibrated for
            continue
        yield WayPlan(
            reporting=reporting,
            protocol=way.protocol,
            chosen=chosen,
            suits=suits(reporting, changes),
            eps_1=other.eps_1,
            half_width={
                t: half_width(expected(way, other, devices, t), f) for t in COMPARED_ROUNDS
            },
            lifetime_epsilon=way.lifetime_epsilon,
            hides=hides(reporting, other.max_values),
        )


def unnamed(attribute: Attribute) -> Attribute:
    """Without what belongs to one way of reporting."""
    return replace(attribute, protocol="auto", levels=())


def choices(attribute: Attribute, terms: Terms, devices: int, f: float) -> tuple[ChoicePlan, ...]:
    """What ALLOMFREE chooses for either reading; nothing where there is nothing to choose."""
    if terms.reporting != "memoized" or attribute.protocol != "auto":
        return ()
    return tuple(
        _choice(attribute, replace(terms, choose_for=reading), devices, f)
        for reading in ("round", "pooled")
    )


def _choice(attribute: Attribute, terms: Terms, devices: int, f: float) -> ChoicePlan:
    way = way_of(attribute, terms)
    one, all_ = (expected(way, terms, devices, t) for t in (1, terms.rounds))
    return ChoicePlan(terms.choose_for, way.protocol, half_width(one, f), half_width(all_, f))
