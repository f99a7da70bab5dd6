"""The owner's limits: where exactly each one lies, and how its table is read."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from edge_client import EdgeClient
from edge_client.agent import Agent
from edge_client.errors import CampaignProblem, PolicyRefusal, SettingsError
from edge_client.policy import Operator, Policy
from edge_client.sources import build
from edge_client.statement import budget_facts
from edge_client.text import budget_text
from tests.support.command_line import Cli
from tests.support.edge import (
    DAY,
    FIRST,
    FUEL,
    ROOMY,
    FakeClock,
    Joined,
    agree,
    charge,
    daily,
    draw,
    draw_rounds,
    no_entropy,
    only,
    rows,
)


def refusal(policy: Policy, **options: Any) -> str | None:
    """The limit that a campaign is refused for, or None."""
    try:
        policy.check(daily(**options))
    except PolicyRefusal as refused:
        return str(refused).partition("change policy.")[2].split(" ")[0]
    return None


@pytest.mark.parametrize(
    ("policy", "options", "limit"),
    [
        (Policy(max_eps_inf=2.0), {"eps_inf": 2.0}, None),
        (Policy(max_eps_inf=2.0), {"eps_inf": math.nextafter(2.0, 3.0)}, "max_eps_inf"),
        (Policy(max_eps_inf=0.0), {"eps_inf": 0.5, "eps_1": 0.1}, "max_eps_inf"),
        (Policy(max_eps_inf=math.inf), {"eps_inf": 20.0}, None),
        (Policy(max_values=2), {"max_values": 2}, None),
        (Policy(max_values=2), {"max_values": 3}, "max_values"),
        (Policy(min_period=DAY), {"period": DAY}, None),
        (Policy(min_period=DAY), {"period": DAY - 1}, "min_period"),
        (Policy(campaigns=("test-*",)), {}, None),
        (Policy(campaigns=(daily().campaign,)), {}, None),
        (Policy(campaigns=("test",)), {}, "campaigns"),
        (Policy(campaigns=("TEST-*",)), {}, "campaigns"),
        (Policy(campaigns=()), {}, "campaigns"),
        (Policy(sources=("fu*",)), {}, None),
        (Policy(sources=("fuel",)), {"attributes": FUEL + FUEL.replace("fuel", "x")}, "sources"),
        (Policy(sources=()), {}, "sources"),
        (Policy(), {"eps_inf": 2.0}, None),
        (Policy(), {"eps_inf": 2.5}, "max_eps_inf"),
        (Policy(), {"max_values": 2}, "max_values"),
        (Policy(), {"period": 3_600}, None),
        (Policy(), {"period": 3_599}, "min_period"),
    ],
)
def test_limits(policy: Policy, options: dict[str, Any], limit: str | None) -> None:
    assert refusal(policy, **options) == limit


@pytest.mark.parametrize(
    ("budget", "charged", "allowed"),
    [(2.0, 0.0, True), (2.0, 0.1, False), (6.0, 4.0, True), (6.0, 4.1, False), (1.9, 0.0, False)],
)
def test_the_lifetime_budget(budget: float, charged: float, allowed: bool) -> None:
    policy = Policy(lifetime_budget=budget)
    assert policy.allows_charge(daily().eps_inf, charged) is allowed
    if not allowed:
        with pytest.raises(PolicyRefusal, match="nothing was drawn, sent or spent"):
            policy.check_budget("test", "fuel", daily().eps_inf, charged)


def test_a_refusal_names_campaign_limit_numbers_and_remedy() -> None:
    with pytest.raises(PolicyRefusal) as refused:
        Policy(max_eps_inf=1.0).check(daily())
    assert str(refused.value) == (
        f"{daily().campaign} may reveal eps_inf = 2, more than 1. Refused by your policy; nothing "
        "was drawn, sent or spent. If you agree to it, change policy.max_eps_inf in the "
        "configuration file: max_eps_inf = 2.0, below [policy]"
    )


def test_every_limit_can_be_set() -> None:
    table = {
        "max_eps_inf": 1,
        "lifetime_budget": 2.5,
        "max_values": 2,
        "min_period": "6h",
        "campaigns": ["a-*"],
        "sources": ["fuel", "stove"],
        "operators": {"city": "07" * 32},
        "total_budget": 3,
    }
    assert table.keys() == {field.name for field in fields(Policy)}
    assert Policy.from_table(table) == Policy(
        1, 2.5, 2, 21_600, ("a-*",), ("fuel", "stove"), (Operator(b"\7" * 32, "city"),), 3
    )
    assert Policy.from_table({}) == Policy()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_eps_inf", "2"),
        ("max_eps_inf", -1),
        ("max_eps_inf", math.nan),
        ("max_eps_inf", True),
        ("lifetime_budget", [1]),
        ("max_values", 0),
        ("max_values", 1.5),
        ("min_period", "soon"),
        ("min_period", "6 h"),
        ("min_period", 1.5),
        ("min_period", -1),
        ("campaigns", "a-*"),
        ("sources", [1]),
        ("max_epsilon", 2),
        ("max_eps_1", 2),
    ],
)
def test_an_unusable_limit_is_an_error_never_ignored(name: str, value: object) -> None:
    with pytest.raises(SettingsError, match=f"policy.{name}"):
        Policy.from_table({name: value})


# --- P6: what a private person allows without having said anything, and how that became stricter.


STOVE, OVEN, HEATER, FAN = (FUEL.replace("fuel", n) for n in ("stove", "oven", "heater", "fan"))


def test_the_defaults() -> None:
    """The numbers that docs/privacy.md argues for."""
    assert Policy() == Policy(
        max_eps_inf=2.0, lifetime_budget=4.0, max_values=1, min_period=3_600, total_budget=8.0
    )


def test_all_sources_together_have_a_limit(joined: Joined, state: Path) -> None:
    agent = joined(policy=Policy())
    for name, attribute in {"a": FUEL, "b": STOVE, "c": OVEN, "d": HEATER}.items():
        agree(agent, daily(slug=name, attributes=attribute))  # 2 each, promised
    before = rows(state)
    with pytest.raises(
        PolicyRefusal, match=r"needs 2 more, and 8 of the total budget of 8 for all.*total_budget"
    ):
        agree(agent, daily(slug="e", attributes=FAN))
    assert rows(state) == before
    for membership in agent.store.memberships():
        agent.draw(membership, lambda _: "wood")  # each of them has what it was promised
    assert agent.store.charged() == 8.0


@pytest.mark.parametrize(
    ("budget", "lost", "told"),
    [(20.0, 6.5, r"6\.5 of the total budget of 8"), (5.0, 4.0, "4 of its lifetime budget of 5 is")],
)
def test_a_loss_of_unknown_size_counts_for_every_source_and_once_in_all(
    joined: Joined, budget: float, lost: float, told: str
) -> None:
    agent = joined(policy=Policy(lifetime_budget=budget))
    charge(agent, "*", lost)
    with pytest.raises(PolicyRefusal, match=told):
        agree(agent, daily())


def test_a_new_value_beyond_the_total_is_frozen_not_silent(
    joined: Joined, clock: FakeClock
) -> None:
    """The owner lowered the total after joining."""
    policy = Policy(max_values=3, lifetime_budget=6.0, total_budget=6.0)
    agent = joined(daily(max_values=3), policy=policy)
    agent.policy = replace(policy, total_budget=4.0)
    for value in ("wood", "gas", "oil"):
        draw_rounds(agent, clock, 1, value)
    assert agent.store.charged() == 4.0


GENEROUS = {"eps_inf": 4.0, "max_values": 3, "period": 60, "grace": 60}


def test_the_owner_sees_what_is_used_and_promised(
    joined: Joined, state: Path, clock: FakeClock, cli: Cli
) -> None:
    agent = joined(policy=Policy())
    agree(agent, daily())
    draw(agent)
    agree(agent, daily(reporting="hashed", attributes=STOVE))
    agent.store.close()
    with EdgeClient(state, clock=clock, exclusive=False) as client:
        facts = budget_facts(client)
    assert [(b["source"], b["used"], b["allowed"]) for b in facts] == [
        ("fuel", 2.0, 4.0),
        ("stove", 4.0, 4.0),
        ("*", 6.0, 8.0),
    ]
    assert " ".join(budget_text(facts).split()) == (
        "Used or promised, of what your policy allows: fuel 2 of 4, stove 4 of 4, all sources "
        "together 6 of 8."
    )
    assert "all sources" in cli("show", "--state-dir", state).stdout
    endless = Policy(total_budget=math.inf)
    with EdgeClient(state, clock=clock, policy=endless, exclusive=False) as client:
        assert budget_facts(client)[-1]["allowed"] is None
        json.dumps(budget_facts(client), allow_nan=False)
    clock.pass_time(DAY)


# --- what a command is given -------------------------------------------------------------------


def test_a_command_inherits_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the broker's password nor what the service manager gave this process."""
    secrets = ("ALLOMFREE_PASSWORD", "CREDENTIALS_DIRECTORY", "NOTIFY_SOCKET", "AWS_SECRET", "X")
    for name in secrets:
        monkeypatch.setenv(name, "hunter2")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.setenv("TZ", "UTC")
    text = str(build("fuel", {"kind": "command", "command": ["env"]}).read())
    names = {line.partition("=")[0] for line in text.splitlines()}
    assert "hunter2" not in text
    assert {"PATH", "LC_ALL", "TZ"} <= names
    assert names <= {"PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR"} | {
        name for name in names if name.startswith("LC_")
    }


def test_a_command_is_given_what_its_owner_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENSOR", "attic")
    table = {"kind": "command", "command": ["env"], "environment": ["SENSOR", "NOT_SET"]}
    text = str(build("fuel", table).read())
    assert "SENSOR=attic" in text
    assert "NOT_SET" not in text


@pytest.mark.parametrize("names", ["PATH", [1], ["ALLOMFREE_PASSWORD"]])
def test_a_wrong_list_of_variables_is_an_error(names: object) -> None:
    with pytest.raises(ValueError, match="environment"):
        build("fuel", {"kind": "command", "command": ["env"], "environment": names})


# --- R10: what the owner's policy forbids is refused before any draw, and no row is written.


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
    joined: Joined, state: Path, limit: str
) -> None:
    agent = joined(policy=TOO_STRICT[limit], entropy=no_entropy)
    before = files(state)
    with pytest.raises(PolicyRefusal) as refused:
        agree(agent, daily())
    assert files(state) == before
    assert f"policy.{limit}" in str(refused.value)
    assert "nothing was drawn, sent or spent" in str(refused.value)
    assert refused.value.exit_code == 3


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
    joined: Joined, state: Path
) -> None:
    """Else the attribute would not be uniform: those that are spent could not be drawn."""
    agent = joined(entropy=no_entropy)
    charge(agent, "stove", 11.0)
    before = files(state)
    campaign = daily(attributes=FUEL + FUEL.replace("fuel", "stove"))
    with pytest.raises(
        PolicyRefusal, match="source 'stove', and 11 of its lifetime budget of 12 is already used"
    ):
        agree(agent, campaign)
    assert files(state) == before


def test_going_on_with_a_memo_costs_no_budget(agent: Agent, clock: FakeClock) -> None:
    """A budget that is used up does not stop a campaign that is paid for."""
    draw(agent)
    spent = Agent(agent.store, Policy(lifetime_budget=2.0), clock=clock)
    spent.store.set_status(only(spent).name, "left", 0)
    agree(spent, daily())
    clock.pass_time(DAY)
    draw(spent)


@pytest.mark.parametrize("late", [0, 1, 10 * 365 * DAY])
def test_a_campaign_that_has_ended_is_refused(
    joined: Joined, state: Path, clock: FakeClock, late: int
) -> None:
    agent = joined(entropy=no_entropy)
    clock.now = FIRST + 366 * DAY + late
    before = files(state)
    with pytest.raises(CampaignProblem, match="has ended; nothing was drawn, sent or spent"):
        agree(agent, daily())
    assert files(state) == before


def test_a_campaign_that_was_never_joined_is_said_to_be_so(agent: Agent) -> None:
    with pytest.raises(CampaignProblem, match="has not joined other-00000000"):
        agent.membership("other-00000000")


def test_a_thousand_manifests_cause_no_draw(joined: Joined, state: Path, clock: FakeClock) -> None:
    """R12: asking whether one could join reads neither value nor randomness."""
    agent = joined(daily())
    draw(agent)
    before = files(state)
    silent = Agent(agent.store, ROOMY, clock=clock, entropy=no_entropy)
    for number in range(1000):
        silent.check(daily(slug=f"flood{number}", eps_inf=3.9))
    assert files(state) == before


def test_a_default_does_not_stop_what_was_joined(joined: Joined) -> None:
    """Only a limit that the owner set does; but nothing like it is joined any more."""
    agent = joined(daily(**GENEROUS))
    agent.policy = Policy()
    draw(agent)
    with pytest.raises(PolicyRefusal, match=r"policy\.max_eps_inf"):
        agree(agent, daily(slug="other", eps_inf=4.0))
