"""What the agent's tests control: time, randomness, SQLite, and a broker in this process."""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from edge_client.agent import Agent, MakeRandomiser, ReadValue, own_randomiser
from edge_client.daemon import Runner
from edge_client.delivery import Delivery
from edge_client.errors import SourceFailure
from edge_client.link import Connector, Link, MakeLink, PahoLink
from edge_client.policy import Policy
from edge_client.records import (
    Invitation,
    LedgerLine,
    Membership,
    Memo,
    Queued,
    Timing,
    Trace,
    no_trace,
)
from edge_client.status import last_heartbeat
from edge_client.store import Store
from edge_client.store.opening import Connect
from protocol_spec import (
    Entropy,
    Manifest,
    ReceiptPage,
    Rejected,
    Report,
    Topics,
    decode_report,
    digest8,
    parse_from_device,
    receipt_page,
    receipt_tag,
)
from protocol_spec.mechanisms import MECHANISMS
from protocol_spec.programs.memory_broker import MemoryBroker
from protocol_spec.programs.mqtt import Version
from protocol_spec.programs.packets import Message
from protocol_spec.programs.settings import BrokerUrl, Credentials, parse_broker
from tests.support import harness
from tests.support.campaigns import manifest
from tests.support.protocol.entropy import seeded

FIRST: Final = 1_800_000_000
DAY: Final = 86_400
NOBODY: Final = "mqtt://127.0.0.1:1"  # a port where no broker listens

# An owner who allows short rounds, several values and large budgets, as the tests need them.
ROOMY: Final = Policy(
    max_eps_inf=4.0,
    lifetime_budget=12.0,
    max_values=3,
    min_period=1,
    total_budget=1e6,
    mechanisms=tuple(MECHANISMS),
)

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
    is_synchronised: bool | None = None

    def wall(self) -> float:
        return self.now

    def boottime(self) -> float:
        return self.uptime

    def boot(self) -> str:
        return f"boot-{self.boots}"

    def synchronised(self) -> bool | None:
        return self.is_synchronised

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
    trace: Trace = no_trace,
    device: str | None = None,
    broker: str = NOBODY,
    connect: Connect = sqlite3.connect,
    randomiser: MakeRandomiser = own_randomiser,
) -> Agent:
    """An agent that holds its store and, given a campaign, has joined it."""
    store = Store(directory, exclusive=True, trace=trace, connect=connect)
    agent = Agent(
        store,
        policy or ROOMY,
        clock=clock,
        entropy=entropy or seeded(str(directory.name)),
        trace=trace,
        randomiser=randomiser,
    )
    if campaign is not None:
        agree(agent, campaign, broker=broker, device=device)
    return agent


Joined = Callable[..., Agent]  # the fixture `joined`: joined_agent with its directory and clock


def agree(
    agent: Agent, campaign: Manifest, *, broker: str = NOBODY, device: str | None = None
) -> Membership:
    return agent.join(Invitation(campaign, parse_broker(broker), "allomfree"), device)


def charge(agent: Agent, source: str, epsilon: float) -> None:
    """Book a charge that no memo of this store explains."""
    with agent.store.marked_transaction():
        agent.store.book(LedgerLine(0, "elsewhere", source, epsilon, "memo drawn"))


def only(agent: Agent) -> Membership:
    """The one campaign that was joined, as the store has it now."""
    (membership,) = agent.store.memberships()
    return membership


def draw(agent: Agent, value: object = "wood") -> Queued:
    """Draw a report that must be due."""
    drawn = agent.draw(only(agent), lambda _: value)
    assert isinstance(drawn, Queued), drawn
    return drawn


def draw_rounds(agent: Agent, rounds: int, value: object = "wood") -> list[bytes]:
    """One report in each of the next rounds, beginning with the one that is open."""
    assert isinstance(agent.clock, FakeClock)
    payloads = []
    for _ in range(rounds):
        payloads.append(draw(agent, value).payload)
        agent.clock.pass_time(DAY)
    return payloads


def rows(directory: Path) -> dict[str, list[tuple[Any, ...]]]:
    """All that a state directory holds."""
    return harness.rows(directory / "state.db")


def as_killed(directory: Path, copy: Path) -> Path:
    """What kill -9 would leave: the files as they are at this moment, unlocked, not closed."""
    shutil.copytree(directory, copy)
    return copy


class Connections:
    """Opens the store's connections and keeps hold of them, to make SQLite fail on purpose."""

    def __init__(self) -> None:
        self._opened: list[sqlite3.Connection] = []

    def __call__(self, *arguments: Any, **options: Any) -> sqlite3.Connection:
        self._opened.append(sqlite3.connect(*arguments, **options))
        return self.latest

    @property
    def latest(self) -> sqlite3.Connection:
        return self._opened[-1]

    def execute(self, sql: str) -> None:
        self.latest.execute(sql)

    def refuse_writes(self, refuse: bool = True) -> None:
        """Not a byte more, as on a disk that is full to the brim."""
        self.execute(f"PRAGMA query_only = {'ON' if refuse else 'OFF'}")


QUICK: Final = Timing(
    step_seconds=0.02,
    receipt_seconds=0.0,
    reconnect_seconds=0.01,
    reconnect_longest_seconds=0.02,
)


def runner_of(
    agent: Agent,
    read: ReadValue,
    *,
    make_link: MakeLink = PahoLink,
    timing: Timing = QUICK,
    entropy: Entropy = bytes,  # no randomness: draw and send at once
) -> Runner:
    connector = Connector(Credentials(), make_link=make_link)
    return Runner(agent, read, Delivery(agent, connector, timing, entropy))


def tick_until(runner: Runner, reached: Callable[[], bool], timeout: float = 60.0) -> None:
    """Turn the daemon's loop until something has happened."""
    limit = time.monotonic() + timeout
    while not reached():
        assert time.monotonic() < limit, last_state(runner)
        runner.tick()


def last_state(runner: Runner) -> str:
    """What `status` would say of it."""
    beat = last_heartbeat(runner.agent.store.directory)
    return beat["state"] if beat else ""


def by_port(servers: dict[int, MemoryBroker]) -> MakeLink:
    """Links to several brokers in this process, told apart by their ports."""

    def link(
        broker: BrokerUrl, credentials: Credentials, *, keepalive: int, version: Version
    ) -> Link:
        server = servers[broker.port]
        return server.link(broker, credentials, keepalive=keepalive, version=version)

    return link


def receipt(manifest: Manifest, device: str, number: int) -> tuple[str, bytes]:
    """The topic and page with which a collector confirms a device's report of a round."""
    page = receipt_page(manifest, device)
    tags = frozenset({receipt_tag(manifest, number, device)})
    content = ReceiptPage(digest8(manifest), number, page, tags).encode()
    return Topics(manifest.campaign).receipt(number, page), content


@dataclass
class MemoryTally:
    """A collector on a broker in this process: remembers every report, and gives receipts."""

    broker: MemoryBroker
    manifest: Manifest
    receipts: bool = True
    payloads: dict[tuple[str, int], set[bytes]] = field(default_factory=dict)
    deliveries: list[tuple[str, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.topics = Topics(self.manifest.campaign)
        self.broker.listen(self.topics.all_reports, self._count)

    def _count(self, message: Message) -> None:
        origin, report = parse_from_device(message.topic or ""), decode_report(message.payload)
        assert origin is not None
        assert not isinstance(report, Rejected)
        self.deliveries.append((origin.device, message.payload))
        self.payloads.setdefault((origin.device, report.round), set()).add(message.payload)
        if self.receipts:
            topic, page = receipt(self.manifest, origin.device, report.round)
            self.broker.publish(topic, page, retain=True)


# --- attributes that reach every branch of a domain -----------------------------------------------


WARMTH: Final = """[[attributes]]
name = "warmth"
question = "How warm is it?"
edges = [-inf, 10, 20, inf]
unit = "°C"
"""
ROOM: Final = """[[attributes]]
name = "room"
question = "How warm is the room?"
edges = [20, 21, 22]
unit = "°C"
"""


def many_values(k: int = 64) -> str:
    """k named values: what is drawn again comes out different."""
    values = ", ".join(f'"v{i:02}"' for i in range(k))
    return f'[[attributes]]\nname = "colour"\nquestion = "?"\nvalues = [{values}]\n'


# --- what an agent has stored ---------------------------------------------------------------------


def memos_of(agent: Agent) -> dict[int, Memo]:
    """Of the one campaign joined."""
    return agent.store.memos(only(agent).name)


def ledger_of(agent: Agent) -> list[float]:
    return [line.epsilon for line in agent.store.ledger()]


def report_of(row: Queued) -> Report:
    """A report that must decode."""
    report = decode_report(row.payload)
    assert not isinstance(report, Rejected)
    return report


def broken(_attribute: str) -> object:
    raise SourceFailure("the sensor is gone; no value was read")
