"""How a question is answered, in plain words: what its mechanism explains, in the owner's language.

Odds come from the probabilities that the noise really has. Their words (“about 2 times in 3”) are
rounded, never by more than NEAR; the percentage next to them has two digits. What the noise does
not hide is said as plainly as what it does.
"""

from __future__ import annotations

import math
from typing import Any, Final

from edge_client.language import message, number, say, say_count
from protocol_spec import Manifest, Often, Phrase, Shift, is_trial

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


def words(manifest: Manifest, index: int) -> dict[str, Any]:
    """What the owner reads about the attribute at that index: the fields of `Explanation`."""
    explanation = manifest.mechanisms[index].explain(manifest.attributes[index])
    return {
        name: [_text(each) for each in found] if name == "not_hidden" else _text(found or "")
        for name, found in explanation._asdict().items()
    }


def _text(value: object) -> str:
    """A value of a phrase, in the current language."""
    match value:
        case Phrase(text, values, plural, things):
            filled = {name: _text(each) for name, each in values.items()}
            return say_count(things, text, plural, **filled) if plural else say(text, **filled)
        case Often(probability):
            return times(probability)
        case Shift(epsilon):
            return shift(epsilon)
        case float():
            return number(value)
        case int():
            return number(value, ",d")
        case _:
            return str(value)


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
    if is_trial(manifest):
        return say("epsilon 0: the answers are made up")
    why, epsilon = words(manifest, 0)["bound"], number(manifest.lifetime_epsilon)
    return say("at most epsilon {bound}: {why}", bound=epsilon, why=why)
