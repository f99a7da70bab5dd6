"""The four ways of reporting, drawn by the agent: what is kept, sent and booked in each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from edge_client.agent import Agent, Wait, due
from edge_client.client import EdgeClient, accept_loss
from edge_client.errors import PolicyRefusal, SourceFailure
from edge_client.policy import Policy
from edge_client.records import Membership, Memo, Queued
from edge_client.store import highwater
from protocol_spec import Manifest, Rejected, Report, Reporting, decode_report, report_fault
from tests.support.edge_fakes import (
    DAY,
    NOBODY,
    FakeClock,
    as_killed,
    draw,
    draw_rounds,
    joined_agent,
    no_entropy,
    only,
    rows,
)
from tests.support.edge_ways import (
    ALL_WAYS,
    FUELS,
    ROOM,
    WARMTH,
    WITH_MEMOS,
    many_values,
    way_manifest,
)

EVERY_WAY = pytest.mark.parametrize("reporting", ALL_WAYS)
EVERY_MEMO = pytest.mark.parametrize("reporting", WITH_MEMOS)


def memos(agent: Agent) -> dict[int, Memo]:
    return agent.store.memos.of(only(agent).name)


def ledger(agent: Agent) -> list[float]:
    return [line.epsilon for line in agent.store.ledger.lines()]


def report_of(row: Queued) -> Report:
    report = decode_report(row.payload)
    assert not isinstance(report, Rejected)
    return report


def draw_all(agent: Agent, clock: FakeClock, value: object = "wood") -> list[Queued]:
    """Every report that leaves from now to the campaign's end."""
    found: list[Queued] = []
    while clock.now < only(agent).manifest.rounds.end:
        drawn = agent.draw(only(agent), lambda _: value)
        found += [drawn] if isinstance(drawn, Queued) else []
        clock.pass_time(DAY)
    return found


def broken(_attribute: str) -> object:
    raise SourceFailure("the sensor is gone; nothing was drawn or sent")


# --- every way -----------------------------------------------------------------------------------


@EVERY_WAY
def test_reports_belong_to_their_campaign_and_have_one_length(
    state: Path, clock: FakeClock, reporting: Reporting
) -> None:
    """R26, whatever the attribute that was drawn: also the padding is as the manifest asks."""
    campaign = way_manifest(reporting, attributes=FUELS + many_values(), count=20, each=20)
    lengths = set()
    for number in range(6):
        agent = joined_agent(state / str(number), clock, campaign)
        payloads = draw_rounds(agent, clock, 2, 3)
        lengths |= {len(payload) for payload in payloads}
        for payload in payloads:
            report = decode_report(payload)
            assert not isinstance(report, Rejected)
            assert report_fault(report, campaign) is None
            assert (report.version, len(report.body)) == (2, campaign.body_bytes)
        agent.store.close()
        clock.__init__()  # type: ignore[misc]
    assert len(lengths) == 1


@EVERY_WAY
@pytest.mark.parametrize("value", ["coal", "", None, 3, True, object()])
def test_a_value_outside_the_domain_is_answered_with_the_last(
    state: Path, clock: FakeClock, reporting: Reporting, value: object
) -> None:
    campaign = way_manifest(reporting, count=1)
    agent = joined_agent(state, clock, campaign)
    draw(agent, value)
    if reporting in ("memoized", "nested"):
        assert list(memos(agent)) == [3]
    agent.store.close()


@EVERY_WAY
@pytest.mark.parametrize("value", [19.0, 22.5, "warm", None, float("nan")])
def test_a_number_outside_finite_bins_is_answered_as_well(
    state: Path, clock: FakeClock, reporting: Reporting, value: object
) -> None:
    """Issue 13, P1: with edges 20, 21, 22 silence told whether the room was at 20 to 22 °C."""
    agent = joined_agent(state, clock, way_manifest(reporting, attributes=ROOM, count=1))
    draw(agent, value)
    agent.store.close()


@EVERY_WAY
def test_nothing_is_drawn_without_a_usable_value_at_first(
    state: Path, clock: FakeClock, reporting: Reporting
) -> None:
    """A source that never worked: one text, whatever is wrong with it. The round is not lost."""
    agent = joined_agent(state, clock, way_manifest(reporting, attributes=WARMTH, count=1))
    before, said = rows(state), set()
    for read in (broken, lambda _: "warm", lambda _: None):
        silent = Agent(agent.store, Policy(), clock=clock, entropy=no_entropy)
        with pytest.raises(SourceFailure, match="nothing was drawn or sent") as refused:
            silent.draw(only(silent), read)
        said.add(str(refused.value))
    assert len(said) == 1
    assert rows(state) == before
    draw(agent, 15)
    agent.store.close()


@EVERY_MEMO
@pytest.mark.parametrize("attribute", [FUELS, WARMTH, ROOM])
def test_a_source_that_fails_later_is_answered_for_from_the_last_memo(
    state: Path, clock: FakeClock, reporting: Reporting, attribute: str
) -> None:
    """Same cadence, same length, no flag, nothing charged."""
    agent = joined_agent(state, clock, way_manifest(reporting, attributes=attribute))
    (first,) = draw_rounds(agent, clock, 1, 15)
    before, last = memos(agent), only(agent).last_value
    drawn = agent.draw(only(agent), broken)
    assert isinstance(drawn, Queued)
    assert len(drawn.payload) == len(first)
    assert last is not None
    assert only(agent).last_value == last
    assert memos(agent) == {last: Memo(last, before[last].body, 2)}
    assert ledger(agent) == [2.0]
    agent.store.close()


@EVERY_WAY
def test_budgets_are_asked_for_the_whole_campaign(
    state: Path, clock: FakeClock, reporting: Reporting
) -> None:
    campaign = way_manifest(reporting, max_values=3)
    most = {"memoized": 6.0, "once": 2.0, "hashed": 4.0, "nested": 2.0}[reporting]
    assert campaign.lifetime_epsilon == most
    poor = joined_agent(state, clock, policy=Policy(lifetime_budget=most - 0.1))
    with pytest.raises(PolicyRefusal, match=f"needs {most:g} more of source 'fuel', and 0 of"):
        poor.join(campaign, broker=NOBODY, namespace="allomfree")
    poor.policy = Policy(lifetime_budget=most)
    poor.join(campaign, broker=NOBODY, namespace="allomfree")
    # What is promised to one campaign is not there for another, though nothing is spent yet.
    with pytest.raises(PolicyRefusal, match=f"{most:g} of its lifetime budget of"):
        poor.join(way_manifest("once", slug="other"), broker=NOBODY, namespace="allomfree")
    poor.join(campaign, broker=NOBODY, namespace="allomfree")  # again: costs nothing more
    clock.now = campaign.expires
    other = way_manifest("once", slug="other", first=campaign.expires)
    poor.join(other, broker=NOBODY, namespace="allomfree")
    poor.store.close()


@EVERY_WAY
def test_forgetting_and_joining_again_is_charged_again(
    state: Path, clock: FakeClock, reporting: Reporting
) -> None:
    campaign = way_manifest(reporting, count=4, each=4)
    agent = joined_agent(state, clock, campaign)
    draw_rounds(agent, clock, 1)
    agent.store.forget(only(agent), 0)
    assert all(not rows(state)[name] for name in ("campaign", "memo", "drawn_round", "answered"))
    agent.join(campaign, broker=NOBODY, namespace="allomfree")
    draw_rounds(agent, clock, 1)
    each = campaign.eps_1 if reporting == "once" else campaign.eps_inf
    assert ledger(agent) == [each, each]
    agent.store.close()


@EVERY_WAY
def test_the_ledger_is_never_below_the_exact_loss_nor_above_the_bound(
    state: Path, clock: FakeClock, reporting: Reporting
) -> None:
    campaign = way_manifest(reporting, count=12, each=5, max_values=3)
    agent = joined_agent(state, clock, campaign)
    told = 0.0
    for i in range(12):
        agent.draw(only(agent), lambda _: ("wood", "gas", "oil", "coal")[i % 4])  # noqa: B023
        clock.pass_time(DAY)
        spent = agent.store.spent(only(agent))
        assert told <= spent.exact <= spent.charged == pytest.approx(sum(ledger(agent)), abs=1e-12)
        assert spent.charged <= campaign.lifetime_epsilon + 1e-12
        told = spent.exact
    assert told > 0
    agent.store.close()


# --- once ----------------------------------------------------------------------------------------


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
    assert ledger(agent) == [once.eps_1] * 3
    assert agent.store.spent(only(agent)).exact == once.eps_inf
    assert memos(agent) == {}
    assert only(agent).last_value is None, "nothing about the value is kept"
    agent.store.close()


def test_the_value_of_that_round_is_answered(state: Path, clock: FakeClock) -> None:
    """With next to no noise, the answer is the value read in the round, not an earlier one."""
    campaign = way_manifest("once", count=2, each=2, eps_inf=20.0)
    agent = joined_agent(state, clock, campaign, policy=Policy(20.0, 20.0))
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
    agent.store.campaigns.set_status(only(agent).name, "left", 0)
    agent.join(once, broker=NOBODY, namespace="allomfree")
    assert only(agent).drawn_rounds == drawn
    agent.store.close()
    with closing(joined_agent(state, clock, once).store) as store:
        assert store.campaigns.all()[0].drawn_rounds == drawn


def test_a_second_process_that_joins_meanwhile_draws_no_more(
    state: Path, clock: FakeClock, once: Manifest
) -> None:
    agent = joined_agent(state, clock, once)
    drawn = only(agent).drawn_rounds
    shown = highwater.Participation("other", 0, -1)
    agent.store.campaigns.join(
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
    while len(agent.store.outbox.rows(before.name)) < answered:
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
    assert agent.store.ledger.charged("colour") <= once.eps_inf + 1e-12
    assert agent.store.spent(only(agent)).exact <= once.eps_inf
    agent.store.close()


def test_the_mark_knows_how_many_answers_are_used(
    state: Path, clock: FakeClock, once: Manifest
) -> None:
    agent = joined_agent(state, clock, once)
    draw_all(agent, clock)
    mark = highwater.read(state / "highwater")
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
    """Answered as "none of these" where there is such a value; silent, and tried again, if not."""
    covered = joined_agent(
        state / "a",
        clock,
        way_manifest("once", count=1, eps_inf=20.0, attributes=ROOM),
        policy=Policy(20.0, 20.0),
    )
    drawn = covered.draw(only(covered), broken)
    assert isinstance(drawn, Queued)
    assert report_of(drawn).body == bytes([2])
    covered.store.close()
    endless = joined_agent(state / "b", clock, way_manifest("once", count=1, attributes=WARMTH))
    with pytest.raises(SourceFailure):
        endless.draw(only(endless), broken)
    draw(endless, 15)
    endless.store.close()


def test_report_of_a_silent_round_is_not_that_of_an_earlier_one(
    state: Path, clock: FakeClock
) -> None:
    campaign = way_manifest("once", count=30)
    with EdgeClient(state, clock=clock) as client:
        client.join(client.invitation(manifest=campaign, broker=NOBODY))
        (drawn,) = client.find().drawn_rounds or ()
        clock.pass_time(drawn * DAY)
        assert isinstance(client.agent.draw(client.find(), lambda _: "wood"), Queued)
        client.store.outbox.finish(campaign.campaign, {drawn: "counted"})
        (same,) = client.report({"fuel": "wood"}, timeout=0.0)
        clock.pass_time(DAY)
        (later,) = client.report({"fuel": "wood"}, timeout=0.0)
    assert (same.round, same.text) == (drawn, "counted")
    assert later.round is None
    assert later.text in (Wait.ALL_PASSED, Wait.OVER)


# --- hashed --------------------------------------------------------------------------------------


@pytest.fixture
def hashing(state: Path, clock: FakeClock) -> Iterator[Agent]:
    agent = joined_agent(state, clock, way_manifest("hashed", attributes=many_values()))
    yield agent
    agent.store.close()


def test_there_is_a_memo_for_each_visited_cell_and_no_more(
    hashing: Agent, clock: FakeClock
) -> None:
    way, device = only(hashing).manifest.ways[0], only(hashing).device
    cells = [way.randomiser(device).key(i) for i in range(64)]
    bodies: dict[int, bytes] = {}
    for i in range(64):
        draw_rounds(hashing, clock, 1, f"v{i:02}")
        assert only(hashing).last_value == cells[i], "the cell is kept, not the value"
        for cell, memo in memos(hashing).items():
            assert bodies.setdefault(cell, memo.body) == memo.body
    assert {c: m.reports for c, m in memos(hashing).items()} == Counter(cells)
    assert ledger(hashing) == [2.0, 2.0]
    assert hashing.store.spent(only(hashing)).charged == only(hashing).manifest.lifetime_epsilon


def test_a_report_is_one_byte_of_answer(hashing: Agent, clock: FakeClock) -> None:
    said = {payload[-1] for payload in draw_rounds(hashing, clock, 40, "v07")}
    assert said == {0, 1}
    assert only(hashing).manifest.body_bytes == 1


def test_another_name_has_another_code(state: Path, clock: FakeClock) -> None:
    """A rejoin under another name after `forget` must not draw with the old name's code."""
    campaign = way_manifest("hashed", attributes=many_values())
    agent = joined_agent(state, clock, campaign)
    draw_rounds(agent, clock, 1, "v07")
    agent.store.forget(only(agent), 0)
    way, seen = campaign.ways[0], set()
    for _ in range(8):
        agent.join(campaign, broker=NOBODY, namespace="allomfree")
        clock.pass_time(DAY)
        draw_rounds(agent, clock, 1, "v07")
        expected = way.randomiser(only(agent).device).key(7)
        assert only(agent).last_value == expected
        seen.add(expected)
        agent.store.forget(only(agent), 0)
        agent.policy = Policy(lifetime_budget=100.0)
    assert seen == {0, 1}
    agent.store.close()


def test_the_second_cell_is_not_frozen_by_what_other_campaigns_spend(
    state: Path, clock: FakeClock
) -> None:
    agent = joined_agent(state, clock, policy=Policy(lifetime_budget=6.0))
    hashed = way_manifest("hashed", attributes=many_values())
    agent.join(hashed, broker=NOBODY, namespace="allomfree")
    greedy = way_manifest("memoized", attributes=many_values(), slug="greedy")
    agent.join(greedy, broker=NOBODY, namespace="allomfree")
    again = way_manifest("nested", attributes=many_values(), slug="again")
    with pytest.raises(PolicyRefusal):
        agent.join(again, broker=NOBODY, namespace="allomfree")
    for i in range(12):
        for campaign in (greedy, hashed):
            agent.draw(agent.membership(campaign.campaign), lambda _: f"v{i:02}")  # noqa: B023
        clock.pass_time(DAY)
    assert len(agent.store.memos.of(hashed.campaign)) == 2
    assert agent.store.ledger.charged("colour") == 6.0
    agent.store.close()


def test_a_budget_lowered_by_its_owner_freezes_without_silence(
    hashing: Agent, clock: FakeClock
) -> None:
    draw_rounds(hashing, clock, 1, "v07")
    hashing.policy = Policy(lifetime_budget=3.0)
    for i in range(12):
        draw_rounds(hashing, clock, 1, f"v{i:02}")
    assert len(memos(hashing)) == 1
    assert ledger(hashing) == [2.0]


# --- nested --------------------------------------------------------------------------------------


def test_all_levels_are_drawn_and_stored_at_once(state: Path, clock: FakeClock) -> None:
    campaign = way_manifest("nested", attributes=many_values())
    agent = joined_agent(state, clock, campaign)
    way, levels = campaign.ways[0], len(campaign.attributes[0].levels)
    size = way.answer_bytes - 1
    draw_rounds(agent, clock, 1, "v07")
    stored = memos(agent)[7].body
    assert len(stored) == size * levels
    agent.store.close()
    agent = joined_agent(state, clock, entropy=no_entropy)  # nothing more is drawn, ever
    for j in range(2, levels + 4):
        report, level = report_of(draw(agent, "v07")), min(j, levels)
        assert report.body == bytes([level]) + stored[size * (level - 1) : size * level]
        spent = agent.store.spent(only(agent))
        assert spent.exact == campaign.attributes[0].levels[level - 1]
        assert spent.charged == campaign.eps_inf
        clock.pass_time(DAY)
    assert ledger(agent) == [2.0]
    agent.store.close()


def test_a_changed_value_goes_on_with_the_first(state: Path, clock: FakeClock) -> None:
    agent = joined_agent(state, clock, way_manifest("nested", attributes=many_values()))
    draw_rounds(agent, clock, 1, "v07")
    draw_rounds(agent, clock, 2, "v09")
    assert {key: memo.reports for key, memo in memos(agent).items()} == {7: 3}
    agent.store.close()


def test_missed_rounds_do_not_skip_levels(state: Path, clock: FakeClock) -> None:
    """The j-th report of the device, not of the campaign."""
    agent = joined_agent(state, clock, way_manifest("nested"))
    levels = []
    for _ in range(3):
        levels.append(report_of(draw(agent)).body[0])
        clock.pass_time(5 * DAY)
    assert levels == [1, 2, 3]
    agent.store.close()
