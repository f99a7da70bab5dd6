"""A full disk: no new draw, the state is visible, stored reports are still sent, no help needed.

As root the disk is a real one, a small tmpfs. Elsewhere, and always as a second way, SQLite itself
is told not to let the database grow.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from edge_client.agent import Agent
from edge_client.errors import StorageFailure
from edge_client.records import Queued
from edge_client.store import Store
from protocol_spec.programs.memory_broker import MemoryBroker
from tests.support.edge import (
    COLOUR,
    DAY,
    QUICK,
    Connections,
    FakeClock,
    MemoryTally,
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

CAMPAIGN = daily(attributes=COLOUR, slug="full", grace=366 * DAY)


@dataclass
class Disk:
    """A state directory on something that can be filled and freed."""

    state: Path
    fill: Callable[[], None]
    free: Callable[[], None]
    is_real: bool
    connect: Connections = field(default_factory=Connections)

    def agent(self, clock: FakeClock) -> Agent:
        return joined_agent(self.state, clock, CAMPAIGN, connect=self.connect)


def tmpfs(directory: Path) -> Iterator[Disk]:
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
        yield Disk(directory / "state", fill, filler.unlink, is_real=True)
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def page_limit(state: Path) -> Disk:
    connections = Connections()
    return Disk(
        state,
        lambda: connections.execute("PRAGMA max_page_count = 1"),  # as many as there are
        lambda: connections.execute("PRAGMA max_page_count = 100000"),
        is_real=False,
        connect=connections,
    )


@pytest.fixture(params=["tmpfs", "page limit"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    if request.param == "tmpfs":
        yield from tmpfs(tmp_path / "small")
    else:
        yield page_limit(tmp_path / "state")


def draw_until_full(agent: Agent, clock: FakeClock) -> StorageFailure:
    """The database has some free room of its own; use it up."""
    for _ in range(60):
        try:
            agent.draw(only(agent), lambda _: "c1")
        except StorageFailure as refused:
            return refused
        clock.pass_time(DAY)
    raise AssertionError("the disk is not full")


def use_up_free_pages(store: Store) -> None:
    with suppress(StorageFailure):
        while True:
            store.decide(CAMPAIGN.campaign, "x" * 4000, 0)


def test_a_full_disk_refuses_the_draw_and_nothing_else(disk: Disk, clock: FakeClock) -> None:
    agent = disk.agent(clock)
    draw_rounds(agent, clock, 2, "c1")
    disk.fill()
    refused = draw_until_full(agent, clock)
    assert "Nothing new was drawn or sent" in str(refused)
    before = rows(disk.state)
    for _ in range(3):
        with pytest.raises(StorageFailure):
            draw(agent, "c1")
        clock.pass_time(DAY)
    assert rows(disk.state) == before
    disk.free()
    drawn = draw(agent, "c1")
    assert drawn.round == only(agent).last_round == (clock.now - CAMPAIGN.rounds.first) // DAY
    agent.store.close()


def test_the_first_memo_is_not_charged_if_it_cannot_be_stored(disk: Disk, clock: FakeClock) -> None:
    agent = disk.agent(clock)
    disk.fill()
    use_up_free_pages(agent.store)
    with pytest.raises(StorageFailure):
        draw(agent, "c1")
    assert agent.store.charged("colour") == 0.0
    assert agent.store.memos(CAMPAIGN.campaign) == {}
    disk.free()
    draw(agent, "c1")
    assert agent.store.charged("colour") == CAMPAIGN.eps_inf
    agent.store.close()


def test_a_restart_on_a_full_disk_loses_nothing(disk: Disk, clock: FakeClock) -> None:
    agent = disk.agent(clock)
    disk.fill()
    draw_until_full(agent, clock)
    before = rows(disk.state)
    agent.store.close()
    with suppress(StorageFailure):  # it may refuse to start, and says why
        Store(disk.state, exclusive=True).close()
    if disk.is_real:
        disk.free()
    with Store(disk.state, exclusive=True):
        assert rows(disk.state) == before


def test_the_running_agent_says_so_sends_what_it_has_and_recovers(
    disk: Disk, clock: FakeClock
) -> None:
    agent, broker, name = disk.agent(clock), MemoryBroker(), CAMPAIGN.campaign
    runner = runner_of(agent, lambda _: "c1", make_link=broker.link)
    tally = MemoryTally(broker, CAMPAIGN)
    tick_until(runner, lambda: len(tally.payloads) == 1)
    disk.fill()
    draw_until_full(agent, clock)
    stored = agent.store.reports(name)
    tick_until(runner, lambda: "DISK_FULL" in last_state(runner))
    tick_until(runner, lambda: heard(tally) == {row.payload for row in stored})
    runner.tick()
    assert "DISK_FULL" in last_state(runner)  # until it tries again, it still says why
    disk.free()
    clock.pass_time(QUICK.source_retry)
    tick_until(runner, lambda: only(agent).last_round > stored[-1].round)
    tick_until(runner, lambda: not agent.store.reports(name, queued_only=True))
    assert {row.fate for row in agent.store.reports(name)} == {"counted"}
    assert all(len(payloads) == 1 for payloads in tally.payloads.values())
    runner.close()
    agent.store.close()


def heard(tally: MemoryTally) -> set[bytes]:
    return {payload for _, payload in tally.deliveries}


def test_fates_wait_for_the_disk(
    state: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A receipt that cannot be stored leaves the row where it is; later it is stored."""
    connections, broker, name = Connections(), MemoryBroker(), CAMPAIGN.campaign
    agent = joined_agent(state, clock, CAMPAIGN, connect=connections)
    draw(agent, "c1")
    connections.refuse_writes()
    runner = runner_of(agent, lambda _: "c1", make_link=broker.link)
    tally = MemoryTally(broker, CAMPAIGN)
    with caplog.at_level("INFO"):
        tick_until(runner, lambda: f"{name}: round 0 was counted" in caplog.messages)
    for _ in range(3):
        runner.tick()
        assert [row.fate for row in agent.store.reports(name)] == ["queued"]
    connections.refuse_writes(False)
    tick_until(runner, lambda: agent.store.reports(name)[0].fate == "counted")
    assert len(tally.deliveries) == 1
    runner.close()
    agent.store.close()


def test_a_queued_row_is_the_row_that_was_committed(disk: Disk, clock: FakeClock) -> None:
    agent = disk.agent(clock)
    drawn = draw(agent, "c1")
    disk.fill()
    draw_until_full(agent, clock)
    assert agent.store.reports(CAMPAIGN.campaign)[0] == drawn
    assert isinstance(drawn, Queued)
    agent.store.close()
