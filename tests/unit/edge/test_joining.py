"""A campaign is its whole digest, not the 32 bits of it in its name (P3)."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edge_client import EdgeClient
from edge_client.client import accept_loss
from edge_client.errors import CampaignProblem, PolicyRefusal
from edge_client.policy import Operator, Policy
from edge_client.sources import build_all, example, unreadable
from edge_client.statement import invitation_facts
from edge_client.store import highwater
from edge_client.store.highwater import Mark, Participation
from edge_client.text import invitation_text
from protocol_spec import Manifest, Signature, Topics, digest8, signed_bytes
from protocol_spec.programs import signing
from protocol_spec.programs.memory_broker import MemoryBroker
from protocol_spec.programs.settings import SettingsError, parse_invitation
from tests.support.campaigns import manifest_text
from tests.support.command_line import Cli, facts_of
from tests.support.edge import (
    FUEL,
    NOBODY,
    ROOM,
    FakeClock,
    Joined,
    draw,
    only,
    rows,
)
from tests.support.harness import ROOT
from tests.support.hostile import FIRST_ROUND, TEXT_A, A, B

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
        assert parse_invitation(address)[2] == A.campaign
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


def test_a_join_at_the_same_moment_is_refused_by_the_store(joined: Joined, state: Path) -> None:
    agent = joined(A)
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


@pytest.mark.parametrize("first", [A, B], ids=["A", "B"])
def test_after_a_loss_only_the_same_manifest_is_joined_again(
    joined: Joined, first: Manifest, state: Path, clock: FakeClock
) -> None:
    agent = joined(first)
    draw(agent, "one")
    shown = only(agent)
    agent.store.close()
    (state / "state.db").unlink()
    accept_loss(state, Policy(), clock)
    agent = joined()
    other = B if first is A else A
    with pytest.raises(CampaignProblem, match="Nothing was changed") as told:
        agent.join(other, broker="mqtt://127.0.0.1:2", namespace="allomfree")
    assert first.digest.hex() in str(told.value)
    again = agent.join(first, broker="mqtt://127.0.0.1:2", namespace="allomfree")
    assert (again.device, again.attribute_index) == (shown.device, shown.attribute_index)


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


# --- Who signed a manifest, and what an owner's list of operators allows (P4).


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
def broker() -> MemoryBroker:
    made = MemoryBroker()
    made.publish(TOPICS.manifest, SIGNED.to_bytes(), retain=True)
    return made


@pytest.fixture
def owner(state: Path, clock: FakeClock, broker: MemoryBroker) -> Iterator[EdgeClient]:
    with EdgeClient(state, clock=clock, make_link=broker.link) as made:
        yield made


def test_a_good_signature(owner: EdgeClient, broker: MemoryBroker) -> None:
    broker.publish(TOPICS.signature, GOOD, retain=True)
    assert owner.invitation(ADDRESS).operator == KEY
    assert owner.invitation(manifest=SIGNED, broker=NOBODY).operator == KEY
    assert owner.join(ADDRESS).operator == KEY
    owner.leave()
    assert owner.join(ADDRESS).operator == KEY


BAD = {
    "by another": signing.sign(OTHER, SIGNED.digest),
    "of another manifest": signing.sign(SECRET, UNSIGNED.digest),
    "of the name only": signing.sign(SECRET, SIGNED.digest[:8]),
    "zeros": bytes(64),
}


@pytest.mark.parametrize("fault", BAD)
def test_a_wrong_signature(fault: str, owner: EdgeClient, broker: MemoryBroker) -> None:
    broker.publish(TOPICS.signature, Signature(digest8(SIGNED), BAD[fault]).encode(), retain=True)
    with pytest.raises(CampaignProblem, match=r"the signature is wrong. Nothing was drawn"):
        owner.invitation(ADDRESS)


@pytest.mark.parametrize("payload", [b"x", GOOD[:-1], Signature(bytes(8), GOOD[-64:]).encode()])
def test_what_is_no_signature_of_it(
    payload: bytes, owner: EdgeClient, broker: MemoryBroker
) -> None:
    broker.publish(TOPICS.signature, payload, retain=True)
    with pytest.raises(CampaignProblem, match=r"the signature is (not one|wrong)"):
        owner.invitation(ADDRESS)


def test_a_missing_signature(owner: EdgeClient) -> None:
    for words in ({"address": ADDRESS}, {"manifest": SIGNED, "broker": NOBODY}):
        with pytest.raises(CampaignProblem, match=r"the signature is not there. Nothing was drawn"):
            owner.invitation(**words, timeout=0.2)
    assert owner.memberships() == []


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


def test_a_list_made_later_stops_what_was_joined(joined: Joined, clock: FakeClock) -> None:
    """What the manifest claims does not count: only what was verified when it was joined."""
    agent = joined(SIGNED)
    draw(agent, "one")
    clock.pass_time(SIGNED.rounds.period)
    agent.policy = Policy(operators=(Operator(KEY, "city"),))
    with pytest.raises(PolicyRefusal, match="or its signature was not checked"):
        agent.draw(only(agent), lambda _: "one")


@pytest.mark.parametrize("value", ["x", [5], ["00"], {"city": "zz"}, 5, [KEY.hex() + "00"]])
def test_a_list_that_cannot_be_used(value: object) -> None:
    with pytest.raises(SettingsError, match="64 hexadecimal digits"):
        Policy.from_table({"operators": value})
    both = ({"city": KEY.hex()}, [KEY.hex()])
    read = [Policy.from_table({"operators": each}).operators for each in both]
    assert read == [(Operator(KEY, "city"),), (Operator(KEY, KEY.hex()),)]


def test_what_the_owner_reads(owner: EdgeClient, broker: MemoryBroker) -> None:
    broker.publish(TOPICS.signature, GOOD, retain=True)
    invitation = owner.invitation(ADDRESS)

    def said(name: str | None) -> str:
        facts = invitation_facts(invitation, None, operator_name=name)
        return " ".join(invitation_text(facts).split())

    assert f"Signed by city ({KEY.hex()}), verified" in said("city")
    assert f"Signed by {KEY.hex()}, verified. You do not list this operator" in said(None)
    assert "compare all of them" not in said(None)
    unsigned = owner.invitation(manifest=UNSIGNED, broker=NOBODY)
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
with EdgeClient({str(state)!r}, make_link=made.link) as owner:
    found = owner.invitation({ADDRESS!r})
    print(" ".join(invitation_text(invitation_facts(found, None)).split()))
policy = Policy(operators=(Operator({KEY!r}, "city"),))
with EdgeClient({str(state)!r}, make_link=made.link, policy=policy) as owner:
    try:
        owner.invitation({ADDRESS!r})
    except PolicyRefusal as refused:
        print(refused)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "but that was not checked: the Python package cryptography is missing" in done.stdout
    assert "or its signature was not checked. Refused by your policy" in done.stdout


# --- `join` tells which sources cannot be read, with the lines to add; never what they say (P1).


PRIVATE = "marmalade"
JOIN = ("join", "--broker", NOBODY, "--yes")


@pytest.fixture
def asked(tmp_path: Path) -> Path:
    path = tmp_path / "asked.toml"
    text = manifest_text(attributes=FUEL + ROOM, first=None)
    path.write_text(text, encoding="utf-8")
    return path


def attributes(asked: Path) -> tuple[str, ...]:
    return tuple(a.name for a in Manifest.from_file(asked).attributes)


@pytest.fixture
def joining(cli: Cli, asked: Path, tmp_path: Path) -> Callable[..., str]:
    """Joins with a configuration; what it prints before the joining, on both streams."""

    def join(config: str, *words: str) -> str:
        file = tmp_path / "edge.toml"
        state = tmp_path / f"state-{len(list(tmp_path.iterdir()))}"
        file.write_text(config, encoding="utf-8")
        done = cli(*JOIN, "--manifest", asked, "--config", file, "--state-dir", state, *words)
        assert done.exit_code == 0, done.stderr
        return str(done.stdout + done.stderr)

    return join


def test_a_source_that_is_missing_is_told_with_the_lines_to_add(
    joining: Callable[..., str], asked: Path, tmp_path: Path
) -> None:
    said = joining("")
    assert "Not ready: 2 of these questions have no source" in said
    assert f"Add to {tmp_path / 'edge.toml'}, and write your own:" in said
    lines = said.split("write your own:\n\n")[1].split("\n\nAdd it before")[0]
    tables = tomllib.loads(lines)["sources"]
    assert tuple(tables) == attributes(asked)
    assert build_all(tables).keys() == tables.keys(), "they can be pasted as they are"
    assert "that answer may be kept for life" in " ".join(said.split())
    assert "Not ready" not in joining(lines.replace('["cat", "/path"]', '["cat", "/dev/null"]'))


def test_left_as_it_is_an_example_is_none_of_the_answers(asked: Path) -> None:
    fuel, _room = Manifest.from_file(asked).attributes
    value = tomllib.loads(example(fuel))["sources"]["fuel"]["value"]
    assert fuel.index_of(value) == fuel.otherwise


def test_a_fact_of_the_machine_is_offered_by_its_name() -> None:
    table = FUEL.replace('"fuel"', '"architecture"')
    text = manifest_text(attributes=table, first=None)
    (lines,) = [each.lines for each in unreadable(Manifest.from_toml(text).attributes, {})]
    assert tomllib.loads(lines)["sources"]["architecture"] == {
        "kind": "machine",
        "fact": "architecture",
    }


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ('kind = "command"\ncommand = ["no-such-program"]', "the program 'no-such-program' is not"),
        ('kind = "command"\ncommand = ["/etc/passwd"]', "or must not be run"),
        ('kind = "json"\nfile = "/no/file"\nfield = "x"', "the file /no/file is not there"),
        ('kind = "machine"\nfact = "nothing"', "choose one of"),
        ('kind = "plugin"\nname = "no-such"', "no such plugin is installed"),
        ('kind = "magic"', "choose one of command, json"),
        ("colour = 3", "choose a kind of command, json"),
    ],
)
def test_a_source_that_cannot_be_read_at_all_is_told(
    joining: Callable[..., str], table: str, told: str
) -> None:
    said = joining(f'[sources.fuel]\n{table}\n[sources.room]\nvalue = "1"\n')
    assert "Not ready: one of these questions has no source" in said
    assert told in said
    assert "Add to" not in said, "there is a table already"


def test_sources_that_are_no_tables(joining: Callable[..., str]) -> None:
    assert "sources.fuel must be a table" in joining("[sources]\nfuel = 3\nroom = 4\n")


def test_programs_are_told_too(cli: Cli, asked: Path, state: Path) -> None:
    done = cli(*JOIN, "--manifest", asked, "--state-dir", state, "--preview", "--json")
    sources = facts_of(done)["sources"]
    assert [each["attribute"] for each in sources] == list(attributes(asked))
    joined = cli(*JOIN, "--manifest", asked, "--state-dir", state, "--json")
    assert json.loads(joined.stdout)["campaign"]
    assert "Not ready" in joined.stderr, "also where nobody is asked"


READINGS = {
    "an answer": "printf wood",
    "another": "printf gas",
    "none of them": f"printf {PRIVATE}",
    "a number": "printf 21.5",
    "nothing": "true",
    "a failure": "exit 1",
    "noise": "echo oops >&2; exit 3",
}


def test_neither_words_nor_exit_depend_on_the_value(cli: Cli, asked: Path, tmp_path: Path) -> None:
    """P1: whether a source that is there works is as private as what it says."""
    script, field = tmp_path / "read", tmp_path / "value.json"
    config = tmp_path / "edge.toml"
    config.write_text(
        f'[sources.fuel]\nkind = "command"\ncommand = ["{script}"]\n'
        f'[sources.room]\nkind = "json"\nfile = "{field}"\nfield = "celsius"\n'
    )
    mark = tmp_path / "was-run"
    words = (*JOIN, "--manifest", asked, "--config", config, "--preview")
    found = {}
    for name, does in READINGS.items():
        script.write_text(f"#!/bin/sh\ntouch {mark}\n{does}\n")
        script.chmod(0o700)
        field.write_text({"nothing": "", "a failure": "{}"}.get(name, '{"celsius": 21.5}'))
        done = cli(*words, "--state-dir", tmp_path / "state")
        found[name] = (done.exit_code, done.stdout, done.stderr)
    assert found["an answer"][0] == 0
    assert "Not ready" not in found["an answer"][1]
    for name, told in found.items():
        assert told == found["an answer"], name
    assert not mark.exists(), "and no value was read before its owner agreed"
