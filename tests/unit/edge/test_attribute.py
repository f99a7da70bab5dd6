"""R07: the attribute is uniform over all of them, drawn once, and never changes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from edge_client import EdgeClient
from edge_client.agent import Agent
from edge_client.errors import SettingsError
from edge_client.policy import Policy
from protocol_spec import Report, decode_report
from protocol_spec.topics import is_device
from tests.support.campaigns import manifest
from tests.support.edge import (
    FUEL,
    NOBODY,
    Connections,
    FakeClock,
    agree,
    daily,
    draw,
    joined_agent,
    no_entropy,
    only,
)
from tests.support.protocol.entropy import seeded
from tests.support.protocol.statistics import LIMIT, uniform_z


def attributes(count: int) -> str:
    return "".join(FUEL.replace("fuel", f"fuel{i}") for i in range(count))


@pytest.mark.parametrize("count", [2, 3, 7])
def test_the_attribute_is_uniform(state: Path, clock: FakeClock, count: int) -> None:
    """Chi-square over 350 devices; the seed is fixed."""
    seed = f"attribute {count}"
    connections = Connections()
    agent = joined_agent(state, clock, entropy=seeded(seed), connect=connections)
    campaign, drawn = daily(attributes=attributes(count)), Counter[int]()
    for _ in range(350):
        membership = agree(agent, campaign)
        drawn[membership.attribute_index] += 1
        connections.execute("DELETE FROM campaign")  # another device with other randomness
    assert uniform_z([drawn[i] for i in range(count)]) < LIMIT, f"seed {seed!r}: {drawn}"
    assert sum(drawn.values()) == 350
    agent.store.close()


def test_the_attribute_survives_restart_leaving_and_rejoining(
    state: Path, clock: FakeClock
) -> None:
    campaign = daily(attributes=attributes(64))
    agent = joined_agent(state, clock, campaign)
    first = only(agent)
    for seed in range(20):
        agent.store.close()
        agent = joined_agent(state, clock, entropy=seeded(str(seed)))
        agent.store.set_status(first.name, "left", 0)
        agree(agent, campaign)
        assert only(agent).attribute_index == first.attribute_index
        assert only(agent).device == first.device
    agent.store.close()


def test_joining_again_uses_no_randomness(agent: Agent, clock: FakeClock) -> None:
    silent = Agent(agent.store, Policy(), clock=clock, entropy=no_entropy)
    agree(silent, daily())


def test_joining_again_follows_the_campaign_to_another_broker(agent: Agent) -> None:
    agent.join(daily(), broker="mqtts://elsewhere.example:8883", namespace="other")
    moved = only(agent)
    assert (moved.broker, moved.namespace) == ("mqtts://elsewhere.example:8883", "other")
    assert moved.topics.report(moved.device).startswith("other/v1/")


def test_only_the_drawn_attribute_is_read(state: Path, clock: FakeClock) -> None:
    agent, asked = joined_agent(state, clock, daily(attributes=attributes(5))), []

    def read(attribute: str) -> str:
        asked.append(attribute)
        return "wood"

    agent.draw(only(agent), read)
    assert asked == [only(agent).attribute.name]
    agent.store.close()


def test_pseudonyms_are_device_names_and_differ(agent: Agent) -> None:
    names = {agent.pseudonym() for _ in range(200)}
    assert len(names) == 200
    assert all(is_device(name) and len(name) == 16 for name in names)


def test_pseudonyms_hold_80_random_bits(agent: Agent) -> None:
    """Each letter is uniform over 32: chi-square over 3200 letters."""
    seed = agent.store.directory.name
    letters = Counter("".join(agent.pseudonym() for _ in range(200)))
    assert len(letters) == 32
    assert uniform_z(list(letters.values())) < LIMIT, f"seed {seed!r}"


@pytest.mark.parametrize("device", ["Heater", "a/b", "a" * 33, "+", "ü", ""])
def test_a_user_name_that_is_no_device_name_is_refused(
    state: Path, clock: FakeClock, device: str
) -> None:
    agent = joined_agent(state, clock)
    with pytest.raises(SettingsError, match=r"invalid device name .* Nothing was drawn or sent"):
        agree(agent, daily(), device=device)
    assert agent.store.memberships() == []
    agent.store.close()


def test_an_attribute_shown_once_is_never_another(state: Path, clock: FakeClock) -> None:
    """I11, over restarts with fresh randomness and many rounds."""
    agent = joined_agent(state, clock, daily(attributes=attributes(16)))
    shown = set()
    for seed in range(10):
        report = decode_report(draw(agent).payload)
        assert isinstance(report, Report)
        shown.add(report.attribute)
        clock.pass_time(86_400)
        agent.store.close()
        agent = joined_agent(state, clock, entropy=seeded(f"life {seed}"))
    assert shown == {only(agent).attribute_index}
    agent.store.close()


def test_names_may_be_shortened_if_they_are_unique(tmp_path: Path) -> None:
    with EdgeClient(tmp_path / "s") as client:
        for slug in ("heat-east", "heat-west"):
            one = manifest(slug=slug)
            invitation = client.invitation(manifest=one, broker=NOBODY)
            client.join(invitation)
        assert client.find("heat-w").name.startswith("heat-west-")
        for name, said in (("heat", "could be several"), (None, "no name could be several")):
            with pytest.raises(LookupError, match=said):
                client.find(name)
