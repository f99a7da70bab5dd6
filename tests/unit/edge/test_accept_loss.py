"""`forget --lost`: an empty memory that stays charged for all that the lost one may have said."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from edge_client.agent import Due, Wait, due
from edge_client.client import accept_loss
from edge_client.errors import CampaignProblem, StateBusy, StateExposed, StateLost
from edge_client.policy import Policy
from edge_client.store import Store
from protocol_spec import Manifest
from tests.support.edge import (
    FUEL,
    FakeClock,
    as_killed,
    charge,
    daily,
    draw,
    draw_rounds,
    joined_agent,
    only,
)

TWO = FUEL + FUEL.replace("fuel", "stove")


@pytest.fixture
def campaign() -> Manifest:
    return daily(max_values=2, attributes=TWO, eps_inf=2.0)


@pytest.fixture
def used(state: Path, clock: FakeClock, campaign: Manifest) -> Path:
    """Two memos drawn: 4 charged to the one attribute that was drawn for life."""
    with closing(joined_agent(state, clock, campaign).store):
        pass
    agent = joined_agent(state, clock)
    draw_rounds(agent, clock, 1, "wood")
    draw_rounds(agent, clock, 1, "gas")
    agent.store.close()
    return state


def charged(state: Path) -> dict[str, float]:
    with Store(state, exclusive=True) as store:
        sources = {line.source for line in store.ledger()}
        return {source: store.charged(source) for source in sources}


def lose_database(state: Path) -> None:
    (state / "state.db").unlink()


def lose_mark(state: Path) -> None:
    (state / "highwater").unlink()


def lose_both(state: Path) -> None:
    lose_database(state)
    (state / "highwater").write_bytes(b"damaged")


def test_charges_and_attribute_outlive_the_database(
    used: Path, clock: FakeClock, campaign: Manifest
) -> None:
    with Store(used, exclusive=True) as store:
        (before,) = store.memberships()
    lose_database(used)
    assert accept_loss(used, Policy(), clock) == {before.attribute.name: 4.0}
    agent = joined_agent(used, clock, campaign)
    after = only(agent)
    assert (after.device, after.attribute_index) == (before.device, before.attribute_index)
    draw(agent, "wood")  # a second memo for the same value: it is charged once more
    assert agent.store.charged(before.attribute.name) == 6.0
    agent.store.close()


def test_a_lost_mark_books_an_unknown_loss_on_top(
    used: Path, clock: FakeClock, campaign: Manifest
) -> None:
    """The database may be an old copy: what it knows is the least that was spent."""
    with Store(used, exclusive=True) as store:
        (before,) = store.memberships()
    lose_mark(used)
    kept = accept_loss(used, Policy(max_eps_inf=3.0), clock)
    assert kept == {before.attribute.name: 4.0, "*": 3.0}
    agent = joined_agent(used, clock, campaign)
    assert agent.store.charged(before.attribute.name) == 7.0
    assert agent.store.charged("anything else") == 3.0
    assert only(agent).attribute_index == before.attribute_index
    agent.store.close()


def test_losing_everything_books_a_full_campaign_on_every_source(
    used: Path, clock: FakeClock
) -> None:
    lose_both(used)
    assert accept_loss(used, Policy(max_eps_inf=3.0), clock) == {"*": 3.0}
    with Store(used, exclusive=True) as store:
        assert store.charged("fuel") == store.charged("stove") == 3.0


def test_losses_add_up(used: Path, clock: FakeClock, campaign: Manifest) -> None:
    """Twice lost, also before anything new was drawn: nothing is forgotten by it."""
    with Store(used, exclusive=True) as store:
        (before,) = store.memberships()
    for _ in range(2):
        lose_database(used)
        accept_loss(used, Policy(), clock)
    assert charged(used) == {before.attribute.name: 4.0}
    for _ in range(2):
        lose_mark(used)
        accept_loss(used, Policy(max_eps_inf=1.0), clock)
    assert charged(used) == {before.attribute.name: 6.0, "*": 2.0}
    agent = joined_agent(used, clock, campaign)
    assert only(agent).attribute_index == before.attribute_index
    agent.store.close()


def test_a_rolled_back_database_counts_for_what_the_mark_knows(
    used: Path, clock: FakeClock
) -> None:
    backup = (used / "state.db").read_bytes()
    agent = joined_agent(used, clock)
    source = only(agent).attribute.name
    charge(agent, source, 1.0)
    agent.store.close()
    (used / "state.db").write_bytes(backup)
    assert accept_loss(used, Policy(), clock) == {source: 5.0}


def test_a_sound_memory_is_not_replaced(used: Path, clock: FakeClock) -> None:
    before = (used / "state.db").read_bytes()
    with pytest.raises(CampaignProblem, match="is sound; nothing was changed"):
        accept_loss(used, Policy(), clock)
    assert (used / "state.db").read_bytes() == before


def test_a_running_agent_is_not_robbed(used: Path, clock: FakeClock) -> None:
    with Store(used, exclusive=True), pytest.raises(StateBusy):
        accept_loss(used, Policy(), clock)


def test_an_exposed_memory_is_mended_first(used: Path, clock: FakeClock) -> None:
    lose_database(used)
    used.chmod(0o755)
    with pytest.raises(StateExposed):
        accept_loss(used, Policy(), clock)


class Killed(BaseException):
    """The process ends here."""


POINTS = (
    "left-over read",
    "left-over marked",
    "state.db removed",
    "state.db-wal removed",
    "state.db-shm removed",
    "empty memory opened",
    "transaction begun",
    "committing",
    "before the mark",
    "mark written",
    "inherited",
)


def test_the_points_are_all_there_are(used: Path, clock: FakeClock) -> None:
    lose_database(used)
    passed: list[str] = []
    accept_loss(used, Policy(), clock, passed.append)
    assert tuple(passed) == POINTS


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("lose", [lose_database, lose_mark, lose_both])
def test_a_kill_in_between_forgets_nothing(
    used: Path, clock: FakeClock, lose: Callable[[Path], None], point: str
) -> None:
    """I14: between any two steps, it is refused as lost, and the next try keeps as much."""
    undisturbed = used.with_name("undisturbed")
    lose(as_killed(used, undisturbed))
    expected = accept_loss(undisturbed, Policy(), clock)
    lose(used)

    def kill(passed: str) -> None:
        if passed == point:
            raise Killed

    with pytest.raises(Killed):
        accept_loss(used, Policy(), clock, kill)
    try:
        Store(used, exclusive=True).close()
    except StateLost:
        assert accept_loss(used, Policy(), clock) == expected
    assert charged(used) == {
        source: epsilon + (0.0 if source == "*" else expected.get("*", 0.0))
        for source, epsilon in expected.items()
    }


def test_a_round_reported_before_the_loss_is_not_reported_again(
    state: Path, clock: FakeClock, campaign: Manifest
) -> None:
    """I3: the mark remembers the round, so a rejoin within it draws nothing."""
    agent = joined_agent(state, clock, campaign)
    draw(agent)
    agent.store.close()
    lose_database(state)
    accept_loss(state, Policy(), clock)
    agent = joined_agent(state, clock, campaign)
    assert due(only(agent), clock) is Wait.DRAWN
    clock.pass_time(86_400)
    allowed = due(only(agent), clock)
    assert isinstance(allowed, Due)
    assert allowed.round == 1
    agent.store.close()
