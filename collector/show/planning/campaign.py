"""A whole campaign before it begins."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from collector.show.planning.alternatives import alternatives, choices
from collector.show.planning.expected import (
    Terms,
    difference_width,
    expected,
    floor,
    half_width,
    terms_of,
    way_of,
    why,
)
from collector.show.planning.numbers import bin_advice, numbers_plan
from collector.show.planning.receipts import pages_for, too_few_pages
from collector.show.planning.records import POOLED_ROUNDS, AttributePlan, Plan
from collector.show.planning.verdict import (
    TARGET,
    Case,
    changing,
    rounds_read,
    suggestions,
    verdict,
    warnings,
)
from protocol_spec import Attribute, InfeasibleBudget, Manifest, ParameterError

USUAL_ROUNDS: Final = 365


@dataclass(frozen=True, slots=True)
class _Asked:
    """What all attributes of a plan have in common."""

    terms: Terms
    n: int
    questions: int
    f: float
    precision: float | None
    min_reports: int


def plan(
    attributes: tuple[Attribute, ...],
    *,
    n: int,
    eps_inf: float,
    eps_1: float,
    f: float = 0.1,
    precision: float | None = None,
) -> Plan:
    """Expected precision of the paper's way of reporting, in a year of daily rounds."""
    terms = Terms("memoized", eps_inf, eps_1, USUAL_ROUNDS)
    return plan_terms(attributes, terms, n=n, f=f, precision=precision)


def plan_terms(
    attributes: tuple[Attribute, ...],
    terms: Terms,
    *,
    n: int,
    f: float,
    precision: float | None,
    min_reports: int = 1,
) -> Plan:
    """Expected precision with n devices in all, each answering one attribute."""
    if n < 1:
        raise ParameterError("n", n, "a number of devices is 1 or more")
    if not 0.0 <= f <= 1.0:
        raise ParameterError("f", f, "a frequency lies between 0 and 1")
    if precision is not None and not 0.0 < precision < 1.0:
        raise ParameterError("precision", precision, "a half-width lies between 0 and 1")
    asked = _Asked(terms, n, len(attributes), f, precision, min_reports)
    rows = tuple(_attribute(attribute, asked) for attribute in attributes)
    return Plan(
        n=n,
        f=f,
        precision=precision,
        eps_inf=terms.eps_inf,
        eps_1=terms.eps_1,
        receipt_pages=pages_for(n),
        attributes=rows,
        reporting=terms.reporting,
        rounds=terms.rounds,
        each=terms.each,
        lifetime_epsilon=max(way_of(a, terms).lifetime_epsilon for a in attributes),
        min_reports=min_reports,
    )


def plan_manifest(manifest: Manifest, *, n: int, f: float, precision: float | None) -> Plan:
    """The same for a manifest."""
    planned = plan_terms(
        manifest.attributes,
        terms_of(manifest),
        n=n,
        f=f,
        precision=precision,
        min_reports=manifest.min_reports,
    )
    return replace(planned, receipts_warning=too_few_pages(manifest.receipt_pages, n))


def _attribute(attribute: Attribute, asked: _Asked) -> AttributePlan:
    terms, f, devices = asked.terms, asked.f, max(1, asked.n // asked.questions)
    way = way_of(attribute, terms)
    one = expected(way, terms, devices, 1)
    case = Case(attribute, terms, devices, f, asked.min_reports, asked.questions)
    target = TARGET if asked.precision is None else asked.precision
    pairs = math.comb(attribute.k, 2)
    return AttributePlan(
        name=attribute.name,
        k=attribute.k,
        protocol=way.protocol,
        why=why(attribute, way, terms),
        devices=devices,
        half_width=half_width(one, f),
        half_width_all=half_width(one, f, attribute.k),
        half_width_pooled={
            t: half_width(expected(way, terms, devices, t), f) for t in POOLED_ROUNDS
        },
        floor=floor(way, terms, devices, f),
        devices_for_precision=_devices_needed(case, asked.precision),
        split_budget_ratio=_split_ratio(case),
        reporting=terms.reporting,
        changes=changing(attribute),
        difference=difference_width(one, f),
        difference_all=difference_width(one, f, pairs),
        verdict=verdict(case),
        target=target,
        suggestions=suggestions(case, target),
        warnings=tuple(warnings(attribute, terms.reporting)),
        advice=tuple(bin_advice(attribute)),
        ways=alternatives(attribute, terms, changing(attribute), devices, f),
        choices=choices(attribute, terms, devices, f),
        unit=attribute.unit,
        numbers=numbers_plan(attribute, way, terms, devices, (1, rounds_read(attribute, terms))),
    )


def _devices_needed(case: Case, precision: float | None) -> int | None:
    """For one round that precise, of all questions together."""
    if precision is None:
        return None
    one = replace(case, devices=1).width(1)
    return math.ceil((one / precision) ** 2) * case.questions


def _split_ratio(case: Case) -> float | None:
    """How many times the interval would widen if every device answered all d attributes.

    None where the protocol cannot work with a d-th of the budget at all.
    """
    d, terms = case.questions, case.terms
    split = replace(terms, eps_inf=terms.eps_inf / d, eps_1=terms.eps_1 / d)
    every = replace(case, attribute=replace(case.attribute, levels=()), terms=split, devices=d)
    try:
        return every.width(1) / replace(case, devices=1).width(1)
    except (InfeasibleBudget, ParameterError):
        return None
