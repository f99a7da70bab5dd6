"""One draw per round and per period of real time, whatever the clocks say (I3, R12, F8)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from edge_client.agent import Agent, Wait, due
from edge_client.cli.doctor import clock_finding
from edge_client.client import EdgeClient, accept_loss
from edge_client.clock import (
    UNSYNCHRONISED,
    doubt,
    first_doubt,
    first_round_to_come,
    is_ahead_of,
    is_impossible,
)
from edge_client.policy import Policy
from edge_client.records import Invitation, Membership, Queued
from edge_client.statement import show_facts
from edge_client.store import highwater
from edge_client.text import show_text
from protocol_spec import Manifest, Presence, State, Topics, digest8
from protocol_spec.programs.memory_broker import MemoryBroker
from protocol_spec.programs.settings import parse_broker
from tests.support.edge import (
    DAY,
    FIRST,
    NOBODY,
    FakeClock,
    Joined,
    MemoryTally,
    NoEntropy,
    agree,
    broken,
    daily,
    draw,
    joined_agent,
    ledger_of,
    many_values,
    memos_of,
    no_entropy,
    only,
    report_of,
    rows,
    runner_of,
)

YEAR = 365 * DAY


def attempt(agent: Agent) -> Queued | Wait:
    return agent.draw(only(agent), lambda _: "wood")


def fails_if_read(_attribute: str) -> object:
    raise AssertionError("the value was read although nothing is due")


def test_one_report_per_round(agent: Agent, clock: FakeClock) -> None:
    for number in range(10):
        drawn = draw(agent)
        assert drawn.round == report_of(drawn).round == number
        for _ in range(5):
            assert attempt(agent) is Wait.DRAWN
            clock.pass_time(DAY / 5)
    assert len(agent.store.reports(only(agent).name)) == 10


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
    joined: Joined, state: Path, clock: FakeClock, now: float, expected: Wait
) -> None:
    agent = joined(replace(daily(), created=FIRST - 7200))
    before = rows(state)
    clock.now = now
    assert agent.draw(only(agent), fails_if_read) is expected
    assert rows(state) == before


@pytest.mark.parametrize("second", [0.0, 0.5, DAY - 0.001])
@pytest.mark.parametrize("number", [0, 1, 364])
def test_a_round_is_open_from_its_first_instant_to_its_last(
    agent: Agent, clock: FakeClock, number: int, second: float
) -> None:
    clock.now = FIRST + number * DAY + second
    assert draw(agent).round == number


def test_a_jump_of_the_clock_buys_no_second_draw(agent: Agent, clock: FakeClock) -> None:
    """After one forward a full period must really pass; after one back no round comes again."""
    draw(agent)
    clock.set_forward(5 * DAY)
    assert attempt(agent) is Wait.CLOCK_AHEAD
    clock.pass_time(DAY - 1801)
    assert attempt(agent) is Wait.CLOCK_AHEAD
    clock.pass_time(1)
    assert draw(agent).round == 6
    clock.set_forward(-3 * DAY)
    for _ in range(3):
        assert attempt(agent) is Wait.CLOCK_BEHIND
        clock.pass_time(DAY)
    assert attempt(agent) is Wait.DRAWN
    clock.pass_time(DAY)
    assert draw(agent).round == 7


def test_a_reboot_causes_no_draw_and_one_without_a_clock_waits(
    joined: Joined, agent: Agent, clock: FakeClock
) -> None:
    draw(agent)
    agent.store.close()
    clock.reboot()
    agent = joined()
    assert attempt(agent) is Wait.DRAWN
    clock.now = 12.0
    assert attempt(agent) is Wait.CLOCK_EARLY
    clock.now = FIRST + DAY + 60.0
    assert draw(agent).round == 1


@pytest.mark.parametrize("seconds", [DAY - 1.0, 1.0, 8 * DAY - 1.0])
def test_a_clock_pushed_a_thousand_times_gives_one_draw_per_real_period(
    joined: Joined, clock: FakeClock, seconds: float
) -> None:
    """R12: each push ends in a new round, at its beginning or just before its end."""
    agent = joined(daily(count=60_000))
    moments: list[float] = []
    for _ in range(1000):
        clock.uptime += DAY / 250
        clock.now = FIRST + (only(agent).last_round + 1) * DAY + seconds
        if isinstance(attempt(agent), Queued):
            moments.append(clock.uptime)
    real_periods = (moments[-1] - moments[0]) / DAY
    assert 4 <= len(moments) <= real_periods + 2
    assert all(later - earlier > DAY - 2 for earlier, later in pairwise(moments[1:]))


def test_a_clock_that_is_set_while_the_value_is_read_gains_nothing(
    agent: Agent, clock: FakeClock
) -> None:
    """The clocks are read once, so the period that a draw belongs to is fixed."""

    def read_and_set(_attribute: str) -> str:
        clock.set_forward(10 * YEAR)
        return "wood"

    assert isinstance(agent.draw(only(agent), read_and_set), Queued)
    clock.set_forward(DAY - 10 * YEAR)
    assert attempt(agent) is Wait.CLOCK_AHEAD
    clock.pass_time(DAY)
    assert draw(agent).round == 2


@pytest.mark.parametrize("correction", [-1, 10])
def test_a_clock_that_is_corrected_every_day_costs_no_round(
    agent: Agent, clock: FakeClock, correction: int
) -> None:
    """Slow or fast: only the moment within the round shifts."""
    for number in range(20):
        while isinstance(attempt(agent), Wait):
            clock.pass_time(1)
        assert only(agent).last_round == number
        clock.pass_time(FIRST + (number + 1) * DAY + 60 - clock.now)
        clock.set_forward(correction)


@pytest.mark.parametrize(("status", "expected"), [("paused", Wait.PAUSED), ("left", Wait.LEFT)])
def test_nothing_is_drawn_or_read_while_paused_or_left(
    agent: Agent, state: Path, clock: FakeClock, status: str, expected: Wait
) -> None:
    agent.store.set_status(only(agent).name, status, 0)  # type: ignore[arg-type]
    before = rows(state)
    assert agent.draw(only(agent), fails_if_read) is expected
    assert rows(state) == before
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


# --- reporting once: rounds are drawn at joining, for life, and no other is ever answered ---------


ONCE = daily(reporting="once", count=40, each=3, attributes=many_values())


def test_it_answers_in_the_rounds_it_drew_and_in_no_other(joined: Joined, clock: FakeClock) -> None:
    """In all others the source is not even read, and the state says why."""
    agent = joined(ONCE)
    drawn, read, sent, states = only(agent).drawn_rounds or (), [], [], []

    def reading(_attribute: str) -> object:
        read.append(ONCE.rounds.round_at(clock.now))
        return "v07"

    for _ in range(40):
        report = agent.draw(only(agent), reading)
        sent += [report.round] if isinstance(report, Queued) else []
        states.append(due(only(agent), clock))
        clock.pass_time(DAY)
    assert len(drawn) == 3
    assert tuple(sent) == tuple(read) == drawn
    assert states == [
        Wait.DRAWN if n in drawn else Wait.NOT_DRAWN if n < drawn[-1] else Wait.ALL_PASSED
        for n in range(40)
    ]
    assert ledger_of(agent) == [ONCE.eps_1] * 3
    assert agent.store.spent(only(agent)).exact == ONCE.eps_inf
    assert memos_of(agent) == {}
    assert only(agent).last_value is None, "nothing about the value is stored"


def test_the_value_of_that_round_is_answered(joined: Joined, clock: FakeClock) -> None:
    """With little noise, and a seed, the answer is the value read in the round, not an earlier one;
    where the source fails it is "none of these" (P1)."""
    campaign = daily(reporting="once", count=3, each=3, eps_inf=20.0)
    agent = joined(campaign, policy=Policy(20.0, 20.0, total_budget=20.0))
    for read, index in ((lambda _: "wood", 0), (lambda _: "oil", 2), (broken, 3)):
        drawn = agent.draw(only(agent), read)
        assert isinstance(drawn, Queued)
        assert report_of(drawn).body == bytes([index])
        clock.pass_time(DAY)


def test_a_late_joiner_draws_among_the_rounds_that_are_left(
    joined: Joined, state: Path, clock: FakeClock
) -> None:
    found: Counter[int] = Counter()
    clock.pass_time(36 * DAY)
    for i in range(40):
        found.update(only(joined(ONCE, directory=state / str(i))).drawn_rounds or ())
    assert found.keys() == {36, 37, 38, 39}
    assert found.total() == 3 * 40
    clock.pass_time(2 * DAY)
    assert only(joined(ONCE, directory=state / "later")).drawn_rounds == (38, 39)
    clock.pass_time(2 * DAY)
    agent = joined(ONCE, directory=state / "too late")
    assert only(agent).drawn_rounds == ()
    assert agent.draw(only(agent), lambda _: "v07") is Wait.OVER


def test_rounds_are_drawn_once_for_life(joined: Joined) -> None:
    """Also if another process joins at the same moment."""
    agent = joined(ONCE)
    drawn = only(agent).drawn_rounds
    agent.store.set_status(only(agent).name, "left", 0)
    agree(agent, ONCE)
    assert only(agent).drawn_rounds == drawn
    other = highwater.Participation("other", 0, -1, 0, ONCE.digest)
    invitation = Invitation(ONCE, parse_broker(NOBODY), "allomfree")
    agent.store.join(invitation, other, 0, rounds=(1, 2, 3))
    assert only(agent).drawn_rounds == drawn
    agent.store.close()
    assert only(joined(ONCE)).drawn_rounds == drawn


def test_a_round_that_was_not_drawn_is_never_recorded(
    joined: Joined, state: Path, clock: FakeClock
) -> None:
    """Defence in depth: the store refuses it even if the decision were wrong."""
    agent = joined(ONCE)
    member = only(agent)
    wrong = Membership(**{**vars(member), "drawn_rounds": tuple(range(40))})
    while ONCE.rounds.round_at(clock.now) in (member.drawn_rounds or ()):
        clock.pass_time(DAY)
    before = rows(state)
    with pytest.raises(AssertionError, match="a round that was not drawn"):
        agent.draw(wrong, lambda _: "v07")
    assert rows(state) == before


@pytest.mark.parametrize("answered", [0, 1, 2, 3])
def test_answers_given_before_a_loss_stay_used(
    joined: Joined, state: Path, clock: FakeClock, answered: int
) -> None:
    """Never more answers than agreed to, never the same round again, and nothing forgotten."""
    agent = joined(ONCE)
    before = only(agent)
    rounds = (before.drawn_rounds or ())[:answered]
    while len(agent.store.reports(before.name)) < answered:
        agent.draw(only(agent), lambda _: "v07")
        clock.pass_time(DAY)
    agent.store.close()
    for _ in range(2):  # lost twice: what the first loss left is not lost with the second
        (state / "state.db").unlink()
        booked = accept_loss(state, Policy(), clock)
        assert not answered or booked == {"colour": pytest.approx(answered * ONCE.eps_1)}
    agent = joined(ONCE)
    after, left = only(agent), 40 - (ONCE.rounds.round_at(clock.now) or 0)
    assert after.answers == answered
    if answered:
        assert (after.device, after.last_round) == (before.device, rounds[-1])
    assert len(after.drawn_rounds or ()) == min(3 - answered, left)
    sent = []
    for _ in range(left):
        drawn = agent.draw(only(agent), lambda _: "v07")
        sent += [drawn.round] if isinstance(drawn, Queued) else []
        clock.pass_time(DAY)
    assert all(number > max(rounds, default=-1) for number in sent)
    assert answered + len(sent) <= 3
    assert agent.store.charged("colour") <= ONCE.eps_inf + 1e-12
    assert agent.store.spent(only(agent)).exact <= ONCE.eps_inf


def test_report_in_a_silent_round_does_not_return_an_earlier_one(
    state: Path, clock: FakeClock
) -> None:
    campaign = daily(reporting="once", count=30)
    with EdgeClient(state, clock=clock, entropy=bytes) as client:  # not the last round
        client.join(client.invitation(manifest=campaign, broker=NOBODY))
        (drawn,) = client.find().drawn_rounds or ()
        clock.pass_time(drawn * DAY)
        assert isinstance(client.agent.draw(client.find(), lambda _: "wood"), Queued)
        client.store.finish(campaign.campaign, {drawn: "counted"})
        (same,) = client.report({"fuel": "wood"}, timeout=0.0)
        clock.pass_time(DAY)
        (later,) = client.report({"fuel": "wood"}, timeout=0.0)
    assert (same.round, same.text) == (drawn, "counted")
    assert later.round is None
    assert later.text in (Wait.ALL_PASSED, Wait.OVER)


# --- F8: a clock that is wrong is noticed and reported; it may delay a draw and never causes one --


OPENED_AHEAD = daily()  # does not say when it was made
ASKED = replace(OPENED_AHEAD, created=FIRST - 30)
BEGINS = "2027-01-15 08:00:00 UTC"


@pytest.mark.parametrize(
    ("campaign", "now", "synchronised", "message"),
    [
        (ASKED, FIRST + 60, True, ""),
        (ASKED, FIRST + 60, None, ""),
        (ASKED, FIRST + 60, False, UNSYNCHRONISED),
        (ASKED, FIRST - 60, True, f"is before {ASKED.campaign} was made; nothing is drawn. Set"),
        (ASKED, FIRST - 60, False, "is before"),
        (ASKED, FIRST + YEAR, True, ""),
        (ASKED, FIRST + YEAR, False, f"is after the last round of {ASKED.campaign}, and the"),
        (ASKED, 1e18, False, "the clock is after the last round"),
        # Before the first round of a campaign that was opened ahead, the clock may well be right.
        (OPENED_AHEAD, FIRST - 60, True, ""),
        (OPENED_AHEAD, FIRST - YEAR, None, ""),
        (OPENED_AHEAD, FIRST - YEAR, False, UNSYNCHRONISED),
        (OPENED_AHEAD, 60.0, True, "is before"),  # a board without a battery, whatever is asked
    ],
)
def test_doubts_about_the_clock(
    campaign: Manifest, now: float, synchronised: bool | None, message: str
) -> None:
    clock = FakeClock(now, is_synchronised=synchronised)
    found = doubt(campaign, clock)
    assert message in found
    assert bool(found) is bool(message)
    if campaign is OPENED_AHEAD:
        assert is_impossible(campaign, clock) is (now == 60.0)
        assert first_round_to_come(campaign, clock) == ("" if now == 60.0 else BEGINS)


def test_an_impossible_clock_is_reported_before_an_unsynchronised_one() -> None:
    clock = FakeClock(FIRST - 60, is_synchronised=False)
    for manifests in ([ASKED, OPENED_AHEAD], [OPENED_AHEAD, ASKED]):
        assert first_doubt(manifests, clock) == doubt(ASKED, clock) != ""
    assert first_doubt([OPENED_AHEAD], clock) == UNSYNCHRONISED
    assert first_doubt([], clock) == ""


def test_show_and_doctor_report_the_doubt(joined: Joined, state: Path, clock: FakeClock) -> None:
    joined(ASKED).store.close()
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
    """A device and its broker, which holds the state that the collector last published."""

    def __init__(self, state: Path, published: State | None, clock: FakeClock) -> None:
        self.clock, self.broker = clock, MemoryBroker()
        self.tally = MemoryTally(self.broker, ASKED)
        self.points: list[str] = []
        if published is not None:
            self.publish(published)
        broker = "mqtt://localhost:1"
        self.agent = joined_agent(state, clock, ASKED, broker=broker, trace=self.points.append)
        self.runner = runner_of(self.agent, lambda _: "wood", make_link=self.broker.link)

    def publish(self, state: State) -> None:
        self.broker.publish(Topics(ASKED.campaign).state, state.encode(), retain=True)

    def turn(self, times: int = 5) -> int:
        """Turn the daemon's loop; returns how many reports have been drawn by then."""
        for _ in range(times):
            self.runner.tick(wait=0.0)
        return self.points.count("report drawn")

    @property
    def heartbeat(self) -> str:
        return (self.agent.store.directory / "heartbeat").read_text()


def test_a_disputed_clock_waits_and_then_loses_no_round(state: Path) -> None:
    """Half a year ahead at its first draw, it would have been silent for half a year."""
    site = Site(state, online(None), FakeClock(FIRST + 180 * DAY, is_synchronised=False))
    assert site.turn() == 0
    assert Wait.CLOCK_DISPUTED in site.heartbeat
    site.clock.now = FIRST + 60.0  # NTP has come
    site.clock.is_synchronised = True
    assert site.turn() == 1
    assert only(site.agent).last_round == 0


@pytest.mark.parametrize("synchronised", [True, None])
def test_a_clock_that_may_be_synchronised_is_only_warned_of(
    state: Path, synchronised: bool | None, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(state, online(None), FakeClock(FIRST + 180 * DAY, is_synchronised=synchronised))
    site.turn()
    site.clock.pass_time(DAY)
    assert site.turn() == 2
    assert caplog.text.count("this clock is ahead of the collector's; one of them is wrong") == 1


def test_a_hostile_broker_can_delay_only_what_skips_rounds(state: Path) -> None:
    """Whoever reports round by round goes on; and no published state is a draw (I16)."""
    site = Site(state, None, FakeClock(is_synchronised=False))
    assert site.turn() == 1
    for sealed in (None, 0, 7, 364, 65_535, None):
        site.publish(online(sealed))
        assert site.turn() == 1
    for number in range(2, 12):
        site.clock.pass_time(DAY)
        assert site.turn() == number


def test_the_collectors_state_is_waited_for_but_not_for_ever(state: Path) -> None:
    site = Site(state, None, FakeClock(FIRST + 180 * DAY, is_synchronised=False))
    assert site.turn() == 0
    assert Wait.CLOCK_ASKED in site.heartbeat
    site.clock.pass_time(31.0)
    assert site.turn() == 1


def test_no_clock_draws_twice_in_a_round(state: Path) -> None:
    """R12: doubts come and go, and the clock with them."""
    site = Site(state, online(None), FakeClock(FIRST + 60.0, is_synchronised=False))
    assert site.turn() == 1
    for now in (FIRST - YEAR, FIRST + YEAR / 2, FIRST + 100.0, FIRST + 2 * YEAR, FIRST + 200.0):
        site.clock.now = now
        for site.clock.is_synchronised in (True, False, None):
            assert site.turn(2) == 1


@pytest.mark.parametrize("ahead", [1.0, YEAR])
def test_before_its_first_round_a_campaign_waits_and_draws_nothing(
    joined: Joined, state: Path, clock: FakeClock, ahead: float
) -> None:
    clock.now, clock.is_synchronised = FIRST - ahead, True
    joined(OPENED_AHEAD).store.close()
    agent = joined(entropy=no_entropy)
    assert agent.draw(only(agent), lambda _: "wood") is Wait.NOT_BEGUN
    agent.store.close()
    with EdgeClient(state, clock=clock) as client:
        (done,) = client.report({"fuel": "wood"}, timeout=0.0)
        found = clock_finding(client, client.find())
    assert done.text == f"the first round has not begun; it begins at {BEGINS}"
    assert found.ok
    assert found.text.endswith(f"; the first round begins at {BEGINS}")


def test_a_clock_before_the_first_round_is_behind_once_something_is_drawn(
    joined: Joined, clock: FakeClock
) -> None:
    agent = joined(OPENED_AHEAD)
    draw(agent)
    clock.now = FIRST - DAY
    assert due(only(agent), clock) is Wait.CLOCK_BEHIND
