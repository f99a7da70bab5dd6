"""What the agent draws, stores and charges: its attribute, its memos and its reports."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from edge_client.agent import Agent, ReadValue
from edge_client.errors import PolicyRefusal, SettingsError
from edge_client.policy import Policy
from edge_client.records import Invitation, Memo, Queued
from protocol_spec import Rejected, Reporting, decode_report, report_fault
from protocol_spec.mechanisms import MECHANISMS
from protocol_spec.programs.settings import parse_broker
from protocol_spec.topics import is_device
from tests.support.edge import (
    COLOUR,
    DAY,
    FUEL,
    ROOM,
    ROOMY,
    WARMTH,
    Connections,
    FakeClock,
    Joined,
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
)
from tests.support.protocol.entropy import seeded
from tests.support.protocol.statistics import LIMIT, uniform_z

EVERY_MECHANISM = pytest.mark.parametrize("reporting", MECHANISMS)


# --- the attribute and the name (R07, I11) --------------------------------------------------------


def attributes(count: int) -> str:
    return "".join(FUEL.replace("fuel", f"fuel{i}") for i in range(count))


@pytest.mark.parametrize("count", [2, 7])
def test_the_attribute_is_uniform(joined: Joined, count: int) -> None:
    """R07: chi-square over 350 devices; the seed is fixed."""
    seed, connections = f"attribute {count}", Connections()
    agent = joined(entropy=seeded(seed), connect=connections)
    campaign, drawn = daily(attributes=attributes(count)), Counter[int]()
    for _ in range(350):
        drawn[agree(agent, campaign).attribute_index] += 1
        connections.execute("DELETE FROM campaign")  # another device with other randomness
    assert uniform_z([drawn[i] for i in range(count)]) < LIMIT, f"seed {seed!r}: {drawn}"
    assert sum(drawn.values()) == 350


def test_the_attribute_survives_restart_leaving_and_rejoining(
    joined: Joined, clock: FakeClock
) -> None:
    """I11, R07: over many rounds, each with fresh randomness."""
    agent = joined(campaign := daily(attributes=attributes(64)))
    first, reported = only(agent), set()
    for seed in range(20):
        agent.store.close()
        agent = joined(entropy=seeded(str(seed)))
        agent.store.set_status(first.name, "left", 0)
        agree(agent, campaign)
        assert only(agent).device == first.device
        reported.add(report_of(draw(agent)).attribute)
        clock.pass_time(DAY)
    assert reported == {only(agent).attribute_index} == {first.attribute_index}


def test_joining_again_draws_nothing_and_moves_to_another_broker(
    agent: Agent, clock: FakeClock
) -> None:
    silent = Agent(agent.store, Policy(), clock=clock, entropy=no_entropy)
    elsewhere = parse_broker("mqtts://elsewhere.example:8883")
    silent.join(Invitation(daily(), elsewhere, "other"))
    moved = only(agent)
    assert (moved.broker, moved.namespace) == ("mqtts://elsewhere.example:8883", "other")
    assert moved.topics.report(moved.device).startswith("other/v1/")


def test_only_the_drawn_attribute_is_read(joined: Joined) -> None:
    agent, asked = joined(daily(attributes=attributes(5))), list[str]()
    agent.draw(only(agent), asked.append)
    assert asked == [only(agent).attribute.name]


def test_pseudonyms_are_device_names_of_80_random_bits(agent: Agent) -> None:
    """Each letter is uniform over 32: chi-square over 3200 letters."""
    names = {agent.pseudonym() for _ in range(200)}
    assert len(names) == 200
    assert all(is_device(name) and len(name) == 16 for name in names)
    letters = Counter("".join(names))
    assert len(letters) == 32
    assert uniform_z(list(letters.values())) < LIMIT


@pytest.mark.parametrize("device", ["Heater", "a/b", "a" * 33, "+", "ü", ""])
def test_a_user_name_that_is_no_device_name_is_refused(joined: Joined, device: str) -> None:
    agent = joined()
    with pytest.raises(SettingsError, match=r"invalid device name .* Nothing was drawn or sent"):
        agree(agent, daily(), device=device)
    assert agent.store.memberships() == []


# --- R09: a new memo only for an unseen value; at the cap or the end of the budget the last serves


@pytest.mark.parametrize(
    ("cap", "values", "reports"),
    [
        (1, ["c3"] * 21, {3: 21}),
        (3, ["c1", "c2", "c1", "c3", "c2", "c1"], {1: 3, 2: 2, 3: 1}),
        # At the cap, c2 is answered from c1, the last one used, and c3 from c0.
        (2, ["c0", "c1", "c2", "c0", "c3"], {0: 3, 1: 2}),
    ],
)
def test_each_memo_is_drawn_and_charged_once_and_the_last_serves_at_the_cap(
    joined: Joined, cap: int, values: list[str], reports: dict[int, int]
) -> None:
    """Reports from the last memo have the same length, and nothing is charged for them."""
    agent = joined(daily(attributes=COLOUR, max_values=cap))
    bodies: dict[int, bytes] = {}
    lengths = set()
    for value in values:
        lengths.add(len(draw_rounds(agent, 1, value)[0]))
        for key, memo in memos_of(agent).items():
            assert bodies.setdefault(key, memo.body) == memo.body
    assert {v: m.reports for v, m in memos_of(agent).items()} == reports
    assert ledger_of(agent) == [2.0] * len(reports)
    assert len(lengths) == 1


@pytest.mark.parametrize("limit", ["lifetime_budget", "total_budget"])
def test_at_the_end_of_a_budget_the_last_memo_serves(joined: Joined, limit: str) -> None:
    """Lowered to 5 after joining, it pays for two memos of 2, though the campaign allows nine."""
    policy = Policy(max_values=9, lifetime_budget=18.0, total_budget=18.0)
    agent = joined(daily(attributes=COLOUR, max_values=9), policy=policy)
    agent.policy = replace(policy, **{limit: 5.0})  # type: ignore[arg-type]
    for value in ("c0", "c1", "c2", "c3"):
        draw_rounds(agent, 1, value)
    assert {v: m.reports for v, m in memos_of(agent).items()} == {0: 1, 1: 3}
    assert agent.store.charged("colour") == 4.0


def test_the_lifetime_budget_counts_all_campaigns_of_a_source(joined: Joined, state: Path) -> None:
    """A first memo is promised at joining; a budget that is lowered later stops the draw."""
    agent = joined(policy=Policy(lifetime_budget=6.0))
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


def test_a_budget_reached_exactly_is_not_exceeded_by_rounding(joined: Joined) -> None:
    """Ten times 0.3 is 2.9999999999999996 in binary: the tenth campaign is still allowed."""
    agent = joined(policy=Policy(lifetime_budget=3.0))
    for i in range(10):
        agree(agent, daily(slug=f"s{i}", eps_inf=0.3, eps_1=0.1))
    for membership in agent.store.memberships():
        agent.draw(membership, lambda _: "wood")
    with pytest.raises(PolicyRefusal):
        agree(agent, daily(slug="s10", eps_inf=0.3, eps_1=0.1))


@pytest.mark.parametrize("reading", ["warm", float("nan"), None])
def test_what_is_no_number_is_a_bin_drawn_uniformly(tmp_path: Path, reading: object) -> None:
    """P1: bins from -inf to inf have no value for it; silence would reveal that it is no number."""
    bins: Counter[int] = Counter()
    for number in range(40):
        agent = joined_agent(tmp_path / str(number), FakeClock(), daily(attributes=WARMTH))
        draw(agent, reading)
        bins.update(list(memos_of(agent)))
        assert agent.store.charged("warmth") == 2.0
        agent.store.close()
    assert set(bins) == {0, 1, 2}


def test_the_memo_itself_never_leaves(joined: Joined) -> None:
    """1024 bits agree by chance with a negligible probability."""
    agent = joined(daily(attributes=COLOUR))
    payloads = draw_rounds(agent, 10, "c3")
    assert len(set(payloads)) == 10
    assert not any(memos_of(agent)[3].body in payload for payload in payloads)


# --- pairs (M130, M132) ---------------------------------------------------------------------------

PAIR = {"attributes": FUEL + ROOM, "cross": ("fuel", "room")}  # 4 values and 3


def readings(**values: object) -> ReadValue:
    """Each source by its name; without one it fails."""
    return values.__getitem__


def test_a_pair_is_one_answer_and_charged_to_both_sources(joined: Joined) -> None:
    agent = joined(daily(**PAIR), policy=Policy(lifetime_budget=3.0))
    for _ in range(2):
        assert isinstance(agent.draw(only(agent), readings(fuel="gas", room=21.5)), Queued | str)
    assert list(memos_of(agent)) == [1 * 3 + 1]
    assert ledger_of(agent) == [2.0]
    assert [agent.store.charged(s) for s in ("fuel", "room", "colour", None)] == [2.0, 2.0, 0, 2.0]
    for alone in (FUEL, ROOM):
        with pytest.raises(PolicyRefusal, match=r"needs 2 more of source '(fuel|room)'"):
            agree(agent, daily(slug="alone", attributes=alone))


def test_who_withholds_a_source_withholds_its_pairs(joined: Joined) -> None:
    agent = joined(policy=Policy(sources=("fuel", "fuel-*")))
    with pytest.raises(PolicyRefusal, match="may ask for 'room', not allowed"):
        agree(agent, daily(**PAIR))


def test_of_a_pair_only_the_value_that_is_missing_is_replaced(joined: Joined) -> None:
    """The first time by what stands for it; then the memo used last goes on."""
    agent = joined(daily(**PAIR, max_values=3))
    agent.draw(only(agent), readings(fuel="gas"))
    assert list(memos_of(agent)) == [1 * 3 + 2]
    assert isinstance(agent.clock, FakeClock)
    agent.clock.pass_time(DAY)
    agent.draw(only(agent), readings(room=20.5))
    assert {key: memo.reports for key, memo in memos_of(agent).items()} == {1 * 3 + 2: 2}


# --- every mechanism ------------------------------------------------------------------------------


def raising(_attribute: str) -> object:
    raise ZeroDivisionError


@EVERY_MECHANISM
def test_reports_belong_to_their_campaign_and_have_one_length(
    joined: Joined, state: Path, clock: FakeClock, reporting: Reporting
) -> None:
    """R26, whatever attribute was drawn: the padding is as the manifest demands."""
    tables = FUEL + many_values()
    campaign = daily(reporting=reporting, attributes=tables, count=20, each=20)
    lengths = set()
    for number in range(6):
        clock.now = FakeClock().now
        agent = joined(campaign, directory=state / str(number))
        for payload in draw_rounds(agent, 2, 3):
            report = decode_report(payload)
            assert not isinstance(report, Rejected)
            assert report_fault(report, campaign) is None
            assert len(report.body) == campaign.body_bytes
            lengths.add(len(payload))
    assert len(lengths) == 1


@EVERY_MECHANISM
@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        *((FUEL, value) for value in ("coal", "", None, 3, True, object())),
        *((ROOM, value) for value in (19.0, 22.5, "warm", None, float("nan"))),
    ],
)
def test_a_value_outside_the_domain_is_reported_as_the_last(
    joined: Joined, reporting: Reporting, attribute: str, value: object
) -> None:
    """P1: with edges 20, 21, 22 silence would reveal whether the room is at 20 to 22 °C."""
    agent = joined(daily(reporting=reporting, attributes=attribute, count=1))
    draw(agent, value)
    if reporting in ("memoized", "nested"):
        assert list(memos_of(agent)) == [only(agent).attribute.k - 1]


@EVERY_MECHANISM
@pytest.mark.parametrize("attribute", [FUEL, WARMTH, ROOM])
@pytest.mark.parametrize("read", [broken, raising, lambda _: object()])
def test_a_source_that_never_worked_is_reported_like_any_value(
    joined: Joined, reporting: Reporting, attribute: str, read: ReadValue
) -> None:
    """P1: drawn, stored and charged; silence would reveal that there is no value."""
    agent = joined(daily(reporting=reporting, attributes=attribute, count=1))
    assert isinstance(agent.draw(only(agent), read), Queued)
    assert ledger_of(agent) == [2.0]
    assert len(memos_of(agent)) == (0 if reporting == "once" else 1)
    if reporting in ("memoized", "nested") and attribute != WARMTH:
        assert list(memos_of(agent)) == [only(agent).attribute.k - 1]


@pytest.mark.parametrize("reporting", ["memoized", "hashed", "nested"])
@pytest.mark.parametrize("attribute", [FUEL, WARMTH, ROOM])
def test_a_source_that_fails_later_is_reported_from_the_last_memo(
    joined: Joined, reporting: Reporting, attribute: str
) -> None:
    """P1: the same length, and nothing is charged."""
    agent = joined(daily(reporting=reporting, attributes=attribute))
    (first,) = draw_rounds(agent, 1, 15)
    before, last = memos_of(agent), only(agent).last_value
    drawn = agent.draw(only(agent), broken)
    assert isinstance(drawn, Queued)
    assert len(drawn.payload) == len(first)
    assert last is not None
    assert only(agent).last_value == last
    assert memos_of(agent) == {last: Memo(last, before[last].body, 2)}
    assert ledger_of(agent) == [2.0]


@pytest.mark.parametrize("limit", ["lifetime_budget", "total_budget"])
@EVERY_MECHANISM
def test_a_budget_lowered_after_joining_stops_the_first_draw(
    joined: Joined, reporting: Reporting, limit: str
) -> None:
    """Nothing is drawn or charged beyond what the owner allows now."""
    agent = joined(daily(reporting=reporting, count=4, each=4))
    before = ledger_of(agent)
    agent.policy = Policy(**{limit: 0.25})  # type: ignore[arg-type]
    with pytest.raises(PolicyRefusal, match=limit):
        draw_rounds(agent, 1)
    assert agent.store.reports(agent.store.memberships()[0].name) == []
    assert ledger_of(agent) == before


@EVERY_MECHANISM
def test_a_campaign_is_promised_all_it_may_ever_cost(
    joined: Joined, clock: FakeClock, reporting: Reporting
) -> None:
    campaign, other = daily(reporting=reporting, max_values=3), daily(reporting="once", slug="x")
    most = {"memoized": 6.0, "once": 2.0, "hashed": 4.0, "nested": 2.0}[reporting]
    assert campaign.lifetime_epsilon == most
    agent = joined(policy=replace(ROOMY, lifetime_budget=most - 0.1))
    with pytest.raises(PolicyRefusal, match=f"needs {most:g} more of source 'fuel', and 0 of"):
        agree(agent, campaign)
    agent.policy = replace(ROOMY, lifetime_budget=most)
    agree(agent, campaign)
    # What is promised to one campaign is not there for another, though nothing is spent yet.
    with pytest.raises(PolicyRefusal, match=f"{most:g} of its lifetime budget of"):
        agree(agent, other)
    agree(agent, campaign)  # again: costs nothing more
    clock.now = campaign.expires
    agree(agent, daily(reporting="once", slug="x", first=campaign.expires))


@EVERY_MECHANISM
def test_forgetting_and_joining_again_is_charged_again(
    joined: Joined, state: Path, reporting: Reporting
) -> None:
    """R25."""
    agent = joined(campaign := daily(reporting=reporting, count=4, each=4))
    draw_rounds(agent, 1)
    agent.store.forget(only(agent), 0)
    assert all(not rows(state)[name] for name in ("campaign", "memo", "drawn_round"))
    agree(agent, campaign)
    draw_rounds(agent, 1)
    each = campaign.eps_1 if reporting == "once" else campaign.eps_inf
    assert ledger_of(agent) == [each, each]


@EVERY_MECHANISM
def test_the_ledger_is_never_below_the_exact_loss_nor_above_the_bound(
    joined: Joined, clock: FakeClock, reporting: Reporting
) -> None:
    """I14 at every step."""
    agent = joined(campaign := daily(reporting=reporting, count=12, each=5, max_values=3))
    exact = 0.0
    for i in range(12):
        agent.draw(only(agent), lambda _: ("wood", "gas", "oil", "coal")[i % 4])  # noqa: B023
        clock.pass_time(DAY)
        spent = agent.store.spent(only(agent))
        assert exact <= spent.exact <= spent.charged
        assert spent.charged == pytest.approx(sum(ledger_of(agent)), abs=1e-12)
        assert spent.charged <= campaign.lifetime_epsilon + 1e-12
        exact = spent.exact
    assert exact > 0


# --- hashed ---------------------------------------------------------------------------------------


HASHED = daily(reporting="hashed", attributes=many_values())


def test_there_is_a_memo_for_each_visited_cell_and_no_more(joined: Joined) -> None:
    agent = joined(HASHED)
    cell_of = HASHED.mechanisms[0].randomiser(only(agent).device).key
    bodies: dict[int, bytes] = {}
    for i in range(64):
        draw_rounds(agent, 1, f"v{i:02}")
        assert only(agent).last_value == cell_of(i), "the cell is stored, not the value"
        for cell, memo in memos_of(agent).items():
            assert bodies.setdefault(cell, memo.body) == memo.body
    assert {c: m.reports for c, m in memos_of(agent).items()} == Counter(map(cell_of, range(64)))
    assert ledger_of(agent) == [2.0, 2.0]
    assert agent.store.spent(only(agent)).charged == HASHED.lifetime_epsilon


def test_another_name_has_another_hash(joined: Joined) -> None:
    """A rejoin under another name after `forget` must not draw with the old name's hash."""
    agent, seen = joined(policy=replace(ROOMY, lifetime_budget=100.0)), set()
    for _ in range(8):
        agree(agent, HASHED)
        draw_rounds(agent, 1, "v07")
        expected = HASHED.mechanisms[0].randomiser(only(agent).device).key(7)
        assert only(agent).last_value == expected
        seen.add(expected)
        agent.store.forget(only(agent), 0)
    assert seen == {0, 1}


def test_the_second_cell_is_not_frozen_by_what_other_campaigns_spend(
    joined: Joined, clock: FakeClock
) -> None:
    agent = joined(HASHED, policy=replace(ROOMY, lifetime_budget=6.0))
    greedy = daily(attributes=many_values(), slug="greedy")
    agree(agent, greedy)
    with pytest.raises(PolicyRefusal):
        agree(agent, daily(reporting="nested", attributes=many_values(), slug="again"))
    for i in range(12):
        for campaign in (greedy, HASHED):
            agent.draw(agent.membership(campaign.campaign), lambda _: f"v{i:02}")  # noqa: B023
        clock.pass_time(DAY)
    assert len(agent.store.memos(HASHED.campaign)) == 2
    assert agent.store.charged("colour") == 6.0


# --- nested ---------------------------------------------------------------------------------------


NESTED = daily(reporting="nested", attributes=many_values())


def test_all_levels_are_drawn_and_stored_at_once(joined: Joined, clock: FakeClock) -> None:
    agent, levels = joined(NESTED), NESTED.attributes[0].levels
    size = NESTED.mechanisms[0].answer_bytes - 1
    draw_rounds(agent, 1, "v07")
    stored = memos_of(agent)[7].body
    assert len(stored) == size * len(levels)
    agent.store.close()
    agent = joined(entropy=no_entropy)  # nothing more is drawn, ever
    for j in range(2, len(levels) + 4):
        report, level = report_of(draw(agent, "v07")), min(j, len(levels))
        assert report.body == bytes([level]) + stored[size * (level - 1) : size * level]
        spent = agent.store.spent(only(agent))
        assert (spent.exact, spent.charged) == (levels[level - 1], NESTED.eps_inf)
        clock.pass_time(DAY)
    assert ledger_of(agent) == [2.0]


def test_a_changed_value_goes_on_with_the_first(joined: Joined) -> None:
    agent = joined(NESTED)
    draw_rounds(agent, 1, "v07")
    draw_rounds(agent, 2, "v09")
    assert {key: memo.reports for key, memo in memos_of(agent).items()} == {7: 3}


def test_missed_rounds_do_not_skip_levels(joined: Joined, clock: FakeClock) -> None:
    """The j-th report of the device, not of the campaign."""
    agent, levels = joined(daily(reporting="nested")), []
    for _ in range(3):
        levels.append(report_of(draw(agent)).body[0])
        clock.pass_time(5 * DAY)
    assert levels == [1, 2, 3]
