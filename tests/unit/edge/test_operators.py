"""Who signed a manifest, and what an owner's list of operators allows (P4)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_client import EdgeClient
from edge_client.errors import CampaignProblem, PolicyRefusal, SettingsError
from edge_client.policy import Operator, Policy
from edge_client.statement import invitation_facts
from edge_client.text import invitation_text
from protocol_spec import Manifest, Signature, Topics, digest8, signed_bytes
from protocol_spec.programs import signing
from protocol_spec.programs.memory_broker import MemoryBroker
from tests.support.edge import NOBODY, FakeClock, draw, joined_agent, only
from tests.support.harness import ROOT
from tests.support.hostile import FIRST_ROUND, TEXT_A

SECRET, OTHER = bytes(range(32)), bytes(32)
KEY, OTHER_KEY = signing.public_key(SECRET), signing.public_key(OTHER)


def manifest(operator: bytes) -> Manifest:
    return Manifest.from_toml(
        TEXT_A.replace("[rounds]", f'operator = "{operator.hex()}"\n[rounds]')
    )


SIGNED, UNSIGNED = manifest(KEY), manifest(b"")
TOPICS = Topics(SIGNED.campaign)
GOOD = Signature(digest8(SIGNED), signing.sign(SECRET, SIGNED.digest)).encode()
ADDRESS = f"{NOBODY}/allomfree/{SIGNED.full_name}"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(FIRST_ROUND + 1800.0)


@pytest.fixture
def broker() -> MemoryBroker:
    made = MemoryBroker()
    made.publish(TOPICS.manifest, SIGNED.to_bytes(), retain=True)
    return made


@pytest.fixture
def client(state: Path, clock: FakeClock, broker: MemoryBroker) -> Iterator[EdgeClient]:
    with EdgeClient(state, clock=clock, make_link=broker.link) as made:
        yield made


def test_a_good_signature(client: EdgeClient, broker: MemoryBroker) -> None:
    broker.publish(TOPICS.signature, GOOD, retain=True)
    assert client.invitation(ADDRESS).operator == KEY
    assert client.invitation(manifest=SIGNED, broker=NOBODY).operator == KEY
    assert client.join(ADDRESS).operator == KEY
    client.leave()
    assert client.join(ADDRESS).operator == KEY


BAD = {
    "by another": signing.sign(OTHER, SIGNED.digest),
    "of another manifest": signing.sign(SECRET, UNSIGNED.digest),
    "of the name only": signing.sign(SECRET, SIGNED.digest[:8]),
    "zeros": bytes(64),
}


@pytest.mark.parametrize("fault", BAD)
def test_a_wrong_signature(fault: str, client: EdgeClient, broker: MemoryBroker) -> None:
    broker.publish(TOPICS.signature, Signature(digest8(SIGNED), BAD[fault]).encode(), retain=True)
    with pytest.raises(CampaignProblem, match=r"the signature is wrong. Nothing was drawn"):
        client.invitation(ADDRESS)


@pytest.mark.parametrize("payload", [b"x", GOOD[:-1], Signature(bytes(8), GOOD[-64:]).encode()])
def test_what_is_no_signature_of_it(
    payload: bytes, client: EdgeClient, broker: MemoryBroker
) -> None:
    broker.publish(TOPICS.signature, payload, retain=True)
    with pytest.raises(CampaignProblem, match=r"the signature is (not one|wrong)"):
        client.invitation(ADDRESS)


def test_a_missing_signature(client: EdgeClient) -> None:
    for words in ({"address": ADDRESS}, {"manifest": SIGNED, "broker": NOBODY}):
        with pytest.raises(CampaignProblem, match=r"the signature is not there. Nothing was drawn"):
            client.invitation(**words, timeout=0.2)
    assert client.memberships() == []


def test_a_signature_is_for_manifests_alone() -> None:
    """The same key may sign other things: their bytes are never these."""
    assert signed_bytes(SIGNED.digest) == (
        b"allomfree manifest signature, version 1\0" + SIGNED.digest
    )
    assert not signing.is_signed_by(KEY, SIGNED.digest, bytes(64))


@pytest.mark.parametrize(
    ("operators", "signer", "allowed"),
    [
        ((), b"", True),
        ((), OTHER_KEY, True),
        ((Operator(KEY, "city"),), KEY, True),
        ((Operator(OTHER_KEY, "x"), Operator(KEY, "city")), KEY, True),
        ((Operator(KEY, "city"),), OTHER_KEY, False),
        ((Operator(KEY, "city"),), b"", False),
    ],
)
def test_the_owners_list(operators: tuple[Operator, ...], signer: bytes, allowed: bool) -> None:
    policy = Policy(operators=operators)
    if allowed:
        policy.check_operator("test", signer)
        return
    with pytest.raises(PolicyRefusal, match=r"change policy.operators"):
        policy.check_operator("test", signer)


def test_a_list_made_later_stops_what_was_joined(state: Path, clock: FakeClock) -> None:
    """What the manifest claims does not count: only what was verified when it was joined."""
    agent = joined_agent(state, clock, SIGNED)
    draw(agent, "one")
    clock.pass_time(SIGNED.rounds.period)
    agent.policy = Policy(operators=(Operator(KEY, "city"),))
    with pytest.raises(PolicyRefusal, match="or its signature was not checked"):
        agent.draw(only(agent), lambda _: "one")
    agent.store.close()


@pytest.mark.parametrize("value", ["x", [5], ["00"], {"city": "zz"}, 5, [KEY.hex() + "00"]])
def test_a_list_that_cannot_be_used(value: object) -> None:
    with pytest.raises(SettingsError, match="64 hexadecimal digits"):
        Policy.from_table({"operators": value})
    both = ({"city": KEY.hex()}, [KEY.hex()])
    read = [Policy.from_table({"operators": each}).operators for each in both]
    assert read == [(Operator(KEY, "city"),), (Operator(KEY, KEY.hex()),)]


def test_what_the_owner_reads(client: EdgeClient, broker: MemoryBroker) -> None:
    broker.publish(TOPICS.signature, GOOD, retain=True)
    invitation = client.invitation(ADDRESS)

    def said(name: str | None) -> str:
        facts = invitation_facts(invitation, None, operator_name=name)
        return " ".join(invitation_text(facts).split())

    assert f"Signed by city ({KEY.hex()}), verified" in said("city")
    assert f"Signed by {KEY.hex()}, verified. You do not list this operator" in said(None)
    assert "compare all of them" not in said(None)
    unsigned = client.invitation(manifest=UNSIGNED, broker=NOBODY)
    assert "Signed by   nobody" in invitation_text(invitation_facts(unsigned, None))


def test_a_device_that_cannot_check(state: Path) -> None:
    """Without the library it says so, and an owner's list refuses what was not checked."""
    program = f"""
import sys
sys.modules["cryptography"] = None  # as if it were not installed
from edge_client import EdgeClient, Policy
from edge_client.errors import PolicyRefusal
from edge_client.policy import Operator
from protocol_spec.programs.memory_broker import MemoryBroker
from edge_client.statement import invitation_facts
from edge_client.text import invitation_text

made = MemoryBroker()
made.publish({TOPICS.manifest!r}, {SIGNED.to_bytes()!r}, retain=True)
made.publish({TOPICS.signature!r}, {GOOD!r}, retain=True)
with EdgeClient({str(state)!r}, make_link=made.link) as client:
    found = client.invitation({ADDRESS!r})
    print(" ".join(invitation_text(invitation_facts(found, None)).split()))
policy = Policy(operators=(Operator({KEY!r}, "city"),))
with EdgeClient({str(state)!r}, make_link=made.link, policy=policy) as client:
    try:
        client.invitation({ADDRESS!r})
    except PolicyRefusal as refused:
        print(refused)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "but that was not checked: the Python package cryptography is missing" in done.stdout
    assert "or its signature was not checked. Refused by your policy" in done.stdout
