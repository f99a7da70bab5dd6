"""How long the demonstration's rounds are."""

from __future__ import annotations

from demonstration.telling import Pace


def test_a_busy_machine_and_a_large_fleet_get_longer_rounds() -> None:
    quick = Pace.for_machine(0.5, 500, None)
    assert quick == Pace.for_machine(1.0, 500, None)
    busy = Pace.for_machine(2.0, 500, None)
    assert (busy.period_seconds, busy.lead_seconds) == (
        2 * quick.period_seconds,
        2 * quick.lead_seconds,
    )
    large = Pace.for_machine(1.0, 5_000, None)
    assert large.period_seconds > quick.period_seconds
    assert large.lead_seconds > quick.lead_seconds


def test_the_usual_demonstration_takes_less_than_two_minutes() -> None:
    pace = Pace.for_machine(1.0, 500, None)
    assert pace.lead_seconds + 4 * pace.period_seconds + pace.grace_seconds < 75


def test_a_period_that_was_asked_for_is_kept() -> None:
    assert Pace.for_machine(60.0, 500, 4).period_seconds == 4
