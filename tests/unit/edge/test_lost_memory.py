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

from edge_client.client import accept_loss
from edge_client.errors import StateLost, StateOfOtherVersion, StorageFailure
from edge_client.policy import Policy
from edge_client.store import Store
from edge_client.store.highwater import SLOT
from edge_client.store.opening import RECOVER, UNRELEASED_ID
from tests.support.edge import (
    FakeClock,
    as_killed,
    daily,
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


def test_a_directory_in_the_place_of_the_database_is_no_traceback(used: Path) -> None:
    database(used).unlink()
    database(used).mkdir(mode=0o700)
    with pytest.raises(StorageFailure, match=r"cannot be opened.*nothing was drawn or sent"):
        Store(used, exclusive=True)


def test_a_first_start_that_was_killed_is_no_loss(state: Path) -> None:
    """Nothing had been drawn, so nothing can be lost."""
    state.mkdir(mode=0o700)
    Store(state, exclusive=True).close()
    (state / "highwater").unlink()
    Store(state, exclusive=True).close()
