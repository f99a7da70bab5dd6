"""The mark beside the database: two slots in turn, so that a torn write loses nothing."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from edge_client.errors import StorageFailure
from edge_client.store import Store, highwater
from edge_client.store.highwater import SLOT, Mark, Participation
from tests.support.edge import (
    FakeClock,
    charge,
    daily,
    draw,
    draw_rounds,
    joined_agent,
    only,
    rows,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "highwater"


def mark(sequence: int, **charged: float) -> Mark:
    return Mark(
        "a1b2", sequence, charged, {"test-00000000": Participation("device", 3, 7, 0, bytes(32))}
    )


def damage_slot(path: Path, slot: int, content: bytes = b"\xa5" * 100) -> None:
    with path.open("r+b") as file:
        file.seek(slot * SLOT)
        file.write(content)


def test_what_was_written_is_read(path: Path) -> None:
    for sequence in range(5):
        written = mark(sequence, fuel=2.0 * sequence, **{"*": 0.1})
        highwater.write_mark(path, written)
        assert highwater.read_mark(path) == written


def test_the_bytes_are_those_of_every_version(path: Path) -> None:
    """A device may be upgraded and downgraded; the mark must be readable by both."""
    highwater.write_mark(path, mark(5, fuel=2.0))
    digest = b"A" * 43
    text = b'["a1b2",5,{"fuel":2.0},{"test-00000000":["device",3,7,0,"%s"]}]' % digest
    assert path.read_bytes()[SLOT:].rstrip(b" ") == b"%08x %s" % (zlib.crc32(text), text)


def test_no_file_is_no_mark(path: Path) -> None:
    assert highwater.read_mark(path) is None


@pytest.mark.parametrize("content", [b"", b"x", bytes(SLOT), b"00000000 {}", b"\xff" * 3 * SLOT])
def test_damage_is_no_mark(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert highwater.read_mark(path) is None


@pytest.mark.parametrize("sequence", [6, 7])
def test_one_damaged_slot_leaves_the_other(path: Path, sequence: int) -> None:
    highwater.write_mark(path, mark(sequence))
    highwater.write_mark(path, mark(sequence + 1))
    damage_slot(path, (sequence + 1) % 2)
    assert highwater.read_mark(path) == mark(sequence)
    damage_slot(path, sequence % 2)
    assert highwater.read_mark(path) is None


@pytest.mark.parametrize("written", [1, 8, 9, 17, 20])
def test_a_torn_write_leaves_the_last_mark(path: Path, written: int) -> None:
    """The first bytes of the next record reach the disk, the rest never does."""
    for sequence in range(1, 4):
        highwater.write_mark(path, mark(sequence, fuel=1.0 * sequence))
    before = path.read_bytes()
    highwater.write_mark(path, mark(4, fuel=4.0))
    after = path.read_bytes()
    path.write_bytes(after[:written] + before[written:])
    assert highwater.read_mark(path) == mark(3, fuel=3.0)


def test_any_changed_byte_of_a_record_is_noticed(path: Path) -> None:
    highwater.write_mark(path, mark(2, fuel=2.0))
    whole = path.read_bytes()
    for place in range(len(whole[:SLOT].rstrip(b" "))):
        damage_slot(path, 0, whole[:place] + bytes([whole[place] ^ 1]))
        assert highwater.read_mark(path) is None, place
        damage_slot(path, 0, whole[:SLOT])
    assert highwater.read_mark(path) == mark(2, fuel=2.0)


def test_the_first_write_takes_the_room_for_all_others(path: Path) -> None:
    """So that a full disk cannot stop a later one."""
    highwater.write_mark(path, mark(0))
    size, blocks = path.stat().st_size, path.stat().st_blocks
    assert size == 2 * SLOT
    assert blocks * 512 >= size
    for sequence in range(1, 6):
        highwater.write_mark(path, mark(sequence))
    assert (path.stat().st_size, path.stat().st_blocks) == (size, blocks)


def test_too_many_campaigns_are_refused_before_anything_is_drawn(
    state: Path, clock: FakeClock
) -> None:
    agent = joined_agent(state, clock, daily())
    long = "x" * (SLOT - 100)  # as much as a hundred campaigns
    charge(agent, long, 1.0)
    before = rows(state)
    with pytest.raises(StorageFailure, match="too many campaigns; nothing new was drawn or sent"):
        draw(agent)
    assert rows(state) == before
    agent.store.close()


@pytest.mark.parametrize("slot", [0, 1])
def test_a_store_goes_on_with_one_good_slot(state: Path, clock: FakeClock, slot: int) -> None:
    """And a rollback is still noticed: the newest mark is restored at once."""
    agent = joined_agent(state, clock, daily())
    draw_rounds(agent, clock, 4)
    agent.store.close()
    damage_slot(state / "highwater", slot)
    with Store(state, exclusive=True) as store:
        assert store.sequence == 4
    restored = highwater.read_mark(state / "highwater")
    assert restored is not None
    assert restored.sequence == 4


def test_a_kill_between_commit_and_mark_is_healed(state: Path, clock: FakeClock) -> None:
    """The mark may be behind the database, never ahead of it."""
    agent = joined_agent(state, clock, daily())
    draw_rounds(agent, clock, 2)
    behind = (state / "highwater").read_bytes()
    draw_rounds(agent, clock, 1)
    agent.store.close()
    (state / "highwater").write_bytes(behind)
    with Store(state, exclusive=True) as store:
        assert store.sequence == 3
    healed = highwater.read_mark(state / "highwater")
    assert healed is not None
    assert healed.sequence == 3


def test_looking_does_not_move_the_mark_of_a_running_agent(state: Path, clock: FakeClock) -> None:
    agent = joined_agent(state, clock, daily())
    draw_rounds(agent, clock, 2)
    before = (state / "highwater").stat().st_mtime_ns, (state / "highwater").read_bytes()
    Store(state, exclusive=False).close()
    assert ((state / "highwater").stat().st_mtime_ns, (state / "highwater").read_bytes()) == before
    agent.store.close()


def test_the_mark_follows_every_draw(state: Path, clock: FakeClock) -> None:
    agent, digest = joined_agent(state, clock, daily()), daily().digest
    for sequence in range(1, 4):
        draw(agent)
        clock.pass_time(86_400)
        found = highwater.read_mark(state / "highwater")
        assert found is not None
        membership = only(agent)
        assert found.sequence == sequence
        assert found.charged == {"fuel": 2.0}
        assert found.participations == {
            membership.name: Participation(membership.device, 0, sequence - 1, 0, digest)
        }
    agent.store.close()


def test_a_mark_that_cannot_be_written_is_said(state: Path, clock: FakeClock) -> None:
    """The report is stored then; it will be sent as it is, not drawn again."""
    agent = joined_agent(state, clock, daily())
    (state / "highwater").unlink()
    (state / "highwater").mkdir()
    with pytest.raises(StorageFailure, match="highwater cannot be written"):
        draw(agent)
    assert [row.round for row in agent.store.reports(only(agent).name, queued_only=True)] == [0]
    (state / "highwater").rmdir()
    clock.pass_time(86_400)
    draw(agent)
    agent.store.close()
