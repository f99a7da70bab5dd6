"""`EdgeClient`, the door for programs, against a real broker and a small collector."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

import edge_client
from edge_client import Credentials, EdgeClient, EdgeError, Policy, ReportState
from edge_client.errors import (
    CampaignProblem,
    PolicyRefusal,
    SettingsError,
)
from edge_client.link import Link, PahoLink, connect
from edge_client.statement import campaign_facts
from protocol_spec import (
    AllomfreeError,
    Manifest,
    Request,
    RequestKind,
    Response,
    ResponseStatus,
    Topics,
    decode_request,
)
from protocol_spec.programs.memory_broker import MemoryBroker
from protocol_spec.programs.settings import parse_broker
from testbed.brokers import Nats, Tally
from tests.support.campaigns import manifest
from tests.support.edge import (
    FUEL,
    NOBODY,
    QUICK,
    MemoryTally,
    NoEntropy,
    by_port,
    no_entropy,
    way_manifest,
)


@pytest.fixture
def campaign() -> Manifest:
    """One of its own for each test, because the broker is shared."""
    return manifest(slug=f"api-{os.urandom(4).hex()}")


def address(nats: Nats, campaign: Manifest) -> str:
    return f"{nats.url}/allomfree/{campaign.campaign}"


def test_the_public_door() -> None:
    assert sorted(edge_client.__all__) == edge_client.__all__
    assert set(edge_client.__all__) == {
        "Credentials",
        "EdgeClient",
        "EdgeError",
        "Invitation",
        "Policy",
        "ReportState",
        "Reported",
    }
    assert issubclass(EdgeError, AllomfreeError)


def test_join_report_close_and_go_on(state: Path, nats: Nats, campaign: Manifest) -> None:
    with Tally(nats.port, campaign) as tally:
        with EdgeClient(state) as client:
            membership = client.join(address(nats, campaign))
            (reported,) = client.report({"fuel": "wood"})
        assert (reported.campaign, reported.round) == (campaign.campaign, 0)
        assert reported.state == "counted"
        with EdgeClient(state) as client:
            assert client.memberships()[0].device == membership.device
            assert client.report({"fuel": "wood"}) == [reported]
            facts = campaign_facts(client, client.find())
    ((device, payload),) = tally.deliveries
    assert device == membership.device
    assert [row["bytes"] for row in facts["sent"]] == [payload.hex(" ")]


def test_the_example_of_the_module_is_true(state: Path, nats: Nats) -> None:
    """As the docstring has it, the broker's address apart."""
    campaign = way_manifest("memoized", first=None, period=3600, slug=f"api-{os.urandom(4).hex()}")
    assert edge_client.client.__doc__ is not None
    example = edge_client.client.__doc__.split("\n\n", 1)[1]
    example = example.replace("/var/lib/heater/allomfree", str(state))
    example = example.replace(
        "mqtts://broker.example/allomfree/home-heat-1a2b3c4d", address(nats, campaign)
    )
    with Tally(nats.port, campaign) as tally:
        exec(example, {})  # noqa: S102
        tally.wait_for(1)


def test_looking_at_an_invitation_draws_nothing(
    state: Path, nats: Nats, campaign: Manifest
) -> None:
    with Tally(nats.port, campaign), EdgeClient(state, entropy=no_entropy) as client:
        invitation = client.invitation(address(nats, campaign))
        assert invitation.manifest == campaign
        assert client.memberships() == []
        with pytest.raises(NoEntropy):
            client.join(invitation)
        assert client.memberships() == []


def test_what_is_stored_is_sent_even_if_nothing_new_can_be_drawn(
    state: Path, nats: Nats, campaign: Manifest
) -> None:
    other = manifest(slug=f"api-{os.urandom(4).hex()}", attributes=FUEL.replace("fuel", "stove"))
    with EdgeClient(state) as client:
        for one in (campaign, other):
            client.join(client.invitation(manifest=one, broker=nats.url))
        first = client.agent.draw(client.find(campaign.campaign), lambda _: "wood")
        with Tally(nats.port, campaign) as tally:
            client.agent.policy = Policy(lifetime_budget=1.0)
            with pytest.raises(PolicyRefusal, match="stove"):
                client.report({"fuel": "wood"}, timeout=20.0)
            tally.wait_for(1)
    assert [payload for _, payload in tally.deliveries] == [getattr(first, "payload", None)]


def test_a_missing_value_is_answered_for(state: Path, campaign: Manifest) -> None:
    """P1: silence would reveal that there is none."""
    with EdgeClient(state) as client:
        client.join(client.invitation(manifest=campaign, broker=NOBODY))
        (reported,) = client.report({"stove": "wood"}, timeout=0.1)
        assert (reported.round, reported.state) == (0, ReportState.QUEUED)


def test_a_broker_that_is_away_is_told_as_queued(state: Path, campaign: Manifest) -> None:
    with EdgeClient(state) as client:
        client.join(client.invitation(manifest=campaign, broker=NOBODY))
        (reported,) = client.report({"fuel": "wood"}, timeout=0.1)
        assert reported.round == 0
        assert reported.state is ReportState.QUEUED
        assert reported.reason.startswith(f"the broker {NOBODY} cannot be used")
        assert reported.text == f"queued: {reported.reason}"
        assert client.store.reports(campaign.campaign)[0].fate == "queued"


def test_a_report_that_had_no_time_is_not_told_as_sent(
    state: Path, nats: Nats, campaign: Manifest
) -> None:
    with EdgeClient(state) as client:
        client.join(client.invitation(manifest=campaign, broker=nats.url))
        (reported,) = client.report({"fuel": "wood"}, timeout=0.0)
        assert (reported.state, reported.reason) == ("queued", "there was no time to send it")


def test_a_collector_that_is_away_is_told_as_sent(state: Path, campaign: Manifest) -> None:
    with EdgeClient(state, make_link=MemoryBroker().link, timing=QUICK) as client:
        client.join(client.invitation(manifest=campaign, broker=NOBODY))
        (reported,) = client.report({"fuel": "wood"}, timeout=0.5)
        assert reported.state is ReportState.SENT
        assert reported.text == "sent, no receipt yet"


def test_trouble_with_one_broker_is_not_blamed_on_another(state: Path, campaign: Manifest) -> None:
    other = manifest(slug=f"api-{os.urandom(4).hex()}")
    servers = {1: MemoryBroker(), 2: MemoryBroker()}
    MemoryTally(servers[1], campaign)
    servers[2].stop()
    with EdgeClient(state, make_link=by_port(servers), timing=QUICK) as client:
        client.join(
            client.invitation(manifest=campaign, broker="mqtt://localhost:1"),
        )
        client.join(
            client.invitation(manifest=other, broker="mqtt://localhost:2"),
        )
        told = {r.campaign: r for r in client.report({"fuel": "wood"}, timeout=0.5)}
    assert told[campaign.campaign].text == "counted"
    assert told[other.campaign].text.startswith("queued: the broker mqtt://localhost:2 cannot")


def test_an_unknown_campaign_is_said(state: Path, nats: Nats) -> None:
    with (
        EdgeClient(state) as client,
        pytest.raises(CampaignProblem, match="has no campaign home-00000000; nothing was drawn"),
    ):
        client.join(f"{nats.url}/allomfree/home-00000000", timeout=0.5)


def test_another_manifest_under_the_name_is_refused(
    state: Path, nats: Nats, campaign: Manifest
) -> None:
    """The digest is in the name: a broker cannot put another campaign in its place."""
    wanted = manifest(slug="wanted")
    with Tally(nats.port, campaign) as tally, EdgeClient(state) as client:
        tally.publish(Topics(wanted.campaign).manifest, campaign.to_bytes(), retain=True)
        with pytest.raises(CampaignProblem, match="not the one invited to"):
            client.join(address(nats, wanted))
        tally.publish(Topics(wanted.campaign).manifest, b"no manifest", retain=True)
        with pytest.raises(CampaignProblem, match="not valid; nothing was drawn, sent or spent"):
            client.join(address(nats, wanted))
        tally.publish(Topics(wanted.campaign).manifest, b"", retain=True)
        assert client.memberships() == []


def test_the_policy_is_asked_before_anything_is_fetched_or_drawn(
    state: Path, campaign: Manifest
) -> None:
    policy = Policy(max_eps_inf=0.1)
    with EdgeClient(state, policy=policy, entropy=no_entropy) as client:
        with pytest.raises(PolicyRefusal):
            client.invitation(manifest=campaign, broker=NOBODY)
        with pytest.raises(SettingsError, match="not encrypted"):
            client.invitation(f"mqtt://192.0.2.1/allomfree/{campaign.campaign}")
        with pytest.raises(CampaignProblem, match="needs the broker's address"):
            client.invitation(manifest=campaign)
        with pytest.raises(CampaignProblem, match="give a campaign's address"):
            client.invitation()


def test_a_user_name_is_the_devices_name(state: Path, campaign: Manifest) -> None:
    with EdgeClient(state, credentials=Credentials("living-room")) as client:
        joined = client.join(client.invitation(manifest=campaign, broker=NOBODY))
        assert joined.device == "living-room"


def answer_forget(
    link: Link, campaign: Manifest, status: ResponseStatus, ready: threading.Event
) -> None:
    """A collector that answers one request."""
    topics = Topics(campaign.campaign)
    connect(link)
    link.subscribe([topics.all_requests])
    link.step(1.0)  # the subscription is granted
    ready.set()
    for message in (message for _ in range(100) for message in link.step(0.2)):
        request = decode_request(message.payload)
        assert isinstance(request, Request)
        device = str(message.topic).split("/")[4]
        for nonce, rounds in ((bytes(8), 9), (request.nonce, 3)):  # first somebody else's
            answer = Response(request.digest8, RequestKind.FORGET, nonce, status, rounds)
            link.publish(topics.response(device), answer.encode())
        link.step(0.2)
        break
    link.close()


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (ResponseStatus.DONE, "withdrew this device's reports from 3 unsealed rounds"),
        (ResponseStatus.REFUSED, "refused; reports of rounds not yet sealed may still be counted"),
    ],
)
def test_forget_asks_the_collector_and_wipes_here(
    state: Path, nats: Nats, campaign: Manifest, status: ResponseStatus, told: str
) -> None:
    link = PahoLink(parse_broker(nats.url), Credentials())
    ready = threading.Event()
    collector = threading.Thread(target=answer_forget, args=(link, campaign, status, ready))
    collector.start()
    with EdgeClient(state) as client:
        client.join(client.invitation(manifest=campaign, broker=nats.url))
        client.agent.draw(client.find(), lambda _: "wood")
        assert ready.wait(20)
        assert client.forget() == (campaign.campaign, told)
        assert client.memberships() == []
        assert client.store.charged("fuel") == campaign.eps_inf
    collector.join()


def test_forget_without_a_collector(state: Path, nats: Nats, campaign: Manifest) -> None:
    with EdgeClient(state) as client:
        client.join(client.invitation(manifest=campaign, broker=nats.url))
        assert client.forget(timeout=0.3)[1].startswith("did not answer")
        client.join(client.invitation(manifest=campaign, broker=NOBODY))
        assert client.forget(timeout=0.3)[1].startswith("was not told: the broker")


def test_forget_sends_no_password_in_plain_text(state: Path, campaign: Manifest) -> None:
    """Joined when plain text was allowed, forgotten when it no longer is."""
    with EdgeClient(state, allow_plaintext=True) as client:
        client.join(
            client.invitation(manifest=campaign, broker="mqtt://192.0.2.1"),
        )
    with EdgeClient(state, credentials=Credentials("me", "hunter2")) as client:
        _, answer = client.forget(timeout=0.3)
        assert answer.startswith("was not told: mqtt://192.0.2.1:1883 is not encrypted")
        assert client.memberships() == []
