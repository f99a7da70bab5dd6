"""What a plan says. The names are what `plan --json` prints; one is only ever added."""

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
    ParameterError,
    Reporting,
    Way,
)
from protocol_spec.estimation import (
    Estimate,
    Moments,
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
from protocol_spec.ways import WAYS, Budget, ask_levels, make_way

POOLED_ROUNDS: Final = (1, 7, 30, 365)
COMPARED_ROUNDS: Final = (1, 7, 28)

Grade = Literal["withheld", "nothing", "coarse", "good"]
Change = Literal["devices", "eps", "rounds", "values", "reporting"]


@dataclass(frozen=True, slots=True)
class WayPlan:
    """One way of reporting, for the same question and eps_inf; widths by number of rounds."""

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
    """What a result of so many rounds would show; `difference` is between two such values."""

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
    ways: tuple[WayPlan, ...]
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


# --- The error that a way of reporting leads to, before there are reports.


CONFIDENCE: Final = 0.95
ENDLESS: Final = 10**9  # rounds: more than any campaign has


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
    """The terms of a manifest."""
    return Terms(
        reporting=manifest.reporting,
        eps_inf=manifest.eps_inf,
        eps_1=manifest.eps_1,
        rounds=manifest.rounds.count,
        each=manifest.rounds.each,
        max_values=manifest.max_values,
        choose_for=manifest.choose_for,
    )


def way_of(attribute: Attribute, terms: Terms) -> Way:
    """How the attribute would be answered under these terms."""
    levels = attribute.levels
    if terms.reporting == "nested" and not levels:
        levels = ask_levels(attribute.k, terms.eps_inf, terms.eps_1)
    budget = Budget(
        reporting=terms.reporting,
        eps_inf=terms.eps_inf,
        eps_1=terms.eps_1,
        max_values=terms.max_values,
        choose_for=terms.choose_for,
        rounds=terms.rounds,
        each=terms.each,
    )
    return make_way(replace(attribute, levels=levels), budget, b"")


def heard(terms: Terms, devices: float, rounds: int) -> float:
    """How many of the devices have answered after so many rounds, on average."""
    if terms.reporting != "once":
        return devices
    return devices * terms.each * min(rounds, terms.rounds) / terms.rounds


def expected(
    way: Way, terms: Terms, devices: float, rounds: int, shape: npt.ArrayLike | None = None
) -> Estimate:
    """The estimate of so many rounds if it came out as `shape`, with the error it would have."""
    one = _of_one_device(way, terms, rounds)
    raw = np.full(way.k, 1.0 / way.k) if shape is None else np.asarray(shape, dtype=np.float64)
    return replace(one, raw=raw, moments=_shared(one.moments, heard(terms, devices, rounds)))


def _of_one_device(way: Way, terms: Terms, rounds: int) -> Estimate:
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


def _shared(known: Moments, devices: float) -> Moments:
    """Of the mean over so many devices like this one."""
    second = ("v0", "slope", "base", "base_slope", "dilution")
    third = ("third0", "third_slope", "coupled", "third_dilution")
    return replace(
        known,
        n_eff=known.n_eff * devices,
        **{name: getattr(known, name) / devices for name in second},
        **{name: getattr(known, name) / devices**2 for name in third},
    )


def half_width(estimated: Estimate, f: float, comparisons: int = 1) -> float:
    """Of the interval of a value of frequency f, far from 0 and 1."""
    variance = float(estimated.moments.variance(np.asarray(f)))
    return critical_value(CONFIDENCE, comparisons) * math.sqrt(variance)


def difference_width(estimated: Estimate, f: float, comparisons: int = 1) -> float:
    """Half-width of the difference between two values that both have frequency f, at most 1/2."""
    known, share = estimated.moments, min(f, 0.5)
    variance = 2.0 * (known.base + share * (known.base_slope + known.dilution))
    return critical_value(CONFIDENCE, comparisons) * math.sqrt(variance)


def floor(way: Way, terms: Terms, devices: float, f: float) -> float:
    """Half-width that no number of rounds goes below: what repeated reports do not average out."""
    return half_width(expected(way, terms, devices, ENDLESS), f)


def why(attribute: Attribute, way: Way, terms: Terms) -> str:
    """What made an attribute's protocol the one it is: variances, or the manifest."""
    if attribute.protocol != "auto":
        return "named in the manifest"
    if way.reporting == "hashed":
        return "two cells, whatever the number of values"
    if way.reporting != "memoized":
        limit = 3.0 * math.exp(way.calibration.eps_inf) + 2.0
        return f"GRR up to {limit:.4g} values at this epsilon, OUE above"
    both = attribute.choice(terms.eps_inf, terms.eps_1)
    said = [f"{each.protocol} {each.variance(1):.4g}" for each in (both.grr, both.osue)]
    if terms.choose_for == "round":
        return f"variance of one answer: {', '.join(said)}"
    pooled = [
        f"{each.protocol} {each.pooled_variance(1, terms.rounds):.4g}"
        for each in (both.grr, both.osue)
    ]
    return f"variance of {terms.rounds} answers of a device: {', '.join(pooled)}"


# --- The four ways of reporting side by side, and the adaptive choice for either reading.


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


# --- A numeric question before it is asked: mean, median, and advice on its bins.


FEWEST_BINS, MOST_BINS = 6, 16
_ADVICE: Final = f"{FEWEST_BINS} to {MOST_BINS} bins"


def numbers_plan(
    attribute: Attribute, way: Way, terms: Terms, devices: int, rounds: Sequence[int]
) -> tuple[NumbersPlan, ...]:
    """Mean and median after so many rounds; nothing for named values."""
    if attribute.edges is None:
        return ()
    return tuple(_after(attribute, way, terms, devices, t) for t in dict.fromkeys(rounds))


def _after(attribute: Attribute, way: Way, terms: Terms, devices: int, rounds: int) -> NumbersPlan:
    bins, ends = attribute.bins, attribute.finite_edges
    spread = np.zeros(way.k)
    spread[:bins] = 1.0 / bins
    estimated = expected(way, terms, devices, rounds, spread)
    low, high = _median(estimated, ends or attribute.edges or (), bins)
    if ends is None:
        return NumbersPlan(rounds, None, None, low, high)
    weights = np.full(way.k, midpoints(ends).mean())  # whoever has no number moves no mean
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
    if attribute.bins < FEWEST_BINS:
        yield f"{attribute.bins} bins are coarse for a median: choose {_ADVICE}"
    if attribute.bins > MOST_BINS:
        yield f"{attribute.bins} bins make each bar and the mean less certain: choose {_ADVICE}"
    if attribute.finite_edges is None:
        yield (
            "there will be no mean: give the outer bins finite ends, or say with `low` and `high` "
            "where they end"
        )


# --- How many pages of receipts a campaign needs, and whether those it has are enough.


def pages_for(devices: int) -> int:
    """The pages to set for so many devices."""
    return min(max(1, math.ceil(devices / DEVICES_PER_PAGE)), MAX_RECEIPT_PAGES)


def receipts_on(pages: int) -> int:
    """How many receipts stand on so many pages at a time."""
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


# --- Whether a result would show anything, and what would make it do so: calculated, not canned.


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


def warnings(attribute: Attribute, reporting: Reporting) -> Iterator[str]:
    """What is wrong about asking this question in this way."""
    if reporting in STEADY and attribute.changes:
        yield (
            f'{attribute.name} may change over time, but with reporting = "{reporting}" a device '
            "goes on answering with its first value, and intervals do not know that: choose "
            'reporting = "once"'
        )


def rounds_read(attribute: Attribute, terms: Terms) -> int:
    """How many rounds are read together: all, unless values change meanwhile."""
    if not attribute.changes:
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
    if case.attribute.changes and case.terms.reporting != "once":
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
    changes = case.attribute.changes
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


# --- A whole campaign before it begins.


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
        changes=attribute.changes,
        difference=difference_width(one, f),
        difference_all=difference_width(one, f, pairs),
        verdict=verdict(case),
        target=target,
        suggestions=suggestions(case, target),
        warnings=tuple(warnings(attribute, terms.reporting)),
        advice=tuple(bin_advice(attribute)),
        ways=alternatives(attribute, terms, attribute.changes, devices, f),
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


# --- Before a campaign: how precise its results will be, which way of reporting suits it, and why.
