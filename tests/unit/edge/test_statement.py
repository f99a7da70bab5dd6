"""What the owner is shown: made by the code that sends, without any randomness, and exact."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_client import EdgeClient, Invitation, Policy
from edge_client.agent import Agent
from edge_client.explain import times
from edge_client.page import statement_page
from edge_client.statement import (
    NEVER_LEAVES,
    attribute_facts,
    campaign_facts,
    invitation_facts,
    joined_facts,
    ledger_facts,
    status_facts,
)
from edge_client.store import Store
from edge_client.text import campaign_text, invitation_text, joined_text, ledger_text, status_text
from protocol_spec import (
    LONGITUDINAL,
    Manifest,
    Randomiser,
    Reporting,
    lifetime_odds,
    make_report,
    report_odds,
)
from protocol_spec.mechanisms import MECHANISMS
from tests.support.campaigns import manifest_text
from tests.support.command_line import Cli
from tests.support.edge import (
    COLOUR,
    DAY,
    FUEL,
    NOBODY,
    ROOM,
    WARMTH,
    FakeClock,
    Joined,
    as_killed,
    colours,
    daily,
    draw,
    draw_rounds,
    many_values,
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
    joined: Joined, clock: FakeClock, tmp_path: Path
) -> None:
    agent = joined(daily(attributes=COLOUR))
    draw_rounds(agent, clock, 2, "c77")
    memo = agent.store.memos(only(agent).name)[77].body
    with opened(agent, clock, tmp_path / "copy") as client:
        facts = campaign_facts(client, client.find())
        page = re.sub("<[^>]*>", "", statement_page(client, client.memberships()))
    assert "last_value" not in facts
    assert memo.hex() not in (str(facts) + page).replace(" ", "")
    assert "c77" not in page


def test_the_ledger_shown_is_the_one_kept(joined: Joined, clock: FakeClock, tmp_path: Path) -> None:
    agent = joined(daily(max_values=2))
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
    joined: Joined, clock: FakeClock
) -> None:
    """R26: first, known, changed and frozen values look alike in size."""
    policy = Policy(max_values=2)
    agent = joined(daily(attributes=colours(70), max_values=2), policy=policy)
    values = ["c0", "c0", "c69", "c3", "c4", "c0", "c33"]
    assert len({len(draw_rounds(agent, clock, 1, value)[0]) for value in values}) == 1


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


# --- What the owner is told of each way of reporting, and what nobody else is told.


EVERY_WAY = pytest.mark.parametrize("reporting", MECHANISMS)


def invited(state: Path, clock: FakeClock, reporting: Reporting, **options: object) -> str:
    campaign = daily(reporting=reporting, **options)
    with EdgeClient(state, clock=clock) as client:
        invitation = client.invitation(manifest=campaign, broker="mqtts://b.example")
        return " ".join(invitation_text(invitation_facts(invitation, None)).split())


TOLD: dict[Reporting, tuple[str, ...]] = {
    "memoized": (
        "answers only that one, once every day, with noise",
        "Only the first value is ever answered for",
        "The total cost is at most epsilon 2: for the one value that is answered for",
    ),
    "once": (
        "in 3 of 365 rounds, drawn at random when you join, and is silent in others",
        "At most 3 reports ever leave, each about the value of its own round only.",
        "by at most 1.95, all together by at most 7.39",
        "cannot be read in a round that was drawn, it is answered for as “pump”",
        "at most epsilon 2: 0.666667 for each of at most 3 answers, however often",
    ),
    "hashed": (
        "divides the answers into two groups; only the group is reported",
        "see the pattern of its changes between the two groups, though not the values",
        "by at most 54.6 between histories with the same changes",
        "The total cost is at most epsilon 4: 2 for each of the two groups",
    ),
    "nested": (
        "by at most 1.82 if it is the first, by at most 7.39 if it is a late one",
        "The first reveals epsilon 0.6; a late report alone reveals as much as all before it",
        "Only the first value is ever answered for",
        "The total cost is at most epsilon 2: for the one value, all reports together",
    ),
}


@EVERY_WAY
def test_the_invitation_explains_the_way(
    state: Path, clock: FakeClock, reporting: Reporting
) -> None:
    text = invited(state, clock, reporting, each=3)
    for told in TOLD[reporting]:
        assert told in text, told
    for other, tellings in TOLD.items():
        assert other == reporting or not all(told in text for told in tellings)


def test_an_unreadable_value_of_open_ended_bins_is_a_bin_drawn_at_random(
    state: Path, clock: FakeClock
) -> None:
    text = invited(state, clock, "once", each=3, attributes=WARMTH)
    assert "it is answered for as one of the answers, drawn at random." in text


def test_odds_are_those_of_the_way() -> None:
    facts = {way: attribute_facts(daily(reporting=way), 0) for way in MECHANISMS}
    ways = {way: daily(reporting=way).mechanisms[0] for way in MECHANISMS}
    plain: tuple[Reporting, ...] = ("memoized", "once", "hashed")
    for way in plain:
        odds = report_odds(ways[way].calibration)
        assert times(odds.if_true) in facts[way]["one_report"]
        assert times(odds.if_false) in facts[way]["one_report"]
    first, last = ways["nested"].channels[0].exact.p1, lifetime_odds(ways["nested"].calibration)
    assert times(float(first)) in facts["nested"]["one_report"]
    assert times(last.if_true) in facts["nested"]["all_reports"]


@EVERY_WAY
def test_the_preview_of_every_mechanism_is_what_is_sent(
    joined: Joined, state: Path, clock: FakeClock, reporting: Reporting
) -> None:
    """All but the noise, with the padding and the level; and the page marks the noise alone."""
    campaign = daily(reporting=reporting, attributes=many_values(100) + FUEL, count=2, each=2)
    agent = joined(campaign)
    shown = attribute_facts(campaign, only(agent).attribute_index)
    sent = draw(agent, "wood").payload.hex(" ").split(" ")
    pairs = list(zip(shown["bytes"].split(" "), sent, strict=True))
    assert shown["length"] == len(sent)
    assert all(told in ("??", byte) for told, byte in pairs)
    noise = " ".join(byte for told, byte in pairs if told == "??")
    copy = as_killed(state, state.with_name("copy"))
    agent.store.close()
    with EdgeClient(copy, clock=clock, exclusive=False) as client:
        assert f"<b>{noise}</b>" in statement_page(client, client.memberships())


@EVERY_WAY
def test_what_was_spent_is_shown_exactly_with_its_bound(
    joined: Joined, state: Path, clock: FakeClock, reporting: Reporting
) -> None:
    campaign = daily(reporting=reporting, count=3, each=3, eps_1=0.6)
    agent = joined(campaign)
    nothing = shown_text(agent.store.directory, clock)
    first = campaign.eps_1 if reporting == "once" else campaign.eps_inf
    assert f"the first report books epsilon {first:g}." in nothing
    draw_rounds(agent, clock, 2)
    way = campaign.mechanisms[0]
    exact, bound = way.epsilon_after(2), campaign.lifetime_epsilon
    booked = 2 * campaign.eps_1 if reporting == "once" else campaign.eps_inf
    text = shown_text(agent.store.directory, clock)
    assert f"Revealed so far at most epsilon {exact:.4f}; booked {booked:g}, " in text
    assert f"The total cost is at most epsilon {bound:g}" in text
    if reporting == "hashed":  # status says the most it can be: how many groups were visited tells
        exact_or_more, booked_or_more = bound, bound
    else:
        exact_or_more, booked_or_more = exact, booked
    assert f"epsilon {exact_or_more:.4f} of {booked_or_more:g}, at most {bound:g} ever" in text
    with EdgeClient(state, clock=clock, exclusive=False) as client:
        html = statement_page(client, client.memberships())
    assert f'<span class="big">{exact:.4f}</span> of at most {booked:g}, in epsilon' in html
    assert f"The total cost is at most epsilon {bound:g}" in html
    assert f"{exact:.4f} after 2" in html, "and on the curve"


def shown_text(state: Path, clock: FakeClock) -> str:
    with EdgeClient(state, clock=clock, exclusive=False) as client:
        shown = campaign_text(campaign_facts(client, client.find()))
        return " ".join(f"{shown} {status_text(status_facts(client))}".split())


def test_hashed_reports_say_the_values_of_their_group(
    joined: Joined, state: Path, clock: FakeClock
) -> None:
    agent = joined(daily(reporting="hashed", attributes=many_values(16)))
    draw_rounds(agent, clock, 12, "v03")
    way, member = only(agent).mechanism, only(agent)
    with EdgeClient(state, clock=clock, exclusive=False) as client:
        rows = campaign_facts(client, client.find())["queued"]
    cells = [way.randomiser(member.device).key(i) for i in range(16)]
    groups = {cell: [f"v{i:02}" for i in range(16) if cells[i] == cell] for cell in (0, 1)}
    assert [row["says"] for row in rows] == [groups[int(row["bytes"][-2:], 16)] for row in rows]


def test_its_owner_sees_the_rounds_that_were_drawn(
    joined: Joined, state: Path, clock: FakeClock
) -> None:
    """They follow from no value, and whoever sees a report sees its round."""
    agent = joined(daily(reporting="once", count=365, each=2))
    one, two = only(agent).drawn_rounds or ()
    told = joined_text(joined_facts(only(agent)))
    assert f"Rounds drawn: {one} (20" in told
    assert f", {two} (20" in told
    assert f"Rounds drawn: {one} (20" in shown_text(state, clock)
    with EdgeClient(state, clock=clock, exclusive=False) as client:
        assert f"{one} (opens 20" in statement_page(client, client.memberships())


# --- a warning ------------------------------------------------------------------------------------


@pytest.mark.parametrize("attribute", [FUEL, FUEL + "changes = true\n", ROOM, WARMTH])
@EVERY_WAY
def test_memos_of_what_changes_are_warned_of(
    cli: Cli, state: Path, tmp_path: Path, reporting: Reporting, attribute: str
) -> None:
    warned = reporting in ("memoized", "nested") and attribute != FUEL
    asked = tmp_path / "asked.toml"
    asked.write_text(
        manifest_text(reporting=reporting, attributes=attribute, first=None), encoding="utf-8"
    )
    joined = cli("join", "--manifest", asked, "--broker", NOBODY, "--yes", "--state-dir", state)
    assert joined.exit_code == 0, joined.output
    # Once in what is read before agreeing, and once of the attribute that was drawn.
    assert joined.stdout.count("Warning: this is about something that changes") == 2 * warned
