"""R09: a new memo only for an unseen value; at the cap or the budget's end, the last one serves."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from edge_client.agent import Agent
from edge_client.errors import PolicyRefusal
from edge_client.policy import Policy
from edge_client.records import Memo
from protocol_spec import spending
from tests.support.edge import (
    COLOUR,
    DAY,
    FakeClock,
    agree,
    daily,
    draw,
    draw_rounds,
    joined_agent,
    only,
    rows,
)

TEMPERATURE = """[[attributes]]
name = "temperature"
question = "How warm?"
edges = [-inf, 10, 20, 30.5, inf]
unit = "°C"
"""


def memos(agent: Agent) -> dict[int, Memo]:
    return agent.store.memos(only(agent).name)


def test_the_memo_of_a_value_is_drawn_once(state: Path, clock: FakeClock) -> None:
    agent = joined_agent(state, clock, daily(attributes=COLOUR))
    draw_rounds(agent, clock, 1, "c3")
    body = memos(agent)[3].body
    draw_rounds(agent, clock, 20, "c3")
    assert memos(agent) == {3: Memo(3, body, 21)}
    assert [line.epsilon for line in agent.store.ledger()] == [2.0]
    agent.store.close()


def test_a_returning_value_finds_its_memo(state: Path, clock: FakeClock) -> None:
    agent = joined_agent(state, clock, daily(attributes=COLOUR, max_values=3))
    for value in ("c1", "c2", "c1", "c3", "c2", "c1"):
        draw_rounds(agent, clock, 1, value)
    assert {v: m.reports for v, m in memos(agent).items()} == {1: 3, 2: 2, 3: 1}
    assert agent.store.charged("colour") == 6.0
    agent.store.close()


@pytest.mark.parametrize(("cap", "policy_cap"), [(1, 9), (2, 9), (3, 3)])
def test_at_the_cap_the_last_memo_serves(
    state: Path, clock: FakeClock, cap: int, policy_cap: int
) -> None:
    """Same cadence, same length, no flag, nothing charged."""
    policy = Policy(max_values=policy_cap, lifetime_budget=100.0)
    campaign = daily(attributes=COLOUR, max_values=cap)
    agent = joined_agent(state, clock, campaign, policy=policy)
    lengths = {len(draw_rounds(agent, clock, 1, f"c{i}")[0]) for i in range(cap)}
    frozen, charged = memos(agent), agent.store.charged("colour")
    assert len(frozen) == cap
    for value in ("c100", "c101", "c102"):
        lengths.add(len(draw_rounds(agent, clock, 1, value)[0]))
        assert only(agent).last_value == cap - 1
    assert {v: m.body for v, m in memos(agent).items()} == {v: m.body for v, m in frozen.items()}
    assert memos(agent)[cap - 1].reports == 1 + 3
    assert agent.store.charged("colour") == charged == 2.0 * cap
    assert len(lengths) == 1
    agent.store.close()


def test_a_known_value_is_still_answered_for_at_the_cap(state: Path, clock: FakeClock) -> None:
    agent = joined_agent(state, clock, daily(attributes=COLOUR, max_values=2))
    for value in ("c0", "c1", "c2", "c0", "c3"):
        draw_rounds(agent, clock, 1, value)
    # c2 was answered from c1, the last one used; c3 from c0.
    assert {v: m.reports for v, m in memos(agent).items()} == {0: 3, 1: 2}
    agent.store.close()


def test_at_the_end_of_the_lifetime_budget_the_last_memo_serves(
    state: Path, clock: FakeClock
) -> None:
    """Lowered to 5 after joining, it pays for two memos of 2, though the campaign allows nine."""
    policy = Policy(max_values=9, lifetime_budget=18.0, total_budget=18.0)
    agent = joined_agent(state, clock, daily(attributes=COLOUR, max_values=9), policy=policy)
    agent.policy = replace(policy, lifetime_budget=5.0)
    for value in ("c0", "c1", "c2", "c3"):
        draw_rounds(agent, clock, 1, value)
    assert {v: m.reports for v, m in memos(agent).items()} == {0: 1, 1: 3}
    assert agent.store.charged("colour") == 4.0
    agent.store.close()


def test_the_lifetime_budget_counts_all_campaigns_of_a_source(
    state: Path, clock: FakeClock
) -> None:
    """A first memo is promised at joining; a budget that is lowered later stops the draw."""
    agent = joined_agent(state, clock, policy=Policy(lifetime_budget=6.0))
    for slug in ("one", "two", "three"):
        agree(agent, daily(slug=slug))
    with pytest.raises(PolicyRefusal, match="6 of its lifetime budget of 6 is already used or pr"):
        agree(agent, daily(slug="four"))
    one, two, three = agent.store.memberships()
    agent.draw(one, lambda _: "wood")
    agent.draw(two, lambda _: "wood")
    agent.policy = Policy(lifetime_budget=4.0)
    before = rows(state)
    with pytest.raises(PolicyRefusal, match="4 of its lifetime budget of 4 is already used"):
        agent.draw(three, lambda _: "wood")
    assert rows(state) == before
    agent.store.close()


def test_a_budget_reached_exactly_is_not_exceeded_by_rounding(
    state: Path, clock: FakeClock
) -> None:
    """Ten times 0.3 is 2.9999999999999996 in binary: the tenth campaign is still allowed."""
    agent = joined_agent(state, clock, policy=Policy(lifetime_budget=3.0))
    for i in range(10):
        agree(agent, daily(slug=f"s{i}", eps_inf=0.3, eps_1=0.1))
    for membership in agent.store.memberships():
        agent.draw(membership, lambda _: "wood")
    with pytest.raises(PolicyRefusal):
        agree(agent, daily(slug="s10", eps_inf=0.3, eps_1=0.1))
    agent.store.close()


def test_the_ledger_is_never_below_the_exact_loss(state: Path, clock: FakeClock) -> None:
    """I14 at every step, and the exact loss grows with the reports of each memo."""
    agent = joined_agent(state, clock, daily(attributes=COLOUR, max_values=3))
    exact = 0.0
    for value in ("c0", "c0", "c1", "c0", "c2", "c9", "c1"):
        draw_rounds(agent, clock, 1, value)
        spent = agent.store.spent(only(agent))
        assert exact < spent.exact <= spent.charged == agent.store.charged("colour")
        exact = spent.exact
    counts = [m.reports for m in memos(agent).values()]
    assert exact == spending(only(agent).calibration, counts).exact
    agent.store.close()


@pytest.mark.parametrize(
    ("reading", "place"),
    [(-40, 0), (9.99, 0), (10, 1), ("15.5", 1), (20.0, 2), (30.4, 2), (30.5, 3), (1e9, 3)],
)
def test_numbers_fall_into_their_bins(
    state: Path, clock: FakeClock, reading: object, place: int
) -> None:
    agent = joined_agent(state, clock, daily(attributes=TEMPERATURE))
    draw(agent, reading)
    assert list(memos(agent)) == [place]
    agent.store.close()


@pytest.mark.parametrize("reading", ["warm", float("nan"), None, "", [1]])
def test_what_is_no_number_is_a_bin_drawn_uniformly(tmp_path: Path, reading: object) -> None:
    """Bins from -inf to inf have no value for it; silence would tell that it is no number."""
    places: Counter[int] = Counter()
    for number in range(40):
        agent = joined_agent(tmp_path / str(number), FakeClock(), daily(attributes=TEMPERATURE))
        draw(agent, reading)
        places.update(list(memos(agent)))
        assert agent.store.charged("temperature") == 2.0
        agent.store.close()
    assert set(places) == {0, 1, 2, 3}


def test_the_memo_itself_never_leaves(state: Path, clock: FakeClock) -> None:
    """1024 bits agree by chance with a probability of nil."""
    agent = joined_agent(state, clock, daily(attributes=COLOUR))
    payloads = draw_rounds(agent, clock, 10, "c3")
    assert len(set(payloads)) == 10
    assert not any(memos(agent)[3].body in payload for payload in payloads)
    clock.pass_time(DAY)
    agent.store.close()
