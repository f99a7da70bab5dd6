"""What the owner is told of each way of reporting, and what nobody else is told."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_client import EdgeClient
from edge_client.errors import SourceFailure
from edge_client.explain import times
from edge_client.page import statement_page
from edge_client.statement import (
    attribute_facts,
    campaign_facts,
    invitation_facts,
    joined_facts,
    status_facts,
)
from edge_client.text import campaign_text, invitation_text, joined_text, status_text
from protocol_spec import Reporting, lifetime_odds, report_odds
from protocol_spec.programs.memory_broker import MemoryBroker
from tests.support.command_line import Cli
from tests.support.edge import (
    ALL_WAYS,
    DAY,
    FUELS,
    NOBODY,
    ROOM,
    WARMTH,
    FakeClock,
    MemoryTally,
    as_killed,
    draw,
    draw_rounds,
    joined_agent,
    many_values,
    only,
    runner_of,
    way_manifest,
    way_text,
)

EVERY_WAY = pytest.mark.parametrize("reporting", ALL_WAYS)


def invited(state: Path, clock: FakeClock, reporting: Reporting, **options: object) -> str:
    campaign = way_manifest(reporting, **options)
    with EdgeClient(state, clock=clock) as client:
        invitation = client.invitation(manifest=campaign, broker="mqtts://b.example")
        return " ".join(invitation_text(invitation_facts(invitation, None)).split())


TOLD: dict[Reporting, tuple[str, ...]] = {
    "memoized": (
        "answers only that one, once every day, with noise",
        "Only the first value is ever answered for",
        "never more than epsilon 2: for the one value that is answered for",
    ),
    "once": (
        "in 3 of 365 rounds, drawn at random when you join, and is silent in others",
        "At most 3 reports ever leave, each about the value of its own round only.",
        "by at most 1.95, all together by at most 7.39",
        "cannot be read in such a round, it is answered for as “other”",
        "never more than epsilon 2: 0.666667 for each of at most 3 answers, whatever changes",
    ),
    "hashed": (
        "divides the answers into two groups; only the group is reported",
        "see the pattern of its changes between the two groups, though not the values",
        "by at most 54.6 between histories with the same changes",
        "never more than epsilon 4: 2 for each of the two groups",
    ),
    "nested": (
        "by at most 1.82 if it is the first, by at most 7.39 if it is a late one",
        "The first tells epsilon 0.6; a late report alone tells as much as all before it together",
        "Only the first value is ever answered for",
        "never more than epsilon 2: for the one value, all reports together",
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


def test_odds_are_those_of_the_way() -> None:
    facts = {way: attribute_facts(way_manifest(way), 0) for way in ALL_WAYS}
    ways = {way: way_manifest(way).ways[0] for way in ALL_WAYS}
    plain: tuple[Reporting, ...] = ("memoized", "once", "hashed")
    for way in plain:
        odds = report_odds(ways[way].calibration)
        assert times(odds.if_true) in facts[way]["one_report"]
        assert times(odds.if_false) in facts[way]["one_report"]
    first, last = ways["nested"].channels[0].exact.p1, lifetime_odds(ways["nested"].calibration)
    assert times(float(first)) in facts["nested"]["one_report"]
    assert times(last.if_true) in facts["nested"]["all_reports"]


@EVERY_WAY
def test_the_bytes_of_the_preview_are_those_that_are_sent(
    state: Path, clock: FakeClock, reporting: Reporting
) -> None:
    """All but the noise, with the padding and the level; and the page marks the noise alone."""
    campaign = way_manifest(reporting, attributes=many_values(100) + FUELS, count=2, each=2)
    agent = joined_agent(state, clock, campaign)
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
    state: Path, clock: FakeClock, reporting: Reporting
) -> None:
    campaign = way_manifest(reporting, count=3, each=3, eps_1=0.6)
    agent = joined_agent(state, clock, campaign)
    nothing = shown_text(agent.store.directory, clock)
    first = campaign.eps_1 if reporting == "once" else campaign.eps_inf
    assert f"the first report books epsilon {first:g}." in nothing
    draw_rounds(agent, clock, 2)
    way = campaign.ways[0]
    exact, bound = way.epsilon_after(2), campaign.lifetime_epsilon
    booked = 2 * campaign.eps_1 if reporting == "once" else campaign.eps_inf
    text = shown_text(agent.store.directory, clock)
    assert f"Revealed so far at most epsilon {exact:.4f}; booked {booked:g}, " in text
    assert f"In all, never more than epsilon {bound:g}" in text
    if reporting == "hashed":  # status says the most it can be: how many groups were visited tells
        exact_or_more, booked_or_more = bound, bound
    else:
        exact_or_more, booked_or_more = exact, booked
    assert f"epsilon {exact_or_more:.4f} of {booked_or_more:g}, at most {bound:g} ever" in text
    with EdgeClient(state, clock=clock, exclusive=False) as client:
        html = statement_page(client, client.memberships())
    assert f'<span class="big">{exact:.4f}</span> of at most {booked:g}, in epsilon' in html
    assert f"In all, never more than epsilon {bound:g}" in html
    assert f"{exact:.4f} after 2" in html, "and on the curve"
    agent.store.close()


def shown_text(state: Path, clock: FakeClock) -> str:
    with EdgeClient(state, clock=clock, exclusive=False) as client:
        shown = campaign_text(campaign_facts(client, client.find()))
        return " ".join(f"{shown} {status_text(status_facts(client))}".split())


def test_hashed_reports_say_the_values_of_their_group(state: Path, clock: FakeClock) -> None:
    agent = joined_agent(state, clock, way_manifest("hashed", attributes=many_values(16)))
    draw_rounds(agent, clock, 12, "v03")
    way, member = only(agent).way, only(agent)
    with EdgeClient(state, clock=clock, exclusive=False) as client:
        rows = campaign_facts(client, client.find())["queued"]
    cells = [way.randomiser(member.device).key(i) for i in range(16)]
    groups = {cell: [f"v{i:02}" for i in range(16) if cells[i] == cell] for cell in (0, 1)}
    assert [row["says"] for row in rows] == [groups[int(row["bytes"][-2:], 16)] for row in rows]
    agent.store.close()


def test_its_owner_sees_the_rounds_that_were_drawn(state: Path, clock: FakeClock) -> None:
    """They follow from no value, and whoever sees a report sees its round."""
    agent = joined_agent(state, clock, way_manifest("once", count=365, each=2))
    one, two = only(agent).drawn_rounds or ()
    told = joined_text(joined_facts(only(agent)))
    assert f"Rounds drawn: {one} (20" in told
    assert f", {two} (20" in told
    assert f"Rounds drawn: {one} (20" in shown_text(state, clock)
    with EdgeClient(state, clock=clock, exclusive=False) as client:
        assert f"{one} (opens 20" in statement_page(client, client.memberships())
    agent.store.close()


# --- a warning ------------------------------------------------------------------------------------


@pytest.mark.parametrize("attribute", [FUELS, FUELS + "changes = true\n", ROOM, WARMTH])
@EVERY_WAY
def test_memos_of_what_changes_are_warned_of(
    cli: Cli, state: Path, tmp_path: Path, reporting: Reporting, attribute: str
) -> None:
    warned = reporting in ("memoized", "nested") and attribute != FUELS
    asked = tmp_path / "asked.toml"
    asked.write_text(way_text(reporting, attributes=attribute, first=None), encoding="utf-8")
    joined = cli("join", "--manifest", asked, "--broker", NOBODY, "--yes", "--state-dir", state)
    assert joined.exit_code == 0, joined.output
    # Once in what is read before agreeing, and once of the attribute that was drawn.
    assert joined.stdout.count("Warning: this is about something that changes") == 2 * warned


# --- nobody else ----------------------------------------------------------------------------------

READINGS: tuple[tuple[str, Callable[[int], object]], ...] = (
    ("inside", lambda _: 20.5),
    ("outside", lambda _: 35),
    ("changing", lambda n: 20.5 + n % 2),
    ("not a number", lambda n: 20.5 if n == 0 else "warm"),
    ("failing", lambda n: 20.5 if n == 0 else broken()),
)


def broken() -> object:
    raise SourceFailure("the sensor is gone; nothing was drawn or sent")


def what_is_said(
    state: Path,
    reporting: Reporting,
    reading: Callable[[int], object],
    caplog: pytest.LogCaptureFixture,
) -> list[object]:
    """Log, status texts and times and lengths of reports, of a device with these readings."""
    campaign = way_manifest(reporting, attributes=ROOM, count=8, each=8, max_values=2)
    server, clock = MemoryBroker(), FakeClock()
    tally = MemoryTally(server, campaign)
    agent = joined_agent(state, clock, campaign, device="device")
    number = 0
    runner = runner_of(agent, lambda _: reading(number), make_link=server.link)
    said: list[object] = []
    caplog.clear()
    for number in range(8):  # noqa: B007
        for _ in range(3):
            runner.tick(0.0)
            said.append(status_without_ledger(agent.store.directory, clock))
            said.append((state / "heartbeat").read_text().split('"at"')[0])
        clock.pass_time(DAY)
    runner.close()
    agent.store.close()
    said += [(record.levelname, record.getMessage()) for record in caplog.records]
    return said + [(topic, len(payload)) for topic, payload in tally.deliveries]


def status_without_ledger(state: Path, clock: FakeClock) -> str:
    """The owner's own ledger has a line for each memo; all else is the same for everyone."""
    with EdgeClient(state, clock=clock, exclusive=False) as client:
        return status_text(status_facts(client)).split(", epsilon")[0]


@EVERY_WAY
def test_no_text_time_or_length_depends_on_the_value(
    tmp_path: Path, reporting: Reporting, caplog: pytest.LogCaptureFixture
) -> None:
    """Issue 13, P1: neither the log, nor the status, nor what leaves, tells the readings apart."""
    caplog.set_level(logging.DEBUG)
    found = {
        name: what_is_said(tmp_path / name, reporting, reading, caplog)
        for name, reading in READINGS
    }
    assert len(found["inside"]) > 50
    for name, said in found.items():
        assert said == found["inside"], name
