"""Reporting once: rounds are drawn at joining, for life, and no other is ever answered."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from edge_client.agent import Wait, due
from edge_client.client import EdgeClient, accept_loss
from edge_client.policy import Policy
from edge_client.records import Membership, Queued
from edge_client.store import highwater
from protocol_spec import Manifest
from tests.support.edge import (
    DAY,
    NOBODY,
    ROOM,
    WARMTH,
    FakeClock,
    agree,
    as_killed,
    broken,
    draw,
    draw_all,
    joined_agent,
    ledger_of,
    many_values,
    memos_of,
    only,
    report_of,
    rows,
    way_manifest,
)


@pytest.fixture
def once() -> Manifest:
    return way_manifest("once", count=40, each=3, attributes=many_values())


def test_it_answers_in_the_rounds_it_drew_and_in_no_other(
    state: Path, clock: FakeClock, once: Manifest
) -> None:
    agent = joined_agent(state, clock, once)
    drawn = only(agent).drawn_rounds
    assert drawn is not None
    assert len(drawn) == 3
    sent = draw_all(agent, clock, "v07")
    assert tuple(row.round for row in sent) == drawn
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


def test_the_source_is_read_in_drawn_rounds_only(
    state: Path, clock: FakeClock, once: Manifest
) -> None:
    agent, read = joined_agent(state, clock, once), []

    def reading(name: str) -> object:
        read.append(once.rounds.round_at(clock.now))
        return name

    for _ in range(40):
        agent.draw(only(agent), reading)
        clock.pass_time(DAY)
    assert tuple(read) == only(agent).drawn_rounds
    agent.store.close()


def test_silent_rounds_say_so(state: Path, clock: FakeClock, once: Manifest) -> None:
    agent = joined_agent(state, clock, once)
    drawn, states = only(agent).drawn_rounds or (), []
    for _ in range(40):
        agent.draw(only(agent), lambda _: "v07")
        states.append(due(only(agent), clock))
        clock.pass_time(DAY)
    expected = [
        Wait.DRAWN if n in drawn else Wait.NOT_DRAWN if n < drawn[-1] else Wait.ALL_PASSED
        for n in range(40)
    ]
    assert states == expected
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


def test_the_mark_knows_how_many_answers_are_used(
    state: Path, clock: FakeClock, once: Manifest
) -> None:
    agent = joined_agent(state, clock, once)
    draw_all(agent, clock)
    mark = highwater.read_mark(state / "highwater")
    assert mark is not None
    assert mark.participations[once.campaign].answers == 3
    agent.store.close()


def test_a_rolled_back_database_is_refused(state: Path, clock: FakeClock, once: Manifest) -> None:
    """The copy from before an answer would give it again."""
    agent = joined_agent(state, clock, once)
    copy = as_killed(state, state.with_name("copy"))
    draw_all(agent, clock)
    agent.store.close()
    for name in ("state.db", "state.db-wal", "state.db-shm"):
        (state / name).unlink(missing_ok=True)
        if (copy / name).exists():
            (state / name).write_bytes((copy / name).read_bytes())
            (state / name).chmod(0o600)
    with pytest.raises(Exception, match="is an old copy: the device had come further"):
        joined_agent(state, clock)


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
