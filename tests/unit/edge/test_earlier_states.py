"""State directories written by an earlier version (bc289db) are opened, and go on where they were.

`closed` ended properly, `killed` was copied with its log while the agent ran, `recovered` is what
`forget --lost` made of the first. All have drawn rounds 0 to 3 of a daily campaign and round 0 of a
paused weekly one, at the fake clock's fourth day.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from edge_client import EdgeClient
from edge_client.agent import Wait
from edge_client.statement import show_facts, status_facts
from edge_client.status import HEARTBEAT_BYTES, HEARTBEAT_FILE
from edge_client.store import Store, highwater
from edge_client.store.highwater import Participation
from tests.support.edge_fakes import DAY, FUEL, FakeClock, daily, joined_agent, rows

STATES = Path(__file__).with_name("earlier_states")
DAILY = daily(max_values=2, attributes=FUEL + FUEL.replace("fuel", "stove"))
WEEKLY = daily(slug="weekly", period=7 * DAY, count=52)
SHOWN = {
    DAILY.campaign: Participation("ylrrxf66ektfbp3e", 0, 3),
    WEEKLY.campaign: Participation("living-room", 0, 0),
}


@pytest.fixture
def fourth_day() -> FakeClock:
    return FakeClock(now=1_800_347_400.0, uptime=346_100.0)


def unpacked(name: str, directory: Path) -> Path:
    directory.mkdir(mode=0o700)
    with tarfile.open(STATES / f"{name}.tar.gz") as archive:
        archive.extractall(directory, filter="data")
    return directory


def written(name: str) -> dict[str, list[tuple[Any, ...]]]:
    """Every row as the earlier version wrote it; bytes are in hex."""
    tables = json.loads((STATES / "rows.json").read_text())[name]
    return {table: [tuple(row) for row in found] for table, found in tables.items()}


def in_hex(tables: dict[str, list[tuple[Any, ...]]]) -> dict[str, list[tuple[Any, ...]]]:
    return {
        name: [tuple(c.hex() if isinstance(c, bytes) else c for c in row) for row in found]
        for name, found in tables.items()
    }


@pytest.mark.parametrize("name", ["closed", "killed"])
def test_nothing_is_changed_by_opening(name: str, state: Path) -> None:
    unpacked(name, state)
    mark = (state / "highwater").read_bytes()
    with Store(state, exclusive=True) as store:
        assert store.sequence == 5
    assert in_hex(rows(state)) == {
        **written("used"),
        "drawn_round": [],
        "answered": [],
        "trust": [],
    }
    assert (state / "highwater").read_bytes() == mark
    found = highwater.read_mark(state / "highwater")
    assert found is not None
    assert (found.charged, found.participations) == ({"fuel": 6.0}, SHOWN)


@pytest.mark.parametrize("name", ["closed", "killed"])
def test_it_goes_on_with_the_same_memos(name: str, state: Path, fourth_day: FakeClock) -> None:
    agent = joined_agent(unpacked(name, state), fourth_day)
    membership, weekly = (agent.membership(c.campaign) for c in (DAILY, WEEKLY))
    before = agent.store.memos.of(membership.name)
    assert set(before) == {0, 1}
    assert agent.draw(weekly, lambda _: "oil") is Wait.PAUSED
    drawn = agent.draw(membership, lambda _: "pump")  # beyond the cap: the last one used
    assert not isinstance(drawn, Wait)
    assert drawn.round == 4
    after = agent.store.memos.of(membership.name)
    assert {v: m.body for v, m in after.items()} == {v: m.body for v, m in before.items()}
    assert after[1].reports == before[1].reports + 1
    assert agent.store.sequence == 6
    agent.store.close()


def test_its_owner_sees_the_same(state: Path, fourth_day: FakeClock) -> None:
    unpacked("closed", state)
    assert len((state / HEARTBEAT_FILE).read_bytes()) == HEARTBEAT_BYTES
    with EdgeClient(state, clock=fourth_day) as client:
        shown = show_facts(client, client.memberships())
        (first, second) = status_facts(client)["campaigns"]
    assert [c["campaign"] for c in shown["campaigns"]] == [DAILY.campaign, WEEKLY.campaign]
    fates = [(row["round"], row["fate"]) for row in shown["campaigns"][0]["sent"]]
    assert fates == [(0, "counted"), (1, "missed")]
    assert [line["epsilon"] for line in shown["ledger"]] == [2.0, 2.0, 2.0]
    assert (first["reports"], first["queued"], second["status"]) == (4, 2, "paused")


def test_a_recovered_one_draws_no_round_again(state: Path, fourth_day: FakeClock) -> None:
    """Pseudonym, attribute and round outlive a second upgrade of the memory that lost them."""
    agent = joined_agent(unpacked("recovered", state), fourth_day, DAILY)
    assert in_hex(rows(state))["ledger"] == written("recovered")["ledger"]
    membership = agent.membership(DAILY.campaign)
    assert SHOWN[DAILY.campaign] == Participation(
        membership.device, membership.attribute_index, membership.last_round
    )
    drawn = agent.draw(membership, lambda _: "wood")
    assert not isinstance(drawn, Wait)
    assert drawn.round == 4
    assert agent.store.ledger.charged("fuel") == 8.0
    agent.store.close()
