"""The agent's storage: all of a round or nothing, never a second answer, private, on any disk."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest

from edge_client.agent import Agent, Wait
from edge_client.credentials import Remembered, RememberedCredentials
from edge_client.errors import CampaignProblem, StateBusy, StateExposed, StorageFailure
from edge_client.records import Draw, Memo, Queued
from edge_client.status import Heartbeat
from edge_client.store import KEPT_FOR_SHOW, Store
from edge_client.store.highwater import SLOT, Mark, Participation, read_mark, write_mark
from edge_client.store.opening import STATE_FILES
from protocol_spec.programs.memory_broker import MemoryBroker
from protocol_spec.programs.settings import parse_broker
from tests.support.edge import (
    COLOUR,
    DAY,
    FIRST,
    QUICK,
    Connections,
    FakeClock,
    Joined,
    MemoryTally,
    charge,
    daily,
    draw,
    draw_rounds,
    joined_agent,
    last_state,
    only,
    rows,
    runner_of,
    tick_until,
)

# --- transactions ---------------------------------------------------------------------------------


def a_draw(
    number: int, payload: bytes = b"payload", *, value: int = 0, new_memo: bytes | None = b"\x01"
) -> Draw:
    deadline = FIRST + (number + 2) * DAY
    report = Queued("", number, payload, deadline, FIRST, "queued")
    return Draw(report, Memo(value, new_memo or b"", 0), new_memo is not None, "boot-1", 0.0)


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


def test_a_second_memo_or_payload_and_an_earlier_round_are_impossible(
    agent: Agent, state: Path
) -> None:
    """I2, I3; also with a membership that is out of date, or when the round's row is pruned."""
    stale = only(agent)
    agent.store.record(stale, a_draw(7))
    before = rows(state)
    for membership, other, error in (
        (only(agent), a_draw(8, new_memo=b"\x02"), sqlite3.IntegrityError),
        (stale, a_draw(7, b"other", new_memo=None), sqlite3.IntegrityError),
        (stale, a_draw(7, b"other", value=1), sqlite3.IntegrityError),
        (only(agent), a_draw(3, new_memo=None), AssertionError),
    ):
        with pytest.raises(error):
            agent.store.record(membership, other)
        assert rows(state) == before


def test_a_row_leaves_the_outbox_only_by_its_fate(agent: Agent, clock: FakeClock) -> None:
    """I5: neither other rounds, pausing nor time removes a queued report; leaving does."""
    payloads = draw_rounds(agent, 3)
    name = only(agent).name
    agent.store.set_status(name, "paused", 0)
    agent.store.set_status(name, "joined", 0)
    clock.pass_time(1000 * DAY)
    agent.store.finish(name, {1: "counted"})
    agent.store.finish(name, {1: "missed"})  # too late: it has left already
    queued = agent.store.reports(name, queued_only=True)
    assert [row.payload for row in queued] == [payloads[0], payloads[2]]
    agent.store.set_status(name, "left", 0)
    fates = [row.fate for row in agent.store.reports(name)]
    assert fates == ["withdrawn", "counted", "withdrawn"]


def test_pruning_spares_queued_rows(agent: Agent) -> None:
    """Old rows go, but a queued report stays however old it is."""
    first = draw_rounds(agent, 1)
    name = only(agent).name
    for number in range(1, 3 * KEPT_FOR_SHOW):
        draw_rounds(agent, 1)
        agent.store.finish(name, {number: "counted"})
    draw_rounds(agent, 1)
    kept = agent.store.reports(name)
    assert kept[0].payload == first[0]
    assert [row.fate for row in kept if row.fate == "queued"] == ["queued"] * 2
    assert len(kept) == KEPT_FOR_SHOW + 2


def test_a_pause_from_another_process_is_noticed(agent: Agent, state: Path) -> None:
    """The owner's `pause` opens the same store next to the running agent."""
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


# --- the high-water mark: two slots in turn, so that a torn write loses nothing -------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "highwater"


def mark(sequence: int, **charged: float) -> Mark:
    shown = {"test-00000000": Participation("device", 3, 7, 0, bytes(32))}
    return Mark("a1b2", sequence, charged, shown)


def damage_slot(path: Path, slot: int, content: bytes = b"\xa5" * 100) -> None:
    with path.open("r+b") as file:
        file.seek(slot * SLOT)
        file.write(content)


def test_a_mark_is_read_as_it_was_written(path: Path) -> None:
    assert read_mark(path) is None
    for sequence in range(5):
        written = mark(sequence, fuel=2.0 * sequence, **{"*": 0.1})
        write_mark(path, written)
        assert read_mark(path) == written


def test_the_bytes_of_the_mark_are_fixed(path: Path) -> None:
    """A device may be upgraded and downgraded; the mark must be readable by both versions."""
    write_mark(path, mark(5, fuel=2.0))
    digest = b"A" * 43
    text = b'["a1b2",5,{"fuel":2.0},{"test-00000000":["device",3,7,0,"%s"]}]' % digest
    assert path.read_bytes()[SLOT:].rstrip(b" ") == b"%08x %s" % (zlib.crc32(text), text)


@pytest.mark.parametrize("content", [b"", b"x", bytes(SLOT), b"00000000 {}", b"\xff" * 3 * SLOT])
def test_a_damaged_file_holds_no_mark(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert read_mark(path) is None


@pytest.mark.parametrize("written", [1, 8, 9, 17, 20])
def test_a_torn_write_leaves_the_last_mark(path: Path, written: int) -> None:
    """The first bytes of the next record reach the disk, the rest never does."""
    for sequence in range(1, 4):
        write_mark(path, mark(sequence, fuel=1.0 * sequence))
    before = path.read_bytes()
    write_mark(path, mark(4, fuel=4.0))
    path.write_bytes(path.read_bytes()[:written] + before[written:])
    assert read_mark(path) == mark(3, fuel=3.0)


def test_any_changed_byte_of_a_record_is_noticed(path: Path) -> None:
    write_mark(path, mark(2, fuel=2.0))
    whole = path.read_bytes()
    for offset in range(len(whole[:SLOT].rstrip(b" "))):
        damage_slot(path, 0, whole[:offset] + bytes([whole[offset] ^ 1]))
        assert read_mark(path) is None, offset
        damage_slot(path, 0, whole[:SLOT])
    assert read_mark(path) == mark(2, fuel=2.0)


def test_the_first_write_allocates_all_the_space(path: Path) -> None:
    """So that a full disk cannot stop a later one; about seventy campaigns fit."""
    write_mark(path, mark(0))
    size, blocks = path.stat().st_size, path.stat().st_blocks
    assert size == 2 * SLOT
    assert blocks * 512 >= size
    joined = {
        f"campaign-{i:08x}": Participation("k7f3-0b2q-device", i % 3, i, i % 2, bytes([i]) * 32)
        for i in range(70)
    }
    for sequence in range(1, 6):
        full = Mark("a1b2", sequence, {"fuel": 2.0}, joined)
        assert full.fits
        write_mark(path, full)
        assert read_mark(path) == full
    assert (path.stat().st_size, path.stat().st_blocks) == (size, blocks)


def test_too_many_campaigns_are_refused_before_anything_is_drawn(agent: Agent, state: Path) -> None:
    charge(agent, "x" * (SLOT - 100), 1.0)  # as much as a hundred campaigns
    before = rows(state)
    with pytest.raises(StorageFailure, match="too many campaigns; nothing new was drawn or sent"):
        draw(agent)
    assert rows(state) == before


@pytest.mark.parametrize("damage", ["slot 0", "slot 1", "behind"])
def test_the_mark_is_restored_at_once(agent: Agent, state: Path, damage: str) -> None:
    """After a damaged slot, or a kill between commit and mark: the mark may be behind the
    database, never ahead of it, and a rollback is still noticed."""
    draw_rounds(agent, 3)
    behind = (state / "highwater").read_bytes()
    draw_rounds(agent, 1)
    agent.store.close()
    if damage == "behind":
        (state / "highwater").write_bytes(behind)
    else:
        damage_slot(state / "highwater", int(damage[-1]))
    with Store(state, exclusive=True) as store:
        assert store.sequence == 4
    restored = read_mark(state / "highwater")
    assert restored is not None
    assert restored.sequence == 4


def test_the_mark_follows_every_draw_and_no_look(agent: Agent, state: Path) -> None:
    for sequence in range(1, 4):
        draw_rounds(agent, 1)
        before = (state / "highwater").stat().st_mtime_ns
        Store(state, exclusive=False).close()
        assert (state / "highwater").stat().st_mtime_ns == before
        member = only(agent)
        participation = Participation(member.device, 0, sequence - 1, 0, daily().digest)
        found = read_mark(state / "highwater")
        assert found is not None
        assert (found.sequence, found.charged) == (sequence, {"fuel": 2.0})
        assert found.participations == {member.name: participation}


def test_a_mark_that_cannot_be_written_is_reported(
    agent: Agent, state: Path, clock: FakeClock
) -> None:
    """The report is stored by then; it will be sent as it is, not drawn again."""
    (state / "highwater").unlink()
    (state / "highwater").mkdir()
    with pytest.raises(StorageFailure, match="highwater cannot be written"):
        draw(agent)
    assert [row.round for row in agent.store.reports(only(agent).name, queued_only=True)] == [0]
    (state / "highwater").rmdir()
    clock.pass_time(DAY)
    draw(agent)


# --- R22: the state is its owner's alone, whatever the umask; anything else is refused ------------


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o177, 0o777])
def test_modes_do_not_depend_on_the_umask(tmp_path: Path, clock: FakeClock, mask: int) -> None:
    state = tmp_path / "one" / "two" / "state"
    state.parent.mkdir(parents=True)
    before = os.umask(mask)
    try:
        agent = joined_agent(state, clock, daily())
        draw(agent)
        Heartbeat(state).write("fine", 0)
        RememberedCredentials(state).remember(parse_broker("mqtts://b.example"), Remembered("me"))
        found = {path.name: mode(path) for path in state.iterdir()}
        agent.store.close()
    finally:
        os.umask(before)
    assert found == dict.fromkeys(STATE_FILES, 0o600)
    assert mode(state) == 0o700


@pytest.mark.parametrize("wrong", [0o640, 0o604, 0o620])
@pytest.mark.parametrize("name", STATE_FILES)
def test_a_file_that_others_can_use_is_refused(
    agent: Agent, state: Path, name: str, wrong: int
) -> None:
    agent.store.close()
    (state / name).touch()
    (state / name).chmod(wrong)
    with pytest.raises(StateExposed, match=f"mode {wrong:o}.*chmod 600 {state / name}"):
        Store(state, exclusive=True)
    (state / name).chmod(0o600)
    if not name.startswith("state.db-"):
        Store(state, exclusive=True).close()


@pytest.mark.parametrize("wrong", [0o755, 0o750, 0o701])
def test_a_directory_that_others_can_enter_is_refused(state: Path, wrong: int) -> None:
    """Or that belongs to somebody else."""
    state.mkdir()
    state.chmod(wrong)
    with pytest.raises(StateExposed, match=f"mode {wrong:o}.*chmod 700 {state}"):
        Store(state, exclusive=True)
    assert not any(state.iterdir())
    state.chmod(0o700)
    if os.geteuid() == 0:  # only root can give a directory away
        os.chown(state, 12345, 12345)
        with pytest.raises(StateExposed, match="belongs to another user; nothing was drawn or se"):
            Store(state, exclusive=True)


# --- one agent at a time; the lock ends with the process, however it ends -------------------------


HOLD = """
import sys
from pathlib import Path
from edge_client.store import Store
store = Store(Path(sys.argv[1]), exclusive=True)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_agent_in_another_process_is_refused_until_the_first_dies(state: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(state)]
    with subprocess.Popen(
        command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path.cwd()
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
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


# --- a full disk: no new draw, stored reports are still sent, and nobody has to help --------------


FULL = daily(attributes=COLOUR, slug="full", grace=366 * DAY)


@dataclass
class Disk:
    """A state directory on something that can be filled and freed."""

    state: Path
    fill: Callable[[], None]
    free: Callable[[], None]
    connect: Connections = field(default_factory=Connections)

    def agent(self, clock: FakeClock) -> Agent:
        return joined_agent(self.state, clock, FULL, connect=self.connect)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Disk]:
    """A tmpfs of 1 MiB."""
    directory = tmp_path / "small"
    directory.mkdir()
    filler = directory / "filler"
    command = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", str(directory)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("no tmpfs can be mounted here; SQLite's own limit is tested instead")

    def fill() -> None:
        with suppress(OSError), filler.open("wb", 0) as file:
            while True:
                file.write(bytes(4096))

    try:
        yield Disk(directory / "state", fill, filler.unlink)
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


@pytest.fixture(params=["tmpfs", "page limit"])
def disk(request: pytest.FixtureRequest, state: Path) -> Disk:
    """A real disk that is small, or a database that SQLite does not let grow."""
    if request.param == "tmpfs":
        small: Disk = request.getfixturevalue("small_disk")
        return small
    connections = Connections()
    return Disk(
        state,
        lambda: connections.execute("PRAGMA max_page_count = 1"),  # as many as there are
        lambda: connections.execute("PRAGMA max_page_count = 100000"),
        connections,
    )


def draw_until_full(agent: Agent, clock: FakeClock) -> StorageFailure:
    """The database has some free room of its own; use it up."""
    for _ in range(60):
        try:
            agent.draw(only(agent), lambda _: "c1")
        except StorageFailure as refused:
            return refused
        clock.pass_time(DAY)
    raise AssertionError("the disk is not full")


def test_a_full_disk_refuses_the_draw_and_nothing_else(disk: Disk, clock: FakeClock) -> None:
    """Also over a restart; and later rounds go on by themselves."""
    agent = disk.agent(clock)
    draw_rounds(agent, 2, "c1")
    disk.fill()
    assert "Nothing new was drawn or sent" in str(draw_until_full(agent, clock))
    before = rows(disk.state)
    for _ in range(3):
        with pytest.raises(StorageFailure):
            draw(agent, "c1")
        clock.pass_time(DAY)
    assert rows(disk.state) == before
    agent.store.close()
    with suppress(StorageFailure):  # it may refuse to start, and says why
        Store(disk.state, exclusive=True).close()
    with suppress(sqlite3.ProgrammingError):  # a page limit has ended with its connection
        disk.free()
    agent = joined_agent(disk.state, clock)
    assert rows(disk.state) == before
    drawn = draw(agent, "c1")
    assert drawn.round == only(agent).last_round == (clock.now - FULL.rounds.first) // DAY
    agent.store.close()


def test_the_first_memo_is_not_charged_if_it_cannot_be_stored(disk: Disk, clock: FakeClock) -> None:
    agent = disk.agent(clock)
    disk.fill()
    with suppress(StorageFailure):
        while True:
            agent.store.set_status(FULL.campaign, "joined", 0, "x" * 4000)
    with pytest.raises(StorageFailure):
        draw(agent, "c1")
    assert agent.store.charged("colour") == 0.0
    assert agent.store.memos(FULL.campaign) == {}
    disk.free()
    draw(agent, "c1")
    assert agent.store.charged("colour") == FULL.eps_inf
    agent.store.close()


def test_the_running_agent_reports_it_sends_what_it_has_and_recovers(
    disk: Disk, clock: FakeClock
) -> None:
    agent, broker, name = disk.agent(clock), MemoryBroker(), FULL.campaign
    runner = runner_of(agent, lambda _: "c1", make_link=broker.link)
    tally = MemoryTally(broker, FULL)
    tick_until(runner, lambda: len(tally.payloads) == 1)
    disk.fill()
    draw_until_full(agent, clock)
    stored = agent.store.reports(name)
    tick_until(runner, lambda: "DISK_FULL" in last_state(runner))
    tick_until(runner, lambda: {p for _, p in tally.deliveries} == {r.payload for r in stored})
    runner.tick()
    assert "DISK_FULL" in last_state(runner)  # until it tries again, it still says why
    disk.free()
    clock.pass_time(QUICK.source_retry_seconds)
    tick_until(runner, lambda: only(agent).last_round > stored[-1].round)
    tick_until(runner, lambda: not agent.store.reports(name, queued_only=True))
    assert {row.fate for row in agent.store.reports(name)} == {"counted"}
    assert all(len(payloads) == 1 for payloads in tally.payloads.values())
    runner.close()
    agent.store.close()


def test_a_receipt_that_cannot_be_stored_is_stored_later(
    joined: Joined, caplog: pytest.LogCaptureFixture
) -> None:
    connections, broker, name = Connections(), MemoryBroker(), FULL.campaign
    agent = joined(FULL, connect=connections)
    draw(agent, "c1")
    connections.refuse_writes()
    runner = runner_of(agent, lambda _: "c1", make_link=broker.link)
    tally = MemoryTally(broker, FULL)
    with caplog.at_level("INFO"):
        tick_until(runner, lambda: f"{name}: round 0 was counted" in caplog.messages)
    for _ in range(3):
        runner.tick()
        assert [row.fate for row in agent.store.reports(name)] == ["queued"]
    connections.refuse_writes(False)
    tick_until(runner, lambda: agent.store.reports(name)[0].fate == "counted")
    assert len(tally.deliveries) == 1
    runner.close()
