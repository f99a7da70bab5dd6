"""How a question is answered, in plain words, for each way of reporting.

Odds come from the way's own chances. What the noise does not hide is said as plainly as what it
does.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from protocol_spec import (
    Calibration,
    Manifest,
    Odds,
    Way,
    largest_shift,
    lifetime_odds,
    report_odds,
)


class Words(NamedTuple):
    """What the owner is told about one question."""

    one_report: str
    all_reports: str
    belief_one_report: str
    belief_all_reports: str
    not_hidden: tuple[str, ...]
    warning: str


CHANGES_SHOW: Final = (
    "What noise cannot hide: if your value changes, someone who keeps all your reports can in the "
    "long run notice that it changed, though not what it was."
)
FIRST_ONLY: Final = (
    "Only the first value is ever answered for: if yours changes to another of the answers, the "
    "reports go on from the first."
)
GROUPS_SHOW: Final = (
    "What noise cannot hide: when your value changes. Someone who keeps all your reports can in "
    "the long run see the pattern of its changes between the two groups, though not the values."
)
LATE_TELLS: Final = (
    "What grows: each report tells more than the one before. The first tells epsilon {:g}; a late "
    "report alone tells as much as all before it together, up to epsilon {:g}."
)
SILENCE: Final = (
    "If your value cannot be read in {} round, {}. Nothing makes up for a round that is missed."
)
WARNING: Final = (
    "Warning: this is about something that changes, but only {} will ever be answered for, and "
    "reports go on from there. A campaign that reports “once” would suit it."
)


def words(manifest: Manifest, index: int) -> Words:
    """Of the attribute at that place, by the manifest's way of reporting."""
    way, example = manifest.ways[index], manifest.attributes[index].values[0]
    tell = {"memoized": _memoized, "once": _once, "hashed": _hashed, "nested": _nested}
    return tell[manifest.reporting](manifest, index, way, example)


def how_often(manifest: Manifest, period: str) -> str:
    """In how many rounds a device answers."""
    if manifest.reporting != "once":
        return f"once every {period}"
    each, count = manifest.rounds.each, manifest.rounds.count
    return (
        f"in {each:,} of {count:,} rounds, drawn at random when you join, and is silent in others"
    )


def period_text(seconds: int) -> str:
    """A duration in its largest whole unit."""
    for size, name in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds % size == 0:
            count = seconds // size
            return name if count == 1 else f"{count} {name}s"
    return f"{seconds} seconds" if seconds > 1 else "second"


def bound(manifest: Manifest) -> str:
    """The most that can ever be booked, and why it is that."""
    most, each = manifest.max_values, manifest.rounds.each
    values = f"{manifest.eps_inf:g} for each of at most {most} values"
    answers = f"{manifest.eps_1:g} for each of at most {each} answers"
    why = {
        "memoized": values if most > 1 else "for the one value that is answered for",
        "once": f"{answers if each > 1 else 'for the one answer'}, whatever changes, how often",
        "hashed": f"{manifest.eps_inf:g} for each of the two groups",
        "nested": "for the one value, all reports together",
    }
    return f"never more than epsilon {manifest.lifetime_epsilon:g}: {why[manifest.reporting]}"


def _memoized(manifest: Manifest, index: int, way: Way, example: str) -> Words:
    calibration, most = way.calibration, manifest.max_values
    several = f"At most {most} different values of yours are ever answered for."
    warned = manifest.attributes[index].changes
    values = "your first value" if most == 1 else f"your first {most} values"
    return Words(
        report_odds(calibration).sentence(example),
        lifetime_odds(calibration).sentence(
            example, subject="the one answer kept for all your reports"
        ),
        largest_shift(calibration.single_report_epsilon),
        largest_shift(calibration.eps_inf) + ("" if most == 1 else " for each value"),
        (FIRST_ONLY,) if most == 1 else (several, CHANGES_SHOW),
        WARNING.format(values) if warned else "",
    )


def _once(manifest: Manifest, index: int, way: Way, example: str) -> Words:
    each, attribute = manifest.rounds.each, manifest.attributes[index]
    every = (
        "That one report is all that ever leaves; nothing about any other moment does."
        if each == 1
        else f"At most {each} reports ever leave, each about the value of its own round only."
    )
    catches = attribute.otherwise
    then = (
        "nothing is sent, and that can be seen"
        if catches is None
        else f"it is answered for as “{attribute.values[catches]}”"
    )
    return Words(
        report_odds(way.calibration).sentence(example),
        every,
        largest_shift(manifest.eps_1),
        largest_shift(manifest.eps_inf),
        (SILENCE.format("that" if each == 1 else "such a", then),),
        "",
    )


def _hashed(manifest: Manifest, index: int, way: Way, example: str) -> Words:  # noqa: ARG001
    group, cell = f"the group of {example}", way.calibration
    divides = "This device's name divides the answers into two groups; only the group is reported. "
    return Words(
        divides + report_odds(cell).sentence(group),
        lifetime_odds(cell).sentence(group, subject="the one answer kept for that group"),
        largest_shift(cell.single_report_epsilon),
        f"{largest_shift(manifest.lifetime_epsilon)} between histories with the same changes",
        (GROUPS_SHOW,),
        "",
    )


def _nested(manifest: Manifest, index: int, way: Way, example: str) -> Words:
    first = way.channels[0]
    if not isinstance(first, Calibration):
        raise AssertionError("levels are calibrations")
    least, most = largest_shift(manifest.eps_1), largest_shift(manifest.eps_inf)
    last = f"report {len(way.channels)}, and each after it,"
    return Words(
        Odds(first.p1, first.q1).sentence(example, subject="the first report"),
        lifetime_odds(way.calibration).sentence(example, subject=last),
        f"{least} if it is the first, {most} if it is a late one",
        most,
        (FIRST_ONLY, LATE_TELLS.format(manifest.eps_1, manifest.eps_inf)),
        WARNING.format("your first value") if manifest.attributes[index].changes else "",
    )
