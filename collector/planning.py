"""Before a campaign: how precise its results will be, which mechanism suits it, and why.

All numbers come from the probabilities that devices will draw with. Variances do not depend on
counts: a device's share of them is taken from the functions that estimate, as if one device had
reported, and divided by the number of devices that will have answered. The page and `plan` call
this; the names of the fields are what `plan --json` prints.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from protocol_spec import (
    Attribute,
    ChooseFor,
    InfeasibleBudget,
    Manifest,
    Mechanism,
    ParameterError,
    Reporting,
)
from protocol_spec.estimation import (
    CUBES,
    SQUARES,
    Estimate,
    contrast,
    critical_value,
    estimate_reports,
    estimate_window,
    lie_shift,
    margins,
    midpoints,
    quantile,
    share_for_shift,
)
from protocol_spec.limits import DEVICES_PER_PAGE, MAX_RECEIPT_PAGES
from protocol_spec.mechanisms import MECHANISMS, Budget, default_levels, make_mechanism

CONFIDENCE: Final = 0.95
POOLED_ROUNDS: Final = (1, 7, 30, 365)
COMPARED_ROUNDS: Final = (1, 7, 28)
ENDLESS: Final = 10**9  # rounds: more than any campaign has
USELESS_HALF_WIDTH: Final = 0.25  # a bar that may be this far off shows nothing
COARSE_HALF_WIDTH: Final = 0.10  # differences below this do not show: coarse
LIARS: Final = 0.01  # of the devices: the share that results and plans state the effect of
TARGET: Final = 0.05  # what suggestions aim at, unless a precision is asked for
TREND_ROUNDS: Final = 28  # read together when values change and noise is independent
MOST_ROUNDS: Final = 3650
MOST_EPSILON: Final = 10.0
USUAL_SHARE: Final = 0.3  # eps_1 of eps_inf, where the budget does not say
FEWEST_BINS, MOST_BINS = 6, 16

Grade = Literal["withheld", "nothing", "coarse", "good"]
Change = Literal["devices", "eps", "rounds", "values", "reporting"]

# --- what a plan says ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MechanismPlan:
    """One mechanism, for the same question and eps_inf; widths by number of rounds."""

    reporting: Reporting
    protocol: str
    chosen: bool
    suits: bool
    eps_1: float
    half_width: dict[int, float]
    lifetime_epsilon: float
    hides: str


@dataclass(frozen=True, slots=True)
class ChoicePlan:
    """ALLOMFREE's choice if it is made for this reading."""

    choose_for: ChooseFor
    protocol: str
    half_width: float
    half_width_pooled: float


@dataclass(frozen=True, slots=True)
class NumbersPlan:
    """What to expect of a numeric question, if its numbers were spread evenly over the bins."""

    rounds: int
    mean_half_width: float | None
    mean_bias: float | None
    median_low: float | None
    median_high: float | None


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a result of `rounds` rounds would show; `difference` is between two such values."""

    rounds: int
    reports: float
    half_width: float
    difference: float
    grade: Grade
    sentence: str


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A change that would bring the half-width down to the target, if nothing else changed."""

    change: Change
    value: float | str
    half_width: float
    sentence: str


@dataclass(frozen=True, slots=True)
class UnevenPlan:
    """What a frequency is shown as, if devices with that value report in this share of rounds:
    weighed by reports, as all mechanisms but `nested` do, or by devices after `rounds` (nested)."""

    value: str
    participation: float
    others: float
    rounds: int
    by_reports: float
    by_devices: float


@dataclass(frozen=True, slots=True)
class AttributePlan:
    """What to expect of one attribute, as half-widths of 95 % intervals near frequency f."""

    name: str
    k: int
    protocol: str
    why: str
    devices: int
    half_width: float
    half_width_all: float
    half_width_pooled: dict[int, float]
    floor: float
    devices_for_precision: int | None
    split_budget_ratio: float | None
    reporting: Reporting
    changes: bool
    difference: float
    difference_all: float
    verdict: tuple[Judgement, ...]
    target: float
    suggestions: tuple[Suggestion, ...]
    warnings: tuple[str, ...]
    advice: tuple[str, ...]
    mechanisms: tuple[MechanismPlan, ...]
    choices: tuple[ChoicePlan, ...]
    unit: str
    numbers: tuple[NumbersPlan, ...]
    lie_shift: float  # how far a bar is off if 1 % of the devices lie together
    lie_share: float  # how many may lie for an error of `target`
    uneven: tuple[UnevenPlan, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole campaign."""

    n: int
    f: float
    precision: float | None
    eps_inf: float
    eps_1: float
    receipt_pages: int
    attributes: tuple[AttributePlan, ...]
    reporting: Reporting
    rounds: int
    each: int
    lifetime_epsilon: float
    min_reports: int
    participation: float


# --- one question -------------------------------------------------------------------------------


def half_width(estimated: Estimate, f: float, comparisons: int = 1) -> float:
    """Of the interval of a value of frequency f, far from 0 and 1."""
    variance = float(estimated.moments.variance(np.asarray(f)))
    return critical_value(CONFIDENCE, comparisons) * math.sqrt(variance)


def difference_width(estimated: Estimate, f: float, comparisons: int = 1) -> float:
    """Half-width of the difference between two values that both have frequency f, at most 1/2."""
    known, share = estimated.moments, min(f, 0.5)
    variance = 2.0 * (known.base + share * (known.base_slope + known.dilution))
    return critical_value(CONFIDENCE, comparisons) * math.sqrt(variance)


@dataclass(frozen=True)
class Case:
    """One question under some budget, asked of `devices` devices."""

    attribute: Attribute
    budget: Budget
    devices: float
    f: float = 0.0
    min_reports: int = 1
    questions: int = 1
    participation: float = 1.0  # the share of its rounds in which a device reports

    @cached_property
    def mechanism(self) -> Mechanism:
        attribute, budget = self.attribute, self.budget
        if MECHANISMS[budget.reporting].rules.has_levels and not attribute.levels:
            levels = default_levels(budget.eps_inf, budget.eps_1)
            attribute = replace(attribute, levels=levels)
        return make_mechanism(attribute, budget, b"")

    def devices_answered(self, rounds: int) -> float:
        """How many of the devices have answered after that many rounds, on average; where some
        answered more often than others and weigh more, as many devices of equal weight."""
        p, budget = self.participation, self.budget
        if self.mechanism.rules.draws_rounds:
            return self.devices * p * budget.each * min(rounds, budget.rounds) / budget.rounds
        if self.mechanism.analysis.combined == "latest":
            return self.devices * heard(p, rounds)
        return self.devices * rounds * p / (rounds * p + 1.0 - p)

    def after(self, rounds: int, shape: npt.ArrayLike | None = None) -> Estimate:
        """The estimate of that many rounds if it came out as `shape`, evenly without one, with the
        error it would have. With ENDLESS rounds, what repeated reports do not average out."""
        one, k, n = self._of_one_device(rounds), self.mechanism.k, self.devices_answered(rounds)
        raw = np.full(k, 1.0 / k) if shape is None else np.asarray(shape, dtype=np.float64)
        moments = replace(
            one.moments,
            n_eff=one.moments.n_eff * n,
            **{name: getattr(one.moments, name) / n for name in SQUARES},
            **{name: getattr(one.moments, name) / n**2 for name in CUBES},
        )
        return replace(one, raw=raw, moments=moments)

    def _of_one_device(self, rounds: int) -> Estimate:
        mechanism, each, channels = self.mechanism, self.budget.each, self.mechanism.channels
        if mechanism.analysis.combined != "window":
            rounds = max(1, round(rounds * self.participation))
            n = np.zeros(len(channels), dtype=np.int64)
            n[min(rounds, len(channels)) - 1] = 1  # the latest level
            nothing = np.zeros((len(channels), mechanism.k), dtype=np.int64)
            return estimate_reports(mechanism, nothing, n, ([rounds], [1]))
        window = min(rounds, self.budget.rounds, each)  # a device answers in no more of them
        answers = np.zeros(window, dtype=np.int64)
        answers[0] = 1
        nothing = np.zeros((window, mechanism.k), dtype=np.int64)
        return estimate_window(nothing, answers, channels[0], each=each)

    def width(self, rounds: int) -> float:
        """Half-width of one bar after that many rounds."""
        return half_width(self.after(rounds), self.f)

    def released(self, rounds: int) -> float:
        """The same, and endless where too few reports are expected for a result."""
        return self.width(rounds) if self.devices_answered(rounds) >= self.min_reports else math.inf

    @property
    def rounds_read(self) -> int:
        """How many rounds are read together: all, unless values change meanwhile."""
        if not self.attribute.changes:
            return self.budget.rounds
        return min(TREND_ROUNDS, self.budget.rounds) if self.mechanism.rules.draws_rounds else 1

    def with_mechanism(self, reporting: Reporting) -> Case:
        """The same eps_inf spent by another mechanism, without what belongs to this one."""
        before = self.budget
        if reporting == before.reporting:
            return self
        once = MECHANISMS[reporting].rules.draws_rounds
        eps_1 = before.eps_1 if before.eps_1 < before.eps_inf else USUAL_SHARE * before.eps_inf
        budget = Budget(
            reporting,
            before.eps_inf,
            before.eps_inf if once else eps_1,
            before.rounds,
            each=1 if once else 0,
        )
        attribute = replace(self.attribute, protocol="auto", levels=())
        return replace(self, attribute=attribute, budget=budget)


def heard(participation: float, rounds: int) -> float:
    """The share of devices that report in at least one of so many rounds."""
    return 1.0 - (1.0 - participation) ** rounds


def uneven(case: Case, value: str, often: float) -> UnevenPlan:
    """What a value of frequency f is shown as if its devices report that often."""
    others, rounds, f = case.participation, case.rounds_read, case.f

    def shown(mine: float, theirs: float) -> float:
        return f * mine / (f * mine + (1.0 - f) * theirs)

    latest = shown(heard(often, rounds), heard(others, rounds))
    return UnevenPlan(value, often, others, rounds, shown(often, others), latest)


def why(attribute: Attribute, mechanism: Mechanism, budget: Budget) -> str:
    """What made an attribute's protocol the one it is: variances, or the manifest."""
    if attribute.protocol != "auto":
        return "named in the manifest"
    return mechanism.why(attribute, budget)


def suits(attribute: Attribute, reporting: Reporting) -> bool:
    return not (attribute.changes and MECHANISMS[reporting].rules.answers_first_value_only)


def warnings(attribute: Attribute, reporting: Reporting) -> list[str]:
    """What is wrong about asking this question with this mechanism."""
    if suits(attribute, reporting):
        return []
    other = next(name for name in MECHANISMS if suits(attribute, name))
    warning = (
        f'{attribute.name} may change over time, but with reporting = "{reporting}" a device '
        "goes on answering with its first value, and intervals do not account for that: choose "
        f'reporting = "{other}"'
    )
    return [warning]


def judge(case: Case, rounds: int) -> Judgement:
    """What a result of that many rounds would show."""
    estimated, reports = case.after(rounds), case.devices_answered(rounds)
    bar, apart = half_width(estimated, case.f), difference_width(estimated, case.f)
    grade: Grade = "good"
    sentence = f"can detect differences of {points(apart)} percentage points or more"
    if reports < case.min_reports:
        needed = f"{case.min_reports:,} are needed"
        grade, sentence = "withheld", f"withheld: about {reports:,.0f} reports, and {needed}"
    elif bar >= USELESS_HALF_WIDTH:
        grade, sentence = "nothing", f"shows nothing: ±{points(bar)} percentage points"
    elif apart >= COARSE_HALF_WIDTH:
        grade = "coarse"
        sentence = f"detects only large differences: {points(apart)} percentage points or more"
    return Judgement(rounds, reports, bar, apart, grade, sentence)


def points(share: float) -> str:
    """Percentage points with as many digits as matter."""
    return f"{100 * share:.0f}" if share >= 0.0995 else f"{100 * share:.1f}"


def _mechanisms(case: Case) -> Iterator[MechanismPlan]:
    """Every mechanism that is possible with this budget, the chosen one among them."""
    for reporting in MECHANISMS:
        other = case.with_mechanism(reporting)
        try:
            mechanism = other.mechanism
        except ParameterError:  # this budget is outside what it can be calibrated for
            continue
        several, hides = other.budget.max_values, mechanism.analysis.hides
        if mechanism.rules.memo_per_value and several > 1:
            hides = f"up to {several} values, but not that they changed"
        yield MechanismPlan(
            reporting=reporting,
            protocol=mechanism.protocol,
            chosen=reporting == case.budget.reporting,
            suits=suits(case.attribute, reporting),
            eps_1=other.budget.eps_1,
            half_width={t: other.width(t) for t in COMPARED_ROUNDS},
            lifetime_epsilon=mechanism.lifetime_epsilon,
            hides=hides,
        )


def _choices(case: Case) -> Iterator[ChoicePlan]:
    """What ALLOMFREE chooses for either reading; nothing where there is nothing to choose."""
    if not case.mechanism.rules.memo_per_value or case.attribute.protocol != "auto":
        return
    readings: tuple[ChooseFor, ...] = ("round", "pooled")
    for reading in readings:
        other = replace(case, budget=replace(case.budget, choose_for=reading))
        one, all_ = other.width(1), other.width(case.budget.rounds)
        yield ChoicePlan(reading, other.mechanism.protocol, one, all_)


# --- suggestions --------------------------------------------------------------------------------


def suggestions(case: Case, target: float) -> tuple[Suggestion, ...]:
    """Each change that would be enough by itself; none if the width is there already."""
    together = case.rounds_read
    if case.released(together) <= target:
        return ()
    makers = (_more_devices, _more_epsilon, _more_rounds, _fewer_values, _another_mechanism)
    return tuple(found for make in makers for found in make(case, target, together))


def _more_devices(case: Case, target: float, together: int) -> Iterator[Suggestion]:
    """Every variance is one device's divided by their number."""
    needed = math.ceil(case.devices * (case.width(together) / target) ** 2)
    needed = max(
        needed, math.ceil(case.min_reports / replace(case, devices=1).devices_answered(together))
    )
    width, total = replace(case, devices=needed).width(together), needed * case.questions
    yield Suggestion("devices", total, width, f"{total:,} devices in all: ±{points(width)}")


def _more_epsilon(case: Case, target: float, together: int) -> Iterator[Suggestion]:
    """Both epsilons larger by the same factor, the larger one in tenths."""
    budget, unlevelled = case.budget, replace(case.attribute, levels=())

    def scaled(tenths: int) -> Case:
        eps_inf = tenths / 10.0
        eps_1 = round(budget.eps_1 * (eps_inf / budget.eps_inf), 4)
        if case.mechanism.rules.draws_rounds:
            eps_1 = eps_inf / budget.each
        larger = replace(budget, eps_inf=eps_inf, eps_1=eps_1)
        return replace(case, attribute=unlevelled, budget=larger)

    first, last = math.floor(10 * budget.eps_inf) + 1, round(10 * MOST_EPSILON)
    found = _smallest(first, last, lambda t: scaled(t).released(together), target)
    if found is not None:
        width, larger = scaled(found).width(together), scaled(found).budget
        sentence = f"eps_inf {larger.eps_inf:g}, eps_1 {larger.eps_1:g}: ±{points(width)}"
        yield Suggestion("eps", larger.eps_inf, width, sentence)


def _more_rounds(case: Case, target: float, together: int) -> Iterator[Suggestion]:
    """More rounds together; where devices draw their rounds, no more than there are."""
    once = case.mechanism.rules.draws_rounds
    if case.attribute.changes and not once:
        return
    most = case.budget.rounds if once else MOST_ROUNDS
    found = _smallest(together + 1, most, case.released, target)
    if found is not None:
        width = case.width(found)
        yield Suggestion("rounds", found, width, f"{found:,} rounds together: ±{points(width)}")


def _fewer_values(case: Case, target: float, together: int) -> Iterator[Suggestion]:
    asked = case.attribute

    def without(cut: int) -> Case:
        values = asked.values[: asked.k - 1 - cut]
        return replace(case, attribute=replace(asked, values=values, edges=None, levels=()))

    found = _smallest(0, asked.k - 3, lambda cut: without(cut).released(together), target)
    if found is not None:
        k, width = asked.k - 1 - found, without(found).width(together)
        yield Suggestion("values", k, width, f"{k} values instead of {asked.k}: ±{points(width)}")


def _another_mechanism(case: Case, target: float, together: int) -> Iterator[Suggestion]:
    """Mechanisms that suit the question and cost a device no more."""
    for reporting in MECHANISMS:
        if reporting == case.budget.reporting or not suits(case.attribute, reporting):
            continue
        other = case.with_mechanism(reporting)
        try:
            costs, width = other.mechanism.lifetime_epsilon, other.released(together)
        except ParameterError:
            continue
        if costs <= case.mechanism.lifetime_epsilon and width <= target:
            name = f'reporting = "{reporting}"'
            sentence = f"{name}: ±{points(width)} with {together:,} rounds together"
            yield Suggestion("reporting", reporting, width, sentence)


def _smallest(first: int, last: int, width: Callable[[int], float], target: float) -> int | None:
    """The smallest whole number from first to last that is precise enough; widths fall with it."""
    if first > last or width(last) > target:
        return None
    while first < last:
        middle = (first + last) // 2
        first, last = (first, middle) if width(middle) <= target else (middle + 1, last)
    return last


# --- numeric questions --------------------------------------------------------------------------


def _numbers(case: Case, rounds: int) -> NumbersPlan:
    """Mean and median after that many rounds, if every device has a number."""
    attribute, bins, ends = case.attribute, case.attribute.bins, case.attribute.finite_edges
    spread = np.zeros(attribute.k)
    spread[:bins] = 1.0 / bins
    estimated = case.after(rounds, spread)
    binned = replace(estimated, raw=estimated.raw[:bins])
    _, _, low, high = quantile(binned, ends or attribute.edges or (), 0.5, CONFIDENCE)
    if ends is None:
        return NumbersPlan(rounds, None, None, low, high)
    weights = np.full(attribute.k, midpoints(ends).mean())  # whoever has no number moves no mean
    weights[:bins] = midpoints(ends)
    half = contrast(estimated, weights).half_width(CONFIDENCE)
    return NumbersPlan(rounds, half, (ends[-1] - ends[0]) / bins / 2.0, low, high)


def mechanism_advice(case: Case) -> Iterator[str]:
    """One that counts latest reports suits values that stay, where it is more precise; what suits
    others `warnings` say."""
    better = next(n for n, each in MECHANISMS.items() if each.analysis.combined == "latest")
    rounds, other = case.rounds_read, case.with_mechanism(better)
    try:
        costs, width = other.mechanism.lifetime_epsilon, other.width(rounds)
    except ParameterError:
        return
    dearer = costs > case.mechanism.lifetime_epsilon or width >= case.width(rounds)
    if case.attribute.changes or other is case or dearer:
        return
    gain, now = points(width), points(case.width(rounds))
    precise = "is as precise" if gain == now else f"gives ±{gain} instead of ±{now}"
    yield (
        f'reporting = "{better}" {precise} with {rounds:,} rounds together, and counts each device '
        "once, however often it reports"
    )


def bin_advice(attribute: Attribute) -> Iterator[str]:
    """What would make the numbers of a question more useful."""
    if attribute.edges is None:
        return
    advice = f"choose {FEWEST_BINS} to {MOST_BINS} bins"
    if attribute.bins < FEWEST_BINS:
        yield f"{attribute.bins} bins are coarse for a median: {advice}"
    if attribute.bins > MOST_BINS:
        yield f"{attribute.bins} bins make each bar and the mean less certain: {advice}"
    if attribute.finite_edges is None:
        yield (
            "there will be no mean: give the outer bins finite ends, or say with `low` and `high` "
            "where they end"
        )


# --- a whole campaign ---------------------------------------------------------------------------


def pages_for(devices: int) -> int:
    """The receipt pages to set for that many devices."""
    return min(max(1, math.ceil(devices / DEVICES_PER_PAGE)), MAX_RECEIPT_PAGES)


def plan_budget(
    attributes: tuple[Attribute, ...],
    budget: Budget,
    *,
    n: int,
    f: float,
    precision: float | None,
    min_reports: int = 1,
    participation: Mapping[str, float] | None = None,
) -> Plan:
    """Expected precision with n devices in all, each answering one attribute.

    `participation` is the share of rounds in which devices report, by value; under the empty name
    that of all others, 1 if it is not given.
    """
    shares = {"": 1.0, **(participation or {})}
    for value, share in shares.items():
        if not 0.0 < share <= 1.0:
            raise ParameterError("participation", share, "a share of rounds is above 0, at most 1")
        if value and not any(value in attribute.values for attribute in attributes):
            raise ParameterError("participation", value, "no attribute has this value")
    if n < 1:
        raise ParameterError("n", n, "a number of devices is 1 or more")
    if not 0.0 <= f <= 1.0:
        raise ParameterError("f", f, "a frequency lies between 0 and 1")
    if precision is not None and not 0.0 < precision < 1.0:
        raise ParameterError("precision", precision, "a half-width lies between 0 and 1")
    d, devices = len(attributes), max(1, n // len(attributes))
    cases = [Case(a, budget, devices, f, min_reports, d, shares[""]) for a in attributes]
    return Plan(
        n=n,
        f=f,
        precision=precision,
        eps_inf=budget.eps_inf,
        eps_1=budget.eps_1,
        receipt_pages=pages_for(n),
        attributes=tuple(_attribute(case, precision, shares) for case in cases),
        reporting=budget.reporting,
        rounds=budget.rounds,
        each=budget.each,
        lifetime_epsilon=max(case.mechanism.lifetime_epsilon for case in cases),
        min_reports=min_reports,
        participation=shares[""],
    )


def plan_manifest(
    manifest: Manifest,
    *,
    n: int,
    f: float,
    precision: float | None,
    participation: Mapping[str, float] | None = None,
) -> Plan:
    """The same for a manifest."""
    return plan_budget(
        manifest.attributes,
        manifest.budget,
        n=n,
        f=f,
        precision=precision,
        min_reports=manifest.min_reports,
        participation=participation,
    )


def pair_advice(case: Case) -> Iterator[str]:
    """What one answer to two questions costs, next to asking half of the devices each."""
    cross, rounds = case.attribute.cross, case.rounds_read
    if not cross:
        return
    made, parts = case.after(rounds), []
    for part, margin in zip(cross, margins(made, case.attribute.shape)):
        half = replace(case, attribute=part, devices=case.devices / len(cross))
        widths = points(half_width(margin, case.f)), points(half.width(rounds))
        parts.append(f"{part.name} ±{widths[0]} (asked apart ±{widths[1]})")
    yield (
        f"{' and '.join(part.name for part in cross)} are one answer: after {rounds:,} rounds the "
        f"standard error of a cell is {100 * math.sqrt(made.moments.v0):.2g} points, and the "
        f"shares are known to {', '.join(parts)}"
    )


def _attribute(
    case: Case, precision: float | None, participation: Mapping[str, float]
) -> AttributePlan:
    attribute, budget, f, one = case.attribute, case.budget, case.f, case.after(1)
    target = TARGET if precision is None else precision
    read = tuple(dict.fromkeys((1, case.rounds_read)))
    alone, needed = replace(case, devices=1).width(1), None
    if precision is not None:
        needed = math.ceil((alone / precision) ** 2) * case.questions
    return AttributePlan(
        name=attribute.name,
        k=attribute.k,
        protocol=case.mechanism.protocol,
        why=why(attribute, case.mechanism, budget),
        devices=int(case.devices),
        half_width=half_width(one, f),
        half_width_all=half_width(one, f, attribute.k),
        half_width_pooled={t: case.width(t) for t in POOLED_ROUNDS},
        floor=case.width(ENDLESS),
        devices_for_precision=needed,
        split_budget_ratio=_split_ratio(case, alone),
        reporting=budget.reporting,
        changes=attribute.changes,
        difference=difference_width(one, f),
        difference_all=difference_width(one, f, math.comb(attribute.k, 2)),
        verdict=tuple(judge(case, rounds) for rounds in read),
        target=target,
        suggestions=suggestions(case, target),
        warnings=tuple(warnings(attribute, budget.reporting)),
        advice=(*mechanism_advice(case), *bin_advice(attribute), *pair_advice(case)),
        mechanisms=tuple(_mechanisms(case)),
        choices=tuple(_choices(case)),
        unit=attribute.unit,
        numbers=() if attribute.edges is None else tuple(_numbers(case, t) for t in read),
        lie_shift=lie_shift(case.mechanism.channels, LIARS),
        lie_share=share_for_shift(case.mechanism.channels, target),
        uneven=tuple(
            uneven(case, value, share)
            for value, share in participation.items()
            if value in attribute.values
        ),
    )


def _split_ratio(case: Case, alone: float) -> float | None:
    """How many times the interval would widen if every device answered all d attributes.

    None where the protocol cannot work with a d-th of the budget at all.
    """
    d, budget = case.questions, case.budget
    split = replace(budget, eps_inf=budget.eps_inf / d, eps_1=budget.eps_1 / d)
    attribute = replace(case.attribute, levels=())
    try:
        return replace(case, attribute=attribute, budget=split, devices=d).width(1) / alone
    except (InfeasibleBudget, ParameterError):
        return None
