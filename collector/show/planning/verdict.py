"""Whether a result would show anything, and what would make it do so: calculated, not canned."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from collector.show.planning.alternatives import STEADY, alternative, suits, unnamed
from collector.show.planning.expected import (
    Terms,
    difference_width,
    expected,
    half_width,
    heard,
    way_of,
)
from collector.show.planning.records import Grade, Judgement, Suggestion
from protocol_spec import Attribute, ParameterError, Reporting
from protocol_spec.ways import WAYS

NOTHING: Final = 0.25  # a bar that may be this far off shows nothing
COARSE: Final = 0.10  # differences below this do not show: coarse
TARGET: Final = 0.05  # what suggestions aim at, unless a precision is asked for
TREND_ROUNDS: Final = 28  # read together when values change and noise is independent
MOST_ROUNDS: Final = 3650
MOST_EPSILON: Final = 10.0


@dataclass(frozen=True, slots=True)
class Case:
    """One question under some terms, asked of so many devices."""

    attribute: Attribute
    terms: Terms
    devices: int
    f: float
    min_reports: int
    questions: int = 1

    def width(self, rounds: int) -> float:
        """Half-width of one bar after so many rounds."""
        way = way_of(self.attribute, self.terms)
        return half_width(expected(way, self.terms, self.devices, rounds), self.f)

    def released(self, rounds: int) -> float:
        """The same, and endless where too few reports are expected for a result."""
        enough = heard(self.terms, self.devices, rounds) >= self.min_reports
        return self.width(rounds) if enough else math.inf


def changing(attribute: Attribute) -> bool:
    """Whether its values change over time. Format 1 does not say: numbers do."""
    return attribute.changes if attribute.total else attribute.edges is not None


def warnings(attribute: Attribute, reporting: Reporting) -> Iterator[str]:
    """What is wrong about asking this question in this way."""
    if reporting in STEADY and changing(attribute):
        yield (
            f'{attribute.name} may change over time, but with reporting = "{reporting}" a device '
            "goes on answering with its first value, and intervals do not know that: choose "
            'reporting = "once"'
        )


def rounds_read(attribute: Attribute, terms: Terms) -> int:
    """How many rounds are read together: all, unless values change meanwhile."""
    if not changing(attribute):
        return terms.rounds
    return min(TREND_ROUNDS, terms.rounds) if terms.reporting == "once" else 1


def verdict(case: Case) -> tuple[Judgement, ...]:
    """Of one round, and of the rounds that are read together."""
    together = rounds_read(case.attribute, case.terms)
    return tuple(judge(case, rounds) for rounds in dict.fromkeys((1, together)))


def judge(case: Case, rounds: int) -> Judgement:
    """What a result of so many rounds would show."""
    way = way_of(case.attribute, case.terms)
    estimated = expected(way, case.terms, case.devices, rounds)
    reports = heard(case.terms, case.devices, rounds)
    bar, apart = half_width(estimated, case.f), difference_width(estimated, case.f)
    grade, sentence = _grade(bar, apart, reports, case.min_reports)
    return Judgement(rounds, reports, bar, apart, grade, sentence)


def _grade(bar: float, apart: float, reports: float, needed: int) -> tuple[Grade, str]:
    if reports < needed:
        return "withheld", f"withheld: about {reports:,.0f} reports, and {needed:,} are needed"
    if bar >= NOTHING:
        return "nothing", f"this would show nothing: ±{points(bar)} points"
    if apart >= COARSE:
        return "coarse", f"shows only large differences: {points(apart)} points and more"
    return "good", f"good enough to see differences of {points(apart)} points"


def points(share: float) -> str:
    """Percentage points with as many digits as matter."""
    return f"{100 * share:.0f}" if share >= 0.0995 else f"{100 * share:.1f}"


# --- what would do ------------------------------------------------------------------------------


def suggestions(case: Case, target: float) -> tuple[Suggestion, ...]:
    """Each change that would do by itself; none if the width is there already."""
    together = rounds_read(case.attribute, case.terms)
    if case.released(together) <= target:
        return ()
    makers = (_more_devices, _more_epsilon, _more_rounds, _fewer_values, _another_way)
    return tuple(found for make in makers for found in make(case, target, together))


def _more_devices(case: Case, target: float, together: int) -> Iterator[Suggestion]:
    """Every variance is one device's divided by their number."""
    needed = math.ceil(case.devices * (case.width(together) / target) ** 2)
    share = heard(case.terms, 1.0, together)
    needed = max(needed, math.ceil(case.min_reports / share))
    width = replace(case, devices=needed).width(together)
    yield Suggestion(
        "devices",
        needed * case.questions,
        width,
        f"{needed * case.questions:,} devices in all: ±{points(width)}",
    )


def _more_epsilon(case: Case, target: float, together: int) -> Iterator[Suggestion]:
    """Both epsilons larger by the same factor, the larger one in tenths."""
    terms = case.terms

    def scaled(tenths: int) -> Case:
        factor = tenths / 10.0 / terms.eps_inf
        larger = replace(terms, eps_inf=tenths / 10.0, eps_1=round(terms.eps_1 * factor, 4))
        if terms.reporting == "once":
            larger = replace(larger, eps_1=larger.eps_inf / terms.each)
        return replace(case, attribute=replace(case.attribute, levels=()), terms=larger)

    first = math.floor(10 * terms.eps_inf) + 1
    found = _smallest(
        first, round(10 * MOST_EPSILON), lambda t: scaled(t).released(together), target
    )
    if found is not None:
        other = scaled(found)
        width, budget = other.width(together), other.terms
        yield Suggestion(
            "eps",
            budget.eps_inf,
            width,
            f"eps_inf {budget.eps_inf:g}, eps_1 {budget.eps_1:g}: ±{points(width)}",
        )


def _more_rounds(case: Case, target: float, together: int) -> Iterator[Suggestion]:
    """More rounds together; for one round for life, no more than there are."""
    if changing(case.attribute) and case.terms.reporting != "once":
        return
    once = case.terms.reporting == "once"
    most = case.terms.rounds if once else MOST_ROUNDS
    found = _smallest(together + 1, most, case.released, target)
    if found is not None:
        width = case.width(found)
        yield Suggestion("rounds", found, width, f"{found:,} rounds together: ±{points(width)}")


def _fewer_values(case: Case, target: float, together: int) -> Iterator[Suggestion]:
    asked = case.attribute

    def with_values(k: int) -> Case:
        fewer = replace(asked, values=asked.values[:k], edges=None, levels=())
        return replace(case, attribute=fewer)

    found = _smallest(
        0, asked.k - 3, lambda cut: with_values(asked.k - 1 - cut).released(together), target
    )
    if found is not None:
        k = asked.k - 1 - found
        width = with_values(k).width(together)
        yield Suggestion("values", k, width, f"{k} values instead of {asked.k}: ±{points(width)}")


def _another_way(case: Case, target: float, together: int) -> Iterator[Suggestion]:
    """Ways that suit the question and cost a device no more."""
    changes = changing(case.attribute)
    bound = way_of(case.attribute, case.terms).lifetime_epsilon
    for reporting in WAYS:
        terms = alternative(case.terms, reporting)
        other = replace(case, attribute=unnamed(case.attribute), terms=terms)
        if reporting == case.terms.reporting or not suits(reporting, changes):
            continue
        try:
            costs, width = way_of(other.attribute, terms).lifetime_epsilon, other.released(together)
        except ParameterError:
            continue
        if costs <= bound and width <= target:
            said = f'reporting = "{reporting}": ±{points(width)} with {together:,} rounds together'
            yield Suggestion("reporting", reporting, width, said)


def _smallest(first: int, last: int, width: Callable[[int], float], target: float) -> int | None:
    """The smallest whole number from first to last that is wide enough; widths fall with it."""
    if first > last or width(last) > target:
        return None
    while first < last:
        middle = (first + last) // 2
        first, last = (first, middle) if width(middle) <= target else (middle + 1, last)
    return last
