"""A campaign is its whole digest, not the 32 bits of it in its name (P3)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_client import EdgeClient
from edge_client.client import accept_loss
from edge_client.errors import CampaignProblem
from edge_client.policy import Policy
from edge_client.store import highwater
from edge_client.store.highwater import Mark, Participation
from protocol_spec import Manifest, Topics
from protocol_spec.programs.memory_broker import MemoryBroker
from protocol_spec.programs.settings import SettingsError, parse_campaign, parse_invitation
from tests.support.edge import FakeClock, draw, joined_agent, only, rows
from tests.support.hostile import FIRST_ROUND, A, B

PLACE = "mqtt://127.0.0.1:1/allomfree"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(FIRST_ROUND + 1800.0)


@pytest.fixture
def offered() -> MemoryBroker:
    """A broker that offers B under the name that both have."""
    broker = MemoryBroker()
    broker.publish(Topics(B.campaign).manifest, B.to_bytes(), retain=True)
    return broker


@pytest.fixture
def client(state: Path, clock: FakeClock, offered: MemoryBroker) -> Iterator[EdgeClient]:
    with EdgeClient(state, clock=clock, make_link=offered.link) as made:
        yield made


def test_two_manifests_have_one_name() -> None:
    assert A.campaign == B.campaign
    assert A.digest != B.digest
    assert A.full_name != B.full_name


def test_an_invitation_names_the_whole_digest() -> None:
    for address in (f"mqtts://b.example/allomfree/{A.full_name}", A.full_name):
        place = parse_invitation(address)
        assert (place.campaign, place.digest) == (A.campaign, A.digest)
        assert parse_campaign(address)[2] == A.campaign
    assert parse_invitation(A.campaign).digest is None
    for wrong in (A.full_name[:-1], A.full_name + "0", A.full_name.upper()):
        with pytest.raises(SettingsError):
            parse_invitation(f"mqtts://b.example/allomfree/{wrong}")


def test_another_manifest_under_the_name_is_not_fetched(client: EdgeClient) -> None:
    for words in ((f"{PLACE}/{A.full_name}", None), (f"{PLACE}/{A.campaign}", A.digest.hex())):
        with pytest.raises(CampaignProblem, match="another campaign under the same name") as told:
            client.invitation(words[0], digest=words[1])
        assert A.digest.hex() in str(told.value)
        assert B.digest.hex() in str(told.value)
        assert "Nothing was drawn, sent or spent" in str(told.value)
    with pytest.raises(CampaignProblem, match="another campaign under the same name"):
        client.invitation(manifest=B, broker="mqtt://127.0.0.1:1", digest=A.digest.hex())
    assert client.memberships() == []


def test_what_was_compared_is_known(client: EdgeClient) -> None:
    assert client.invitation(f"{PLACE}/{B.full_name}").whole_digest
    assert client.invitation(f"{PLACE}/{B.campaign}", digest=B.digest.hex()).whole_digest
    assert not client.invitation(f"{PLACE}/{B.campaign}").whole_digest
    with pytest.raises(SettingsError, match="all 64 hexadecimal digits"):
        client.invitation(f"{PLACE}/{B.campaign}", digest=B.digest.hex()[:8])


def test_joining_b_after_a_changes_nothing(client: EdgeClient, state: Path) -> None:
    """Reports must not move to the broker that B is offered at."""
    client.join(client.invitation(manifest=A, broker="mqtt://127.0.0.1:2"))
    before = rows(state)
    with pytest.raises(CampaignProblem, match="another campaign") as told:
        client.join(f"{PLACE}/{B.campaign}")
    assert A.digest.hex() in str(told.value)
    assert B.digest.hex() in str(told.value)
    assert rows(state) == before
    assert client.find().broker == "mqtt://127.0.0.1:2"


def test_a_join_at_the_same_moment_is_refused_by_the_store(state: Path, clock: FakeClock) -> None:
    agent = joined_agent(state, clock, A)
    before = rows(state)
    with pytest.raises(CampaignProblem, match="nothing was changed"):
        agent.store.join(
            B,
            broker="mqtt://127.0.0.1:2",
            namespace="allomfree",
            participation=Participation("device", 0, -1, 0, B.digest),
            at=0,
        )
    assert rows(state) == before
    agent.store.close()


@pytest.mark.parametrize("first", [A, B], ids=["A", "B"])
def test_after_a_loss_only_the_same_manifest_is_joined_again(
    first: Manifest, state: Path, clock: FakeClock
) -> None:
    agent = joined_agent(state, clock, first)
    draw(agent, "one")
    shown = only(agent)
    agent.store.close()
    (state / "state.db").unlink()
    accept_loss(state, Policy(), clock)
    agent = joined_agent(state, clock)
    other = B if first is A else A
    with pytest.raises(CampaignProblem, match="Nothing was changed") as told:
        agent.join(other, broker="mqtt://127.0.0.1:2", namespace="allomfree")
    assert first.digest.hex() in str(told.value)
    again = agent.join(first, broker="mqtt://127.0.0.1:2", namespace="allomfree")
    assert (again.device, again.attribute_index) == (shown.device, shown.attribute_index)
    agent.store.close()


def test_the_mark_holds_some_seventy_campaigns(tmp_path: Path) -> None:
    for count in (1, 70):
        shown = {
            f"campaign-{i:08x}": Participation("k7f3-0b2q-device", i % 3, i, i % 2, bytes([i]) * 32)
            for i in range(count)
        }
        mark = Mark("a1b2", count, {"fuel": 2.0}, shown)
        assert mark.fits
        highwater.write_mark(tmp_path / "mark", mark)
        assert highwater.read_mark(tmp_path / "mark") == mark
