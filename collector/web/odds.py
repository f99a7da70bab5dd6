"""What one report and all reports of a device tell, in odds, for each way of reporting."""

from __future__ import annotations

from typing import Final

from protocol_spec import Calibration, Way, lifetime_odds, report_odds

KEPT: Final = "the one answer a device keeps for all its reports"


def odds_sentences(way: Way, value: str) -> tuple[str, str]:
    """Of one report, and of all there will ever be."""
    noise = way.calibration
    if way.reporting == "once":
        bound = f"Everything a device ever sends is bounded by epsilon {way.lifetime_epsilon:g}."
        return report_odds(noise).sentence(value), bound
    if way.reporting == "hashed":
        group = f"the half of the values with {value}"
        return report_odds(noise).sentence(group), lifetime_odds(noise).sentence(
            group, subject="the answer a device keeps for it"
        )
    if way.reporting == "nested":
        first = way.channels[0]
        told = report_odds(first if isinstance(first, Calibration) else noise)
        return told.sentence(value, subject="the first report"), lifetime_odds(noise).sentence(
            value, subject="the last and most telling report"
        )
    return report_odds(noise).sentence(value), lifetime_odds(noise).sentence(value, subject=KEPT)
