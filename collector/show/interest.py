"""Which value over time a reader should see first.

The one with the largest change between two rounds that chance does not explain; if there is none,
the most frequent one. A change is beyond chance if its interval, made so that with 95 % confidence
no value and no pair of rounds is beyond it by chance alone (Bonferroni), does not hold 0. Errors
of rounds of the same memos are positively correlated, so that this is on the safe side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

from protocol_spec import Result


class Seen(NamedTuple):
    """An estimate, as a share of 1; a window of rounds is named by its last round."""

    round: int
    raw: float


Change = tuple[Seen, Seen]  # the earlier first


class Interest(NamedTuple):
    """The place of a value, and what makes it interesting; None if it is the most frequent."""

    place: int
    change: Change | None


def most_interesting(rounds: Sequence[Result], pooled: Result | None) -> Interest | None:
    """The value to begin with; None where every histogram is withheld."""
    shown = [result for result in rounds if not result.withheld]
    together = shown[-1:] if pooled is None or pooled.withheld else [pooled]
    if not together:
        return None
    changes = [(change, i) for i, change in enumerate(_changes(shown)) if change is not None]
    if changes:
        change, i = max(changes, key=lambda each: abs(each[0][1].raw - each[0][0].raw))
        return Interest(i, change)
    raw = together[0].raw
    return Interest(max(range(len(raw)), key=raw.__getitem__), None)


def _changes(shown: Sequence[Result]) -> list[Change | None]:
    """Of each value its largest change, where it is beyond chance."""
    if len(shown) < 2:
        return []
    k, confidence = len(shown[0].raw), shown[0].confidence
    pairs = k * math.comb(len(shown), 2)
    critical = NormalDist().inv_cdf(1.0 - (1.0 - confidence) / (2 * pairs))
    return [_change(shown, i, critical) for i in range(k)]


def _change(shown: Sequence[Result], i: int, critical: float) -> Change | None:
    lowest, highest = (pick(shown, key=lambda r: r.raw[i]) for pick in (min, max))
    apart = highest.raw[i] - lowest.raw[i]
    if apart <= critical * math.hypot(*_errors(lowest, i), *_errors(highest, i)):
        return None
    first, last = sorted((lowest, highest), key=shown.index)
    return Seen(_number(first), first.raw[i]), Seen(_number(last), last.raw[i])


def _errors(result: Result, i: int) -> tuple[float, float]:
    return result.privacy_error[i], result.sampling_error[i]


def _number(result: Result) -> int:
    number = result.last if result.round is None else result.round
    return number or 0
