"""P1: silence is no answer. What is sent, said and asked for does not depend on the value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from edge_client import EdgeClient
from edge_client.agent import Agent, silence_text, silent_about
from edge_client.errors import PolicyRefusal, SourceFailure
from edge_client.records import Queued
from protocol_spec import Manifest
from tests.support.campaigns import manifest_text
from tests.support.command_line import Cli
from tests.support.edge_fakes import (
    DAY,
    FUEL,
    NOBODY,
    FakeClock,
    daily,
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
    broken,
    ledger_of,
    memos_of,
    way_manifest,
)

Reading = Callable[[str], object]


def exploding(_attribute: str) -> object:
    raise ZeroDivisionError


USELESS: tuple[Reading, ...] = (broken, exploding, lambda _: "nonsense", lambda _: None)


@pytest.mark.parametrize("read", USELESS)
@pytest.mark.parametrize("attribute", [FUEL, ROOM, WARMTH])
def test_an_old_campaign_goes_on_from_its_last_memo(
    state: Path, clock: FakeClock, attribute: str, read: Reading
) -> None:
    """The attack of the issue: with edges 20, 21, 22, who was silent was out of that range."""
    agent = joined_agent(state, clock, daily(attributes=attribute))
    value = "wood" if attribute == FUEL else 21.5
    (first,) = draw_rounds(agent, clock, 1, value)
    before = memos_of(agent)
    drawn = agent.draw(only(agent), read)
    assert isinstance(drawn, Queued)
    assert len(drawn.payload) == len(first)
    (key,) = before
    assert memos_of(agent)[key].body == before[key].body
    assert memos_of(agent)[key].reports == 2
    assert ledger_of(agent) == [2.0]
    agent.store.close()


@pytest.mark.parametrize("read", USELESS)
def test_an_old_campaign_without_a_memo_says_one_thing_and_loses_no_round(
    agent: Agent, state: Path, clock: FakeClock, read: Reading
) -> None:
    """Its owner accepted that by name. What is said does not tell what is wrong."""
    before = rows(state)
    silent = Agent(agent.store, agent.policy, clock=clock, entropy=no_entropy)
    with pytest.raises(SourceFailure) as refused:
        silent.draw(only(silent), read)
    assert str(refused.value) == (
        "attribute 'fuel', which this device drew for life, has no usable value; nothing was drawn "
        "or sent. allomfree-edge doctor tells why"
    )
    assert rows(state) == before
    assert draw(agent).round == 0


@pytest.mark.parametrize(
    ("campaign", "names"),
    [
        (daily(), ["fuel"]),
        (daily(attributes=ROOM), ["room"]),
        (daily(attributes=ROOM.replace("[20, 21, 22]", "[-inf, 21, 22]")), ["room"]),
        (daily(attributes=WARMTH), []),
        (daily(attributes=WARMTH + FUEL), ["fuel"]),
        *((way_manifest(way, attributes=FUELS + ROOM + WARMTH), []) for way in ALL_WAYS),
    ],
)
def test_only_old_campaigns_that_miss_a_value_ask_for_consent(
    state: Path, clock: FakeClock, campaign: Manifest, names: list[str]
) -> None:
    assert silent_about(campaign) == names
    assert bool(silence_text(campaign)) is bool(names)
    agent = joined_agent(state, clock, entropy=no_entropy if names else None)
    if names:
        for accepted in (None, "", "*", "yes", campaign.campaign[:-1]):
            with pytest.raises(PolicyRefusal, match="nothing was drawn, sent or spent") as refused:
                agent.join(campaign, broker=NOBODY, namespace="allomfree", accept_silence=accepted)
            assert f"--accept-silence {campaign.campaign}" in str(refused.value)
            assert rows(state)["campaign"] == []
    else:
        agent.join(campaign, broker=NOBODY, namespace="allomfree")
    agent.store.close()


def test_a_campaign_already_joined_is_not_asked_about(agent: Agent, clock: FakeClock) -> None:
    draw(agent)
    agent.store.campaigns.set_status(only(agent).name, "left", 0)
    agent.join(daily(), broker=NOBODY, namespace="allomfree")
    clock.pass_time(DAY)
    draw(agent)


def test_the_command_line_refuses_before_it_asks(cli: Cli, state: Path, tmp_path: Path) -> None:
    asked = tmp_path / "asked.toml"
    asked.write_text(manifest_text(), encoding="utf-8")
    name = Manifest.from_file(asked).campaign
    words = ("join", "--manifest", asked, "--broker", NOBODY, "--state-dir", state)
    assert "What noise cannot hide: silence." in cli(*words, "--preview").stdout
    for more in ((), ("--yes",), ("--accept-silence", "another-1a2b3c4d")):
        result = cli(*words, *more, answer="y\n")
        assert result.exit_code == 3
        assert "Do you agree" not in result.stderr
        assert f"{name} was not joined; nothing was drawn, sent or spent." in result.stderr
        assert rows(state)["campaign"] == []
    assert cli(*words, "--yes", "--accept-silence", name).exit_code == 0


def test_the_python_interface_asks_as_well(state: Path) -> None:
    campaign = Manifest.from_toml(manifest_text())
    with EdgeClient(state) as client:
        invitation = client.invitation(manifest=campaign, broker=NOBODY)
        with pytest.raises(PolicyRefusal, match="--accept-silence"):
            client.join(invitation)
        client.join(invitation, accept_silence=campaign.campaign)
        client.join(invitation)
