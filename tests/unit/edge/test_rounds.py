"""One draw per round and per period of real time, whatever the clocks say."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from edge_client.agent import Agent, Wait, due
from edge_client.client import EdgeClient, accept_loss
from edge_client.clock import (
    UNSYNCHRONISED,
    doubt,
    first_doubt,
    first_round_to_come,
    is_ahead_of,
    is_impossible,
)
from edge_client.doctor import clock_finding
from edge_client.policy import Policy
from edge_client.records import Membership, Queued
from edge_client.statement import show_facts
from edge_client.store import highwater
from edge_client.text import show_text
from protocol_spec import Manifest, Presence, State, Topics, digest8
from protocol_spec.programs.memory_broker import MemoryBroker
from tests.support.edge import (
    DAY,
    FIRST,
    NOBODY,
    ROOM,
    WARMTH,
    FakeClock,
    MemoryTally,
    NoEntropy,
    agree,
    broken,
    daily,
    draw,
    draw_all,
    draw_rounds,
    joined_agent,
    ledger_of,
    many_values,
    memos_of,
    no_entropy,
    only,
    report_of,
    rows,
    runner_of,
    way_manifest,
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


@pytest.mark.parametrize("seconds", [DAY - 1.0, 1.0, 8 * DAY - 1.0])
def test_a_clock_pushed_a_thousand_times_gives_one_draw_per_real_period(
    state: Path, clock: FakeClock, seconds: float
) -> None:
    """R12: each push ends in a new round, at its beginning or just before its end."""
    agent = joined_agent(state, clock, daily(count=60_000))
    moments: list[float] = []
    for _ in range(1000):
        clock.uptime += DAY / 250
        clock.now = FIRST + (only(agent).last_round + 1) * DAY + seconds
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


# --- Reporting once: rounds are drawn at joining, for life, and no other is ever answered.


@pytest.fixture
def once() -> Manifest:
    return way_manifest("once", count=40, each=3, attributes=many_values())


def test_it_answers_in_the_rounds_it_drew_and_in_no_other(
    state: Path, clock: FakeClock, once: Manifest
) -> None:
    """In all others the source is not even read, and the state says why."""
    agent = joined_agent(state, clock, once)
    drawn, read, sent, states = only(agent).drawn_rounds or (), [], [], []

    def reading(_attribute: str) -> object:
        read.append(once.rounds.round_at(clock.now))
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
    assert ledger_of(agent) == [once.eps_1] * 3
    assert agent.store.spent(only(agent)).exact == once.eps_inf
    assert memos_of(agent) == {}
    assert only(agent).last_value is None, "nothing about the value is kept"
    agent.store.close()


def test_the_value_of_that_round_is_answered(state: Path, clock: FakeClock) -> None:
    """With next to no noise, the answer is the value read in the round, not an earlier one."""
    campaign = way_manifest("once", count=2, each=2, eps_inf=20.0)
    agent = joined_agent(state, clock, campaign, policy=Policy(20.0, 20.0, total_budget=20.0))
    for value, place in (("wood", 0), ("oil", 2)):
        assert report_of(draw(agent, value)).body == bytes([place])
        clock.pass_time(DAY)
    agent.store.close()


def test_a_late_joiner_draws_among_what_is_left(
    state: Path, clock: FakeClock, once: Manifest
) -> None:
    found: Counter[int] = Counter()
    clock.pass_time(36 * DAY)
    for i in range(40):
        agent = joined_agent(state / str(i), clock, once)
        found.update(only(agent).drawn_rounds or ())
        agent.store.close()
    assert found.keys() == {36, 37, 38, 39}
    assert sum(found.values()) == 3 * 40
    clock.pass_time(2 * DAY)
    agent = joined_agent(state / "later", clock, once)
    assert only(agent).drawn_rounds == (38, 39)
    agent.store.close()
    clock.pass_time(2 * DAY)
    agent = joined_agent(state / "too late", clock, once)
    assert only(agent).drawn_rounds == ()
    assert agent.draw(only(agent), lambda _: "v07") is Wait.OVER
    agent.store.close()


def test_rounds_are_drawn_once_for_life(state: Path, clock: FakeClock, once: Manifest) -> None:
    agent = joined_agent(state, clock, once)
    drawn = only(agent).drawn_rounds
    agent.store.set_status(only(agent).name, "left", 0)
    agree(agent, once)
    assert only(agent).drawn_rounds == drawn
    agent.store.close()
    with closing(joined_agent(state, clock, once).store) as store:
        assert store.memberships()[0].drawn_rounds == drawn


def test_a_second_process_that_joins_meanwhile_draws_no_more(
    state: Path, clock: FakeClock, once: Manifest
) -> None:
    agent = joined_agent(state, clock, once)
    drawn = only(agent).drawn_rounds
    shown = highwater.Participation("other", 0, -1, 0, once.digest)
    agent.store.join(
        once, broker=NOBODY, namespace="allomfree", participation=shown, at=0, rounds=(1, 2, 3)
    )
    assert only(agent).drawn_rounds == drawn
    agent.store.close()


def test_a_round_that_was_not_drawn_is_never_recorded(
    state: Path, clock: FakeClock, once: Manifest
) -> None:
    """Defence in depth: also if the decision were wrong, the store refuses."""
    agent = joined_agent(state, clock, once)
    member = only(agent)
    wrong = Membership(**{**vars(member), "drawn_rounds": tuple(range(40))})
    while clock_round(once, clock) in (member.drawn_rounds or ()):
        clock.pass_time(DAY)
    before = rows(state)
    with pytest.raises(AssertionError, match="a round that was not drawn"):
        agent.draw(wrong, lambda _: "v07")
    assert rows(state) == before
    agent.store.close()


def clock_round(campaign: Manifest, clock: FakeClock) -> int:
    number = campaign.rounds.round_at(clock.now)
    assert number is not None
    return number


@pytest.mark.parametrize("answered", [0, 1, 2, 3])
def test_answers_given_before_a_loss_stay_used(
    state: Path, clock: FakeClock, once: Manifest, answered: int
) -> None:
    """Never more answers than agreed to, never the same round again, and nothing forgotten."""
    agent = joined_agent(state, clock, once)
    before = only(agent)
    rounds = (before.drawn_rounds or ())[:answered]
    while len(agent.store.reports(before.name)) < answered:
        agent.draw(only(agent), lambda _: "v07")
        clock.pass_time(DAY)
    agent.store.close()
    for _ in range(2):  # lost twice: what the first loss left is not lost with the second
        (state / "state.db").unlink()
        if answered:
            assert accept_loss(state, Policy(), clock) == {
                "colour": pytest.approx(answered * once.eps_1)
            }
        else:
            accept_loss(state, Policy(), clock)
    agent = joined_agent(state, clock, once)
    after = only(agent)
    assert after.answers == answered
    if answered:
        assert (after.device, after.last_round) == (before.device, rounds[-1])
    assert len(after.drawn_rounds or ()) == min(3 - answered, 40 - clock_round(once, clock))
    sent = draw_all(agent, clock, "v07")
    assert all(row.round > max(rounds, default=-1) for row in sent)
    assert answered + len(sent) <= 3
    assert agent.store.charged("colour") <= once.eps_inf + 1e-12
    assert agent.store.spent(only(agent)).exact <= once.eps_inf
    agent.store.close()


def test_a_failing_source_in_a_drawn_round(state: Path, clock: FakeClock) -> None:
    """P1: answered as "none of these" where there is such a value, else with any of the bins."""
    covered = joined_agent(
        state / "a",
        clock,
        way_manifest("once", count=1, eps_inf=20.0, attributes=ROOM),
        policy=Policy(20.0, 20.0, total_budget=20.0),
    )
    drawn = covered.draw(only(covered), broken)
    assert isinstance(drawn, Queued)
    assert report_of(drawn).body == bytes([2])
    covered.store.close()
    endless = joined_agent(state / "b", clock, way_manifest("once", count=1, attributes=WARMTH))
    assert isinstance(endless.draw(only(endless), broken), Queued)
    assert ledger_of(endless) == [2.0]
    endless.store.close()


def test_report_of_a_silent_round_is_not_that_of_an_earlier_one(
    state: Path, clock: FakeClock
) -> None:
    campaign = way_manifest("once", count=30)
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


# --- F8: a clock that is wrong is noticed and said, and may put a draw off; it never causes one.


OPENED_AHEAD = daily()  # it does not say when it was made
ASKED = replace(OPENED_AHEAD, created=FIRST - 30)
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
