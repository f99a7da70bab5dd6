"""R25: `forget` leaves no byte of what was answered; what was spent stays spent."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from edge_client import Credentials, EdgeClient
from edge_client.agent import Agent
from edge_client.errors import CampaignProblem, StorageFailure
from edge_client.records import Invitation
from edge_client.store import KEPT_FOR_SHOW, Store
from protocol_spec.programs.settings import parse_broker
from tests.support.edge import (
    COLOUR,
    NOBODY,
    Connections,
    FakeClock,
    agree,
    daily,
    draw,
    draw_rounds,
    joined_agent,
    only,
    way_manifest,
)

WINDOW = 12


@pytest.fixture
def used(state: Path, clock: FakeClock, connections: Connections) -> Iterator[Agent]:
    """Two memos of 128 bytes, more reports than are kept for show, a pause and a restart."""
    campaign = daily(attributes=COLOUR, max_values=2, count=3650)
    agent = joined_agent(state, clock, campaign)
    draw_rounds(agent, clock, KEPT_FOR_SHOW, "c17")
    agent.store.close()
    agent = joined_agent(state, clock, connect=connections)
    draw_rounds(agent, clock, KEPT_FOR_SHOW, "c500")
    yield agent
    agent.store.close()


def markers(agent: Agent, payloads: list[bytes]) -> set[bytes]:
    """Every stretch of twelve bytes of a memo or report, the name and the manifest's words."""
    membership = only(agent)
    bodies = [memo.body for memo in agent.store.memos(membership.name).values()]
    found = {membership.device.encode(), membership.manifest.purpose.encode()}
    for secret in (*bodies, *payloads):
        found |= {secret[i : i + WINDOW] for i in range(0, len(secret) - WINDOW, WINDOW // 2)}
    return found


def found_in(state: Path, wanted: set[bytes]) -> dict[str, int]:
    """How many markers each file holds."""
    contents = {path.name: path.read_bytes() for path in state.iterdir()}
    counts = {name: sum(m in content for m in wanted) for name, content in contents.items()}
    return {name: count for name, count in counts.items() if count}


def test_no_marker_is_left_in_any_file(used: Agent, state: Path, clock: FakeClock) -> None:
    payloads = draw_rounds(used, clock, KEPT_FOR_SHOW, "c17")
    used.store.finish(only(used).name, dict.fromkeys(range(50), "counted"))
    wanted = markers(used, payloads)
    assert {"state.db-wal", "highwater"} <= found_in(state, wanted).keys()
    used.store.forget(only(used), 0)
    assert found_in(state, wanted) == {}
    used.store.close()
    assert found_in(state, wanted) == {}
    Store(state, exclusive=True).close()
    assert found_in(state, wanted) == {}


def test_no_marker_is_left_beside_an_onlooker(used: Agent, state: Path) -> None:
    """With another process at the store, closing does not remove the log: it must be emptied."""
    wanted = markers(used, [])
    with Store(state, exclusive=False):
        used.store.forget(only(used), 0)
        assert "state.db-wal" in {path.name for path in state.iterdir()}
        assert found_in(state, wanted) == {}


def test_reports_that_are_no_longer_kept_are_erased(state: Path, clock: FakeClock) -> None:
    """Not only unlinked: their bytes are gone from the database long before `forget`."""
    agent = joined_agent(state, clock, daily(attributes=COLOUR))
    first = draw_rounds(agent, clock, 5, "c1")
    agent.store.finish(only(agent).name, dict.fromkeys(range(5), "counted"))
    draw_rounds(agent, clock, KEPT_FOR_SHOW + 1, "c1")
    agent.store.close()
    bodies = {payload[-WINDOW:] for payload in first}
    assert found_in(state, bodies) == {}


def test_the_ledger_stays_and_a_rejoin_is_charged_again(used: Agent, clock: FakeClock) -> None:
    membership = only(used)
    before = used.store.ledger()
    memos = used.store.memos(membership.name)
    used.store.forget(membership, 7)
    assert used.store.memberships() == []
    assert used.store.ledger() == before
    assert used.store.decisions(membership.name) == [(7, "forgotten")]
    agree(used, membership.manifest)
    draw(used, "c17")
    assert used.store.charged("colour") == 3 * membership.manifest.eps_inf
    assert used.store.memos(membership.name)[17].body != memos[17].body
    assert only(used).device != membership.device


def test_a_rejoin_beyond_the_lifetime_budget_is_refused_later(
    state: Path, clock: FakeClock
) -> None:
    """Forgetting does not give a fresh budget: 12 pay for six memos of 2, and no more."""
    agent = joined_agent(state, clock, campaign := daily())
    for _ in range(6):
        draw_rounds(agent, clock, 1)
        agent.store.forget(only(agent), 0)
        if agent.store.charged("fuel") < 12.0:
            agree(agent, campaign)
    with pytest.raises(PermissionError, match="12 of its lifetime budget of 12 is already used"):
        agree(agent, campaign)
    agent.store.close()


def test_another_campaign_under_the_same_name_is_kept(state: Path, clock: FakeClock) -> None:
    """A user name is the device's name in every campaign: forgetting one finds it in the other."""
    agent = joined_agent(state, clock)
    for slug in ("one", "two"):
        campaign = daily(slug=slug)
        agree(agent, campaign, device="living-room-heater")
    one, two = agent.store.memberships()
    for membership in (one, two):
        agent.draw(membership, lambda _: "wood")
    agent.store.forget(one, 0)
    assert [m.name for m in agent.store.memberships()] == [two.name]
    assert len(agent.store.memos(two.name)) == 1
    agent.store.close()


@pytest.mark.parametrize("device", ["a", "device", "state"])
def test_plain_bytes_and_names_are_no_false_alarm(
    state: Path, clock: FakeClock, device: str
) -> None:
    """A memo of zeros and a common word are in every database; they prove nothing."""
    agent = joined_agent(
        state,
        clock,
        daily(attributes=COLOUR),
        device=device,
        entropy=lambda size: b"\xff" * size if size > 8 else bytes(size),
    )
    draw(agent, "c0")
    assert not any(agent.store.memos(only(agent).name)[0].body)
    agent.store.forget(only(agent), 0)
    agent.store.close()


def test_traces_that_cannot_be_removed_are_named(
    used: Agent, state: Path, connections: Connections
) -> None:
    """A copy in the same directory, and a reader that keeps the log from being emptied."""
    (state / "my-backup.db").write_bytes((state / "state.db").read_bytes())
    (state / "a-directory").mkdir()
    connections.execute("PRAGMA busy_timeout = 0")
    with closing(sqlite3.connect(state / "state.db")) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM memo").fetchall()
        with pytest.raises(StorageFailure) as refused:
            used.store.forget(only(used), 0)
    assert "traces remain in my-backup.db, state.db" in str(refused.value)
    assert used.store.memberships() == []


def test_a_named_device_is_not_charged_for_reports_that_nobody_counts(
    state: Path, clock: FakeClock
) -> None:
    """A4: the collector counts no report under a forgotten name, so joining again is refused."""
    campaign = Invitation(way_manifest("memoized"), parse_broker(NOBODY), "allomfree")
    with EdgeClient(state, clock=clock, credentials=Credentials("heater-1", "secret")) as client:
        client.join(campaign)
        client.store.forget(client.find(), 7)
        for attempt in (
            lambda: client.join(campaign),
            lambda: client.join(campaign, device="heater-2"),
            lambda: client.invitation(manifest=campaign.manifest, broker=NOBODY),
        ):
            with pytest.raises(CampaignProblem, match=r"forgotten .*Nothing was .*join --again"):
                attempt()
        assert client.memberships() == []
        client.invitation(manifest=campaign.manifest, broker=NOBODY, again=True)
        assert client.join(campaign, again=True).device == "heater-1"
        client.join(campaign)


def test_a_device_without_a_name_of_its_own_gets_a_new_one(state: Path, clock: FakeClock) -> None:
    campaign = Invitation(way_manifest("memoized"), parse_broker(NOBODY), "allomfree")
    with EdgeClient(state, clock=clock) as client:
        first = client.join(campaign)
        client.store.forget(first, 7)
        assert client.join(campaign).device != first.device
