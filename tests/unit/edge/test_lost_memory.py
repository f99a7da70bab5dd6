"""A memory that is missing, damaged, replaced or rolled back is refused, never made anew."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from edge_client.agent import Due, Wait, due
from edge_client.client import accept_loss
from edge_client.errors import (
    CampaignProblem,
    StateBusy,
    StateExposed,
    StateLost,
    StateOfOtherVersion,
)
from edge_client.policy import Policy
from edge_client.store import Store
from edge_client.store.highwater import SLOT
from edge_client.store.opening import RECOVER, UNRELEASED_ID
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
    rows,
)

PAGE = 4096
Damage = Callable[[Path], object]


@pytest.fixture
def used(state: Path, clock: FakeClock) -> Path:
    """A state directory with a week of reports, properly closed."""
    agent = joined_agent(state, clock, daily())
    draw_rounds(agent, clock, 7)
    agent.store.close()
    return state


def database(state: Path) -> Path:
    return state / "state.db"


def truncate(size: int) -> Damage:
    return lambda state: database(state).write_bytes(database(state).read_bytes()[:size])


def overwrite(offset: int, content: bytes) -> Damage:
    def damage(state: Path) -> None:
        with database(state).open("r+b") as file:
            file.seek(offset)
            file.write(content)

    return damage


def replace_by_another_device(state: Path) -> None:
    other = state.parent / "other"
    agent = joined_agent(other, clock := FakeClock(), daily())
    draw_rounds(agent, clock, 20)
    agent.store.close()
    shutil.copy(database(other), database(state))


def replace_by_another_program(state: Path) -> None:
    database(state).unlink()
    with closing(sqlite3.connect(database(state))) as db:
        db.execute("CREATE TABLE bookmarks (url TEXT)")
    database(state).chmod(0o600)


def same_version_other_tables(state: Path) -> None:
    replace_by_another_program(state)
    with closing(sqlite3.connect(database(state))) as db:
        db.execute("PRAGMA user_version = 1")


DAMAGES: dict[str, Damage] = {
    "missing": lambda state: database(state).unlink(),
    "empty": truncate(0),
    "one byte": truncate(1),
    "header only": truncate(100),
    "one page": truncate(PAGE),
    "half": truncate(5 * PAGE),
    "torn page": truncate(5 * PAGE + 100),
    "garbage header": overwrite(0, b"\xa5" * 100),
    "zeroed header": overwrite(0, bytes(100)),
    "zeroed first page": overwrite(0, bytes(PAGE)),
    "text": lambda state: database(state).write_text("restored from nowhere\n" * 400),
    "another device's": replace_by_another_device,
    "another program's": replace_by_another_program,
    "other tables": same_version_other_tables,
    "no version": overwrite(60, bytes(4)),
    "no mark": lambda state: (state / "highwater").unlink(),
    "empty mark": lambda state: (state / "highwater").write_bytes(b""),
    "zeroed mark": lambda state: (state / "highwater").write_bytes(bytes(2 * SLOT)),
    "garbage mark": lambda state: (state / "highwater").write_bytes(b"\xa5" * 2 * SLOT),
}


def assert_refused(state: Path) -> None:
    for exclusive in (True, False, True):
        with pytest.raises(StateLost) as refused:
            Store(state, exclusive=exclusive)
        message = str(refused.value)
        assert str(database(state)) in message
        assert RECOVER in message
        assert "nothing was drawn or sent" in message


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_refused_and_stays_as_it_was(used: Path, damage: str) -> None:
    DAMAGES[damage](used)
    before = database(used).read_bytes() if database(used).exists() else None
    mark = (used / "highwater").read_bytes() if (used / "highwater").exists() else None
    assert_refused(used)
    assert (database(used).read_bytes() if database(used).exists() else None) == before
    assert ((used / "highwater").read_bytes() if (used / "highwater").exists() else None) == mark


def test_any_zeroed_page_is_noticed(used: Path) -> None:
    pages = database(used).stat().st_size // PAGE
    assert pages > 6
    whole = database(used).read_bytes()
    for page in range(pages):
        overwrite(page * PAGE, bytes(PAGE))(used)
        assert_refused(used)
        database(used).write_bytes(whole)
    Store(used, exclusive=True).close()


def damaged(content: bytes, chance: Random) -> bytes:
    """Some flipped bits, a zeroed stretch, or a lost end."""
    place = chance.randrange(len(content))
    kind = chance.choice(["bits", "zeros", "end"])
    if kind == "end":
        return content[:place]
    if kind == "zeros":
        return content[:place] + bytes(512) + content[place + 512 :]
    flipped = bytearray(content)
    for _ in range(chance.choice([1, 4, 30])):
        flipped[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    return bytes(flipped)


@pytest.mark.parametrize("seed", range(4))
def test_damage_anywhere_is_refused_by_name_or_does_not_show(
    used: Path, clock: FakeClock, tmp_path: Path, seed: int
) -> None:
    """No other error, now or later. (A bit that flips inside of a number is not noticed.)"""
    chance, outcomes = Random(seed), Counter[str]()
    for number in range(60):
        state = as_killed(used, tmp_path / f"{number}")
        file = state / chance.choice(["state.db", "state.db", "highwater"])
        file.write_bytes(damaged(file.read_bytes(), chance))
        try:
            agent = joined_agent(state, clock)
        except (StateLost, StateOfOtherVersion) as refused:
            outcomes[type(refused).__name__] += 1
            continue
        agent.store.reports(only(agent).name)
        outcomes["not noticed"] += 1
        agent.store.close()
    assert outcomes["StateLost"] > 10, f"seed {seed}: {outcomes}"


@pytest.mark.parametrize("mark", ["missing", "damaged"])
def test_losing_database_and_mark_at_once_is_noticed_by_what_is_left(used: Path, mark: str) -> None:
    """A mark that cannot be read, or a leftover log, shows that there was a memory."""
    database(used).unlink()
    if mark == "missing":
        (used / "highwater").unlink()
        (used / "state.db-wal").write_bytes(b"left over")
        (used / "state.db-wal").chmod(0o600)
    else:
        (used / "highwater").write_bytes(b"\xa5" * 100)
    assert_refused(used)
    assert not database(used).exists()


def test_an_old_copy_of_a_closed_store_is_refused(used: Path, clock: FakeClock) -> None:
    backup = database(used).read_bytes()
    agent = joined_agent(used, clock)
    draw_rounds(agent, clock, 1)
    agent.store.close()
    database(used).write_bytes(backup)
    assert_refused(used)


def test_an_old_copy_of_a_running_store_is_refused(
    state: Path, clock: FakeClock, tmp_path: Path
) -> None:
    """Database and log copied together from an earlier moment, as a backup program does."""
    agent = joined_agent(state, clock, daily())
    draw_rounds(agent, clock, 3)
    backup = as_killed(state, tmp_path / "backup")
    draw_rounds(agent, clock, 1)
    killed = as_killed(state, tmp_path / "killed")
    agent.store.close()
    Store(as_killed(killed, tmp_path / "control"), exclusive=True).close()
    for name in ("state.db", "state.db-wal", "state.db-shm"):
        shutil.copy(backup / name, killed / name)
    assert_refused(killed)


@pytest.mark.parametrize("kept", [0, 32, 2 * PAGE])
def test_a_log_that_lost_its_end_is_a_rollback(
    state: Path, clock: FakeClock, tmp_path: Path, kept: int
) -> None:
    agent = joined_agent(state, clock, daily())
    draw_rounds(agent, clock, 3)
    killed = as_killed(state, tmp_path / "killed")
    agent.store.close()
    log = killed / "state.db-wal"
    assert log.stat().st_size > 10 * PAGE
    log.write_bytes(log.read_bytes()[:kept])
    assert_refused(killed)


def test_the_newest_copy_put_back_is_accepted(used: Path, tmp_path: Path) -> None:
    copy, before = as_killed(used, tmp_path / "copy"), rows(used)
    database(used).unlink()
    assert_refused(used)
    shutil.copy(database(copy), database(used))
    Store(used, exclusive=True).close()
    assert rows(used) == before


@pytest.mark.parametrize(
    ("pragma", "told"),
    [
        ("user_version = 99", r"a later version \(schema 99.*\. Upgrade the agent"),
        (f"application_id = {UNRELEASED_ID}", r"before the first release.*another --state-dir"),
    ],
)
def test_the_state_of_another_version_is_refused_untouched(
    used: Path, clock: FakeClock, pragma: str, told: str
) -> None:
    with closing(sqlite3.connect(database(used))) as db:
        db.execute(f"PRAGMA {pragma}")
    before = {path.name: path.read_bytes() for path in used.iterdir()}
    for attempt in (
        lambda: Store(used, exclusive=True).close(),
        lambda: accept_loss(used, Policy(), clock),
    ):
        with pytest.raises(StateOfOtherVersion, match=told) as refused:
            attempt()
        assert "nothing was changed, drawn or sent" in str(refused.value)
        assert {path.name: path.read_bytes() for path in used.iterdir()} == before


def test_a_first_start_that_was_killed_is_no_loss(state: Path) -> None:
    """Nothing had been drawn, so nothing can be lost."""
    state.mkdir(mode=0o700)
    Store(state, exclusive=True).close()
    (state / "highwater").unlink()
    Store(state, exclusive=True).close()


# --- `forget --lost`: an empty memory that stays charged for all that the lost one may have said.


TWO = FUEL + FUEL.replace("fuel", "stove")


@pytest.fixture
def campaign() -> Manifest:
    return daily(max_values=2, attributes=TWO, eps_inf=2.0)


@pytest.fixture
def spent_state(state: Path, clock: FakeClock, campaign: Manifest) -> Path:
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
    spent_state: Path, clock: FakeClock, campaign: Manifest
) -> None:
    with Store(spent_state, exclusive=True) as store:
        (before,) = store.memberships()
    lose_database(spent_state)
    assert accept_loss(spent_state, Policy(), clock) == {before.attribute.name: 4.0}
    agent = joined_agent(spent_state, clock, campaign)
    after = only(agent)
    assert (after.device, after.attribute_index) == (before.device, before.attribute_index)
    draw(agent, "wood")  # a second memo for the same value: it is charged once more
    assert agent.store.charged(before.attribute.name) == 6.0
    agent.store.close()


@pytest.mark.parametrize(("allowed", "booked"), [(1.0, 4.0), (4.0, 4.0), (5.0, 5.0)])
def test_a_loss_of_unknown_size_books_4_or_what_the_policy_allows(
    spent_state: Path, clock: FakeClock, campaign: Manifest, allowed: float, booked: float
) -> None:
    """I14: the database may be an old copy, so what it knows is the least that was spent."""
    with Store(spent_state, exclusive=True) as store:
        (before,) = store.memberships()
    source, policy = before.attribute.name, Policy(max_eps_inf=allowed)
    everything = as_killed(spent_state, spent_state.with_name("everything"))
    lose_mark(spent_state)
    assert accept_loss(spent_state, policy, clock) == {source: 4.0, "*": booked}
    generous = Policy(lifetime_budget=100.0, total_budget=100.0, max_values=2)
    agent = joined_agent(spent_state, clock, campaign, policy=generous)
    assert agent.store.charged(source) == 4.0 + booked
    assert agent.store.charged("anything else") == booked
    assert only(agent).attribute_index == before.attribute_index
    agent.store.close()
    lose_both(everything)
    assert accept_loss(everything, policy, clock) == {"*": booked}
    with Store(everything, exclusive=True) as store:
        assert store.charged("fuel") == store.charged("stove") == booked


def test_losses_add_up(spent_state: Path, clock: FakeClock, campaign: Manifest) -> None:
    """Twice lost, also before anything new was drawn: nothing is forgotten by it."""
    with Store(spent_state, exclusive=True) as store:
        (before,) = store.memberships()
    for _ in range(2):
        lose_database(spent_state)
        accept_loss(spent_state, Policy(), clock)
    assert charged(spent_state) == {before.attribute.name: 4.0}
    for _ in range(2):
        lose_mark(spent_state)
        accept_loss(spent_state, Policy(), clock)
    assert charged(spent_state) == {before.attribute.name: 12.0, "*": 8.0}
    generous = Policy(lifetime_budget=100.0, total_budget=100.0, max_values=2)
    agent = joined_agent(spent_state, clock, campaign, policy=generous)
    assert only(agent).attribute_index == before.attribute_index
    agent.store.close()


def test_a_rolled_back_database_counts_for_what_the_mark_knows(
    spent_state: Path, clock: FakeClock
) -> None:
    backup = (spent_state / "state.db").read_bytes()
    agent = joined_agent(spent_state, clock)
    source = only(agent).attribute.name
    charge(agent, source, 1.0)
    agent.store.close()
    (spent_state / "state.db").write_bytes(backup)
    assert accept_loss(spent_state, Policy(), clock) == {source: 5.0}


def test_a_sound_memory_is_not_replaced(spent_state: Path, clock: FakeClock) -> None:
    before = (spent_state / "state.db").read_bytes()
    with pytest.raises(CampaignProblem, match="is sound; nothing was changed"):
        accept_loss(spent_state, Policy(), clock)
    assert (spent_state / "state.db").read_bytes() == before


def test_a_running_agent_is_not_robbed(spent_state: Path, clock: FakeClock) -> None:
    with Store(spent_state, exclusive=True), pytest.raises(StateBusy):
        accept_loss(spent_state, Policy(), clock)


def test_an_exposed_memory_is_mended_first(spent_state: Path, clock: FakeClock) -> None:
    lose_database(spent_state)
    spent_state.chmod(0o755)
    with pytest.raises(StateExposed):
        accept_loss(spent_state, Policy(), clock)


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


def test_the_points_are_all_there_are(spent_state: Path, clock: FakeClock) -> None:
    lose_database(spent_state)
    passed: list[str] = []
    accept_loss(spent_state, Policy(), clock, passed.append)
    assert tuple(passed) == POINTS


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("lose", [lose_database, lose_mark, lose_both])
def test_a_kill_in_between_forgets_nothing(
    spent_state: Path, clock: FakeClock, lose: Callable[[Path], None], point: str
) -> None:
    """I14: between any two steps, it is refused as lost, and the next try keeps as much."""
    undisturbed = spent_state.with_name("undisturbed")
    lose(as_killed(spent_state, undisturbed))
    expected = accept_loss(undisturbed, Policy(), clock)
    lose(spent_state)

    def kill(passed: str) -> None:
        if passed == point:
            raise Killed

    with pytest.raises(Killed):
        accept_loss(spent_state, Policy(), clock, kill)
    try:
        Store(spent_state, exclusive=True).close()
    except StateLost:
        assert accept_loss(spent_state, Policy(), clock) == expected
    assert charged(spent_state) == {
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
