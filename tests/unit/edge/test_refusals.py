"""R10: what the owner's policy forbids is refused before any draw, and no row is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_client.agent import Agent
from edge_client.errors import CampaignProblem, EdgeError, PolicyRefusal
from edge_client.policy import Policy
from protocol_spec import Manifest
from tests.support.edge import (
    DAY,
    FIRST,
    FUEL,
    ROOMY,
    FakeClock,
    agree,
    charge,
    daily,
    draw,
    joined_agent,
    no_entropy,
    only,
    rows,
)

TOO_STRICT = {
    "max_eps_inf": Policy(max_eps_inf=1.9),
    "lifetime_budget": Policy(lifetime_budget=1.9),
    "min_period": Policy(min_period=DAY + 1),
    "campaigns": Policy(campaigns=("home-*", "work-*")),
    "sources": Policy(sources=("stove",)),
}


def files(state: Path) -> dict[str, bytes]:
    """Database, log and mark, byte for byte."""
    return {p.name: p.read_bytes() for p in state.iterdir() if p.name != "state.db-shm"}


@pytest.mark.parametrize("limit", TOO_STRICT)
def test_a_campaign_beyond_the_policy_leaves_no_trace(
    state: Path, clock: FakeClock, limit: str
) -> None:
    agent = joined_agent(state, clock, policy=TOO_STRICT[limit], entropy=no_entropy)
    before = files(state)
    with pytest.raises(PolicyRefusal) as refused:
        agree(agent, daily())
    assert files(state) == before
    assert f"policy.{limit}" in str(refused.value)
    assert "nothing was drawn, sent or spent" in str(refused.value)
    assert refused.value.exit_code == 3
    agent.store.close()


@pytest.mark.parametrize("limit", TOO_STRICT)
def test_a_policy_made_stricter_stops_the_draws(
    agent: Agent, state: Path, clock: FakeClock, limit: str
) -> None:
    """Joined under an easier policy, nothing drawn yet."""
    strict = Agent(agent.store, TOO_STRICT[limit], clock=clock, entropy=no_entropy)
    before = files(state)
    with pytest.raises(PolicyRefusal):
        strict.draw(only(strict), lambda _: "wood")
    assert files(state) == before


def test_one_attribute_that_cannot_be_afforded_refuses_the_campaign(
    state: Path, clock: FakeClock
) -> None:
    """Else the attribute would not be uniform: those that are spent could not be drawn."""
    agent = joined_agent(state, clock, entropy=no_entropy)
    charge(agent, "stove", 11.0)
    before = files(state)
    campaign = daily(attributes=FUEL + FUEL.replace("fuel", "stove"))
    with pytest.raises(
        PolicyRefusal, match="source 'stove', and 11 of its lifetime budget of 12 is already used"
    ):
        agree(agent, campaign)
    assert files(state) == before
    agent.store.close()


def test_a_loss_of_unknown_size_counts_for_every_source(state: Path, clock: FakeClock) -> None:
    agent = joined_agent(state, clock, policy=Policy(lifetime_budget=5.0))
    charge(agent, "*", 4.0)
    with pytest.raises(PolicyRefusal, match="4 of its lifetime budget of 5 is already used"):
        agree(agent, daily())
    agent.store.close()


def test_going_on_with_a_memo_costs_no_budget(agent: Agent, clock: FakeClock) -> None:
    """A budget that is used up does not stop a campaign that is paid for."""
    draw(agent)
    spent = Agent(agent.store, Policy(lifetime_budget=2.0), clock=clock)
    spent.store.set_status(only(spent).name, "left", 0)
    agree(spent, daily())
    clock.pass_time(DAY)
    draw(spent)


@pytest.mark.parametrize("late", [0, 1, 10 * 365 * DAY])
def test_a_campaign_that_has_ended_is_refused(state: Path, clock: FakeClock, late: int) -> None:
    agent = joined_agent(state, clock, entropy=no_entropy)
    clock.now = FIRST + 366 * DAY + late
    before = files(state)
    with pytest.raises(CampaignProblem, match="has ended; nothing was drawn, sent or spent"):
        agree(agent, daily())
    assert files(state) == before
    agent.store.close()


def test_a_campaign_that_was_never_joined_is_said_to_be_so(agent: Agent) -> None:
    with pytest.raises(CampaignProblem, match="has not joined other-00000000"):
        agent.membership("other-00000000")


def manifests() -> list[Manifest]:
    return [daily(slug=f"flood{i}", eps_inf=3.9) for i in range(1000)]


def test_a_thousand_manifests_cause_no_draw(state: Path, clock: FakeClock) -> None:
    """R12: asking whether one could join reads neither value nor randomness."""
    agent = joined_agent(state, clock, daily())
    draw(agent)
    before = files(state)
    silent = Agent(agent.store, ROOMY, clock=clock, entropy=no_entropy)
    for campaign in manifests():
        try:
            silent.check(campaign)
        except EdgeError as error:
            pytest.fail(str(error))
    assert files(state) == before
    agent.store.close()


def test_refusing_does_not_depend_on_the_order_of_rows(state: Path, clock: FakeClock) -> None:
    """A refused join in between leaves the joined campaigns as they are."""
    agent = joined_agent(state, clock, daily(), policy=Policy(max_eps_inf=3.0))
    draw(agent)
    before = rows(state)
    for _ in range(5):
        with pytest.raises(PolicyRefusal):
            agree(agent, daily(slug="greedy", eps_inf=3.5))
    assert rows(state) == before
    agent.store.close()
