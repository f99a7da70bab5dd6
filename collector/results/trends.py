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
from collector.results.facts import (
    attribute_index,
    attribute_of,
    chosen_results,
    latest_results,
)
from collector.results.tables import instant
from collector.results.words import Facts, around, rounds_label
from collector.store import Store
from protocol_spec import Attribute, ParameterError, Result, parse_duration
from protocol_spec.estimation import (
    Array,
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
    chosen = range(len(asked)) if attribute is None else [attribute_index(found, attribute)]
    for i in chosen:
        rounds = latest_results(store, found, i, MOST_ROUNDS).rounds
        made.append(trend_facts(found, i, rounds, fit, (MEAN, *asked[i].values)))
    return made


def trend_facts(
    campaign: Campaign, index: int, rounds: Sequence[Result], fit: str, curves: Sequence[str] = ()
) -> Facts:
    """The trend of each value and of the mean: what `estimate --trend --json` prints. Where there
    is none, `sentence` says why. Of the values `curves` there are curves as well."""
    manifest, asked, wave = campaign.manifest, campaign.manifest.attributes[index], period_of(fit)
    schedule, mechanism = manifest.rounds, manifest.mechanisms[index]
    found = [result for result in rounds if not result.withheld][-MOST_ROUNDS:]
    facts: Facts = {"campaign": campaign.name, "attribute": asked.name, "question": asked.question}
    facts |= {"fit": fit, "sentence": "", "warnings": [], "trends": []}
    try:
        of = _series(campaign, index, found)
        made = (fit_line if fit == "line" else fit_smooth)(of)
        made = made if wave is None else fit_harmonic(of, wave / schedule.period)
    except ParameterError as error:
        return {**facts, "sentence": f"{error.remedy[0].upper()}{error.remedy[1:].rstrip('.')}."}
    opens, closes = schedule.opens(found[0].first), schedule.closes(found[-1].last)
    per = _per(closes - opens) if fit == "line" else ""
    share = _SECONDS[per] / (closes - opens) if per else 1.0
    shared: Facts = {"campaign": campaign.name, "attribute": asked.name, "fit": fit}
    shared |= {"per": per or None, "first": found[0].first, "last": found[-1].last}
    shared |= {"rounds": len(found), "opens": instant(opens), "closes": instant(closes)}
    shared["highest"] = None
    for value, unit, weights in _functionals(asked):
        if wave is None:
            change = made.change(weights, asked.k)
        else:
            change, highest = made.swing(weights, asked.k)
            shared["highest"] = instant(round(schedule.first + schedule.period * highest))
        numbers = {name: float(x) * share for name, x in zip(_CHANGE, change)}
        row = shared | numbers | {"value": value, "unit": unit, "fits": made.describes(weights)}
        row = {name: row[name] for name in COLUMNS} | {"sentence": trend_sentence(row)}
        if value in curves:
            row["curve"] = {n: x.tolist() for n, x in made.curve(weights)._asdict().items()}
        facts["trends"].append(row)
    first_only = mechanism.rules.answers_first_value_only and mechanism.memos == 1
    warnings = [_WHO] if first_only else []
    return {**facts, "sentence": _summary(facts["trends"], share), "warnings": warnings}


_CHANGE: Final = ("change", "low", "high", "low_all", "high_all")


def _series(campaign: Campaign, index: int, found: Sequence[Result]) -> Series:
    return series(
        campaign.manifest.mechanisms[index],
        [result.raw for result in found],
        [(result.first, result.last) for result in found],
        [result.n for result in found],
        [(result.heard, result.returned) for result in found],
        max(1, campaign.manifest.rounds.each),
    )


def _per(seconds: int) -> str:
    """The longest unit of which there are two."""
    return next((name for name, length in _SECONDS.items() if 2 * length <= seconds), "a second")


def _functionals(asked: Attribute) -> Iterator[tuple[str, str | None, Array]]:
    """The mean of a question that every device answers with a number, and each value; only the
    mean has a unit."""
    if asked.finite_edges is not None and asked.bins == asked.k:
        yield MEAN, asked.unit, midpoints(asked.finite_edges)
    yield from ((value, None, np.eye(1, asked.k, i)[0]) for i, value in enumerate(asked.values))


def trend_sentence(row: Facts, every: str = "") -> str:
    """What a trend shows; `every` is "_all" for what holds for all values at once."""
    low, high, wave = row[f"low{every}"], row[f"high{every}"], row["highest"]
    name = "the mean" if row["unit"] is not None else f"“{row['value']}”"
    when = row["per"] or f"from {_day(row['opens'])} to {_day(row['closes'])}"
    when = f"within {row['fit']}" if wave else when
    sure = f"95 % confidence{', all values at once' if every else ''}"
    if low <= 0.0 <= high:
        ends = f"between {_amount(row, low, high)}"
        size = f"by {f'at most {_most(row, every)}' if wave else ends}"
        return f"No change of {name} can be shown: it changed {size} {when} ({sure})."
    verb, bounds = ("rose", (low, high)) if low > 0.0 else ("fell", (-high, -low))
    if wave:
        verb, when = "varies", f"{when}, and is highest around {_day(wave)}"
    text = f"{name} {verb} by between {_amount(row, *bounds)} {when} ({sure})."
    return text[0].upper() + text[1:]


def _summary(trends: Sequence[Facts], possible: float) -> str:
    """The mean's sentence where it says something, else that of the value that changed most.
    No share can change by more than `possible`."""
    first, values = trends[0], [row for row in trends if row["unit"] is None]
    if first not in values and not first["low"] <= 0.0 <= first["high"]:
        return str(first["sentence"])
    shown = [row for row in values if not row["low_all"] <= 0.0 <= row["high_all"]]
    if shown:
        return trend_sentence(max(shown, key=lambda row: abs(row["change"])), "_all")
    widest = max(values, key=lambda row: max(-row["low_all"], row["high_all"]))
    when = widest["per"] or ("in this time" if widest["highest"] else "from beginning to end")
    if max(-widest["low_all"], widest["high_all"]) >= possible:
        return (
            "No change can be shown, and none is ruled out: intervals are as wide as shares can "
            "change (95 % confidence, all values at once)."
        )
    return (
        f"No change can be shown: no share changed by more than {_most(widest, '_all')} {when} "
        "(95 % confidence, all values at once)."
    )


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
    asked, other = attribute_of(a, first), attribute_of(b, second)
    if asked.values != other.values:
        raise UnknownCampaign(
            f"{asked.name} has other values in {b.name} than in {a.name}; nothing was compared"
        )
    same = a.manifest.digest == b.manifest.digest
    facts: Facts = {"attribute": asked.name, "question": asked.question, "unit": asked.unit}
    facts |= {"a": _side(a, first, same), "b": _side(b, second, same), "differences": []}
    for side, group in zip("ab", groups or ()):
        facts[side]["label"] = group
    facts |= {"mean": None, "confidence": first.confidence}
    if first.withheld or second.withheld:
        why = "Not enough reports to compare: a result is withheld. Choose rounds that have one."
        return {**facts, "sentence": why}
    shared = _correlation(a, first, second) if same and not groups else np.zeros(asked.k)
    x, y = (within_one(np.array(result.raw)) for result in (first, second))
    columns = [np.array(first.raw) - np.array(second.raw)]
    for low, high in (("low", "high"), ("low_all", "high_all")):
        one, two = ((getattr(r, low), getattr(r, high)) for r in (first, second))
        columns += difference_interval((x, *one), (y, *two), shared)
    shown = zip(*([share.value for share in shares(result)] for result in (first, second)))
    for value, pair, numbers in zip(asked.values, shown, zip(*columns)):
        row = dict(zip(("value", "a", "b"), (value, *pair)))
        facts["differences"].append(row | dict(zip(_DIFFERENCE, map(float, numbers))))
    facts["mean"] = _means(first, second)
    return {**facts, "sentence": _compared(facts)}


_DIFFERENCE: Final = ("difference", "low", "high", "low_all", "high_all")


def _side(campaign: Campaign, result: Result, by_round: bool) -> Facts:
    names = ("reporting", "round", "first", "last", "rounds", "n", "devices")
    about = {name: getattr(result, name) for name in names}
    label = rounds_label(about) if by_round else campaign.name
    return {"campaign": campaign.name, "label": label, **about}


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
    return dict(zip(("a", "b", *_DIFFERENCE), map(float, (x[0], y[0], x[0] - y[0], low, high))))


def _compared(facts: Facts) -> str:
    a, b, mean = (facts[name] for name in ("a", "b", "mean"))
    if mean is not None and not mean["low"] <= 0.0 <= mean["high"]:
        more = _apart({**mean, "unit": facts["unit"]}, "")
        where = f"in {a['label']} than in {b['label']}"
        return f"The mean is between {more} {where} (95 % confidence)."
    rows = [row | {"unit": None} for row in facts["differences"]]
    sure = "95 % confidence, all values at once"
    shown = [row for row in rows if not row["low_all"] <= 0.0 <= row["high_all"]]
    if shown:
        row = max(shown, key=lambda each: abs(each["difference"]))
        more = f"between {_apart(row, '_all')}"
        return f"“{row['value']}” is {more} in {a['label']} than in {b['label']} ({sure})."
    most = max(rows, key=lambda row: max(-row["low_all"], row["high_all"]))
    return (
        f"No difference can be shown between {a['label']} and {b['label']}: no share differs by "
        f"more than {_most(most, '_all')} ({sure})."
    )


def _apart(row: Facts, every: str) -> str:
    """By how much it is higher, or lower."""
    low, high = row[f"low{every}"], row[f"high{every}"]
    ends, word = ((low, high), "higher") if low > 0.0 else ((-high, -low), "lower")
    return f"{_amount(row, *ends)} {word}"
