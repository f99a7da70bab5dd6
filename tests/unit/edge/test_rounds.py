"""One draw per round and per period of real time, whatever the clocks say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from edge_client.agent import Agent, Wait, due
from edge_client.policy import Policy
from edge_client.records import Queued
from protocol_spec import decode_report
from tests.support.edge import (
    DAY,
    FIRST,
    FakeClock,
    NoEntropy,
    agree,
    daily,
    draw,
    draw_rounds,
    joined_agent,
    no_entropy,
    only,
    rows,
)

YEAR = 365 * DAY


def attempt(agent: Agent) -> Queued | Wait:
    return agent.draw(only(agent), lambda _: "wood")


def fails_if_read(_attribute: str) -> object:
    raise AssertionError("the value was read although nothing is due")


def test_one_report_per_round(agent: Agent, clock: FakeClock) -> None:
    for number in range(10):
        assert draw(agent).round == number
        for _ in range(5):
            assert attempt(agent) is Wait.DRAWN
            clock.pass_time(DAY / 5)
    assert len(agent.store.reports(only(agent).name)) == 10


def test_the_payload_says_the_round_and_nothing_of_the_time(agent: Agent, clock: FakeClock) -> None:
    drawn = draw_rounds(agent, clock, 3)
    reports = [decode_report(payload) for payload in drawn]
    assert [getattr(report, "round", None) for report in reports] == [0, 1, 2]


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (0.0, Wait.CLOCK_EARLY),
        (FIRST - 7201.0, Wait.CLOCK_EARLY),
        (FIRST - 7200.0, Wait.NOT_BEGUN),
        (FIRST - 0.001, Wait.NOT_BEGUN),
        (FIRST + 365 * DAY, Wait.OVER),
        (FIRST + 10 * YEAR, Wait.OVER),
    ],
)
def test_nothing_is_drawn_or_read_outside_of_the_rounds(
    state: Path, clock: FakeClock, now: float, expected: Wait
) -> None:
    early = replace(daily(), created=FIRST - 7200)
    agent = joined_agent(state, clock, early)
    before = rows(state)
    clock.now = now
    assert agent.draw(only(agent), fails_if_read) is expected
    assert rows(state) == before
    agent.store.close()


@pytest.mark.parametrize("second", [0.0, 0.5, DAY - 0.001])
@pytest.mark.parametrize("number", [0, 1, 364])
def test_a_round_is_open_from_its_first_instant_to_its_last(
    agent: Agent, clock: FakeClock, number: int, second: float
) -> None:
    clock.now = FIRST + number * DAY + second
    assert draw(agent).round == number


@pytest.mark.parametrize("jump", [3600, -3600, DAY, -DAY, 10 * YEAR, -10 * YEAR])
def test_a_jump_of_the_clock_buys_no_second_draw(
    agent: Agent, clock: FakeClock, jump: float
) -> None:
    draw_rounds(agent, clock, 3)
    drawn = draw(agent)
    clock.set_forward(jump)
    assert isinstance(attempt(agent), Wait)
    clock.set_forward(-jump)
    assert attempt(agent) is Wait.DRAWN
    assert only(agent).last_round == drawn.round


def test_after_a_jump_forward_a_full_period_must_really_pass(
    agent: Agent, clock: FakeClock
) -> None:
    draw(agent)
    clock.set_forward(5 * DAY)
    assert attempt(agent) is Wait.CLOCK_AHEAD
    clock.pass_time(DAY - 1801)
    assert attempt(agent) is Wait.CLOCK_AHEAD
    clock.pass_time(1)
    assert draw(agent).round == 6


def test_after_a_jump_back_no_round_is_drawn_twice(agent: Agent, clock: FakeClock) -> None:
    draw_rounds(agent, clock, 5)
    clock.set_forward(-4 * DAY)
    for _ in range(3):
        assert attempt(agent) is Wait.CLOCK_BEHIND
        clock.pass_time(DAY)
    assert attempt(agent) is Wait.DRAWN
    clock.pass_time(DAY)
    assert draw(agent).round == 5


def test_a_boot_without_a_clock_waits_for_the_time(agent: Agent, clock: FakeClock) -> None:
    draw(agent)
    clock.reboot()
    clock.now = 12.0
    assert attempt(agent) is Wait.CLOCK_EARLY
    clock.now = FIRST + DAY + 60.0
    assert draw(agent).round == 1


def test_a_reboot_within_the_round_draws_nothing(
    agent: Agent, state: Path, clock: FakeClock
) -> None:
    draw(agent)
    agent.store.close()
    clock.reboot()
    again = joined_agent(state, clock)
    assert attempt(again) is Wait.DRAWN
    clock.pass_time(DAY)
    assert draw(again).round == 1
    again.store.close()


def late_phase(round_number: int) -> float:
    return FIRST + round_number * DAY + DAY - 1.0


def early_phase(round_number: int) -> float:
    return FIRST + round_number * DAY + 1.0


def far(round_number: int) -> float:
    return FIRST + (round_number + 7) * DAY + DAY - 1.0


@pytest.mark.parametrize("pushed_to", [late_phase, early_phase, far])
def test_a_clock_pushed_a_thousand_times_gives_one_draw_per_real_period(
    state: Path, clock: FakeClock, pushed_to: Callable[[int], float]
) -> None:
    """R12: each push ends in a new round, at its beginning or just before its end."""
    agent = joined_agent(state, clock, daily(count=60_000))
    moments: list[float] = []
    for _ in range(1000):
        clock.uptime += DAY / 250
        clock.now = pushed_to(only(agent).last_round + 1)
        if isinstance(attempt(agent), Queued):
            moments.append(clock.uptime)
    real_periods = (moments[-1] - moments[0]) / DAY
    assert 4 <= len(moments) <= real_periods + 2
    assert all(later - earlier > DAY - 2 for earlier, later in pairwise(moments[1:]))
    agent.store.close()


def test_a_clock_that_is_set_while_the_value_is_read_gains_nothing(
    agent: Agent, clock: FakeClock
) -> None:
    """The clocks are read once: the period that the draw belongs to cannot be argued away."""

    def read_and_set(_attribute: str) -> str:
        clock.set_forward(10 * YEAR)
        return "wood"

    assert isinstance(agent.draw(only(agent), read_and_set), Queued)
    clock.set_forward(DAY - 10 * YEAR)
    assert attempt(agent) is Wait.CLOCK_AHEAD
    clock.pass_time(DAY)
    assert draw(agent).round == 2


def test_a_slow_wall_clock_is_no_reason_to_wait(agent: Agent, clock: FakeClock) -> None:
    """Both clocks agree, except that the wall clock is corrected by a second a day."""
    for number in range(30):
        assert draw(agent).round == number
        clock.pass_time(DAY)
        clock.set_forward(-1)


def test_a_fast_wall_clock_only_delays(agent: Agent, clock: FakeClock) -> None:
    """Set forward ten seconds every day: each round is still drawn, a little later in it."""
    for number in range(20):
        while isinstance(attempt(agent), Wait):
            clock.pass_time(1)
        assert only(agent).last_round == number
        clock.pass_time(FIRST + (number + 1) * DAY - clock.now)
        clock.set_forward(10)


@pytest.mark.parametrize("status", ["paused", "left"])
def test_nothing_is_drawn_or_read_while_paused_or_left(
    agent: Agent, state: Path, status: str
) -> None:
    agent.store.set_status(only(agent).name, status, 0)  # type: ignore[arg-type]
    before = rows(state)
    expected = Wait.PAUSED if status == "paused" else Wait.LEFT
    assert agent.draw(only(agent), fails_if_read) is expected
    assert rows(state) == before


def test_a_pause_leaves_out_its_rounds(agent: Agent, clock: FakeClock) -> None:
    draw(agent)
    agent.store.set_status(only(agent).name, "paused", 0)
    clock.pass_time(10 * DAY)
    agent.store.set_status(only(agent).name, "joined", 0)
    assert draw(agent).round == 10


def test_waiting_uses_no_randomness(agent: Agent, clock: FakeClock) -> None:
    draw(agent)
    silent = Agent(agent.store, Policy(), clock=clock, entropy=no_entropy)
    for _ in range(10):
        assert isinstance(attempt(silent), Wait)
        assert isinstance(due(only(silent), clock), Wait)
        clock.pass_time(DAY / 20)
    clock.pass_time(DAY)
    with pytest.raises(NoEntropy):
        attempt(silent)


def test_two_campaigns_keep_their_own_rounds(agent: Agent, clock: FakeClock) -> None:
    weekly = daily(slug="weekly", period=7 * DAY, count=52)
    agree(agent, weekly)
    counts = dict.fromkeys((m.name for m in agent.store.memberships()), 0)
    for _ in range(21):
        for membership in agent.store.memberships():
            drawn = agent.draw(membership, lambda _: "wood")
            counts[membership.name] += isinstance(drawn, Queued)
        clock.pass_time(DAY)
    assert counts == {daily().campaign: 21, weekly.campaign: 3}
