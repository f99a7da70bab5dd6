"""What one report and all reports of a device tell, for the analyst, for each way of reporting.

The owner of a device is told the same as odds, by `protocol_spec` and in the owner's own program.
"""

from __future__ import annotations

from typing import Final

from protocol_spec import Calibration, Odds, Way, lifetime_odds, report_odds

KEPT: Final = "The one answer that a device keeps for all its reports"


def odds_sentences(way: Way, value: str) -> tuple[str, str]:
    """Of one report, and of all there will ever be."""
    noise = way.calibration
    if way.reporting == "once":
        bound = f"Everything a device ever sends is bounded by epsilon {way.lifetime_epsilon:g}."
        return _told("One report", value, report_odds(noise)), bound
    if way.reporting == "hashed":
        group = f"the half of the values with {value}"
        kept = "The answer that a device keeps for it"
        return _told("One report", group, report_odds(noise)), _told(
            kept, group, lifetime_odds(noise)
        )
    if way.reporting == "nested":
        first = way.channels[0]
        odds = report_odds(first if isinstance(first, Calibration) else noise)
        return _told("The first report", value, odds), _told(
            "The last and most telling report", value, lifetime_odds(noise)
        )
    return _told("One report", value, report_odds(noise)), _told(KEPT, value, lifetime_odds(noise))


def _told(subject: str, value: str, odds: Odds) -> str:
    return (
        f"{subject} says “{value}” with a chance of {_chance(odds.if_true)} if that is the "
        f"device's true answer, and of {_chance(odds.if_false)} if it is not."
    )


def _chance(share: float) -> str:
    """In per cent with three digits; never 100 where it is not."""
    return "more than 99.9 %" if 0.999 < share < 1.0 else f"{100 * share:.3g} %"
