"""What a mechanism says to a device's owner: English texts, and the values that fill them in.

The agent translates the texts and writes numbers, probabilities and epsilons as the owner's
language does. Each text is a literal in a call of `phrase`, `phrase_count`, `phrase_odds` or
`phrase_sets`, where a test finds it and looks for its translations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from protocol_spec.accounting import Odds, report_odds
from protocol_spec.calibration import Calibration


class Often(NamedTuple):
    """A probability, read as how often something happens."""

    probability: float


class Shift(NamedTuple):
    """An epsilon, read as the factor by which anyone's odds can change."""

    epsilon: float


class Phrase(NamedTuple):
    """A text with the {names} of its values; with a `plural`, of `things` things, its {count}."""

    text: str
    values: Mapping[str, Value]
    plural: str = ""
    things: int = 0


Value = str | int | float | Often | Shift | Phrase


class Explanation(NamedTuple):
    """What the owner reads about one question.

    `bound` says why no more than the lifetime epsilon can be booked, `booked` when it is booked.
    """

    one_report: Phrase
    all_reports: Phrase
    belief_one_report: Phrase | Shift
    belief_all_reports: Phrase | Shift
    bound: Phrase
    booked: Phrase
    not_hidden: tuple[Phrase, ...]
    warning: Phrase | None = None


def phrase(text: str, /, **values: Value) -> Phrase:
    return Phrase(text, values)


def phrase_count(count: int, one: str, many: str, /, **values: Value) -> Phrase:
    return Phrase(one, values, many, count)


def phrase_odds(text: str, odds: Odds, value: str, /, **more: Value) -> Phrase:
    """How often a report names the example `value` if it is true, and if it is not."""
    return Phrase(text, {**_odds(odds, value), **more})


def phrase_sets(one: str, many: str, noise: Calibration, value: str, /, **more: Value) -> Phrase:
    """The same of a report that says one answer, or names {count} of the {k} there are."""
    values = {**_odds(report_odds(noise), value), "k": noise.k, **more}
    return Phrase(one, values, many, max(noise.size, 1))


def _odds(odds: Odds, value: str) -> dict[str, Value]:
    return {"value": value, "often": Often(odds.if_true), "otherwise": Often(odds.if_false)}


# --- what several mechanisms say -----------------------------------------------------------------

FIRST_ONLY: Final = phrase(
    "Only the first value is ever answered for: if yours changes to another of the answers, the "
    "reports go on from the first."
)


def one_report_says(noise: Calibration, value: str) -> Phrase:
    return phrase_sets(
        "If your true answer is “{value}”, one report says “{value}” {often}; if it were something "
        "else, still {otherwise}.",
        "One report names {count} of the {k} answers. If your true answer is “{value}”, it is "
        "among them {often}; if it were something else, still {otherwise}.",
        noise,
        value,
    )


def changes_unanswered(most: int) -> Phrase:
    """The warning of a question whose value changes, where only that many are answered for."""
    return phrase_count(
        most,
        "Warning: this is about something that changes, but only your first value will ever be "
        "answered for, and reports go on from there. A campaign that reports “once” would suit it.",
        "Warning: this is about something that changes, but only your first {count} values will "
        "ever be answered for, and reports go on from there. A campaign that reports “once” would "
        "suit it.",
    )
