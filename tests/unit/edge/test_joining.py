"""What may be joined: the owner's policy, the whole digest, the signature, readable sources."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from edge_client import EdgeClient, Invitation
from edge_client.agent import Agent
from edge_client.client import accept_loss
from edge_client.errors import CampaignProblem, PolicyRefusal
from edge_client.policy import Operator, Policy
from edge_client.sources import build_all, example, unreadable
from edge_client.statement import budget_facts, invitation_facts
from edge_client.store.highwater import Participation
from edge_client.text import budget_text, invitation_text
from protocol_spec import Manifest, Signature, Topics, digest8, signed_bytes
from protocol_spec.mechanisms import MECHANISMS
from protocol_spec.programs import signing
from protocol_spec.programs.memory_broker import MemoryBroker
from protocol_spec.programs.settings import SettingsError, parse_broker, parse_invitation
from tests.support.campaigns import manifest, manifest_text
from tests.support.command_line import Cli, facts_of
from tests.support.edge import (
    DAY,
    FIRST,
    FUEL,
    NOBODY,
    ROOM,
    ROOMY,
    FakeClock,
    Joined,
    agree,
    charge,
    daily,
    draw,
    joined_agent,
    no_entropy,
    only,
    rows,
)
from tests.support.harness import ROOT
from tests.support.hostile import FIRST_ROUND, TEXT_A, A, B

# --- the owner's limits: where exactly each one lies, and how its table is read -------------------


@pytest.mark.parametrize(
    ("policy", "options", "limit"),
    [
        (Policy(max_eps_inf=2.0), {"eps_inf": 2.0}, None),
        (Policy(max_eps_inf=2.0), {"eps_inf": math.nextafter(2.0, 3.0)}, "max_eps_inf"),
        (Policy(max_eps_inf=0.0), {"eps_inf": 0.5, "eps_1": 0.1}, "max_eps_inf"),
        (Policy(max_eps_inf=math.inf), {"eps_inf": 20.0}, None),
        (Policy(), {"reporting": "once"}, None),
        (Policy(), {"reporting": "hashed"}, "mechanisms"),
        (Policy(mechanisms=("hashed",)), {"reporting": "hashed"}, None),
        (Policy(mechanisms=("hashed",)), {"reporting": "once"}, "mechanisms"),
        (Policy(max_values=2), {"max_values": 2}, None),
        (Policy(max_values=2), {"max_values": 3}, "max_values"),
        (Policy(min_period=DAY), {"period": DAY}, None),
        (Policy(min_period=DAY), {"period": DAY - 1}, "min_period"),
        (Policy(campaigns=("test-*",)), {}, None),
        (Policy(campaigns=(daily().campaign,)), {}, None),
        (Policy(campaigns=("test",)), {}, "campaigns"),
        (Policy(campaigns=("TEST-*",)), {}, "campaigns"),
        (Policy(campaigns=()), {}, "campaigns"),
        (Policy(sources=("fu*",)), {}, None),
        (Policy(sources=("fuel",)), {"attributes": FUEL + FUEL.replace("fuel", "x")}, "sources"),
        (Policy(sources=()), {}, "sources"),
    ],
)
def test_limits(policy: Policy, options: dict[str, Any], limit: str | None) -> None:
    if limit is None:
        policy.check(daily(**options))
        return
    with pytest.raises(PolicyRefusal, match=rf"change policy\.{limit} "):
        policy.check(daily(**options))


def test_a_refusal_names_campaign_limit_numbers_and_remedy() -> None:
    """P6: the defaults are those that docs/privacy.md argues for."""
    assert Policy() == Policy(
        max_eps_inf=2.0,
        lifetime_budget=4.0,
        max_values=1,
        min_period=3_600,
        total_budget=8.0,
        mechanisms=("memoized", "once", "nested"),
    )
    with pytest.raises(PolicyRefusal) as refused:
        Policy().check(daily(eps_inf=3.0))
    assert str(refused.value) == (
        f"{daily(eps_inf=3.0).campaign} may reveal eps_inf = 3, more than 2. Refused by your "
        "policy; nothing was drawn, sent or spent. If you agree to it, change policy.max_eps_inf "
        "in the configuration file: max_eps_inf = 3.0, below [policy]"
    )


def test_every_limit_can_be_set() -> None:
    table = {
        "max_eps_inf": 1,
        "lifetime_budget": 2.5,
        "max_values": 2,
        "min_period": "6h",
        "campaigns": ["a-*"],
        "sources": ["fuel", "stove"],
        "operators": {"city": "07" * 32},
        "total_budget": 3,
        "mechanisms": ["once"],
    }
    assert table.keys() == {field.name for field in fields(Policy)}
    assert Policy.from_table(table) == Policy(
        *(1, 2.5, 2, 21_600, ("a-*",), ("fuel", "stove")),
        *((Operator(b"\7" * 32, "city"),), 3, ("once",)),
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_eps_inf", "2"),
        ("max_eps_inf", -1),
        ("max_eps_inf", math.nan),
        ("max_eps_inf", True),
        ("lifetime_budget", [1]),
        ("max_values", 0),
        ("max_values", 1.5),
        ("min_period", "6 h"),
        ("min_period", 1.5),
        ("min_period", -1),
        ("campaigns", "a-*"),
        ("mechanisms", ["hash"]),
        ("sources", [1]),
        ("max_epsilon", 2),
        *(("operators", value) for value in ("x", [5], ["00"], {"city": "zz"}, ["07" * 33])),
    ],
)
def test_an_unusable_limit_is_an_error_never_ignored(name: str, value: object) -> None:
    with pytest.raises(SettingsError, match=f"policy.{name}"):
        Policy.from_table({name: value})


# --- R10: what the policy forbids is refused before any draw, and no row is written ---------------


TOO_STRICT = {
    "max_eps_inf": Policy(max_eps_inf=1.9),
    "lifetime_budget": Policy(lifetime_budget=1.9),
    "min_period": Policy(min_period=DAY + 1),
    "campaigns": Policy(campaigns=("home-*", "work-*")),
    "sources": Policy(sources=("stove",)),
}
STOVE, OVEN, HEATER, FAN = (FUEL.replace("fuel", n) for n in ("stove", "oven", "heater", "fan"))


def files(state: Path) -> dict[str, bytes]:
    """Database, log and mark, byte for byte."""
    return {p.name: p.read_bytes() for p in state.iterdir() if p.name != "state.db-shm"}


@pytest.mark.parametrize("limit", TOO_STRICT)
def test_a_campaign_beyond_the_policy_leaves_no_trace_and_draws_nothing(
    agent: Agent, state: Path, clock: FakeClock, limit: str
) -> None:
    """Also if it was joined under an easier policy."""
    strict = Agent(agent.store, TOO_STRICT[limit], clock=clock, entropy=no_entropy)
    before = files(state)
    with pytest.raises(PolicyRefusal) as refused:
        agree(strict, daily(slug="other"))
    assert f"policy.{limit}" in str(refused.value)
    assert "nothing was drawn, sent or spent" in str(refused.value)
    assert refused.value.exit_code == 3
    with pytest.raises(PolicyRefusal):
        strict.draw(only(strict), lambda _: "wood")
    assert files(state) == before


def test_one_attribute_that_cannot_be_afforded_refuses_the_campaign(
    joined: Joined, state: Path
) -> None:
    """Else the attribute would not be uniform: those that are spent could not be drawn."""
    agent = joined(entropy=no_entropy)
    charge(agent, "stove", 11.0)
    before = files(state)
    with pytest.raises(
        PolicyRefusal, match="source 'stove', and 11 of its lifetime budget of 12 is already used"
    ):
        agree(agent, daily(attributes=FUEL + STOVE))
    assert files(state) == before


def test_all_sources_together_have_a_limit(joined: Joined, state: Path) -> None:
    agent = joined(policy=Policy())
    for attribute in (FUEL, STOVE, OVEN, HEATER):
        agree(agent, daily(attributes=attribute))  # 2 each, promised
    before = rows(state)
    with pytest.raises(
        PolicyRefusal, match=r"needs 2 more, and 8 of the total budget of 8 for all.*total_budget"
    ):
        agree(agent, daily(attributes=FAN))
    assert rows(state) == before
    for membership in agent.store.memberships():
        agent.draw(membership, lambda _: "wood")  # each of them has what it was promised
    assert agent.store.charged() == 8.0


@pytest.mark.parametrize(
    ("budget", "lost", "message"),
    [(20.0, 6.5, r"6\.5 of the total budget of 8"), (5.0, 4.0, "4 of its lifetime budget of 5 is")],
)
def test_a_loss_of_unknown_size_counts_for_every_source_and_once_in_total(
    joined: Joined, budget: float, lost: float, message: str
) -> None:
    agent = joined(policy=Policy(lifetime_budget=budget))
    charge(agent, "*", lost)
    with pytest.raises(PolicyRefusal, match=message):
        agree(agent, daily())


def test_a_campaign_that_is_paid_for_goes_on(joined: Joined, clock: FakeClock) -> None:
    """A used budget does not stop it, nor a default limit; but nothing like it is joined again."""
    agent = joined(daily(eps_inf=4.0, max_values=3))
    draw(agent)
    agent.policy = Policy(max_eps_inf=4.0, max_values=3, lifetime_budget=4.0)
    agent.store.set_status(only(agent).name, "left", 0)
    agree(agent, only(agent).manifest)
    agent.policy = Policy()
    clock.pass_time(DAY)
    draw(agent)
    with pytest.raises(PolicyRefusal, match=r"policy\.max_eps_inf"):
        agree(agent, daily(slug="other", eps_inf=4.0))


@pytest.mark.parametrize("late", [0, 10 * 365 * DAY])
def test_a_campaign_that_has_ended_is_refused(
    joined: Joined, state: Path, clock: FakeClock, late: int
) -> None:
    agent = joined(entropy=no_entropy)
    clock.now = FIRST + 366 * DAY + late
    before = files(state)
    with pytest.raises(CampaignProblem, match="has ended; nothing was drawn, sent or spent"):
        agree(agent, daily())
    assert files(state) == before


def test_a_thousand_manifests_cause_no_draw(agent: Agent, state: Path, clock: FakeClock) -> None:
    """R12: asking whether one could join reads neither value nor randomness."""
    draw(agent)
    before = files(state)
    silent = Agent(agent.store, ROOMY, clock=clock, entropy=no_entropy)
    for number in range(1000):
        silent.check(daily(slug=f"flood{number}", eps_inf=3.9))
    assert files(state) == before


def test_the_owner_sees_what_is_used_and_promised(
    joined: Joined, state: Path, clock: FakeClock
) -> None:
    agent = joined(daily(), policy=Policy(mechanisms=tuple(MECHANISMS)))
    draw(agent)
    agree(agent, daily(reporting="hashed", attributes=STOVE))
    agent.store.close()
    with EdgeClient(state, clock=clock, exclusive=False) as client:
        facts = budget_facts(client)
    assert [(b["source"], b["used"], b["allowed"]) for b in facts] == [
        ("fuel", 2.0, 4.0),
        ("stove", 4.0, 4.0),
        ("*", 6.0, 8.0),
    ]
    assert " ".join(budget_text(facts).split()) == (
        "Used or promised, of what your policy allows: fuel 2 of 4, stove 4 of 4, all sources "
        "together 6 of 8."
    )
    endless = Policy(total_budget=math.inf)
    with EdgeClient(state, clock=clock, policy=endless, exclusive=False) as client:
        assert budget_facts(client)[-1]["allowed"] is None
        json.dumps(budget_facts(client), allow_nan=False)


# --- P3: a campaign is its whole digest, not the 32 bits of it in its name ------------------------


PLACE = f"{NOBODY}/allomfree"
ELSEWHERE = "mqtt://127.0.0.1:2"


@pytest.fixture
def twin_clock() -> FakeClock:
    return FakeClock(FIRST_ROUND + 1800.0)


@pytest.fixture
def broker() -> MemoryBroker:
    """Offers B under the name that A has as well."""
    made = MemoryBroker()
    made.publish(Topics(B.campaign).manifest, B.to_bytes(), retain=True)
    return made


@pytest.fixture
def client(state: Path, twin_clock: FakeClock, broker: MemoryBroker) -> Iterator[EdgeClient]:
    with EdgeClient(state, clock=twin_clock, make_link=broker.link) as made:
        yield made


def test_an_invitation_names_the_whole_digest() -> None:
    assert A.campaign == B.campaign
    assert A.digest != B.digest
    for address in (f"mqtts://b.example/allomfree/{A.full_name}", A.full_name):
        place = parse_invitation(address)
        assert (place.campaign, place.digest) == (A.campaign, A.digest)
    assert parse_invitation(A.campaign).digest is None
    for wrong in (A.full_name[:-1], A.full_name + "0", A.full_name.upper()):
        with pytest.raises(SettingsError):
            parse_invitation(f"mqtts://b.example/allomfree/{wrong}")


def test_another_manifest_under_the_name_is_not_accepted(client: EdgeClient) -> None:
    invitations: tuple[dict[str, Any], ...] = (
        {"address": f"{PLACE}/{A.full_name}"},
        {"address": f"{PLACE}/{A.campaign}", "digest": A.digest.hex()},
        {"manifest": B, "broker": NOBODY, "digest": A.digest.hex()},
    )
    for invitation in invitations:
        with pytest.raises(CampaignProblem, match="another campaign under the same name") as error:
            client.invitation(**invitation)
        assert A.digest.hex() in str(error.value)
        assert B.digest.hex() in str(error.value)
        assert "Nothing was drawn, sent or spent" in str(error.value)
    assert client.memberships() == []
    assert client.invitation(f"{PLACE}/{B.full_name}").whole_digest
    assert client.invitation(f"{PLACE}/{B.campaign}", digest=B.digest.hex()).whole_digest
    assert not client.invitation(f"{PLACE}/{B.campaign}").whole_digest
    with pytest.raises(SettingsError, match="all 64 hexadecimal digits"):
        client.invitation(f"{PLACE}/{B.campaign}", digest=B.digest.hex()[:8])


def test_joining_b_after_a_changes_nothing(client: EdgeClient, state: Path) -> None:
    """Reports must not move to the broker that B is offered at; nor if both join at once."""
    client.join(client.invitation(manifest=A, broker=ELSEWHERE))
    before = rows(state)
    with pytest.raises(CampaignProblem, match="another campaign"):
        client.join(f"{PLACE}/{B.campaign}")
    invitation = Invitation(B, parse_broker(NOBODY), "allomfree")
    with pytest.raises(CampaignProblem, match="nothing was changed"):
        client.store.join(invitation, Participation("device", 0, -1, 0, B.digest), 0)
    assert rows(state) == before
    assert client.find().broker == ELSEWHERE


def test_after_a_loss_only_the_same_manifest_is_joined_again(
    state: Path, twin_clock: FakeClock
) -> None:
    agent = joined_agent(state, twin_clock, A)
    draw(agent, "one")
    before = only(agent)
    agent.store.close()
    (state / "state.db").unlink()
    accept_loss(state, Policy(), twin_clock)
    agent = joined_agent(state, twin_clock)
    with pytest.raises(CampaignProblem, match="Nothing was changed") as refused:
        agree(agent, B)
    assert A.digest.hex() in str(refused.value)
    again = agree(agent, A)
    assert (again.device, again.attribute_index) == (before.device, before.attribute_index)
    agent.store.close()


def test_what_is_not_the_campaign_invited_to_is_refused(
    client: EdgeClient, broker: MemoryBroker
) -> None:
    wanted = manifest(slug="wanted")
    for payload, message in (
        (b"", f"has no campaign {wanted.campaign}; nothing was drawn"),
        (A.to_bytes(), "not the one invited to"),
        (b"no manifest", "not valid; nothing was drawn, sent or spent"),
    ):
        broker.publish(Topics(wanted.campaign).manifest, payload, retain=True)
        with pytest.raises(CampaignProblem, match=message):
            client.join(f"{PLACE}/{wanted.campaign}", timeout=0.2)
    assert client.memberships() == []


def test_the_policy_is_checked_before_anything_is_fetched(state: Path) -> None:
    with EdgeClient(state, policy=Policy(max_eps_inf=0.1), entropy=no_entropy) as client:
        with pytest.raises(PolicyRefusal):
            client.invitation(manifest=manifest(), broker=NOBODY)
        with pytest.raises(SettingsError, match="not encrypted"):
            client.invitation(f"mqtt://192.0.2.1/allomfree/{B.campaign}")
        with pytest.raises(CampaignProblem, match="needs the broker's address"):
            client.invitation(manifest=manifest())
        with pytest.raises(CampaignProblem, match="give a campaign's address"):
            client.invitation()


# --- P4: who signed a manifest, and what an owner's list of operators allows ----------------------


SECRET, OTHER = bytes(range(32)), bytes(32)
KEY, OTHER_KEY = signing.public_key(SECRET), signing.public_key(OTHER)
SIGNED, UNSIGNED = (
    Manifest.from_toml(TEXT_A.replace("[rounds]", f'operator = "{operator}"\n[rounds]'))
    for operator in (KEY.hex(), "")
)
TOPICS = Topics(SIGNED.campaign)
GOOD = Signature(digest8(SIGNED), signing.sign(SECRET, SIGNED.digest)).encode()
ADDRESS = f"{PLACE}/{SIGNED.full_name}"


@pytest.fixture
def signing_broker(broker: MemoryBroker) -> MemoryBroker:
    broker.publish(TOPICS.manifest, SIGNED.to_bytes(), retain=True)
    broker.publish(TOPICS.signature, GOOD, retain=True)
    return broker


@pytest.mark.usefixtures("signing_broker")
def test_a_good_signature(client: EdgeClient) -> None:
    assert client.invitation(ADDRESS).operator == KEY
    assert client.invitation(manifest=SIGNED, broker=NOBODY).operator == KEY
    for _ in range(2):
        assert client.join(ADDRESS).operator == KEY
        client.leave()


def test_a_wrong_or_missing_signature(client: EdgeClient, signing_broker: MemoryBroker) -> None:
    wrong = (
        signing.sign(OTHER, SIGNED.digest),
        signing.sign(SECRET, UNSIGNED.digest),
        signing.sign(SECRET, SIGNED.digest[:8]),
        bytes(64),
    )
    for payload, fault in (
        *((Signature(digest8(SIGNED), each).encode(), "wrong") for each in wrong),
        (Signature(bytes(8), GOOD[-64:]).encode(), "wrong"),
        (b"x", "not one"),
        (GOOD[:-1], "not one"),
        (b"", "not there"),
    ):
        signing_broker.publish(TOPICS.signature, payload, retain=True)
        for words in ({"address": ADDRESS}, {"manifest": SIGNED, "broker": NOBODY}):
            with pytest.raises(CampaignProblem, match=f"signature is {fault}. Nothing was drawn"):
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


def test_a_list_made_later_stops_what_was_joined(state: Path, twin_clock: FakeClock) -> None:
    """What the manifest claims does not count: only what was verified when it was joined."""
    agent = joined_agent(state, twin_clock, SIGNED)
    draw(agent, "one")
    twin_clock.pass_time(SIGNED.rounds.period)
    agent.policy = Policy(operators=(Operator(KEY, "city"),))
    with pytest.raises(PolicyRefusal, match="or its signature was not checked"):
        agent.draw(only(agent), lambda _: "one")
    agent.store.close()


@pytest.mark.usefixtures("signing_broker")
def test_the_owner_reads_who_signed(client: EdgeClient) -> None:
    invitation = client.invitation(ADDRESS)

    def text(name: str | None) -> str:
        facts = invitation_facts(invitation, None, operator_name=name)
        return " ".join(invitation_text(facts).split())

    assert f"Signed by city ({KEY.hex()}), verified" in text("city")
    assert f"Signed by {KEY.hex()}, verified. You do not list this operator" in text(None)
    assert "compare all of them" not in text(None)
    unsigned = client.invitation(manifest=UNSIGNED, broker=NOBODY)
    assert "Signed by   nobody" in invitation_text(invitation_facts(unsigned, None))


def test_a_device_that_cannot_check_a_signature(state: Path) -> None:
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


# --- `join` reports sources that cannot be read, with the lines to add; never their values (P1) ---


@pytest.fixture
def asked(tmp_path: Path) -> Path:
    path = tmp_path / "asked.toml"
    path.write_text(manifest_text(attributes=FUEL + ROOM), encoding="utf-8")
    return path


@pytest.fixture
def preview(join: Cli, config: Path) -> Callable[[str], str]:
    """What `join` prints with a configuration, on both streams."""

    def preview(text: str) -> str:
        config.write_text(text, encoding="utf-8")
        done = join("--config", config, "--preview")
        assert done.exit_code == 0, done.stderr
        return str(done.stdout + done.stderr)

    return preview


def test_a_missing_source_is_reported_with_the_lines_to_add(
    preview: Callable[[str], str], asked: Path, config: Path
) -> None:
    text = preview("")
    assert "Not ready: 2 of these questions have no source" in text
    assert f"Add to {config}, and write your own:" in text
    lines = text.split("write your own:\n\n")[1].split("\n\nAdd it before")[0]
    tables = tomllib.loads(lines)["sources"]
    assert tuple(tables) == ("fuel", "room")
    assert build_all(tables).keys() == tables.keys(), "they can be pasted as they are"
    assert "that answer may be kept for life" in " ".join(text.split())
    assert "Not ready" not in preview(lines.replace('["cat", "/path"]', '["cat", "/dev/null"]'))
    fuel, _room = Manifest.from_file(asked).attributes
    value = tomllib.loads(example(fuel))["sources"]["fuel"]["value"]
    assert fuel.index_of(value) == fuel.otherwise, "an example left as it is answers nothing"


def test_a_fact_of_the_machine_is_offered_where_it_may_be_meant() -> None:
    number = manifest(attributes=ROOM.replace('"room"', '"memory_gib"')).attributes
    lines = unreadable(number, {})[0]["lines"]
    assert tomllib.loads(lines)["sources"]["memory_gib"]["fact"] == "memory_gib"
    name = manifest(attributes=FUEL.replace('"fuel"', '"model"')).attributes
    lines = unreadable(name, {})[0]["lines"]
    assert tomllib.loads(lines)["sources"]["model"] == {"value": "..."}, "of a car, say"
    assert '# kind = "machine"\n# fact = "model"' in lines


@pytest.mark.parametrize(
    ("table", "message"),
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
def test_a_source_that_cannot_be_read_at_all_is_reported(
    preview: Callable[[str], str], table: str, message: str
) -> None:
    text = preview(f'[sources.fuel]\n{table}\n[sources.room]\nvalue = "1"\n')
    assert "Not ready: one of these questions has no source" in text
    assert message in text
    assert "Add to" not in text, "there is a table already"


def test_programs_see_missing_sources_too(join: Cli) -> None:
    sources = facts_of(join("--preview", "--json"))["sources"]
    assert [each["attribute"] for each in sources] == ["fuel", "room"]
    joined = join("--yes", "--json")
    assert facts_of(joined)["campaign"]
    assert "Not ready" in joined.stderr, "also where nobody is asked"


READINGS = {
    "an answer": "printf wood",
    "another": "printf gas",
    "none of them": "printf marmalade",
    "a number": "printf 21.5",
    "nothing": "true",
    "a failure": "exit 1",
    "noise": "echo oops >&2; exit 3",
}


def test_neither_output_nor_exit_code_depends_on_the_value(
    join: Cli, config: Path, tmp_path: Path
) -> None:
    """P1: whether a source that is there works is as private as its value."""
    script, field, was_run = (tmp_path / name for name in ("read", "value.json", "was-run"))
    config.write_text(
        f'[sources.fuel]\nkind = "command"\ncommand = ["{script}"]\n'
        f'[sources.room]\nkind = "json"\nfile = "{field}"\nfield = "celsius"\n'
    )
    found = {}
    for name, command in READINGS.items():
        script.write_text(f"#!/bin/sh\ntouch {was_run}\n{command}\n")
        script.chmod(0o700)
        field.write_text({"nothing": "", "a failure": "{}"}.get(name, '{"celsius": 21.5}'))
        done = join("--config", config, "--preview")
        found[name] = (done.exit_code, done.stdout, done.stderr)
    assert found["an answer"][0] == 0
    assert "Not ready" not in found["an answer"][1]
    assert all(each == found["an answer"] for each in found.values()), found
    assert not was_run.exists(), "no value is read before its owner agrees"
