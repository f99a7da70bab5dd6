"""F8: a clock that is wrong is noticed and said, and may put a draw off; it never causes one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edge_client import EdgeClient
from edge_client.agent import Due, Wait, due
from edge_client.clock import (
    UNSYNCHRONISED,
    SystemClock,
    doubt,
    first_doubt,
    first_round_to_come,
    is_ahead_of,
    is_impossible,
)
from edge_client.doctor import clock_finding
from edge_client.statement import show_facts
from edge_client.text import show_text
from protocol_spec import Presence, State, Topics, digest8
from protocol_spec.programs.memory_broker import MemoryBroker
from tests.support.edge import (
    DAY,
    FIRST,
    FakeClock,
    MemoryTally,
    daily,
    draw,
    joined_agent,
    no_entropy,
    only,
    runner_of,
)

OPENED_AHEAD = daily()  # it does not say when it was made
ASKED = replace(OPENED_AHEAD, created=FIRST - 30)
YEAR = 365 * DAY
BEGINS = "2027-01-15 08:00:00 UTC"


@pytest.mark.parametrize(
    ("now", "synchronised", "said"),
    [
        (FIRST + 60, True, ""),
        (FIRST + 60, None, ""),
        (FIRST + 60, False, UNSYNCHRONISED),
        (FIRST - 60, True, f"is before {ASKED.campaign} was made; nothing is drawn. Set the clock"),
        (FIRST - 60, False, "is before"),
        (FIRST + YEAR, True, ""),
        (FIRST + YEAR, False, f"is after the last round of {ASKED.campaign}, and the kernel"),
        (1e18, False, "the clock is after the last round"),
    ],
)
def test_what_is_said(now: float, synchronised: bool | None, said: str) -> None:
    told = doubt(ASKED, FakeClock(now, is_synchronised=synchronised))
    assert said in told
    assert bool(told) is bool(said)


@pytest.mark.parametrize(
    ("now", "synchronised", "said"),
    [
        (FIRST - 60, True, ""),
        (FIRST - YEAR, None, ""),
        (FIRST - YEAR, False, UNSYNCHRONISED),
        (60.0, True, "is before"),  # a board without a battery: nobody needs a manifest for that
    ],
)
def test_a_campaign_opened_ahead_of_its_start_is_no_sign_against_the_clock(
    now: float, synchronised: bool | None, said: str
) -> None:
    clock = FakeClock(now, is_synchronised=synchronised)
    told = doubt(OPENED_AHEAD, clock)
    assert said in told
    assert bool(told) is bool(said)
    assert is_impossible(OPENED_AHEAD, clock) is (now == 60.0)
    assert first_round_to_come(OPENED_AHEAD, clock) == ("" if now == 60.0 else BEGINS)


def test_the_kernel_is_asked() -> None:
    assert SystemClock().synchronised() in (True, False, None)


def test_the_owner_is_told(state: Path, clock: FakeClock) -> None:
    joined_agent(state, clock, ASKED).store.close()
    clock.is_synchronised = False
    with EdgeClient(state, clock=clock, exclusive=False) as client:
        assert UNSYNCHRONISED in show_text(show_facts(client, client.memberships()))
        assert clock_finding(client, client.find()).ok, "it may be right all the same"
        assert UNSYNCHRONISED in clock_finding(client, client.find()).text
        clock.now += YEAR
        assert not clock_finding(client, client.find()).ok
        assert due(client.find(), clock) is Wait.CLOCK_DOUBTED
        clock.is_synchronised = True
        assert due(client.find(), clock) is Wait.OVER


def online(sealed: int | None, presence: Presence = Presence.ONLINE) -> State:
    return State(digest8(ASKED), presence, sealed)


@pytest.mark.parametrize(
    ("state", "number", "ahead"),
    [
        (None, 100, False),
        (online(None), 0, False),
        (online(None), 3, False),  # a grace of a day, and two more rounds
        (online(None), 4, True),
        (online(96), 100, False),
        (online(95), 100, True),
        (online(3, Presence.OFFLINE), 100, False),  # nobody seals meanwhile
        (online(364), 364, False),
        (online(65_535), 0, False),
    ],
)
def test_when_the_collector_is_behind(state: State | None, number: int, ahead: bool) -> None:
    clock = FakeClock(FIRST + DAY * number + DAY / 2)
    assert is_ahead_of(state, ASKED, clock) is ahead


class Site:
    """A device and its broker, which holds what the collector last said."""

    def __init__(self, state: Path, said: State | None, clock: FakeClock) -> None:
        self.clock, self.broker = clock, MemoryBroker()
        self.tally = MemoryTally(self.broker, ASKED)
        self.points: list[str] = []
        if said is not None:
            self.say(said)
        broker = "mqtt://localhost:1"
        self.agent = joined_agent(state, clock, ASKED, broker=broker, trace=self.points.append)
        self.runner = runner_of(self.agent, lambda _: "wood", make_link=self.broker.link)

    def say(self, state: State) -> None:
        self.broker.publish(Topics(ASKED.campaign).state, state.encode(), retain=True)

    def turn(self, times: int = 5) -> int:
        """How many reports are drawn by then."""
        for _ in range(times):
            self.runner.tick(wait=0.0)
        return self.points.count("report drawn")

    @property
    def said(self) -> str:
        return (self.agent.store.directory / "heartbeat").read_text()

    def close(self) -> None:
        self.runner.close()
        self.agent.store.close()


def test_a_disputed_clock_waits_and_then_loses_no_round(state: Path) -> None:
    """Half a year ahead at its first draw, it would have been silent for half a year."""
    site = Site(state, online(None), FakeClock(FIRST + 180 * DAY, is_synchronised=False))
    assert site.turn() == 0
    assert Wait.CLOCK_DISPUTED in site.said
    site.clock.now = FIRST + 60.0  # NTP has come
    site.clock.is_synchronised = True
    assert site.turn() == 1
    assert only(site.agent).last_round == 0
    site.close()


@pytest.mark.parametrize("vouched", [True, None])
def test_a_clock_that_the_kernel_vouches_for_is_only_warned_of(
    state: Path, vouched: bool | None, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(state, online(None), FakeClock(FIRST + 180 * DAY, is_synchronised=vouched))
    site.turn()
    site.clock.pass_time(DAY)
    assert site.turn() == 2
    assert caplog.text.count("this clock is ahead of the collector's; one of them is wrong") == 1
    site.close()


def test_a_hostile_broker_can_delay_only_what_skips_rounds(state: Path) -> None:
    """Who reports round by round goes on, whatever is said; and nothing that is said is a draw."""
    site = Site(state, None, FakeClock(is_synchronised=False))
    assert site.turn() == 1
    for sealed in (None, 0, 7, 364, 65_535, None):
        site.say(online(sealed))
        assert site.turn() == 1, "I16: no message causes a draw"
    for number in range(2, 12):
        site.clock.pass_time(DAY)
        assert site.turn() == number
    site.close()


def test_the_collectors_word_is_waited_for_but_not_for_ever(state: Path) -> None:
    site = Site(state, None, FakeClock(FIRST + 180 * DAY, is_synchronised=False))
    assert site.turn() == 0
    assert Wait.CLOCK_ASKED in site.said
    site.clock.pass_time(31.0)
    assert site.turn() == 1
    site.close()


def test_no_clock_draws_twice_in_a_round(state: Path) -> None:
    """R12: doubts come and go, and the clock with them."""
    site = Site(state, online(None), FakeClock(FIRST + 60.0, is_synchronised=False))
    assert site.turn() == 1
    for now in (FIRST - YEAR, FIRST + YEAR / 2, FIRST + 100.0, FIRST + 2 * YEAR, FIRST + 200.0):
        site.clock.now = now
        for site.clock.is_synchronised in (True, False, None):
            assert site.turn(2) == 1
    site.close()


def test_a_clock_before_the_campaign_draws_nothing(state: Path) -> None:
    clock = FakeClock(FIRST - 3600.0, is_synchronised=True)
    agent = joined_agent(state, clock, ASKED)
    assert due(only(agent), clock) is Wait.CLOCK_EARLY
    agent.store.close()
    agent = joined_agent(state, clock, entropy=no_entropy)
    assert agent.draw(only(agent), lambda _: "wood") is Wait.CLOCK_EARLY
    agent.store.close()
    clock.now = FIRST + 60.0
    agent = joined_agent(state, clock)
    assert isinstance(due(only(agent), clock), Due)
    draw(agent)
    agent.store.close()


@pytest.mark.parametrize("ahead", [1.0, YEAR])
def test_before_its_first_round_a_campaign_waits_and_draws_nothing(
    state: Path, ahead: float
) -> None:
    clock = FakeClock(FIRST - ahead, is_synchronised=True)
    joined_agent(state, clock, OPENED_AHEAD).store.close()
    agent = joined_agent(state, clock, entropy=no_entropy)
    assert agent.draw(only(agent), lambda _: "wood") is Wait.NOT_BEGUN
    agent.store.close()
    with EdgeClient(state, clock=clock) as client:
        (done,) = client.report({"fuel": "wood"}, timeout=0.0)
        found = clock_finding(client, client.find())
    assert done.text == f"the first round has not begun; it begins at {BEGINS}"
    assert found.ok
    assert found.text.endswith(f"; the first round begins at {BEGINS}")


def test_a_clock_before_the_first_round_is_behind_for_who_has_drawn(state: Path) -> None:
    clock = FakeClock()
    agent = joined_agent(state, clock, OPENED_AHEAD)
    draw(agent)
    clock.now = FIRST - DAY
    assert due(only(agent), clock) is Wait.CLOCK_BEHIND
    agent.store.close()


def test_what_is_impossible_is_said_before_what_is_only_not_vouched_for() -> None:
    """The text of the milder doubt is longer."""
    clock = FakeClock(FIRST - 60, is_synchronised=False)
    for manifests in ([ASKED, OPENED_AHEAD], [OPENED_AHEAD, ASKED]):
        assert first_doubt(manifests, clock) == doubt(ASKED, clock) != ""
    assert first_doubt([OPENED_AHEAD], clock) == UNSYNCHRONISED
    assert first_doubt([], clock) == ""
