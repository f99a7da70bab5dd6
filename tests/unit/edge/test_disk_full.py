"""A full disk: no new draw, the state is visible, stored reports are still sent, no help needed.

As root the disk is a real one, a small tmpfs. Elsewhere, and always as a second way, SQLite itself
is told not to let the database grow.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from edge_client.agent import Agent
from edge_client.daemon import SOURCE_RETRY, Runner
from edge_client.errors import StorageFailure
from edge_client.heartbeat import last_heartbeat
from edge_client.records import Queued
from edge_client.store import Store
from tests.support.brokers import Nats
from tests.support.edge_fakes import (
    COLOUR,
    DAY,
    FakeClock,
    daily,
    draw,
    draw_rounds,
    joined_agent,
    only,
    rows,
    tick_until,
)
from tests.support.tally import Tally

CAMPAIGN = daily(attributes=COLOUR, slug="full", grace=366 * DAY)


@dataclass
class Disk:
    """A state directory on something that can be filled and freed."""

    state: Path
    fill: Callable[[Agent], None]
    free: Callable[[Agent], None]


def fill_with_file(agent: Agent) -> None:
    with suppress(OSError), (agent.store.directory.parent / "filler").open("wb", 0) as filler:
        while True:
            filler.write(bytes(4096))


def remove_file(agent: Agent) -> None:
    (agent.store.directory.parent / "filler").unlink()


def forbid_growth(agent: Agent) -> None:
    agent.store._db.execute("PRAGMA max_page_count = 1")  # SQLite takes: as many as there are


def allow_growth(agent: Agent) -> None:
    agent.store._db.execute("PRAGMA max_page_count = 100000")


def tmpfs(directory: Path) -> Iterator[Disk]:
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", str(directory)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("no tmpfs can be mounted here; SQLite's own limit is tested instead")
    try:
        yield Disk(directory / "state", fill_with_file, remove_file)
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


@pytest.fixture(params=["tmpfs", "page limit"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    if request.param == "tmpfs":
        yield from tmpfs(tmp_path / "small")
    else:
        yield Disk(tmp_path / "state", forbid_growth, allow_growth)


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
    agent = joined_agent(disk.state, clock, CAMPAIGN)
    draw_rounds(agent, clock, 2, "c1")
    disk.fill(agent)
    refused = draw_until_full(agent, clock)
    assert "Nothing new was drawn or sent" in str(refused)
    before = rows(disk.state)
    for _ in range(3):
        with pytest.raises(StorageFailure):
            draw(agent, "c1")
        clock.pass_time(DAY)
    assert rows(disk.state) == before
    disk.free(agent)
    drawn = draw(agent, "c1")
    assert drawn.round == only(agent).last_round == (clock.now - CAMPAIGN.rounds.first) // DAY
    agent.store.close()


def test_the_first_memo_is_not_charged_if_it_cannot_be_stored(disk: Disk, clock: FakeClock) -> None:
    agent = joined_agent(disk.state, clock, CAMPAIGN)
    disk.fill(agent)
    use_up_free_pages(agent.store)
    with pytest.raises(StorageFailure):
        draw(agent, "c1")
    assert agent.store.charged("colour") == 0.0
    assert agent.store.memos(CAMPAIGN.campaign) == {}
    disk.free(agent)
    draw(agent, "c1")
    assert agent.store.charged("colour") == CAMPAIGN.eps_inf
    agent.store.close()


def test_a_restart_on_a_full_disk_loses_nothing(disk: Disk, clock: FakeClock) -> None:
    agent = joined_agent(disk.state, clock, CAMPAIGN)
    disk.fill(agent)
    draw_until_full(agent, clock)
    before = rows(disk.state)
    agent.store.close()
    with suppress(StorageFailure):  # it may refuse to start, and says why
        Store(disk.state, exclusive=True).close()
    if disk.fill is fill_with_file:
        disk.free(agent)
    with Store(disk.state, exclusive=True):
        assert rows(disk.state) == before


def agent_of(disk: Disk, clock: FakeClock, broker: str) -> Agent:
    agent = joined_agent(disk.state, clock)
    device = os.urandom(8).hex()  # NATS shuts out names that come back within a second
    agent.join(CAMPAIGN, broker=broker, namespace="allomfree", device=device)
    return agent


def test_the_running_agent_says_so_sends_what_it_has_and_recovers(
    disk: Disk, clock: FakeClock, nats: Nats
) -> None:
    agent = agent_of(disk, clock, nats.url)
    runner = Runner(agent, lambda _: "c1", entropy=bytes)  # no randomness: draw and send at once
    with Tally(nats.port, CAMPAIGN) as tally:
        tick_until(runner, lambda: len(tally.payloads) == 1)
        disk.fill(agent)
        draw_until_full(agent, clock)
        stored = agent.store.outbox(CAMPAIGN.campaign)
        tick_until(runner, lambda: "DISK_FULL" in (last_heartbeat(disk.state) or {})["state"])
        tick_until(runner, lambda: heard(tally) == {row.payload for row in stored})
        runner.tick()
        beat = last_heartbeat(disk.state)
        assert beat is not None
        assert "DISK_FULL" in beat["state"]  # until it tries again, it still says why
        disk.free(agent)
        clock.pass_time(SOURCE_RETRY)
        tick_until(runner, lambda: only(agent).last_round > stored[-1].round)
        tick_until(runner, lambda: not agent.store.outbox(CAMPAIGN.campaign, queued_only=True))
        fates = {row.fate for row in agent.store.outbox(CAMPAIGN.campaign)}
        assert fates == {"counted"}
        assert all(len(payloads) == 1 for payloads in tally.payloads.values())
    runner.close()
    agent.store.close()


def heard(tally: Tally) -> set[bytes]:
    return {payload for _, payload in list(tally.deliveries)}


def test_fates_wait_for_the_disk(tmp_path: Path, clock: FakeClock, nats: Nats) -> None:
    """A receipt that cannot be stored leaves the row where it is; later it is stored."""
    agent = agent_of(Disk(tmp_path / "state", forbid_growth, allow_growth), clock, nats.url)
    name = CAMPAIGN.campaign
    draw(agent, "c1")
    agent.store._db.execute("PRAGMA query_only = ON")  # not a byte more
    runner = Runner(agent, lambda _: "c1", entropy=bytes)
    with Tally(nats.port, CAMPAIGN) as tally:
        tick_until(runner, lambda: len(tally.payloads) == 1)
        tick_until(runner, lambda: bool(runner._fates))
        runner.tick()
        assert [row.fate for row in agent.store.outbox(name)] == ["queued"]
        agent.store._db.execute("PRAGMA query_only = OFF")
        tick_until(runner, lambda: agent.store.outbox(name)[0].fate == "counted")
    runner.close()
    agent.store.close()


def test_a_queued_row_is_the_row_that_was_committed(disk: Disk, clock: FakeClock) -> None:
    agent = joined_agent(disk.state, clock, CAMPAIGN)
    drawn = draw(agent, "c1")
    disk.fill(agent)
    draw_until_full(agent, clock)
    assert agent.store.outbox(CAMPAIGN.campaign)[0] == drawn
    assert isinstance(drawn, Queued)
    agent.store.close()
