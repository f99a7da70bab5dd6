"""How a question is answered, in plain words, for each mechanism, with odds in everyday words.

Odds come from the probabilities that the noise really has. Their words (“about 2 times in 3”) are
rounded, never by more than NEAR; the percentage next to them has two digits. What the noise does
not hide is said as plainly as what it does.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from edge_client.language import message, number, say, say_count
from protocol_spec import Calibration, Manifest, Odds, lifetime_odds, report_odds

SIMPLE: Final = (2, 3, 4, 5, 6, 8, 10, 20)
NEAR: Final = 0.02
RARE: Final = 0.1
NEVER: Final = 1e-5
ALWAYS: Final = 0.995


def times(probability: float) -> str:
    """How often something with this probability happens."""
    if probability >= ALWAYS:
        return say("practically always")
    if probability < NEVER:
        return say("less than once in {of}", of=number(1 / NEVER, ",.0f"))
    many, of = fraction(probability)
    percent = f"{number(float(f'{100 * probability:.2g}'))}\u00a0%"
    if many == 1:
        return say("about once in {of} ({percent})", of=number(of, ",d"), percent=percent)
    return say("about {many} times in {of} ({percent})", many=many, of=of, percent=percent)


def fraction(probability: float) -> tuple[int, int]:
    """The simplest fraction that is near enough; hundredths if there is none."""
    if probability < RARE:
        return 1, int(float(f"{1 / probability:.2g}"))
    for of in SIMPLE:
        many = round(probability * of)
        if 0 < many < of and abs(many / of - probability) <= NEAR:
            return many, of
    return round(100 * probability), 100


def shift(epsilon: float) -> str:
    """The bound of local differential privacy in words: what anyone's odds are multiplied by."""
    if epsilon > math.log(100_000):
        return say("without a useful bound")
    factor = math.exp(epsilon)
    rounded = number(float(f"{factor:.3g}")) if factor < 100 else number(factor, ",.0f")
    return say("by at most {factor}", factor=rounded)


def every(seconds: int) -> str:
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


class Words(NamedTuple):
    """What the owner reads about one question.

    `bound` says why no more than the lifetime epsilon can be booked, `booked` when it is booked.
    """

    one_report: str
    all_reports: str
    belief_one_report: str
    belief_all_reports: str
    bound: str
    booked: str
    not_hidden: tuple[str, ...]
    warning: str = ""


ONE_REPORT: Final = message(
    "If your true answer is “{value}”, one report says “{value}” {often}; if it were something "
    "else, still {otherwise}."
)
FIRST_ONLY: Final = message(
    "Only the first value is ever answered for: if yours changes to another of the answers, the "
    "reports go on from the first."
)


def words(manifest: Manifest, index: int) -> Words:
    """Of the attribute at that index, by the manifest's mechanism."""
    by_mechanism = {"memoized": _memoized, "once": _once, "hashed": _hashed, "nested": _nested}
    return by_mechanism[manifest.reporting](manifest, index)


def how_often(manifest: Manifest) -> str:
    if not manifest.mechanisms[0].rules.draws_rounds:
        return say("once {every}", every=every(manifest.rounds.period))
    return say(
        "in {each} of {count} rounds, drawn at random when you join, and is silent in others",
        each=number(manifest.rounds.each, ",d"),
        count=number(manifest.rounds.count, ",d"),
    )


def bound(manifest: Manifest) -> str:
    """The most that can ever be booked, and why."""
    why, epsilon = words(manifest, 0).bound, number(manifest.lifetime_epsilon)
    return say("at most epsilon {bound}: {why}", bound=epsilon, why=why)


def _odds(text: str, odds: Odds, value: str, **more: object) -> str:
    often, otherwise = times(odds.if_true), times(odds.if_false)
    return say(text, value=value, often=often, otherwise=otherwise, **more)


def _memoized(manifest: Manifest, index: int) -> Words:
    calibration, most = manifest.mechanisms[index].calibration, manifest.max_values
    attribute = manifest.attributes[index]
    kept = message(
        "If your true answer is “{value}”, the one answer kept for all your reports says “{value}” "
        "{often}; if it were something else, still {otherwise}."
    )
    all_reports = shift(calibration.eps_inf)
    bound = say("for the one value that is answered for")
    not_hidden: tuple[str, ...] = (say(FIRST_ONLY),)
    if most > 1:
        all_reports = say("{factor} for each value", factor=all_reports)
        eps_inf = number(manifest.eps_inf)
        bound = say("{epsilon} for each of at most {most} values", epsilon=eps_inf, most=most)
        not_hidden = (
            say("At most {most} different values of yours are ever answered for.", most=most),
            say(
                "What noise cannot hide: if your value changes, someone who keeps all your reports "
                "can in the long run notice that it changed, though not what it was."
            ),
        )
    return Words(
        one_report=_odds(ONE_REPORT, report_odds(calibration), attribute.values[0]),
        all_reports=_odds(kept, lifetime_odds(calibration), attribute.values[0]),
        belief_one_report=shift(calibration.single_report_epsilon),
        belief_all_reports=all_reports,
        bound=bound,
        booked=say(
            "The whole is booked when a memo is drawn, because that is the most that any number of "
            "reports from it can reveal."
        ),
        not_hidden=not_hidden,
        warning=_warning(most) if attribute.changes else "",
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


def _once(manifest: Manifest, index: int) -> Words:
    attribute, each = manifest.attributes[index], manifest.rounds.each
    if each == 1:
        bound = say("for the one answer, however often your value changes")
    else:
        bound = say(
            "{epsilon} for each of at most {most} answers, however often your value changes",
            epsilon=number(manifest.eps_1),
            most=number(each, ",d"),
        )
    if attribute.otherwise is None:
        stand_in = say("one of the answers, drawn at random")
    else:
        stand_in = say("“{value}”", value=attribute.values[attribute.otherwise])
    odds = report_odds(manifest.mechanisms[index].calibration)
    return Words(
        one_report=_odds(ONE_REPORT, odds, attribute.values[0]),
        all_reports=say_count(
            each,
            "That one report is all that ever leaves; nothing about any other moment does.",
            "At most {count} reports ever leave, each about the value of its own round only.",
        ),
        belief_one_report=shift(manifest.eps_1),
        belief_all_reports=shift(manifest.eps_inf),
        bound=bound,
        booked=say(
            "Each answer is booked when it is drawn; the rounds were drawn before, whatever your "
            "values are."
        ),
        not_hidden=(
            say(
                "If your value cannot be read in a round that was drawn, it is answered for as "
                "{stand_in}. A missed round is not made up for.",
                stand_in=stand_in,
            ),
        ),
    )


def _hashed(manifest: Manifest, index: int) -> Words:
    cell, example = manifest.mechanisms[index].calibration, manifest.attributes[index].values[0]
    divides = say(
        "This device's name divides the answers into two groups; only the group is reported."
    )
    of_group = message(
        "If your true answer is in the group of “{value}”, one report says that group {often}; if "
        "it were in the other, still {otherwise}."
    )
    kept = message(
        "If your true answer is in the group of “{value}”, the one answer kept for that group says "
        "so {often}; if it were in the other, still {otherwise}."
    )
    return Words(
        one_report=f"{divides} {_odds(of_group, report_odds(cell), example)}",
        all_reports=_odds(kept, lifetime_odds(cell), example),
        belief_one_report=shift(cell.single_report_epsilon),
        belief_all_reports=say(
            "{factor} between histories with the same changes",
            factor=shift(manifest.lifetime_epsilon),
        ),
        bound=say("{epsilon} for each of the two groups", epsilon=number(manifest.eps_inf)),
        booked=say(
            "The whole is booked when the memo of a group is drawn, because that is the most that "
            "any number of reports from it can reveal."
        ),
        not_hidden=(
            say(
                "What noise cannot hide: when your value changes. Someone who keeps all your "
                "reports can in the long run see the pattern of its changes between the two "
                "groups, though not the values."
            ),
        ),
    )


def _nested(manifest: Manifest, index: int) -> Words:
    attribute, mechanism = manifest.attributes[index], manifest.mechanisms[index]
    first = mechanism.channels[0]
    if not isinstance(first, Calibration):
        raise AssertionError("levels are calibrations")
    first_report = message(
        "If your true answer is “{value}”, the first report says “{value}” {often}; if it were "
        "something else, still {otherwise}."
    )
    last_report = message(
        "If your true answer is “{value}”, report {last}, and each after it, says “{value}” "
        "{often}; if it were something else, still {otherwise}."
    )
    last = number(len(mechanism.channels), ",d")
    least, most = shift(manifest.eps_1), shift(manifest.eps_inf)
    return Words(
        one_report=_odds(first_report, Odds(first.p1, first.q1), attribute.values[0]),
        all_reports=_odds(
            last_report, lifetime_odds(mechanism.calibration), attribute.values[0], last=last
        ),
        belief_one_report=say(
            "{least} if it is the first, {most} if it is a late one", least=least, most=most
        ),
        belief_all_reports=most,
        bound=say("for the one value, all reports together"),
        booked=say(
            "The whole is booked with the first report, because all later ones are drawn with it; "
            "each report that is sent reveals a little more."
        ),
        not_hidden=(
            say(FIRST_ONLY),
            say(
                "What grows: each report reveals more than the one before. The first reveals "
                "epsilon {first}; a late report alone reveals as much as all before it together, "
                "up to epsilon {last}.",
                first=number(manifest.eps_1),
                last=number(manifest.eps_inf),
            ),
        ),
        warning=_warning(1) if attribute.changes else "",
    )
