"""What changed: trends over the rounds of a question, and differences of two results.

Which fit is possible, and what its error is made of, follows from the mechanism; see
`protocol_spec.estimation.changes`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from collector.errors import UnknownCampaign
from collector.records import Campaign
from collector.results.display import shares
from collector.results.estimates import attribute_of
from collector.results.facts import (
    attribute_index,
    attribute_indexes,
    chosen_results,
    latest_results,
)
from collector.results.tables import instant
from collector.results.words import Facts, around, rounds_label
from collector.store import Store
from protocol_spec import Attribute, ParameterError, Result, parse_duration
from protocol_spec.estimation import (
    Array,
    Fit,
    Series,
    difference_interval,
    fit_harmonic,
    fit_line,
    fit_smooth,
    midpoints,
    series,
    shared_correlation,
    within_one,
)

MOST_ROUNDS: Final = 1000  # of which a trend is made
COLUMNS: Final = (
    *("campaign", "attribute", "value", "unit", "fit", "per", "first", "last", "rounds"),
    *("opens", "closes", "change", "low", "high", "low_all", "high_all", "highest", "fits"),
)
MEAN: Final = "mean"
_SECONDS: Final = {
    "a year": 31_557_600,
    "a month": 2_629_800,
    "a week": 604_800,
    "a day": 86_400,
    "an hour": 3600,
    "a minute": 60,
    "a second": 1,
}
_WHO: Final = "each device answers for the first value it had: a change is one of who reports"


# --- trends ---------------------------------------------------------------------------------------


def period_of(fit: str) -> int | None:
    """Seconds of a wave, None for the other fits."""
    seconds = None if fit in ("line", "smooth") else parse_duration(fit)
    if seconds == 0 or (seconds is None and fit not in ("line", "smooth")):
        remedy = "give line, smooth, or the length of a wave, such as 1d or 52w"
        raise ParameterError("trend", fit[:40], remedy)
    return seconds


def trends(store: Store, found: Campaign, attribute: str | None, fit: str) -> list[Facts]:
    """`trend_facts` of every question, or of the one named, with all curves."""
    asked, made = found.manifest.attributes, []
    for i in attribute_indexes(found, attribute):
        rounds = latest_results(store, found, i, MOST_ROUNDS).rounds
        made.append(trend_facts(found, i, rounds, fit, (MEAN, *asked[i].values)))
    return made


def trend_facts(
    campaign: Campaign, index: int, rounds: Sequence[Result], fit: str, curves: Sequence[str] = ()
) -> Facts:
    """The trend of each value and of the mean: what `estimate --trend --json` prints. Where there
    is none, `sentence` says why. Of the values `curves` there are curves as well."""
    asked, mechanism = campaign.manifest.attributes[index], campaign.manifest.mechanisms[index]
    found, wave = [r for r in rounds if not r.withheld][-MOST_ROUNDS:], period_of(fit)
    facts: Facts = {"campaign": campaign.name, "attribute": asked.name, "question": asked.question}
    facts |= {"fit": fit, "sentence": "", "warnings": [], "trends": []}
    try:
        made = _fitted(campaign, index, found, fit, wave)
    except ParameterError as error:
        return {**facts, "sentence": f"{error.remedy[0].upper()}{error.remedy[1:].rstrip('.')}."}
    about, share = _time(campaign, found, fit)
    for value, unit, weights in _functionals(asked):
        row = facts | about | _change(campaign, made, weights, share)
        row |= {"value": value, "unit": unit}
        row = {name: row[name] for name in COLUMNS} | {"sentence": trend_sentence(row)}
        if value in curves:
            row["curve"] = {n: x.tolist() for n, x in made.curve(weights)._asdict().items()}
        facts["trends"].append(row)
    first_only = mechanism.rules.answers_first_value_only and mechanism.memos == 1
    warnings = [_WHO] if first_only else []
    return {**facts, "sentence": _summary(facts["trends"], share), "warnings": warnings}


def _fitted(
    campaign: Campaign, index: int, found: Sequence[Result], fit: str, wave: int | None
) -> Fit:
    of = _series(campaign, index, found)
    if wave is not None:
        return fit_harmonic(of, wave / campaign.manifest.rounds.period)
    return fit_line(of) if fit == "line" else fit_smooth(of)


def _time(campaign: Campaign, found: Sequence[Result], fit: str) -> tuple[Facts, float]:
    """The rounds of a trend, and of which share of their time its changes are: of a line, of the
    longest unit that fits in twice."""
    schedule, first, last = campaign.manifest.rounds, found[0].first, found[-1].last
    opens, closes = schedule.opens(first), schedule.closes(last)
    per = None
    if fit == "line":
        twice = (name for name, length in _SECONDS.items() if 2 * length <= closes - opens)
        per = next(twice, "a second")
    facts = {"per": per, "first": first, "last": last, "rounds": len(found)}
    facts |= {"opens": instant(opens), "closes": instant(closes)}
    return facts, _SECONDS[per] / (closes - opens) if per else 1.0


def _change(campaign: Campaign, made: Fit, weights: Array, share: float) -> Facts:
    """How one weighted sum changes; of a wave how far it swings, and when it is highest."""
    schedule, highest = campaign.manifest.rounds, None
    if made.period:
        change, moment = made.swing(weights)
        highest = instant(round(schedule.first + schedule.period * moment))
    else:
        change = made.change(weights)
    facts: Facts = {name: float(x) * share for name, x in zip(("change", *_ENDS), change)}
    return facts | {"highest": highest, "fits": made.describes(weights)}


def _series(campaign: Campaign, index: int, found: Sequence[Result]) -> Series:
    return series(
        campaign.manifest.mechanisms[index],
        [result.raw for result in found],
        [(result.first, result.last) for result in found],
        [result.n for result in found],
        [(result.heard, result.returned) for result in found],
        max(1, campaign.manifest.rounds.each),
    )


def _functionals(asked: Attribute) -> Iterator[tuple[str, str | None, Array]]:
    """The mean of a question that every device answers with a number, and each value; only the
    mean has a unit."""
    if asked.finite_edges is not None and asked.bins == asked.k:
        yield MEAN, asked.unit, midpoints(asked.finite_edges)
    yield from ((value, None, np.eye(1, asked.k, i)[0]) for i, value in enumerate(asked.values))


def trend_sentence(row: Facts, every: str = "") -> str:
    """What a trend shows; `every` is "_all" for what holds for all values at once."""
    name, wave = _name(row), row["highest"]
    when = row["per"] or f"from {_day(row['opens'])} to {_day(row['closes'])}"
    when = f"within {row['fit']}" if wave else when
    if not _is_shown(row, every):
        ends = f"between {_amount(row, row[f'low{every}'], row[f'high{every}'])}"
        size = f"by {f'at most {_most(row, every)}' if wave else ends}"
        return f"No change of {name} can be shown: it changed {size} {when} ({_SURE[every]})."
    verb = "rose" if row[f"low{every}"] > 0.0 else "fell"
    if wave:
        verb, when = "varies", f"{when}, and is highest around {_day(wave)}"
    text = f"{name} {verb} by between {_apart(row, every)} {when} ({_SURE[every]})."
    return text[0].upper() + text[1:]


def _summary(trends: Sequence[Facts], possible: float) -> str:
    """What to say of all values in one sentence; no share can change by more than `possible`."""
    row, every = _leading(trends, "change")
    if _is_shown(row, every):
        return trend_sentence(row, every)
    when = row["per"] or ("in this time" if row["highest"] else "from beginning to end")
    if max(-row["low_all"], row["high_all"]) >= possible:
        return (
            "No change can be shown, and none is ruled out: intervals are as wide as shares can "
            f"change ({_SURE[every]})."
        )
    return (
        f"No change can be shown: no share changed by more than {_most(row, every)} {when} "
        f"({_SURE[every]})."
    )


# --- what sentences are made of: rows of a mean, which has a unit, and of values ------------------

_SURE: Final = {"": "95 % confidence", "_all": "95 % confidence, all values at once"}


def _leading(rows: Sequence[Facts], size: str) -> tuple[Facts, str]:
    """What one sentence is about: the mean where its interval shows something, else the value that
    is furthest beyond chance for all values at once, else the one that may be furthest."""
    mean = [row for row in rows if row["unit"] is not None and _is_shown(row, "")]
    if mean:
        return mean[0], ""
    values = [row for row in rows if row["unit"] is None]
    shown = [row for row in values if _is_shown(row, "_all")]
    if shown:
        return max(shown, key=lambda row: abs(row[size])), "_all"
    return max(values, key=lambda row: max(-row["low_all"], row["high_all"])), "_all"


def _is_shown(row: Facts, every: str) -> bool:
    return not row[f"low{every}"] <= 0.0 <= row[f"high{every}"]


def _name(row: Facts) -> str:
    return "the mean" if row["unit"] is not None else f"“{row['value']}”"


def _apart(row: Facts, every: str) -> str:
    """Both ends of an interval that shows a direction, without it."""
    low, high = row[f"low{every}"], row[f"high{every}"]
    return _amount(row, low, high) if low > 0.0 else _amount(row, -high, -low)


def _amount(row: Facts, low: float, high: float) -> str:
    if row["unit"] is not None:
        return " and ".join(around(low, high, row["unit"]))
    return " and ".join(around(100.0 * low, 100.0 * high, "percentage points"))


def _most(row: Facts, every: str) -> str:
    return _amount(row, 0.0, max(-row[f"low{every}"], row[f"high{every}"])).split(" and ")[1]


def _day(moment: str) -> str:
    return moment.partition("T")[0]


# --- two results ----------------------------------------------------------------------------------


def comparisons(
    store: Store, found: Campaign, attribute: str | None, number: str, there: Store, other: str
) -> list[Facts]:
    """The results of a round compared with those of the round `other`, or with those of the same
    round of the campaign `other` in the store `there`: for each question that both have."""
    is_round = other in ("latest", "pooled") or other.isdecimal()
    number = "latest" if is_round and number == "pooled" else number
    if number == "all":
        raise UnknownCampaign("all rounds cannot be compared at once; name one, latest or pooled")
    campaign = found if is_round else there.campaign(other or None)
    results = chosen_results(there, campaign, attribute, other if is_round else number)
    others = {result.attribute: result for result in results}
    mine = chosen_results(store, found, attribute, number)
    made = [((found, r), (campaign, others[r.attribute])) for r in mine if r.attribute in others]
    if not made:
        raise UnknownCampaign(f"{campaign.name} asks nothing that {found.name} asks")
    return [compare_results(*pair) for pair in made]


def compare_results(
    ours: tuple[Campaign, Result],
    theirs: tuple[Campaign, Result],
    groups: tuple[str, str] | None = None,
) -> Facts:
    """How much more frequent each value is in the first result than in the second.

    Of two campaigns, and of two `groups`, the errors are independent. Of two rounds of one campaign
    they may share memos.
    """
    (a, first), (b, second) = ours, theirs
    asked, other = attribute_of(a.manifest, first), attribute_of(b.manifest, second)
    if asked.values != other.values:
        raise UnknownCampaign(
            f"{asked.name} has other values in {b.name} than in {a.name}; nothing was compared"
        )
    same = a.manifest.digest == b.manifest.digest
    labels = groups or ((None, None) if same else (a.name, b.name))
    facts: Facts = {"attribute": asked.name, "question": asked.question, "unit": asked.unit}
    facts |= {"a": _side(a, first, labels[0]), "b": _side(b, second, labels[1])}
    facts |= {"differences": [], "mean": None, "confidence": first.confidence}
    if first.withheld or second.withheld:
        why = "Not enough reports to compare: a result is withheld. Choose rounds that have one."
        return {**facts, "sentence": why}
    shared = _correlation(a, first, second) if same and not groups else np.zeros(asked.k)
    facts |= {"differences": list(_differences(asked, first, second, shared))}
    facts |= {"mean": _means(first, second)}
    return {**facts, "sentence": _compared(facts)}


def _differences(asked: Attribute, first: Result, second: Result, shared: Array) -> Iterator[Facts]:
    """A row for each value: both shares as they are shown, and their difference."""
    x, y = (within_one(np.array(result.raw)) for result in (first, second))
    columns = [np.array(first.raw) - np.array(second.raw)]
    for low, high in (("low", "high"), ("low_all", "high_all")):
        one, two = ((getattr(r, low), getattr(r, high)) for r in (first, second))
        columns += difference_interval((x, *one), (y, *two), shared)
    both = ([share.value for share in shares(result)] for result in (first, second))
    for value, a, b, *numbers in zip(asked.values, *both, *columns):
        row = {"value": value, "a": a, "b": b}
        yield row | dict(zip(("difference", *_ENDS), map(float, numbers)))


_ENDS: Final = ("low", "high", "low_all", "high_all")


def _side(campaign: Campaign, result: Result, label: str | None) -> Facts:
    """One of two results; without a label it is named by its rounds."""
    names = ("reporting", "round", "first", "last", "rounds", "n", "devices")
    about = {name: getattr(result, name) for name in names}
    return {"campaign": campaign.name, "label": label or rounds_label(about), **about}


def _correlation(campaign: Campaign, first: Result, second: Result) -> Array:
    """Of the errors of two rounds or windows of one campaign."""
    pair = sorted((first, second), key=lambda result: result.first)
    if pair[0].last >= pair[1].first:
        raise UnknownCampaign("the two results have rounds in common; name two different rounds")
    try:
        of = _series(campaign, attribute_index(campaign, first.attribute), pair)
    except ParameterError as error:
        raise UnknownCampaign(error.remedy.rstrip(".")) from None
    return shared_correlation(of) if of.memos else np.zeros(len(first.raw))


def _means(first: Result, second: Result) -> Facts | None:
    both = [(x.mean, x.mean_low, x.mean_high) for x in (first.numbers, second.numbers) if x]
    if len(both) < 2 or None in both[0] + both[1]:
        return None
    x, y = (np.array(each, dtype=np.float64) for each in both)
    low, high = difference_interval(tuple(x), tuple(y))
    return dict(
        zip(("a", "b", "difference", *_ENDS), map(float, (x[0], y[0], x[0] - y[0], low, high)))
    )


def _compared(facts: Facts) -> str:
    a, b, mean = facts["a"]["label"], facts["b"]["label"], facts["mean"]
    rows = [row | {"unit": None} for row in facts["differences"]]
    rows += [mean | {"unit": facts["unit"]}] if mean is not None else []
    row, every = _leading(rows, "difference")
    if not _is_shown(row, every):
        return (
            f"No difference can be shown between {a} and {b}: no share differs by more than "
            f"{_most(row, every)} ({_SURE[every]})."
        )
    word, name = "higher" if row[f"low{every}"] > 0.0 else "lower", _name(row)
    ends = f"between {_apart(row, every)} {word} in {a} than in {b}"
    return f"{name[0].upper()}{name[1:]} is {ends} ({_SURE[every]})."
