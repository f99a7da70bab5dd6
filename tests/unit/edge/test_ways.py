"""The four ways of reporting, drawn by the agent: what is kept, sent and booked in each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_client.agent import Agent, ReadValue
from edge_client.errors import PolicyRefusal
from edge_client.policy import Policy
from edge_client.records import Memo, Queued
from protocol_spec import Rejected, Reporting, decode_report, report_fault
from tests.support.edge import (
    ALL_WAYS,
    DAY,
    FUELS,
    NOBODY,
    ROOM,
    WARMTH,
    WITH_MEMOS,
    FakeClock,
    agree,
    broken,
    draw,
    draw_rounds,
    joined_agent,
    ledger_of,
    many_values,
    memos_of,
    no_entropy,
    only,
    report_of,
    rows,
    way_manifest,
)

EVERY_WAY = pytest.mark.parametrize("reporting", ALL_WAYS)
EVERY_MEMO = pytest.mark.parametrize("reporting", WITH_MEMOS)


def raising(_attribute: str) -> object:
    """A source that is broken in its own way."""
    raise ZeroDivisionError


# --- every way -----------------------------------------------------------------------------------


@EVERY_WAY
def test_reports_belong_to_their_campaign_and_have_one_length(
    state: Path, reporting: Reporting
) -> None:
    """R26, whatever the attribute that was drawn: also the padding is as the manifest asks."""
    campaign = way_manifest(reporting, attributes=FUELS + many_values(), count=20, each=20)
    lengths = set()
    for number in range(6):
        clock = FakeClock()
        agent = joined_agent(state / str(number), clock, campaign)
        payloads = draw_rounds(agent, clock, 2, 3)
        lengths |= {len(payload) for payload in payloads}
        for payload in payloads:
            report = decode_report(payload)
            assert not isinstance(report, Rejected)
            assert report_fault(report, campaign) is None
            assert len(report.body) == campaign.body_bytes
        agent.store.close()
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
        assert list(memos_of(agent)) == [3]
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
@pytest.mark.parametrize("attribute", [FUELS, WARMTH, ROOM])
@pytest.mark.parametrize("read", [broken, raising, lambda _: object()])
def test_a_source_that_never_worked_is_answered_for(
    state: Path, clock: FakeClock, reporting: Reporting, attribute: str, read: ReadValue
) -> None:
    """P1: drawn, kept and charged as any value: else silence told that there is none."""
    agent = joined_agent(state, clock, way_manifest(reporting, attributes=attribute, count=1))
    assert isinstance(agent.draw(only(agent), read), Queued)
    assert ledger_of(agent) == [2.0]
    assert len(memos_of(agent)) == (0 if reporting == "once" else 1)
    if reporting in ("memoized", "nested") and attribute != WARMTH:
        assert list(memos_of(agent)) == [only(agent).attribute.k - 1]
    agent.store.close()


@EVERY_MEMO
@pytest.mark.parametrize("attribute", [FUELS, WARMTH, ROOM])
def test_a_source_that_fails_later_is_answered_for_from_the_last_memo(
    state: Path, clock: FakeClock, reporting: Reporting, attribute: str
) -> None:
    """Same cadence, same length, no flag, nothing charged."""
    agent = joined_agent(state, clock, way_manifest(reporting, attributes=attribute))
    (first,) = draw_rounds(agent, clock, 1, 15)
    before, last = memos_of(agent), only(agent).last_value
    drawn = agent.draw(only(agent), broken)
    assert isinstance(drawn, Queued)
    assert len(drawn.payload) == len(first)
    assert last is not None
    assert only(agent).last_value == last
    assert memos_of(agent) == {last: Memo(last, before[last].body, 2)}
    assert ledger_of(agent) == [2.0]
    agent.store.close()


@EVERY_WAY
def test_budgets_are_asked_for_the_whole_campaign(
    state: Path, clock: FakeClock, reporting: Reporting
) -> None:
    campaign = way_manifest(reporting, max_values=3)
    most = {"memoized": 6.0, "once": 2.0, "hashed": 4.0, "nested": 2.0}[reporting]
    assert campaign.lifetime_epsilon == most
    poor = joined_agent(state, clock, policy=Policy(lifetime_budget=most - 0.1, max_values=3))
    with pytest.raises(PolicyRefusal, match=f"needs {most:g} more of source 'fuel', and 0 of"):
        poor.join(campaign, broker=NOBODY, namespace="allomfree")
    poor.policy = Policy(lifetime_budget=most, max_values=3, total_budget=20.0)
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
    assert all(not rows(state)[name] for name in ("campaign", "memo", "drawn_round"))
    agree(agent, campaign)
    draw_rounds(agent, clock, 1)
    each = campaign.eps_1 if reporting == "once" else campaign.eps_inf
    assert ledger_of(agent) == [each, each]
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
        assert (
            told <= spent.exact <= spent.charged == pytest.approx(sum(ledger_of(agent)), abs=1e-12)
        )
        assert spent.charged <= campaign.lifetime_epsilon + 1e-12
        told = spent.exact
    assert told > 0
    agent.store.close()


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
        for cell, memo in memos_of(hashing).items():
            assert bodies.setdefault(cell, memo.body) == memo.body
    assert {c: m.reports for c, m in memos_of(hashing).items()} == Counter(cells)
    assert ledger_of(hashing) == [2.0, 2.0]
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
        agree(agent, campaign)
        clock.pass_time(DAY)
        draw_rounds(agent, clock, 1, "v07")
        expected = way.randomiser(only(agent).device).key(7)
        assert only(agent).last_value == expected
        seen.add(expected)
        agent.store.forget(only(agent), 0)
        agent.policy = Policy(lifetime_budget=100.0, total_budget=100.0)
    assert seen == {0, 1}
    agent.store.close()


def test_the_second_cell_is_not_frozen_by_what_other_campaigns_spend(
    state: Path, clock: FakeClock
) -> None:
    agent = joined_agent(state, clock, policy=Policy(lifetime_budget=6.0))
    hashed = way_manifest("hashed", attributes=many_values())
    agree(agent, hashed)
    greedy = way_manifest("memoized", attributes=many_values(), slug="greedy")
    agree(agent, greedy)
    again = way_manifest("nested", attributes=many_values(), slug="again")
    with pytest.raises(PolicyRefusal):
        agree(agent, again)
    for i in range(12):
        for campaign in (greedy, hashed):
            agent.draw(agent.membership(campaign.campaign), lambda _: f"v{i:02}")  # noqa: B023
        clock.pass_time(DAY)
    assert len(agent.store.memos(hashed.campaign)) == 2
    assert agent.store.charged("colour") == 6.0
    agent.store.close()


def test_a_budget_lowered_by_its_owner_freezes_without_silence(
    hashing: Agent, clock: FakeClock
) -> None:
    draw_rounds(hashing, clock, 1, "v07")
    hashing.policy = Policy(lifetime_budget=3.0)
    for i in range(12):
        draw_rounds(hashing, clock, 1, f"v{i:02}")
    assert len(memos_of(hashing)) == 1
    assert ledger_of(hashing) == [2.0]


# --- nested --------------------------------------------------------------------------------------


def test_all_levels_are_drawn_and_stored_at_once(state: Path, clock: FakeClock) -> None:
    campaign = way_manifest("nested", attributes=many_values())
    agent = joined_agent(state, clock, campaign)
    way, levels = campaign.ways[0], len(campaign.attributes[0].levels)
    size = way.answer_bytes - 1
    draw_rounds(agent, clock, 1, "v07")
    stored = memos_of(agent)[7].body
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
    assert ledger_of(agent) == [2.0]
    agent.store.close()


def test_a_changed_value_goes_on_with_the_first(state: Path, clock: FakeClock) -> None:
    agent = joined_agent(state, clock, way_manifest("nested", attributes=many_values()))
    draw_rounds(agent, clock, 1, "v07")
    draw_rounds(agent, clock, 2, "v09")
    assert {key: memo.reports for key, memo in memos_of(agent).items()} == {7: 3}
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
