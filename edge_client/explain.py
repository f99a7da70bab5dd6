"""How a question is answered, in plain words, for each mechanism, with odds in everyday words.

Odds come from the probabilities that the noise really has. Their words (“about 2 times in 3”) are
rounded, never by more than NEAR; the percentage next to them has two digits. What the noise does
not hide is said as plainly as what it does.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from edge_client.language import message, number, say, say_count
from protocol_spec import Calibration, Manifest, Mechanism, Odds, lifetime_odds, report_odds

SIMPLE: Final = (2, 3, 4, 5, 6, 8, 10, 20)
NEAR: Final = 0.02
RARE: Final = 0.1
NEVER: Final = 1e-5
ALWAYS: Final = 0.995


def times(chance: float) -> str:
    """How often something with this chance happens."""
    if chance >= ALWAYS:
        return say("practically always")
    if chance < NEVER:
        return say("less than once in {of}", of=number(1 / NEVER, ",.0f"))
    many, of = fraction(chance)
    percent = f"{number(float(f'{100 * chance:.2g}'))}\u00a0%"
    if many == 1:
        return say("about once in {of} ({percent})", of=number(of, ",d"), percent=percent)
    return say("about {many} times in {of} ({percent})", many=many, of=of, percent=percent)


def fraction(chance: float) -> tuple[int, int]:
    """The simplest fraction that is near enough; hundredths if there is none."""
    if chance < RARE:
        return 1, int(float(f"{1 / chance:.2g}"))
    for of in SIMPLE:
        many = round(chance * of)
        if 0 < many < of and abs(many / of - chance) <= NEAR:
            return many, of
    return round(100 * chance), 100


def shift(epsilon: float) -> str:
    """The bound of local differential privacy in words: what anyone's odds are multiplied by."""
    if epsilon > math.log(100_000):
        return say("without a useful bound")
    factor = math.exp(epsilon)
    shown = number(float(f"{factor:.3g}")) if factor < 100 else number(factor, ",.0f")
    return say("by at most {factor}", factor=shown)


# --- mechanisms in words -------------------------------------------------------------------------


class Words(NamedTuple):
    """What the owner is told about one question."""

    one_report: str
    all_reports: str
    belief_one_report: str
    belief_all_reports: str
    not_hidden: tuple[str, ...]
    warning: str


ONE_REPORT: Final = message(
    "If your true answer is “{value}”, one report says “{value}” {often}; if it were something "
    "else, still {otherwise}."
)
KEPT: Final = message(
    "If your true answer is “{value}”, the one answer kept for all your reports says “{value}” "
    "{often}; if it were something else, still {otherwise}."
)
OF_GROUP: Final = message(
    "If your true answer is in the group of “{value}”, one report says that group {often}; if it "
    "were in the other, still {otherwise}."
)
KEPT_OF_GROUP: Final = message(
    "If your true answer is in the group of “{value}”, the one answer kept for that group says so "
    "{often}; if it were in the other, still {otherwise}."
)
FIRST_REPORT: Final = message(
    "If your true answer is “{value}”, the first report says “{value}” {often}; if it were "
    "something else, still {otherwise}."
)
LAST_REPORT: Final = message(
    "If your true answer is “{value}”, report {last}, and each after it, says “{value}” {often}; "
    "if it were something else, still {otherwise}."
)
CHANGES_SHOW: Final = message(
    "What noise cannot hide: if your value changes, someone who keeps all your reports can in the "
    "long run notice that it changed, though not what it was."
)
FIRST_ONLY: Final = message(
    "Only the first value is ever answered for: if yours changes to another of the answers, the "
    "reports go on from the first."
)
GROUPS_SHOW: Final = message(
    "What noise cannot hide: when your value changes. Someone who keeps all your reports can in "
    "the long run see the pattern of its changes between the two groups, though not the values."
)
DIVIDES: Final = message(
    "This device's name divides the answers into two groups; only the group is reported."
)
LATE_TELLS: Final = message(
    "What grows: each report tells more than the one before. The first tells epsilon {first}; a "
    "late report alone tells as much as all before it together, up to epsilon {last}."
)


def words(manifest: Manifest, index: int) -> Words:
    """Of the attribute at that place, by the manifest's way of reporting."""
    way, example = manifest.mechanisms[index], manifest.attributes[index].values[0]
    tell = {"memoized": _memoized, "once": _once, "hashed": _hashed, "nested": _nested}
    return tell[manifest.reporting](manifest, index, way, example)


def how_often(manifest: Manifest) -> str:
    """In how many rounds a device answers."""
    if manifest.reporting != "once":
        return say("once {every}", every=every(manifest.rounds.period))
    return say(
        "in {each} of {count} rounds, drawn at random when you join, and is silent in others",
        each=number(manifest.rounds.each, ",d"),
        count=number(manifest.rounds.count, ",d"),
    )


def every(seconds: int) -> str:
    """How often something happens, in the largest whole unit."""
    for size, one, many in (
        (86_400, message("every day"), message("every {count} days")),
        (3_600, message("every hour"), message("every {count} hours")),
        (60, message("every minute"), message("every {count} minutes")),
        (1, message("every second"), message("every {count} seconds")),
    ):
        if seconds % size == 0:
            count = seconds // size
            return say(one) if count == 1 else say(many, count=number(count, "d"))
    raise AssertionError("a period is a whole number of seconds")


def bound(manifest: Manifest) -> str:
    """The most that can ever be booked, and why it is that."""
    return say(
        "never more than epsilon {bound}: {why}",
        bound=number(manifest.lifetime_epsilon),
        why=_why(manifest),
    )


def _why(manifest: Manifest) -> str:
    most, each, reporting = manifest.max_values, manifest.rounds.each, manifest.reporting
    epsilon, eps_1 = number(manifest.eps_inf), number(manifest.eps_1)
    if reporting == "hashed":
        return say("{epsilon} for each of the two groups", epsilon=epsilon)
    if reporting == "nested":
        return say("for the one value, all reports together")
    if reporting == "once" and each == 1:
        return say("for the one answer, whatever changes, how often")
    if reporting == "once":
        return say(
            "{epsilon} for each of at most {most} answers, whatever changes, how often",
            epsilon=eps_1,
            most=number(each, ",d"),
        )
    if most == 1:
        return say("for the one value that is answered for")
    return say("{epsilon} for each of at most {most} values", epsilon=epsilon, most=most)


def _odds(text: str, odds: Odds, value: str, **more: object) -> str:
    often, otherwise = times(odds.if_true), times(odds.if_false)
    return say(text, value=value, often=often, otherwise=otherwise, **more)


def _memoized(manifest: Manifest, index: int, way: Mechanism, example: str) -> Words:
    calibration, most = way.calibration, manifest.max_values
    several = say("At most {most} different values of yours are ever answered for.", most=most)
    all_reports = shift(calibration.eps_inf)
    return Words(
        _odds(ONE_REPORT, report_odds(calibration), example),
        _odds(KEPT, lifetime_odds(calibration), example),
        shift(calibration.single_report_epsilon),
        all_reports if most == 1 else say("{factor} for each value", factor=all_reports),
        (say(FIRST_ONLY),) if most == 1 else (several, say(CHANGES_SHOW)),
        _warning(most) if manifest.attributes[index].changes else "",
    )


def _warning(most: int) -> str:
    return say_count(
        most,
        "Warning: this is about something that changes, but only your first value will ever be "
        "answered for, and reports go on from there. A campaign that reports “once” would suit it.",
        "Warning: this is about something that changes, but only your first {count} values will "
        "ever be answered for, and reports go on from there. A campaign that reports “once” would "
        "suit it.",
    )


def _once(manifest: Manifest, index: int, way: Mechanism, example: str) -> Words:
    in_all = say_count(
        manifest.rounds.each,
        "That one report is all that ever leaves; nothing about any other moment does.",
        "At most {count} reports ever leave, each about the value of its own round only.",
    )
    return Words(
        _odds(ONE_REPORT, report_odds(way.calibration), example),
        in_all,
        shift(manifest.eps_1),
        shift(manifest.eps_inf),
        (_unreadable(manifest, index),),
        "",
    )


def _unreadable(manifest: Manifest, index: int) -> str:
    """What a device does that cannot read its value in a round that it drew."""
    attribute, each = manifest.attributes[index], manifest.rounds.each
    if attribute.otherwise is None:
        return say_count(
            each,
            "If your value cannot be read in that round, it is answered for as one of the answers, "
            "drawn at random. Nothing makes up for a round that is missed.",
            "If your value cannot be read in such a round, it is answered for as one of the "
            "answers, drawn at random. Nothing makes up for a round that is missed.",
        )
    return say_count(
        each,
        "If your value cannot be read in that round, it is answered for as “{value}”. Nothing "
        "makes up for a round that is missed.",
        "If your value cannot be read in such a round, it is answered for as “{value}”. Nothing "
        "makes up for a round that is missed.",
        value=attribute.values[attribute.otherwise],
    )


def _hashed(manifest: Manifest, index: int, way: Mechanism, example: str) -> Words:  # noqa: ARG001
    cell = way.calibration
    return Words(
        f"{say(DIVIDES)} {_odds(OF_GROUP, report_odds(cell), example)}",
        _odds(KEPT_OF_GROUP, lifetime_odds(cell), example),
        shift(cell.single_report_epsilon),
        say(
            "{factor} between histories with the same changes",
            factor=shift(manifest.lifetime_epsilon),
        ),
        (say(GROUPS_SHOW),),
        "",
    )


def _nested(manifest: Manifest, index: int, way: Mechanism, example: str) -> Words:
    first = way.channels[0]
    if not isinstance(first, Calibration):
        raise AssertionError("levels are calibrations")
    least, most = shift(manifest.eps_1), shift(manifest.eps_inf)
    late = say(LATE_TELLS, first=number(manifest.eps_1), last=number(manifest.eps_inf))
    last = number(len(way.channels), ",d")
    return Words(
        _odds(FIRST_REPORT, Odds(first.p1, first.q1), example),
        _odds(LAST_REPORT, lifetime_odds(way.calibration), example, last=last),
        say("{least} if it is the first, {most} if it is a late one", least=least, most=most),
        most,
        (say(FIRST_ONLY), late),
        _warning(1) if manifest.attributes[index].changes else "",
    )
