"""What the fields of a manifest must be beside each other, once each is sound by itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from protocol_spec import limits
from protocol_spec.attributes import Attribute
from protocol_spec.chances import LONGITUDINAL
from protocol_spec.errors import InfeasibleBudget, ParameterError, Problem
from protocol_spec.reporting import NESTABLE
from protocol_spec.shown import as_toml
from protocol_spec.ways import Budget, ask_levels, make_way

__all__ = ["budget_of", "check_together"]

Fields = Mapping[str, Any]

# The protocols that can be asked for by name; `auto` always can.
_PROTOCOLS: Final = {
    "memoized": LONGITUDINAL,
    "once": NESTABLE,
    "hashed": (),
    "nested": NESTABLE,
}


def check_together(fields: MutableMapping[str, Any], problems: list[Problem]) -> None:
    """Note every problem; give nested questions without levels those that follow.

    Fields that are not sound by themselves are left out, so that the others are still checked.
    """
    wrong = {re.split(r"[.\[]", problem.field, maxsplit=1)[0] for problem in problems}
    for check, needed in _CHECKS:
        if not wrong & needed:
            problems += check(fields)
    if wrong & _RULED:
        if not wrong & {"reporting", "eps_inf", "eps_1"}:
            problems += _not_smaller(fields)
        return
    ruled = list(_rules_of_the_way(fields))
    problems += ruled
    if not ruled:
        fields["attributes"] = tuple(_with_levels(fields))
        problems += _infeasible(fields)


def budget_of(fields: Fields) -> Budget:
    """What the attributes' noise follows from."""
    rounds = fields["rounds"]
    return Budget(
        reporting=fields["reporting"],
        eps_inf=fields["eps_inf"],
        eps_1=fields["eps_1"],
        max_values=fields["max_values"],
        choose_for=fields["choose_for"],
        rounds=rounds.count,
        each=rounds.each,
    )


def _times(fields: Fields) -> Iterator[Problem]:
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
    """As its author wrote it; a number where no date can say it."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return seconds


def _names(fields: Fields) -> Iterator[Problem]:
    names = [attribute.name for attribute in fields["attributes"]]
    for i, name in enumerate(names):
        if name in names[:i]:
            yield Problem(f"attributes[{i}].name", name, "is taken; choose another")


def _memos(fields: Fields) -> Iterator[Problem]:
    largest = max(attribute.k for attribute in fields["attributes"])
    if fields["max_values"] > largest:
        yield Problem(
            "max_values", fields["max_values"], f"no attribute has more than {largest} values"
        )


def _infeasible(fields: Fields) -> Iterator[Problem]:
    """Questions for which the budget gives no noise to draw with."""
    budget = budget_of(fields)
    for i, attribute in enumerate(fields["attributes"]):
        try:
            make_way(attribute, budget, b"")
        except InfeasibleBudget as error:
            remedy = f"{error.field}: {error.remedy}"
            yield Problem(f"attributes[{i}].protocol", attribute.protocol, remedy)
        except ParameterError as error:
            yield Problem(error.field, error.value, error.remedy)
            return


_CHECKS: Final = (
    (_times, {"rounds", "created", "expires"}),
    (_names, {"attributes"}),
    (_memos, {"attributes", "max_values"}),
)
_RULED: Final = frozenset(
    {"reporting", "max_values", "choose_for", "rounds", "eps_inf", "eps_1", "attributes"}
)


# --- rules of the ways of reporting -----------------------------------------------------------


def _rules_of_the_way(fields: Fields) -> Iterator[Problem]:
    yield from _unused(fields)
    yield from _each(fields)
    yield from _eps_1(fields)
    for i, attribute in enumerate(fields["attributes"]):
        for name, value, remedy in _of_attribute(fields, attribute):
            yield Problem(f"attributes[{i}].{name}", value, remedy)


def _unused(fields: Fields) -> Iterator[Problem]:
    """What means nothing in the way chosen must not be stated: its author may expect something."""
    way, automatic = fields["reporting"], _any(fields, lambda a: a.protocol == "auto")
    if way != "memoized" and fields["max_values"] != 1:
        remedy = f'reporting = "{way}" has no memo for each value; leave it out'
        yield Problem("max_values", fields["max_values"], remedy)
    if fields["choose_for"] != "round" and (way != "memoized" or not automatic):
        remedy = 'only for reporting = "memoized" and an attribute of protocol "auto"; leave it out'
        yield Problem("choose_for", fields["choose_for"], remedy)


def _any(fields: Fields, condition: Callable[[Attribute], bool]) -> bool:
    return any(condition(attribute) for attribute in fields["attributes"])


def _each(fields: Fields) -> Iterator[Problem]:
    rounds, way = fields["rounds"], fields["reporting"]
    if way != "once":
        if rounds.each:
            remedy = f'reporting = "{way}" answers in every round; leave it out, or choose "once"'
            yield Problem("rounds.each", rounds.each, remedy)
    elif not 1 <= rounds.each <= rounds.count:
        remedy = f'must be from 1 to rounds.count = {rounds.count}, for reporting = "once"'
        yield Problem("rounds.each", rounds.each, remedy)


def _eps_1(fields: Fields) -> Iterator[Problem]:
    eps_inf, eps_1, each = fields["eps_inf"], fields["eps_1"], fields["rounds"].each
    if fields["reporting"] != "once":
        yield from _not_smaller(fields)
    elif each and eps_1 != eps_inf / each:
        remedy = f"must be eps_inf / rounds.each = {eps_inf / each!r}; leave it out"
        yield Problem("eps_1", eps_1, remedy)
    elif eps_1 < limits.MIN_EPSILON:
        remedy = f"leaves less than {limits.MIN_EPSILON:g} of eps_inf for each answer; choose fewer"
        yield Problem("rounds.each", each, remedy)


def _not_smaller(fields: Fields) -> Iterator[Problem]:
    """This needs no other field than the two, and the way of reporting."""
    eps_inf, eps_1 = fields["eps_inf"], fields["eps_1"]
    if fields["reporting"] != "once" and eps_1 >= eps_inf:
        remedy = f"must be smaller than eps_inf = {eps_inf!r}: one report tells less than all"
        yield Problem("eps_1", eps_1, remedy)


def _of_attribute(fields: Fields, attribute: Attribute) -> Iterator[tuple[str, object, str]]:
    way = fields["reporting"]
    allowed = ("auto", *_PROTOCOLS[way])
    if attribute.protocol not in allowed:
        words = ", ".join(allowed)
        yield "protocol", attribute.protocol, f'reporting = "{way}" has {words}'
    if way != "memoized" and attribute.method != "exact":
        yield "calibration", attribute.method, f'reporting = "{way}" is always exact; leave it out'
    levels, ends = attribute.levels, (fields["eps_1"], fields["eps_inf"])
    if levels and way != "nested":
        yield "levels", levels, f'reporting = "{way}" has no levels; leave it out, or say "nested"'
    elif levels and (levels[0], levels[-1]) != ends:
        remedy = f"must begin with eps_1 = {ends[0]!r} and end with eps_inf = {ends[1]!r}"
        yield "levels", levels, remedy


def _with_levels(fields: Fields) -> Iterator[Attribute]:
    for attribute in fields["attributes"]:
        if fields["reporting"] == "nested" and not attribute.levels:
            levels = ask_levels(attribute.k, fields["eps_inf"], fields["eps_1"])
            yield replace(attribute, levels=levels)
        else:
            yield attribute
