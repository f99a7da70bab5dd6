"""The memory's transactions: all of a round or nothing of it, and never a second answer."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from edge_client.agent import Agent, Wait
from edge_client.credentials import Remembered, RememberedCredentials
from edge_client.errors import CampaignProblem, StateBusy, StateExposed, StorageFailure
from edge_client.records import Draw
from edge_client.status import Heartbeat
from edge_client.store import KEPT_FOR_SHOW, Store, highwater
from edge_client.store.highwater import SLOT, Mark, Participation
from edge_client.store.opening import STATE_FILES
from protocol_spec.programs.settings import parse_broker
from tests.support.edge import (
    DAY,
    FIRST,
    Connections,
    FakeClock,
    charge,
    daily,
    draw,
    draw_rounds,
    joined_agent,
    only,
    rows,
)


def a_draw(number: int, *, value: int = 0, new_memo: bytes | None = b"\x01") -> Draw:
    deadline = FIRST + (number + 2) * DAY
    return Draw(number, value, b"payload %d" % number, deadline, FIRST, "boot-1", 0.0, new_memo)


def interruptions() -> Iterator[Callable[[], int]]:
    """Stop SQLite once: at its first instruction, at its fourth, and so on."""
    for moment in count(1, 3):
        instructions = count(1)
        yield lambda now=instructions, then=moment: int(next(now) == then)  # type: ignore[misc]


def test_a_round_is_written_as_a_whole_or_not_at_all(
    agent: Agent, state: Path, connections: Connections
) -> None:
    """I1, I2: memo, charge, report and round number have one transaction, wherever it stops."""
    membership, before, attempts = only(agent), rows(state), 0
    database = connections.latest
    for interruption in interruptions():
        database.set_progress_handler(interruption, 1)
        try:
            agent.store.record(membership, a_draw(0))
        except StorageFailure:
            attempts += 1
            if rows(state) != before:  # stopped in the COMMIT itself, which had done its work
                break
        else:
            break
        finally:
            database.set_progress_handler(None, 1)
    after = rows(state)
    assert attempts > 50
    assert [len(after[table]) for table in ("memo", "outbox", "ledger")] == [1, 1, 1]
    assert only(agent).last_round == 0


def test_a_report_exists_only_with_its_memo(
    agent: Agent, state: Path, connections: Connections
) -> None:
    """I1."""
    draw(agent)
    with pytest.raises(sqlite3.IntegrityError):
        connections.execute("INSERT INTO outbox VALUES ('other-00000000', 0, x'', 0, 0, 'queued')")
    (report,), (memo,) = rows(state)["outbox"], rows(state)["memo"]
    assert report[0] == memo[0] == only(agent).name
    assert memo[1] == only(agent).last_value


def test_a_second_memo_for_a_value_is_impossible(agent: Agent, state: Path) -> None:
    """I2."""
    agent.store.record(only(agent), a_draw(0))
    before = rows(state)
    with pytest.raises(sqlite3.IntegrityError):
        agent.store.record(only(agent), a_draw(1, new_memo=b"\x02"))
    assert rows(state) == before


def test_a_second_payload_for_a_round_is_impossible(agent: Agent, state: Path) -> None:
    """I3, with what another object still believes."""
    stale = only(agent)
    agent.store.record(stale, a_draw(0))
    before = rows(state)
    for other in (a_draw(0, new_memo=None), a_draw(0, value=1)):
        with pytest.raises(sqlite3.IntegrityError):
            agent.store.record(stale, replace(other, payload=b"other bits"))
    assert rows(state) == before


def test_an_earlier_round_is_impossible_even_when_its_row_is_pruned(
    agent: Agent, state: Path
) -> None:
    """I3: rounds only go forward."""
    agent.store.record(only(agent), a_draw(100))
    before = rows(state)
    with pytest.raises(AssertionError, match="drawn twice"):
        agent.store.record(only(agent), a_draw(3, new_memo=None))
    assert rows(state) == before


def test_a_row_leaves_the_outbox_only_by_its_fate(agent: Agent, clock: FakeClock) -> None:
    """I5: neither other rounds, pausing, time nor a restart removes a queued report."""
    payloads = draw_rounds(agent, clock, 3)
    name = only(agent).name
    agent.store.set_status(name, "paused", 0)
    agent.store.set_status(name, "joined", 0)
    clock.pass_time(1000 * DAY)
    agent.store.finish(name, {1: "counted"})
    agent.store.finish(name, {1: "missed"})  # too late: it has left already
    queued = agent.store.reports(name, queued_only=True)
    assert [row.payload for row in queued] == [payloads[0], payloads[2]]
    assert [row.fate for row in agent.store.reports(name)] == ["queued", "counted", "queued"]


def test_leaving_withdraws_what_is_queued(agent: Agent, clock: FakeClock) -> None:
    draw_rounds(agent, clock, 2)
    name = only(agent).name
    agent.store.finish(name, {0: "counted"})
    agent.store.set_status(name, "left", 0)
    assert [row.fate for row in agent.store.reports(name)] == ["counted", "withdrawn"]


def test_pruning_spares_queued_rows(agent: Agent, clock: FakeClock) -> None:
    """Old rows go, but a report that still waits stays however old it is."""
    first = draw_rounds(agent, clock, 1)
    name = only(agent).name
    for number in range(1, 3 * KEPT_FOR_SHOW):
        draw_rounds(agent, clock, 1)
        agent.store.finish(name, {number: "counted"})
    draw_rounds(agent, clock, 1)
    kept = agent.store.reports(name)
    assert kept[0].payload == first[0]
    assert [row.fate for row in kept if row.fate == "queued"] == ["queued"] * 2
    assert len(kept) == KEPT_FOR_SHOW + 2


def test_a_pause_from_another_process_is_noticed(agent: Agent, state: Path) -> None:
    """The owner's `pause` opens the same store beside the running agent."""
    seen = agent.store.changed_elsewhere()
    assert agent.store.changed_elsewhere() == seen
    command = [sys.executable, "-m", "edge_client", "pause", "--state-dir", str(state)]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": str(Path.cwd())})
    assert agent.store.changed_elsewhere() != seen
    assert only(agent).status == "paused"
    assert agent.draw(only(agent), lambda _: "wood") is Wait.PAUSED


@pytest.mark.parametrize("status", ["paused", "left"])
def test_a_pause_while_the_value_is_read_stops_the_draw(
    agent: Agent, state: Path, status: str
) -> None:
    def read_slowly(_attribute: str) -> str:
        with Store(state, exclusive=False) as owner:
            owner.set_status(membership.name, status, 0)  # type: ignore[arg-type]
        return "wood"

    membership = only(agent)
    with pytest.raises(CampaignProblem, match="nothing was drawn or sent"):
        agent.draw(membership, read_slowly)
    assert [rows(state)[table] for table in ("memo", "outbox", "ledger")] == [[], [], []]


# --- The mark beside the database: two slots in turn, so that a torn write loses nothing.


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


# --- R22: the state is its owner's alone, whatever the umask; anything else is refused.


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("mask", [0o000, 0o002, 0o022, 0o027, 0o077, 0o177, 0o777])
def test_modes_do_not_depend_on_the_umask(state: Path, clock: FakeClock, mask: int) -> None:
    state.parent.mkdir(exist_ok=True)
    with umask(mask):
        agent = joined_agent(state, clock, daily())
        draw(agent)
        Heartbeat(state).write("fine", 0)
        RememberedCredentials(state).remember(parse_broker("mqtts://b.example"), Remembered("me"))
        found = {path.name: mode(path) for path in state.iterdir()}
        agent.store.close()
    assert found == dict.fromkeys(STATE_FILES, 0o600)
    assert mode(state) == 0o700


@pytest.mark.parametrize("wrong", [0o640, 0o604, 0o660, 0o644, 0o620])
@pytest.mark.parametrize("name", STATE_FILES)
def test_a_file_that_others_can_use_is_refused(
    state: Path, clock: FakeClock, name: str, wrong: int
) -> None:
    agent = joined_agent(state, clock, daily())
    Heartbeat(state).write("fine", 0)
    agent.store.close()
    (state / name).touch()
    (state / name).chmod(wrong)
    with pytest.raises(StateExposed, match=f"mode {wrong:o}.*chmod 600 {state / name}"):
        Store(state, exclusive=True)
    (state / name).chmod(0o600)
    if not name.startswith("state.db-"):
        Store(state, exclusive=True).close()


@pytest.mark.parametrize("wrong", [0o755, 0o750, 0o701, 0o770])
def test_a_directory_that_others_can_enter_is_refused(state: Path, wrong: int) -> None:
    state.mkdir()
    state.chmod(wrong)
    with pytest.raises(StateExposed, match=f"mode {wrong:o}.*chmod 700 {state}"):
        Store(state, exclusive=True)
    assert not any(state.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_somebody_elses_directory_is_refused(state: Path) -> None:
    state.mkdir(mode=0o700)
    os.chown(state, 12345, 12345)
    with pytest.raises(StateExposed, match="belongs to another user; nothing was drawn or sent"):
        Store(state, exclusive=True)


def test_a_file_in_the_place_of_the_directory_is_refused(state: Path) -> None:
    state.write_text("not a directory")
    with pytest.raises(StorageFailure, match=f"{state} cannot be used.*--state-dir"):
        Store(state, exclusive=True)
    with pytest.raises(StorageFailure, match="cannot be used"):
        Store(state / "below", exclusive=True)


def test_directories_above_are_made(tmp_path: Path) -> None:
    deep = tmp_path / "one" / "two" / "state"
    Store(deep, exclusive=True).close()
    assert mode(deep) == 0o700


# --- One agent at a time on a state directory; the lock ends with the process, however it ends.


HOLD = """
import sys
from pathlib import Path
from edge_client.store import Store
store = Store(Path(sys.argv[1]), exclusive=True)
print("held", flush=True)
sys.stdin.read()
"""


def hold(state: Path) -> subprocess.Popen[str]:
    """Another process that has taken the store, and waits."""
    command = [sys.executable, "-c", HOLD, str(state)]
    holder = subprocess.Popen(
        command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path.cwd()
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def test_a_second_agent_in_another_process_is_refused_until_the_first_dies(state: Path) -> None:
    with hold(state) as holder:
        with pytest.raises(StateBusy, match=f"process {holder.pid}") as refused:
            Store(state, exclusive=True)
        assert str(state) in str(refused.value)
        holder.kill()
        holder.wait()
        Store(state, exclusive=True).close()


def test_a_second_agent_in_this_process_is_refused(state: Path) -> None:
    with Store(state, exclusive=True):
        for _ in range(2):  # a refused one leaves the lock to its holder
            with pytest.raises(StateBusy, match=f"process {os.getpid()}.*nothing was drawn"):
                Store(state, exclusive=True)
        Store(state, exclusive=False).close()  # looking is allowed
    Store(state, exclusive=True).close()
