"""Rounds follow from the manifest and a clock: whole, gapless, and none before or after."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol_spec import Schedule

HOURS = Schedule(first=1000, period=60, count=3, grace=25)
SCHEDULES = st.builds(
    Schedule,
    st.integers(0, 253_402_300_799),
    st.integers(1, 366 * 86_400),
    st.integers(1, 65_536),
    st.integers(0, 366 * 86_400),
)


@pytest.mark.parametrize(
    ("now", "number"),
    [
        (-1e12, None),
        (999.999, None),
        (1000, 0),
        (1000.0, 0),
        (1059.999, 0),
        (1060, 1),
        (1179.999, 2),
        (1180, None),
        (1e15, None),
    ],
)
def test_the_round_at_a_moment(now: float, number: int | None) -> None:
    assert HOURS.round_at(now) == number


def test_opening_closing_and_deadline() -> None:
    assert [HOURS.opens(i) for i in range(3)] == [1000, 1060, 1120]
    assert [HOURS.closes(i) for i in range(3)] == [1060, 1120, 1180]
    assert [HOURS.deadline(i) for i in range(3)] == [1085, 1145, 1205]
    assert HOURS.end == 1205


@given(SCHEDULES, st.data())
def test_a_round_is_open_from_its_first_instant_to_before_the_next(
    schedule: Schedule, data: st.DataObject
) -> None:
    number = data.draw(st.integers(0, schedule.count - 1))
    opens, closes = schedule.opens(number), schedule.closes(number)
    inside = data.draw(st.integers(opens, closes - 1))
    assert schedule.round_at(inside) == schedule.round_at(opens) == number
    assert schedule.round_at(closes) == (number + 1 if number + 1 < schedule.count else None)
    assert schedule.deadline(number) - closes == schedule.grace


@given(SCHEDULES)
def test_nothing_is_open_outside(schedule: Schedule) -> None:
    assert schedule.round_at(schedule.first - 1) is None
    assert schedule.round_at(schedule.closes(schedule.count - 1)) is None
    assert schedule.end == schedule.deadline(schedule.count - 1)


@given(SCHEDULES, st.floats(-1e10, 1e12))
def test_the_round_never_runs_backwards(schedule: Schedule, now: float) -> None:
    before, after = schedule.round_at(now), schedule.round_at(now + schedule.period)
    if before is not None and after is not None:
        assert after >= before
