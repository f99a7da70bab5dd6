"""What the agent's tests control: time, randomness, and devices in directories of their own."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from edge_client.agent import Agent, Trace
from edge_client.daemon import Runner
from edge_client.policy import Policy
from edge_client.records import Membership, Queued
from edge_client.store import Store
from protocol_spec import Entropy, Manifest
from tests.support.campaigns import manifest
from tests.support.protocol.entropy import seeded

FIRST: Final = 1_800_000_000
DAY: Final = 86_400
NOBODY: Final = "mqtt://127.0.0.1:1"  # a port where no broker listens

FUEL: Final = """[[attributes]]
name = "fuel"
question = "What heats your home?"
values = ["wood", "gas", "oil", "pump"]
"""


def colours(count: int) -> str:
    """An attribute answered in unary: memos and reports are count / 8 bytes of noise."""
    values = ", ".join(f'"c{i}"' for i in range(count))
    return f"""[[attributes]]
name = "colour"
question = "Which colour?"
protocol = "L-OSUE"
values = [{values}]
"""


COLOUR: Final = colours(1024)


@dataclass
class FakeClock:
    """Both clocks, moved by hand. It begins in the middle of the first round's first hour."""

    now: float = FIRST + 1800.0
    uptime: float = 500.0
    boots: int = 1

    def wall(self) -> float:
        return self.now

    def steady(self) -> float:
        return self.uptime

    def boot(self) -> str:
        return f"boot-{self.boots}"

    def pass_time(self, seconds: float) -> None:
        """Time really passes."""
        self.now += seconds
        self.uptime += seconds

    def set_forward(self, seconds: float) -> None:
        """Somebody sets the wall clock; nothing has passed."""
        self.now += seconds

    def reboot(self) -> None:
        self.boots += 1
        self.uptime = 1.0


class NoEntropy(AssertionError):
    """Randomness was asked for where none may be used."""


def no_entropy(size: int) -> bytes:
    raise NoEntropy(size)


def daily(**options: Any) -> Manifest:
    """A campaign of a year of daily rounds that begins at FIRST."""
    fields = {"first": FIRST, "period": DAY, "count": 365, "grace": DAY, **options}
    return manifest(**fields)


def joined_agent(
    directory: Path,
    clock: FakeClock,
    campaign: Manifest | None = None,
    *,
    policy: Policy | None = None,
    entropy: Entropy | None = None,
    trace: Trace = lambda _: None,
    device: str | None = None,
) -> Agent:
    """An agent that holds its store and, given a campaign, has joined it."""
    store = Store(directory, exclusive=True)
    agent = Agent(
        store,
        policy or Policy(),
        clock=clock,
        entropy=entropy or seeded(str(directory.name)),
        trace=trace,
    )
    if campaign is not None:
        agent.join(campaign, broker=NOBODY, namespace="allomfree", device=device)
    return agent


def only(agent: Agent) -> Membership:
    """The one campaign that was joined, as the store has it now."""
    (membership,) = agent.store.memberships()
    return membership


def draw(agent: Agent, value: object = "wood") -> Queued:
    """Draw a report that must be due."""
    drawn = agent.draw(only(agent), lambda _: value)
    assert isinstance(drawn, Queued), drawn
    return drawn


def draw_rounds(agent: Agent, clock: FakeClock, rounds: int, value: object = "wood") -> list[bytes]:
    """One report in each of the next rounds, beginning with the one that is open."""
    payloads = []
    for _ in range(rounds):
        payloads.append(draw(agent, value).payload)
        clock.pass_time(DAY)
    return payloads


def rows(directory: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table, as another process sees them."""
    with closing(sqlite3.connect(directory / "state.db")) as db:
        names = [n for (n,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return {n: db.execute(f"SELECT * FROM {n}").fetchall() for n in names}  # noqa: S608


def as_killed(directory: Path, copy: Path) -> Path:
    """What kill -9 would leave: the files as they are at this moment, unlocked, not closed."""
    shutil.copytree(directory, copy)
    return copy


@contextmanager
def overridden(owner: Any, name: str, replacement: Callable[..., Any]) -> Iterator[None]:
    """An attribute replaced for a while."""
    original = getattr(owner, name)
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        setattr(owner, name, original)


def tick_until(runner: Runner, reached: Callable[[], bool]) -> None:
    """Turn the daemon's loop until something has happened."""
    for _ in range(200):
        if reached():
            return
        runner.tick()
    raise AssertionError("not reached in 200 turns of the loop")
