"""Before a campaign: how precise its results will be, which mechanism suits it, and why.

All numbers come from the probabilities that devices will draw with. Variances do not depend on
counts: a device's share of them is taken from the functions that estimate, as if one device had
reported, and divided by the devices that will be heard. The page and `plan` call this; the names
of the fields are what `plan --json` prints.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
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
    choose,
)
from protocol_spec.estimation import (
    Estimate,
    binning_bias,
    contrast,
    critical_value,
    estimate,
    estimate_pooled,
    estimate_window,
    median,
    midpoints,
)
from protocol_spec.limits import DEVICES_PER_PAGE, MAX_RECEIPT_PAGES, PAGE_TAGS
from protocol_spec.mechanisms import MECHANISMS, Budget, default_levels, make_mechanism

CONFIDENCE: Final = 0.95
POOLED_ROUNDS: Final = (1, 7, 30, 365)
COMPARED_ROUNDS: Final = (1, 7, 28)
ENDLESS: Final = 10**9  # rounds: more than any campaign has
USELESS: Final = 0.25  # a bar that may be this far off shows nothing
COARSE: Final = 0.10  # differences below this do not show: coarse
TARGET: Final = 0.05  # what suggestions aim at, unless a precision is asked for
TREND_ROUNDS: Final = 28  # read together when values change and noise is independent
MOST_ROUNDS: Final = 3650
MOST_EPSILON: Final = 10.0
USUAL_SHARE: Final = 0.3  # eps_1 of eps_inf, where the terms do not say
FEWEST_BINS, MOST_BINS = 6, 16

Grade = Literal["withheld", "nothing", "coarse", "good"]
Change = Literal["devices", "eps", "rounds", "values", "reporting"]

STEADY: Final[tuple[Reporting, ...]] = ("memoized", "nested")  # not for values that change
HIDES: Final[dict[Reporting, str]] = {
    "memoized": "the value; a second value is never reported",
    "once": "the whole history, whatever changes",
    "hashed": "values, but not that they changed",
    "nested": "the value; a late report alone reveals more than eps_1",
}

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
    receipts_warning: str | None = None


# --- the error that a mechanism leads to --------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Terms:
    """What a campaign asks for, as far as precision depends on it."""

    reporting: Reporting
    eps_inf: float
    eps_1: float
    rounds: int
    each: int = 0
    max_values: int = 1
    choose_for: ChooseFor = "round"


def terms_of(manifest: Manifest) -> Terms:
    return Terms(
        reporting=manifest.reporting,
        eps_inf=manifest.eps_inf,
        eps_1=manifest.eps_1,
        rounds=manifest.rounds.count,
        each=manifest.rounds.each,
        max_values=manifest.max_values,
        choose_for=manifest.choose_for,
    )


def way_of(attribute: Attribute, terms: Terms) -> Mechanism:
    """How the attribute would be answered under these terms."""
    levels = attribute.levels
    if terms.reporting == "nested" and not levels:
        levels = default_levels(attribute.k, terms.eps_inf, terms.eps_1)
    budget = Budget(
        reporting=terms.reporting,
        eps_inf=terms.eps_inf,
        eps_1=terms.eps_1,
        max_values=terms.max_values,
        choose_for=terms.choose_for,
        rounds=terms.rounds,
        each=terms.each,
    )
    return make_mechanism(replace(attribute, levels=levels), budget, b"")


def heard(terms: Terms, devices: float, rounds: int) -> float:
    """How many of the devices have answered after that many rounds, on average."""
    if terms.reporting != "once":
        return devices
    return devices * terms.each * min(rounds, terms.rounds) / terms.rounds


def expected(
    way: Mechanism, terms: Terms, devices: float, rounds: int, shape: npt.ArrayLike | None = None
) -> Estimate:
    """The estimate of that many rounds if it came out as `shape`, with the error it would have."""
    one = _of_one_device(way, terms, rounds)
    raw = np.full(way.k, 1.0 / way.k) if shape is None else np.asarray(shape, dtype=np.float64)
    known, n = one.moments, heard(terms, devices, rounds)
    second = ("v0", "slope", "base", "base_slope", "dilution")
    third = ("third0", "third_slope", "coupled", "third_dilution")
    moments = replace(
        known,
        n_eff=known.n_eff * n,
        **{name: getattr(known, name) / n for name in second},
        **{name: getattr(known, name) / n**2 for name in third},
    )
    return replace(one, raw=raw, moments=moments)


def _of_one_device(way: Mechanism, terms: Terms, rounds: int) -> Estimate:
    nothing = np.zeros(way.k, dtype=np.int64)
    if way.reporting == "nested":
        return estimate(nothing, 1, way.channels[min(rounds, len(way.channels)) - 1])
    (channel,) = way.channels
    if way.reporting != "once":
        return estimate_pooled(nothing, [rounds], [1], channel, weights="reports")
    window = min(rounds, terms.rounds, terms.each)  # a device is in no more of them than that
    answers = np.zeros(window, dtype=np.int64)
    answers[0] = 1
    return estimate_window(np.tile(nothing, (window, 1)), answers, channel, each=terms.each)


def half_width(estimated: Estimate, f: float, comparisons: int = 1) -> float:
    """Of the interval of a value of frequency f, far from 0 and 1."""
    variance = float(estimated.moments.variance(np.asarray(f)))
    return critical_value(CONFIDENCE, comparisons) * math.sqrt(variance)


def difference_width(estimated: Estimate, f: float, comparisons: int = 1) -> float:
    """Half-width of the difference between two values that both have frequency f, at most 1/2."""
    known, share = estimated.moments, min(f, 0.5)
    variance = 2.0 * (known.base + share * (known.base_slope + known.dilution))
    return critical_value(CONFIDENCE, comparisons) * math.sqrt(variance)


def floor(way: Mechanism, terms: Terms, devices: float, f: float) -> float:
    """Half-width that no number of rounds goes below: what repeated reports do not average out."""
    return half_width(expected(way, terms, devices, ENDLESS), f)


def why(attribute: Attribute, way: Mechanism, terms: Terms) -> str:
    """What made an attribute's protocol the one it is: variances, or the manifest."""
    if attribute.protocol != "auto":
        return "named in the manifest"
    if way.reporting == "hashed":
        return "two cells, whatever the number of values"
    if way.reporting != "memoized":
        limit = 3.0 * math.exp(way.calibration.eps_inf) + 2.0
        return f"GRR up to {limit:.4g} values at this epsilon, OUE above"
    both = choose(k=attribute.k, eps_inf=terms.eps_inf, eps_1=terms.eps_1, method=attribute.method)
    if terms.choose_for == "round":
        said = [f"{each.protocol} {each.variance(1):.4g}" for each in (both.grr, both.osue)]
        return f"variance of one answer: {', '.join(said)}"
    said = [
        f"{each.protocol} {each.pooled_variance(1, terms.rounds):.4g}"
        for each in (both.grr, both.osue)
    ]
    return f"variance of {terms.rounds} answers of a device: {', '.join(said)}"


def warnings(attribute: Attribute, reporting: Reporting) -> Iterator[str]:
    """What is wrong about asking this question with this mechanism."""
    if reporting in STEADY and attribute.changes:
        yield (
            f'{attribute.name} may change over time, but with reporting = "{reporting}" a device '
            "goes on answering with its first value, and intervals do not know that: choose "
            'reporting = "once"'
        )


# --- one question -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Case:
    """One question under some terms, asked of `devices` devices."""

    attribute: Attribute
    terms: Terms
    devices: int
    f: float
    min_reports: int
    questions: int = 1

    @property
    def way(self) -> Mechanism:
        return way_of(self.attribute, self.terms)

    def after(self, rounds: int) -> Estimate:
        return expected(self.way, self.terms, self.devices, rounds)

    def width(self, rounds: int) -> float:
        """Half-width of one bar after that many rounds."""
        return half_width(self.after(rounds), self.f)

    def released(self, rounds: int) -> float:
        """The same, and endless where too few reports are expected for a result."""
        enough = heard(self.terms, self.devices, rounds) >= self.min_reports
        return self.width(rounds) if enough else math.inf

    @property
    def rounds_read(self) -> int:
        """How many rounds are read together: all, unless values change meanwhile."""
        if not self.attribute.changes:
            return self.terms.rounds
        return min(TREND_ROUNDS, self.terms.rounds) if self.terms.reporting == "once" else 1

    def with_mechanism(self, reporting: Reporting) -> Case:
        """The same eps_inf spent by another mechanism, without what belongs to this one."""
        terms = self.terms
        if reporting == terms.reporting:
            return self
        eps_1 = terms.eps_1 if terms.eps_1 < terms.eps_inf else USUAL_SHARE * terms.eps_inf
        other = replace(
            terms,
            reporting=reporting,
            each=1 if reporting == "once" else 0,
            eps_1=terms.eps_inf if reporting == "once" else eps_1,
            max_values=1,
            choose_for="round",
        )
        unnamed = replace(self.attribute, protocol="auto", levels=())
        return replace(self, attribute=unnamed, terms=other)


def judge(case: Case, rounds: int) -> Judgement:
    """What a result of that many rounds would show."""
    estimated, reports = case.after(rounds), heard(case.terms, case.devices, rounds)
    bar, apart = half_width(estimated, case.f), difference_width(estimated, case.f)
    grade: Grade = "good"
    sentence = f"can detect differences of {points(apart)} percentage points or more"
    if reports < case.min_reports:
        needed = f"{case.min_reports:,} are needed"
        grade, sentence = "withheld", f"withheld: about {reports:,.0f} reports, and {needed}"
    elif bar >= USELESS:
        grade, sentence = "nothing", f"shows nothing: ±{points(bar)} percentage points"
    elif apart >= COARSE:
        said = f"detects only large differences: {points(apart)} percentage points or more"
        grade, sentence = "coarse", said
    return Judgement(rounds, reports, bar, apart, grade, sentence)


def points(share: float) -> str:
    """Percentage points with as many digits as matter."""
    return f"{100 * share:.0f}" if share >= 0.0995 else f"{100 * share:.1f}"


def mechanisms(case: Case) -> Iterator[MechanismPlan]:
    """Every mechanism that is possible with this budget, the chosen one among them."""
    for reporting in MECHANISMS:
        other = case.with_mechanism(reporting)
        try:
            way = other.way
        except ParameterError:  # this budget is outside what it can be calibrated for
            continue
        several = other.terms.max_values
        hidden = f"up to {several} values, but not that they changed"
        yield MechanismPlan(
            reporting=reporting,
            protocol=way.protocol,
            chosen=reporting == case.terms.reporting,
            suits=not case.attribute.changes or reporting not in STEADY,
            eps_1=other.terms.eps_1,
            half_width={t: other.width(t) for t in COMPARED_ROUNDS},
            lifetime_epsilon=way.lifetime_epsilon,
            hides=hidden if reporting == "memoized" and several > 1 else HIDES[reporting],
        )


def choices(case: Case) -> Iterator[ChoicePlan]:
    """What ALLOMFREE chooses for either reading; nothing where there is nothing to choose."""
    if case.terms.reporting != "memoized" or case.attribute.protocol != "auto":
        return
    readings: tuple[ChooseFor, ...] = ("round", "pooled")
    for reading in readings:
        other = replace(case, terms=replace(case.terms, choose_for=reading))
        one, all_ = other.width(1), other.width(case.terms.rounds)
        yield ChoicePlan(reading, other.way.protocol, one, all_)


# --- what would do ------------------------------------------------------------------------------


def suggestions(case: Case, target: float) -> tuple[Suggestion, ...]:
    """Each change that would do by itself; none if the width is there already."""
    together = case.rounds_read
    if case.released(together) <= target:
        return ()
    makers = (_more_devices, _more_epsilon, _more_rounds, _fewer_values, _another_mechanism)
    return tuple(found for make in makers for found in make(case, target, together))


def _more_devices(case: Case, target: float, together: int) -> Iterator[Suggestion]:
    """Every variance is one device's divided by their number."""
    needed = math.ceil(case.devices * (case.width(together) / target) ** 2)
    needed = max(needed, math.ceil(case.min_reports / heard(case.terms, 1.0, together)))
    width, total = replace(case, devices=needed).width(together), needed * case.questions
    yield Suggestion("devices", total, width, f"{total:,} devices in all: ±{points(width)}")


def _more_epsilon(case: Case, target: float, together: int) -> Iterator[Suggestion]:
    """Both epsilons larger by the same factor, the larger one in tenths."""
    terms = case.terms

    def scaled(tenths: int) -> Case:
        factor = tenths / 10.0 / terms.eps_inf
        larger = replace(terms, eps_inf=tenths / 10.0, eps_1=round(terms.eps_1 * factor, 4))
        if terms.reporting == "once":
            larger = replace(larger, eps_1=larger.eps_inf / terms.each)
        return replace(case, attribute=replace(case.attribute, levels=()), terms=larger)

    first, last = math.floor(10 * terms.eps_inf) + 1, round(10 * MOST_EPSILON)
    found = _smallest(first, last, lambda t: scaled(t).released(together), target)
    if found is not None:
        width, budget = scaled(found).width(together), scaled(found).terms
        said = f"eps_inf {budget.eps_inf:g}, eps_1 {budget.eps_1:g}: ±{points(width)}"
        yield Suggestion("eps", budget.eps_inf, width, said)


def _more_rounds(case: Case, target: float, together: int) -> Iterator[Suggestion]:
    """More rounds together; for one round for life, no more than there are."""
    once = case.terms.reporting == "once"
    if case.attribute.changes and not once:
        return
    most = case.terms.rounds if once else MOST_ROUNDS
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
    bound = case.way.lifetime_epsilon
    for reporting in MECHANISMS:
        unsuitable = case.attribute.changes and reporting in STEADY
        if reporting == case.terms.reporting or unsuitable:
            continue
        other = case.with_mechanism(reporting)
        try:
            costs, width = other.way.lifetime_epsilon, other.released(together)
        except ParameterError:
            continue
        if costs <= bound and width <= target:
            said = f'reporting = "{reporting}": ±{points(width)} with {together:,} rounds together'
            yield Suggestion("reporting", reporting, width, said)


def _smallest(first: int, last: int, width: Callable[[int], float], target: float) -> int | None:
    """The smallest whole number from first to last that is precise enough; widths fall with it."""
    if first > last or width(last) > target:
        return None
    while first < last:
        middle = (first + last) // 2
        first, last = (first, middle) if width(middle) <= target else (middle + 1, last)
    return last


# --- numeric questions --------------------------------------------------------------------------


def numbers_plan(case: Case, rounds: int) -> NumbersPlan:
    """Mean and median after that many rounds."""
    attribute, bins, ends = case.attribute, case.attribute.bins, case.attribute.finite_edges
    spread = np.zeros(attribute.k)
    spread[:bins] = 1.0 / bins
    estimated = expected(case.way, case.terms, case.devices, rounds, spread)
    low, high = _median(estimated, ends or attribute.edges or (), bins)
    if ends is None:
        return NumbersPlan(rounds, None, None, low, high)
    weights = np.full(attribute.k, midpoints(ends).mean())  # whoever has no number moves no mean
    weights[:bins] = midpoints(ends)
    half = contrast(estimated, weights).half_width(CONFIDENCE)
    return NumbersPlan(rounds, half, binning_bias(ends), low, high)


def _median(
    estimated: Estimate, ends: Sequence[float], bins: int
) -> tuple[float | None, float | None]:
    """Ends of the median's interval, None where there is none, if every device has a number."""
    found = median(replace(estimated, raw=estimated.raw[:bins]), ends, CONFIDENCE)
    low, high = (end if math.isfinite(end) else None for end in (found.low, found.high))
    return low, high


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


# --- receipts -----------------------------------------------------------------------------------


def pages_for(devices: int) -> int:
    """The receipt pages to set for that many devices."""
    return min(max(1, math.ceil(devices / DEVICES_PER_PAGE)), MAX_RECEIPT_PAGES)


def receipts_on(pages: int) -> int:
    """How many receipts fit on that many pages at a time."""
    return pages * PAGE_TAGS


def too_few_pages(pages: int, devices: int) -> str | None:
    """What happens when more devices come than fit on the pages, and what to do before it does."""
    if devices <= receipts_on(pages):
        return None
    return (
        f"receipt_pages = {pages} has room for {receipts_on(pages):,} receipts at a time, and "
        f"{devices:,} devices are expected. All are counted, but receipts take turns, and devices "
        f"that miss theirs send again. Set receipt_pages = {pages_for(devices)} before opening"
    )


# --- a whole campaign ---------------------------------------------------------------------------


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
    d, devices = len(attributes), max(1, n // len(attributes))
    cases = [Case(attribute, terms, devices, f, min_reports, d) for attribute in attributes]
    return Plan(
        n=n,
        f=f,
        precision=precision,
        eps_inf=terms.eps_inf,
        eps_1=terms.eps_1,
        receipt_pages=pages_for(n),
        attributes=tuple(_attribute(case, precision) for case in cases),
        reporting=terms.reporting,
        rounds=terms.rounds,
        each=terms.each,
        lifetime_epsilon=max(case.way.lifetime_epsilon for case in cases),
        min_reports=min_reports,
    )


def plan_manifest(manifest: Manifest, *, n: int, f: float, precision: float | None) -> Plan:
    """The same for a manifest."""
    terms, needed = terms_of(manifest), manifest.min_reports
    planned = plan_terms(
        manifest.attributes, terms, n=n, f=f, precision=precision, min_reports=needed
    )
    return replace(planned, receipts_warning=too_few_pages(manifest.receipt_pages, n))


def _attribute(case: Case, precision: float | None) -> AttributePlan:
    attribute, terms, f, way = case.attribute, case.terms, case.f, case.way
    one, target = case.after(1), TARGET if precision is None else precision
    read = tuple(dict.fromkeys((1, case.rounds_read)))
    needed = None
    if precision is not None:
        alone = replace(case, devices=1).width(1)
        needed = math.ceil((alone / precision) ** 2) * case.questions
    return AttributePlan(
        name=attribute.name,
        k=attribute.k,
        protocol=way.protocol,
        why=why(attribute, way, terms),
        devices=case.devices,
        half_width=half_width(one, f),
        half_width_all=half_width(one, f, attribute.k),
        half_width_pooled={t: case.width(t) for t in POOLED_ROUNDS},
        floor=floor(way, terms, case.devices, f),
        devices_for_precision=needed,
        split_budget_ratio=_split_ratio(case),
        reporting=terms.reporting,
        changes=attribute.changes,
        difference=difference_width(one, f),
        difference_all=difference_width(one, f, math.comb(attribute.k, 2)),
        verdict=tuple(judge(case, rounds) for rounds in read),
        target=target,
        suggestions=suggestions(case, target),
        warnings=tuple(warnings(attribute, terms.reporting)),
        advice=tuple(bin_advice(attribute)),
        mechanisms=tuple(mechanisms(case)),
        choices=tuple(choices(case)),
        unit=attribute.unit,
        numbers=() if attribute.edges is None else tuple(numbers_plan(case, t) for t in read),
    )


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
