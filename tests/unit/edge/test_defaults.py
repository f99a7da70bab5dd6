"""P6: what a private person allows without having said anything, and how that became stricter."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from edge_client import EdgeClient
from edge_client.errors import PolicyRefusal
from edge_client.policy import Policy
from edge_client.sources import build
from edge_client.statement import budget_facts
from edge_client.text import budget_text
from tests.support.command_line import Cli
from tests.support.edge import (
    DAY,
    FUEL,
    FakeClock,
    agree,
    charge,
    daily,
    draw,
    draw_rounds,
    joined_agent,
    only,
    rows,
    way_manifest,
)

STOVE, OVEN, HEATER, FAN = (FUEL.replace("fuel", n) for n in ("stove", "oven", "heater", "fan"))


def test_the_defaults() -> None:
    """The numbers that docs/privacy.md argues for."""
    assert Policy() == Policy(
        max_eps_inf=2.0, lifetime_budget=4.0, max_values=1, min_period=3_600, total_budget=8.0
    )


def test_all_sources_together_have_a_limit(state: Path, clock: FakeClock) -> None:
    agent = joined_agent(state, clock, policy=Policy())
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
    agent.store.close()


def test_a_loss_of_unknown_size_counts_once_in_all(state: Path, clock: FakeClock) -> None:
    agent = joined_agent(state, clock, policy=Policy(lifetime_budget=20.0))
    charge(agent, "*", 6.5)
    with pytest.raises(PolicyRefusal, match=r"6\.5 of the total budget of 8"):
        agree(agent, daily())
    agent.store.close()


def test_a_new_value_beyond_the_total_is_frozen_not_silent(state: Path, clock: FakeClock) -> None:
    """The owner lowered the total after joining."""
    policy = Policy(max_values=3, lifetime_budget=6.0, total_budget=6.0)
    agent = joined_agent(state, clock, daily(max_values=3), policy=policy)
    agent.policy = replace(policy, total_budget=4.0)
    for value in ("wood", "gas", "oil"):
        draw_rounds(agent, clock, 1, value)
    assert agent.store.charged() == 4.0
    agent.store.close()


GENEROUS = {"eps_inf": 4.0, "max_values": 3, "period": 60, "grace": 60}


@pytest.mark.parametrize(
    "strict",
    [Policy(max_eps_inf=2.0), Policy(lifetime_budget=4.0 - 1e-6), Policy(min_period=3_600)],
)
def test_a_limit_that_the_owner_set_stops_also_what_was_joined(
    state: Path, clock: FakeClock, strict: Policy
) -> None:
    agent = joined_agent(state, clock, daily(**GENEROUS))
    agent.policy = strict
    with pytest.raises(PolicyRefusal):
        agent.draw(only(agent), lambda _: "wood")
    agent.store.close()


def test_the_owner_sees_what_is_used_and_promised(state: Path, clock: FakeClock, cli: Cli) -> None:
    agent = joined_agent(state, clock, policy=Policy())
    agree(agent, daily())
    draw(agent)
    agree(agent, way_manifest("hashed", attributes=STOVE))
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
