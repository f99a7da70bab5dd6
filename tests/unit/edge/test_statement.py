"""What the owner is shown: made by the code that sends, without any randomness, and exact."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_client import EdgeClient, Invitation, Policy
from edge_client.agent import Agent
from edge_client.explain import times
from edge_client.statement import (
    NEVER_LEAVES,
    attribute_facts,
    campaign_facts,
    invitation_facts,
    ledger_facts,
    status_facts,
)
from edge_client.store import Store
from edge_client.text import campaign_text, invitation_text, ledger_text, status_text
from protocol_spec import LONGITUDINAL, Manifest, Randomiser, make_report, report_odds
from tests.support.edge import (
    COLOUR,
    DAY,
    FUEL,
    NOBODY,
    FakeClock,
    as_killed,
    colours,
    daily,
    draw,
    draw_rounds,
    joined_agent,
    no_entropy,
    only,
    rows,
)


@pytest.fixture
def onlooker(tmp_path: Path, clock: FakeClock) -> Iterator[EdgeClient]:
    """Somebody who reads an invitation; randomness would be an error."""
    with EdgeClient(tmp_path / "onlooker", clock=clock, entropy=no_entropy) as client:
        yield client


def invite(client: EdgeClient, manifest: Manifest) -> Invitation:
    return client.invitation(manifest=manifest, broker="mqtts://b.example")


def test_the_preview_draws_no_randomness_and_writes_nothing(onlooker: EdgeClient) -> None:
    before = rows(onlooker.store.directory)
    facts = invitation_facts(invite(onlooker, daily(attributes=FUEL + COLOUR)), None)
    assert invitation_text(facts)
    assert rows(onlooker.store.directory) == before


def test_the_preview_tells_who_what_where_and_until_when(onlooker: EdgeClient) -> None:
    campaign = daily(eps_inf=2.0, eps_1=0.6)
    facts = invitation_facts(invite(onlooker, campaign), "heater")
    text = invitation_text(facts)
    for told in (
        campaign.title,
        campaign.purpose,
        campaign.owner,
        campaign.contact,
        campaign.campaign,
        "365, one every day",
        "2027-01-15T08:00:00Z",
        "What heats your home?",
        "wood, gas, oil, pump",
        "mqtts://b.example:8883",
        f"allomfree/v1/{campaign.campaign}/up/heater/report",
        *NEVER_LEAVES[:2],
    ):
        assert told in " ".join(text.split()), told


def test_odds_are_computed_from_the_noise(onlooker: EdgeClient) -> None:
    campaign = daily()
    odds = report_odds(campaign.calibrations[0])
    sentence = attribute_facts(campaign, 0)["one_report"]
    assert f"says “wood” {times(odds.if_true)}; if it were something else" in sentence
    assert f"({100 * odds.if_true:.2g}\u00a0%)" in sentence
    assert f"still {times(odds.if_false)}." in sentence


@pytest.mark.parametrize("attribute", [FUEL, colours(9), COLOUR])
def test_the_bytes_of_the_preview_are_those_that_are_sent(
    state: Path, clock: FakeClock, onlooker: EdgeClient, attribute: str
) -> None:
    """All but the noise, of the first round."""
    campaign = daily(attributes=attribute)
    (shown,) = invitation_facts(invite(onlooker, campaign), None)["attributes"]
    agent = joined_agent(state, clock, campaign)
    sent = draw(agent, campaign.attributes[0].values[0]).payload.hex(" ").split(" ")
    pairs = list(zip(shown["bytes"].split(" "), sent, strict=True))
    noise = campaign.body_formats[0].length
    assert shown["length"] == len(sent)
    assert all(told == byte for told, byte in pairs[:-noise])
    assert all(told == "??" for told, _ in pairs[-noise:])
    agent.store.close()


def opened(agent: Agent, clock: FakeClock, copy: Path) -> EdgeClient:
    """The owner's `show`, on a copy: it may not draw either."""
    directory = as_killed(agent.store.directory, copy)
    return EdgeClient(directory, clock=clock, entropy=no_entropy, exclusive=False)


def test_show_tells_exactly_the_bytes_and_what_they_say(
    agent: Agent, clock: FakeClock, tmp_path: Path
) -> None:
    payloads = draw_rounds(agent, clock, 3)
    agent.store.finish(only(agent).name, {0: "counted", 1: "missed"})
    with opened(agent, clock, tmp_path / "copy") as client:
        facts = campaign_facts(client, client.find())
    assert [row["bytes"] for row in facts["queued"]] == [payloads[2].hex(" ")]
    assert [row["bytes"] for row in facts["sent"]] == [p.hex(" ") for p in payloads[:2]]
    assert [row["fate"] for row in facts["sent"]] == ["counted", "missed"]
    values = only(agent).attribute.values
    for row, payload in zip(facts["sent"] + facts["queued"], payloads):
        assert row["says"] == [values[payload[-1]]]
    text = campaign_text(facts)
    assert all(payload.hex(" ") in text for payload in payloads)


def test_show_never_tells_the_true_value_or_the_memo(
    state: Path, clock: FakeClock, tmp_path: Path
) -> None:
    agent = joined_agent(state, clock, daily(attributes=COLOUR))
    draw_rounds(agent, clock, 2, "c77")
    memo = agent.store.memos(only(agent).name)[77].body
    with opened(agent, clock, tmp_path / "copy") as client:
        facts = campaign_facts(client, client.find())
    assert "last_value" not in facts
    assert memo.hex() not in str(facts).replace(" ", "")
    agent.store.close()


def test_the_ledger_shown_is_the_one_kept(state: Path, clock: FakeClock, tmp_path: Path) -> None:
    agent = joined_agent(state, clock, daily(max_values=2))
    draw_rounds(agent, clock, 3, "wood")
    draw_rounds(agent, clock, 1, "gas")
    with opened(agent, clock, tmp_path / "copy") as client:
        facts, lines = campaign_facts(client, client.find()), ledger_facts(client)
        status = status_facts(client)
    assert (facts["memos"], facts["reports"], facts["epsilon_charged"]) == (2, 4, 4.0)
    assert 0 < facts["epsilon_exact"] < 4.0
    assert [line["epsilon"] for line in lines] == [2.0, 2.0]
    assert "memo drawn" in ledger_text(lines)
    assert status["campaigns"][0]["epsilon_exact"] == 4.0, "whatever the values were"
    assert "4 reports, 4 queued" in status_text(status)
    agent.store.close()


@pytest.mark.parametrize("protocol", LONGITUDINAL)
@pytest.mark.parametrize("k", [2, 9, 300])
def test_a_payload_has_the_same_length_for_every_value(protocol: str, k: int) -> None:
    """R26, for memos that are all bits set or none as well as for drawn ones."""
    text = colours(k).replace("L-OSUE", protocol)
    campaign = daily(attributes=text, eps_inf=2.0, eps_1=0.2)
    randomiser, lengths = Randomiser(campaign.calibrations[0]), set()
    for number in range(k):
        body = randomiser.report(randomiser.memoize(number))
        lengths.add(len(make_report(campaign, 5, 0, body).encode()))
    assert len(lengths) == 1


def test_the_agents_payload_has_the_same_length_whatever_happens(
    state: Path, clock: FakeClock
) -> None:
    """R26: first, known, changed and frozen values look alike in size."""
    policy = Policy(max_values=2)
    agent = joined_agent(state, clock, daily(attributes=colours(70), max_values=2), policy=policy)
    values = ["c0", "c0", "c69", "c3", "c4", "c0", "c33"]
    assert len({len(draw_rounds(agent, clock, 1, value)[0]) for value in values}) == 1
    agent.store.close()


def test_status_without_anything(tmp_path: Path) -> None:
    Store(tmp_path / "empty", exclusive=True).close()
    with EdgeClient(tmp_path / "empty", exclusive=False) as client:
        facts = status_facts(client)
        assert (facts["agent"], facts["pid"], facts["campaigns"]) == ("not running", None, [])
        assert "join" in status_text(facts)
        assert "nothing was ever charged" in ledger_text(ledger_facts(client))


def test_why_nothing_is_due_is_told(agent: Agent, clock: FakeClock, tmp_path: Path) -> None:
    draw(agent)
    clock.set_forward(5 * DAY)
    with opened(agent, clock, tmp_path / "copy") as client:
        assert "the clock ran ahead" in status_text(status_facts(client))
        client.pause()
        assert "paused by you" in status_text(status_facts(client))
    assert only(agent).broker == NOBODY
