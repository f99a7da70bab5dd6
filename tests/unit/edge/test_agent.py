"""R07: the attribute is uniform over all of them, drawn once, and never changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from edge_client import EdgeClient
from edge_client.agent import Agent, ReadValue
from edge_client.errors import PolicyRefusal, SettingsError
from edge_client.policy import Policy
from edge_client.records import Memo, Queued
from protocol_spec import Rejected, Reporting, decode_report, report_fault
from protocol_spec.topics import is_device
from tests.support.campaigns import manifest
from tests.support.edge import (
    ALL_WAYS,
    COLOUR,
    DAY,
    FUEL,
    FUELS,
    NOBODY,
    ROOM,
    WARMTH,
    WITH_MEMOS,
    Connections,
    FakeClock,
    agree,
    broken,
    daily,
    draw,
    draw_rounds,
    joined_agent,
    ledger_of,
    many_values,
    memos_of,
    no_entropy,
    only,
    report_of,
    rows,
    way_manifest,
)
from tests.support.protocol.entropy import seeded
from tests.support.protocol.statistics import LIMIT, uniform_z


def attributes(count: int) -> str:
    return "".join(FUEL.replace("fuel", f"fuel{i}") for i in range(count))


@pytest.mark.parametrize("count", [2, 3, 7])
def test_the_attribute_is_uniform(state: Path, clock: FakeClock, count: int) -> None:
    """Chi-square over 350 devices; the seed is fixed."""
    seed = f"attribute {count}"
    connections = Connections()
    agent = joined_agent(state, clock, entropy=seeded(seed), connect=connections)
    campaign, drawn = daily(attributes=attributes(count)), Counter[int]()
    for _ in range(350):
        membership = agree(agent, campaign)
        drawn[membership.attribute_index] += 1
        connections.execute("DELETE FROM campaign")  # another device with other randomness
    assert uniform_z([drawn[i] for i in range(count)]) < LIMIT, f"seed {seed!r}: {drawn}"
    assert sum(drawn.values()) == 350
    agent.store.close()


def test_the_attribute_survives_restart_leaving_and_rejoining(
    state: Path, clock: FakeClock
) -> None:
    """I11, over many rounds, each with fresh randomness."""
    campaign = daily(attributes=attributes(64))
    agent = joined_agent(state, clock, campaign)
    first, shown = only(agent), set()
    for seed in range(20):
        agent.store.close()
        agent = joined_agent(state, clock, entropy=seeded(str(seed)))
        agent.store.set_status(first.name, "left", 0)
        agree(agent, campaign)
        assert only(agent).device == first.device
        shown.add(report_of(draw(agent)).attribute)
        clock.pass_time(DAY)
    assert shown == {only(agent).attribute_index} == {first.attribute_index}
    agent.store.close()


def test_joining_again_uses_no_randomness(agent: Agent, clock: FakeClock) -> None:
    silent = Agent(agent.store, Policy(), clock=clock, entropy=no_entropy)
    agree(silent, daily())


def test_joining_again_follows_the_campaign_to_another_broker(agent: Agent) -> None:
    agent.join(daily(), broker="mqtts://elsewhere.example:8883", namespace="other")
    moved = only(agent)
    assert (moved.broker, moved.namespace) == ("mqtts://elsewhere.example:8883", "other")
    assert moved.topics.report(moved.device).startswith("other/v1/")


def test_only_the_drawn_attribute_is_read(state: Path, clock: FakeClock) -> None:
    agent, asked = joined_agent(state, clock, daily(attributes=attributes(5))), []

    def read(attribute: str) -> str:
        asked.append(attribute)
        return "wood"

    agent.draw(only(agent), read)
    assert asked == [only(agent).attribute.name]
    agent.store.close()


def test_pseudonyms_are_device_names_of_80_random_bits(agent: Agent) -> None:
    """Each letter is uniform over 32: chi-square over 3200 letters."""
    names = {agent.pseudonym() for _ in range(200)}
    assert len(names) == 200
    assert all(is_device(name) and len(name) == 16 for name in names)
    letters = Counter("".join(names))
    assert len(letters) == 32
    assert uniform_z(list(letters.values())) < LIMIT


@pytest.mark.parametrize("device", ["Heater", "a/b", "a" * 33, "+", "ü", ""])
def test_a_user_name_that_is_no_device_name_is_refused(
    state: Path, clock: FakeClock, device: str
) -> None:
    agent = joined_agent(state, clock)
    with pytest.raises(SettingsError, match=r"invalid device name .* Nothing was drawn or sent"):
        agree(agent, daily(), device=device)
    assert agent.store.memberships() == []
    agent.store.close()


def test_names_may_be_shortened_if_they_are_unique(tmp_path: Path) -> None:
    with EdgeClient(tmp_path / "s") as client:
        for slug in ("heat-east", "heat-west"):
            one = manifest(slug=slug)
            invitation = client.invitation(manifest=one, broker=NOBODY)
            client.join(invitation)
        assert client.find("heat-w").name.startswith("heat-west-")
        for name, said in (("heat", "could be several"), (None, "no name could be several")):
            with pytest.raises(LookupError, match=said):
                client.find(name)


# --- R09: a new memo only for an unseen value; at the cap or the budget's end, the last one serves.


TEMPERATURE = """[[attributes]]
name = "temperature"
question = "How warm?"
edges = [-inf, 10, 20, 30.5, inf]
unit = "°C"
"""


@pytest.mark.parametrize(
    ("cap", "values", "reports"),
    [
        (1, ["c3"] * 21, {3: 21}),
        (3, ["c1", "c2", "c1", "c3", "c2", "c1"], {1: 3, 2: 2, 3: 1}),
        # At the cap, c2 is answered from c1, the last one used, and c3 from c0.
        (2, ["c0", "c1", "c2", "c0", "c3"], {0: 3, 1: 2}),
    ],
)
def test_a_returning_value_finds_its_memo(
    state: Path, clock: FakeClock, cap: int, values: list[str], reports: dict[int, int]
) -> None:
    """Each memo is drawn and charged once."""
    agent = joined_agent(state, clock, daily(attributes=COLOUR, max_values=cap))
    bodies: dict[int, bytes] = {}
    for value in values:
        draw_rounds(agent, clock, 1, value)
        for key, memo in memos_of(agent).items():
            assert bodies.setdefault(key, memo.body) == memo.body
    assert {v: m.reports for v, m in memos_of(agent).items()} == reports
    assert ledger_of(agent) == [2.0] * len(reports)
    agent.store.close()


@pytest.mark.parametrize(("cap", "policy_cap"), [(1, 9), (2, 9), (3, 3)])
def test_at_the_cap_the_last_memo_serves(
    state: Path, clock: FakeClock, cap: int, policy_cap: int
) -> None:
    """Same cadence, same length, no flag, nothing charged."""
    policy = Policy(max_values=policy_cap, lifetime_budget=100.0)
    campaign = daily(attributes=COLOUR, max_values=cap)
    agent = joined_agent(state, clock, campaign, policy=policy)
    lengths = {len(draw_rounds(agent, clock, 1, f"c{i}")[0]) for i in range(cap)}
    frozen, charged = memos_of(agent), agent.store.charged("colour")
    assert len(frozen) == cap
    for value in ("c100", "c101", "c102"):
        lengths.add(len(draw_rounds(agent, clock, 1, value)[0]))
        assert only(agent).last_value == cap - 1
    assert {v: m.body for v, m in memos_of(agent).items()} == {v: m.body for v, m in frozen.items()}
    assert memos_of(agent)[cap - 1].reports == 1 + 3
    assert agent.store.charged("colour") == charged == 2.0 * cap
    assert len(lengths) == 1
    agent.store.close()


def test_at_the_end_of_the_lifetime_budget_the_last_memo_serves(
    state: Path, clock: FakeClock
) -> None:
    """Lowered to 5 after joining, it pays for two memos of 2, though the campaign allows nine."""
    policy = Policy(max_values=9, lifetime_budget=18.0, total_budget=18.0)
    agent = joined_agent(state, clock, daily(attributes=COLOUR, max_values=9), policy=policy)
    agent.policy = replace(policy, lifetime_budget=5.0)
    for value in ("c0", "c1", "c2", "c3"):
        draw_rounds(agent, clock, 1, value)
    assert {v: m.reports for v, m in memos_of(agent).items()} == {0: 1, 1: 3}
    assert agent.store.charged("colour") == 4.0
    agent.store.close()


def test_the_lifetime_budget_counts_all_campaigns_of_a_source(
    state: Path, clock: FakeClock
) -> None:
    """A first memo is promised at joining; a budget that is lowered later stops the draw."""
    agent = joined_agent(state, clock, policy=Policy(lifetime_budget=6.0))
    for slug in ("one", "two", "three"):
        agree(agent, daily(slug=slug))
    with pytest.raises(PolicyRefusal, match="6 of its lifetime budget of 6 is already used or pr"):
        agree(agent, daily(slug="four"))
    one, two, three = agent.store.memberships()
    agent.draw(one, lambda _: "wood")
    agent.draw(two, lambda _: "wood")
    agent.policy = Policy(lifetime_budget=4.0)
    before = rows(state)
    with pytest.raises(PolicyRefusal, match="4 of its lifetime budget of 4 is already used"):
        agent.draw(three, lambda _: "wood")
    assert rows(state) == before
    agent.store.close()


def test_a_budget_reached_exactly_is_not_exceeded_by_rounding(
    state: Path, clock: FakeClock
) -> None:
    """Ten times 0.3 is 2.9999999999999996 in binary: the tenth campaign is still allowed."""
    agent = joined_agent(state, clock, policy=Policy(lifetime_budget=3.0))
    for i in range(10):
        agree(agent, daily(slug=f"s{i}", eps_inf=0.3, eps_1=0.1))
    for membership in agent.store.memberships():
        agent.draw(membership, lambda _: "wood")
    with pytest.raises(PolicyRefusal):
        agree(agent, daily(slug="s10", eps_inf=0.3, eps_1=0.1))
    agent.store.close()


@pytest.mark.parametrize(
    ("reading", "place"),
    [(-40, 0), (9.99, 0), (10, 1), ("15.5", 1), (20.0, 2), (30.4, 2), (30.5, 3), (1e9, 3)],
)
def test_numbers_fall_into_their_bins(
    state: Path, clock: FakeClock, reading: object, place: int
) -> None:
    agent = joined_agent(state, clock, daily(attributes=TEMPERATURE))
    draw(agent, reading)
    assert list(memos_of(agent)) == [place]
    agent.store.close()


@pytest.mark.parametrize("reading", ["warm", float("nan"), None, "", [1]])
def test_what_is_no_number_is_a_bin_drawn_uniformly(tmp_path: Path, reading: object) -> None:
    """Bins from -inf to inf have no value for it; silence would tell that it is no number."""
    places: Counter[int] = Counter()
    for number in range(40):
        agent = joined_agent(tmp_path / str(number), FakeClock(), daily(attributes=TEMPERATURE))
        draw(agent, reading)
        places.update(list(memos_of(agent)))
        assert agent.store.charged("temperature") == 2.0
        agent.store.close()
    assert set(places) == {0, 1, 2, 3}


def test_the_memo_itself_never_leaves(state: Path, clock: FakeClock) -> None:
    """1024 bits agree by chance with a probability of nil."""
    agent = joined_agent(state, clock, daily(attributes=COLOUR))
    payloads = draw_rounds(agent, clock, 10, "c3")
    assert len(set(payloads)) == 10
    assert not any(memos_of(agent)[3].body in payload for payload in payloads)
    clock.pass_time(DAY)
    agent.store.close()


# --- The four ways of reporting, drawn by the agent: what is kept, sent and booked in each.


EVERY_WAY = pytest.mark.parametrize("reporting", ALL_WAYS)
EVERY_MEMO = pytest.mark.parametrize("reporting", WITH_MEMOS)


def raising(_attribute: str) -> object:
    """A source that is broken in its own way."""
    raise ZeroDivisionError


# --- every way -----------------------------------------------------------------------------------


@EVERY_WAY
def test_reports_belong_to_their_campaign_and_have_one_length(
    state: Path, reporting: Reporting
) -> None:
    """R26, whatever the attribute that was drawn: also the padding is as the manifest asks."""
    campaign = way_manifest(reporting, attributes=FUELS + many_values(), count=20, each=20)
    lengths = set()
    for number in range(6):
        clock = FakeClock()
        agent = joined_agent(state / str(number), clock, campaign)
        payloads = draw_rounds(agent, clock, 2, 3)
        lengths |= {len(payload) for payload in payloads}
        for payload in payloads:
            report = decode_report(payload)
            assert not isinstance(report, Rejected)
            assert report_fault(report, campaign) is None
            assert len(report.body) == campaign.body_bytes
        agent.store.close()
    assert len(lengths) == 1


@EVERY_WAY
@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        *((FUELS, value) for value in ("coal", "", None, 3, True, object())),
        *((ROOM, value) for value in (19.0, 22.5, "warm", None, float("nan"))),
    ],
)
def test_a_value_outside_the_domain_is_answered_with_the_last(
    state: Path, clock: FakeClock, reporting: Reporting, attribute: str, value: object
) -> None:
    """P1: with edges 20, 21, 22 silence told whether the room was at 20 to 22 °C."""
    agent = joined_agent(state, clock, way_manifest(reporting, attributes=attribute, count=1))
    draw(agent, value)
    if reporting in ("memoized", "nested"):
        assert list(memos_of(agent)) == [only(agent).attribute.k - 1]
    agent.store.close()


@EVERY_WAY
@pytest.mark.parametrize("attribute", [FUELS, WARMTH, ROOM])
@pytest.mark.parametrize("read", [broken, raising, lambda _: object()])
def test_a_source_that_never_worked_is_answered_for(
    state: Path, clock: FakeClock, reporting: Reporting, attribute: str, read: ReadValue
) -> None:
    """P1: drawn, kept and charged as any value: else silence told that there is none."""
    agent = joined_agent(state, clock, way_manifest(reporting, attributes=attribute, count=1))
    assert isinstance(agent.draw(only(agent), read), Queued)
    assert ledger_of(agent) == [2.0]
    assert len(memos_of(agent)) == (0 if reporting == "once" else 1)
    if reporting in ("memoized", "nested") and attribute != WARMTH:
        assert list(memos_of(agent)) == [only(agent).attribute.k - 1]
    agent.store.close()


@EVERY_MEMO
@pytest.mark.parametrize("attribute", [FUELS, WARMTH, ROOM])
def test_a_source_that_fails_later_is_answered_for_from_the_last_memo(
    state: Path, clock: FakeClock, reporting: Reporting, attribute: str
) -> None:
    """Same cadence, same length, no flag, nothing charged."""
    agent = joined_agent(state, clock, way_manifest(reporting, attributes=attribute))
    (first,) = draw_rounds(agent, clock, 1, 15)
    before, last = memos_of(agent), only(agent).last_value
    drawn = agent.draw(only(agent), broken)
    assert isinstance(drawn, Queued)
    assert len(drawn.payload) == len(first)
    assert last is not None
    assert only(agent).last_value == last
    assert memos_of(agent) == {last: Memo(last, before[last].body, 2)}
    assert ledger_of(agent) == [2.0]
    agent.store.close()


@EVERY_WAY
def test_budgets_are_asked_for_the_whole_campaign(
    state: Path, clock: FakeClock, reporting: Reporting
) -> None:
    campaign = way_manifest(reporting, max_values=3)
    most = {"memoized": 6.0, "once": 2.0, "hashed": 4.0, "nested": 2.0}[reporting]
    assert campaign.lifetime_epsilon == most
    poor = joined_agent(state, clock, policy=Policy(lifetime_budget=most - 0.1, max_values=3))
    with pytest.raises(PolicyRefusal, match=f"needs {most:g} more of source 'fuel', and 0 of"):
        poor.join(campaign, broker=NOBODY, namespace="allomfree")
    poor.policy = Policy(lifetime_budget=most, max_values=3, total_budget=20.0)
    poor.join(campaign, broker=NOBODY, namespace="allomfree")
    # What is promised to one campaign is not there for another, though nothing is spent yet.
    with pytest.raises(PolicyRefusal, match=f"{most:g} of its lifetime budget of"):
        poor.join(way_manifest("once", slug="other"), broker=NOBODY, namespace="allomfree")
    poor.join(campaign, broker=NOBODY, namespace="allomfree")  # again: costs nothing more
    clock.now = campaign.expires
    other = way_manifest("once", slug="other", first=campaign.expires)
    poor.join(other, broker=NOBODY, namespace="allomfree")
    poor.store.close()


@EVERY_WAY
def test_forgetting_and_joining_again_is_charged_again(
    state: Path, clock: FakeClock, reporting: Reporting
) -> None:
    campaign = way_manifest(reporting, count=4, each=4)
    agent = joined_agent(state, clock, campaign)
    draw_rounds(agent, clock, 1)
    agent.store.forget(only(agent), 0)
    assert all(not rows(state)[name] for name in ("campaign", "memo", "drawn_round"))
    agree(agent, campaign)
    draw_rounds(agent, clock, 1)
    each = campaign.eps_1 if reporting == "once" else campaign.eps_inf
    assert ledger_of(agent) == [each, each]
    agent.store.close()


@EVERY_WAY
def test_the_ledger_is_never_below_the_exact_loss_nor_above_the_bound(
    state: Path, clock: FakeClock, reporting: Reporting
) -> None:
    """I14 at every step."""
    campaign = way_manifest(reporting, count=12, each=5, max_values=3)
    agent = joined_agent(state, clock, campaign)
    told = 0.0
    for i in range(12):
        agent.draw(only(agent), lambda _: ("wood", "gas", "oil", "coal")[i % 4])  # noqa: B023
        clock.pass_time(DAY)
        spent = agent.store.spent(only(agent))
        assert (
            told <= spent.exact <= spent.charged == pytest.approx(sum(ledger_of(agent)), abs=1e-12)
        )
        assert spent.charged <= campaign.lifetime_epsilon + 1e-12
        told = spent.exact
    assert told > 0
    agent.store.close()


# --- hashed --------------------------------------------------------------------------------------


@pytest.fixture
def hashing(state: Path, clock: FakeClock) -> Iterator[Agent]:
    agent = joined_agent(state, clock, way_manifest("hashed", attributes=many_values()))
    yield agent
    agent.store.close()


def test_there_is_a_memo_for_each_visited_cell_and_no_more(
    hashing: Agent, clock: FakeClock
) -> None:
    way, device = only(hashing).manifest.mechanisms[0], only(hashing).device
    cells = [way.randomiser(device).key(i) for i in range(64)]
    bodies: dict[int, bytes] = {}
    for i in range(64):
        draw_rounds(hashing, clock, 1, f"v{i:02}")
        assert only(hashing).last_value == cells[i], "the cell is kept, not the value"
        for cell, memo in memos_of(hashing).items():
            assert bodies.setdefault(cell, memo.body) == memo.body
    assert {c: m.reports for c, m in memos_of(hashing).items()} == Counter(cells)
    assert ledger_of(hashing) == [2.0, 2.0]
    assert hashing.store.spent(only(hashing)).charged == only(hashing).manifest.lifetime_epsilon


def test_another_name_has_another_code(state: Path, clock: FakeClock) -> None:
    """A rejoin under another name after `forget` must not draw with the old name's code."""
    campaign = way_manifest("hashed", attributes=many_values())
    agent = joined_agent(state, clock, campaign)
    draw_rounds(agent, clock, 1, "v07")
    agent.store.forget(only(agent), 0)
    way, seen = campaign.mechanisms[0], set()
    for _ in range(8):
        agree(agent, campaign)
        clock.pass_time(DAY)
        draw_rounds(agent, clock, 1, "v07")
        expected = way.randomiser(only(agent).device).key(7)
        assert only(agent).last_value == expected
        seen.add(expected)
        agent.store.forget(only(agent), 0)
        agent.policy = Policy(lifetime_budget=100.0, total_budget=100.0)
    assert seen == {0, 1}
    agent.store.close()


def test_the_second_cell_is_not_frozen_by_what_other_campaigns_spend(
    state: Path, clock: FakeClock
) -> None:
    agent = joined_agent(state, clock, policy=Policy(lifetime_budget=6.0))
    hashed = way_manifest("hashed", attributes=many_values())
    agree(agent, hashed)
    greedy = way_manifest("memoized", attributes=many_values(), slug="greedy")
    agree(agent, greedy)
    again = way_manifest("nested", attributes=many_values(), slug="again")
    with pytest.raises(PolicyRefusal):
        agree(agent, again)
    for i in range(12):
        for campaign in (greedy, hashed):
            agent.draw(agent.membership(campaign.campaign), lambda _: f"v{i:02}")  # noqa: B023
        clock.pass_time(DAY)
    assert len(agent.store.memos(hashed.campaign)) == 2
    assert agent.store.charged("colour") == 6.0
    agent.store.close()


def test_a_budget_lowered_by_its_owner_freezes_without_silence(
    hashing: Agent, clock: FakeClock
) -> None:
    draw_rounds(hashing, clock, 1, "v07")
    hashing.policy = Policy(lifetime_budget=3.0)
    for i in range(12):
        draw_rounds(hashing, clock, 1, f"v{i:02}")
    assert len(memos_of(hashing)) == 1
    assert ledger_of(hashing) == [2.0]


# --- nested --------------------------------------------------------------------------------------


def test_all_levels_are_drawn_and_stored_at_once(state: Path, clock: FakeClock) -> None:
    campaign = way_manifest("nested", attributes=many_values())
    agent = joined_agent(state, clock, campaign)
    way, levels = campaign.mechanisms[0], len(campaign.attributes[0].levels)
    size = way.answer_bytes - 1
    draw_rounds(agent, clock, 1, "v07")
    stored = memos_of(agent)[7].body
    assert len(stored) == size * levels
    agent.store.close()
    agent = joined_agent(state, clock, entropy=no_entropy)  # nothing more is drawn, ever
    for j in range(2, levels + 4):
        report, level = report_of(draw(agent, "v07")), min(j, levels)
        assert report.body == bytes([level]) + stored[size * (level - 1) : size * level]
        spent = agent.store.spent(only(agent))
        assert spent.exact == campaign.attributes[0].levels[level - 1]
        assert spent.charged == campaign.eps_inf
        clock.pass_time(DAY)
    assert ledger_of(agent) == [2.0]
    agent.store.close()


def test_a_changed_value_goes_on_with_the_first(state: Path, clock: FakeClock) -> None:
    agent = joined_agent(state, clock, way_manifest("nested", attributes=many_values()))
    draw_rounds(agent, clock, 1, "v07")
    draw_rounds(agent, clock, 2, "v09")
    assert {key: memo.reports for key, memo in memos_of(agent).items()} == {7: 3}
    agent.store.close()


def test_missed_rounds_do_not_skip_levels(state: Path, clock: FakeClock) -> None:
    """The j-th report of the device, not of the campaign."""
    agent = joined_agent(state, clock, way_manifest("nested"))
    levels = []
    for _ in range(3):
        levels.append(report_of(draw(agent)).body[0])
        clock.pass_time(5 * DAY)
    assert levels == [1, 2, 3]
    agent.store.close()
