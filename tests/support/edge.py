"""What the agent's tests control: time, randomness, SQLite, and a broker in this process."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from edge_client.agent import Agent, MakeRandomiser, ReadValue, own_randomiser
from edge_client.daemon import Runner
from edge_client.delivery import Delivery
from edge_client.errors import SourceFailure
from edge_client.link import Connector, Link, MakeLink, PahoLink
from edge_client.policy import Policy
from edge_client.records import LedgerLine, Membership, Memo, Queued, Timing, Trace, no_trace
from edge_client.status import last_heartbeat
from edge_client.store import Store
from edge_client.store.opening import Connect
from protocol_spec import (
    Entropy,
    Manifest,
    ReceiptPage,
    Rejected,
    Report,
    Reporting,
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
from protocol_spec.programs.settings import BrokerUrl, Credentials
from tests.support.campaigns import manifest, read_manifest
from tests.support.protocol.entropy import seeded

FIRST: Final = 1_800_000_000
DAY: Final = 86_400
NOBODY: Final = "mqtt://127.0.0.1:1"  # a port where no broker listens

# An owner who allows short rounds, several values and large budgets, as the tests need them.
ROOMY: Final = Policy(
    max_eps_inf=4.0, lifetime_budget=12.0, max_values=3, min_period=1, total_budget=1e6
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

    def steady(self) -> float:
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


def agree(
    agent: Agent, campaign: Manifest, *, broker: str = NOBODY, device: str | None = None
) -> Membership:
    return agent.join(campaign, broker=broker, namespace="allomfree", device=device)


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


def in_memory() -> str | None:
    """Where temporary files need no disk, if there is such a place: for `tempfile`'s `dir`.

    Most tests are not about the disk, and a busy one makes every sync wait.
    """
    place = "/dev/shm"  # noqa: S108
    roomy = os.access(place, os.W_OK) and shutil.disk_usage(place).free > 512 * 2**20
    return place if roomy else None


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


QUICK: Final = Timing(step=0.02, reconnect=0.01, reconnect_longest=0.02)
INSISTENT: Final = Timing(step=0.005, resend=0.01, reconnect=0.005, reconnect_longest=0.005)


def runner_of(
    agent: Agent,
    read: ReadValue,
    *,
    make_link: MakeLink = PahoLink,
    timing: Timing = QUICK,
    entropy: Entropy = bytes,  # no randomness: draw and send at once
) -> Runner:
    connector = Connector(Credentials(), make_link=make_link)
    delivery = Delivery(agent.store, agent.clock, connector, timing=timing, entropy=entropy)
    return Runner(agent, read, delivery, timing=timing, entropy=entropy)


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
            page = receipt_page(self.manifest, origin.device)
            tags = frozenset({receipt_tag(self.manifest, report.round, origin.device)})
            receipt = ReceiptPage(digest8(self.manifest), report.round, page, tags).encode()
            self.broker.publish(self.topics.receipt(report.round, page), receipt, retain=True)


# --- campaigns, one for each mechanism, and what the agent made of them ---------------------------


ALL_WAYS: Final[tuple[Reporting, ...]] = tuple(MECHANISMS)
WITH_MEMOS: Final[tuple[Reporting, ...]] = ("memoized", "hashed", "nested")

FUELS: Final = """[[attributes]]
name = "fuel"
question = "What heats your home?"
values = ["wood", "gas", "oil", "other"]
otherwise = "other"
"""
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
    """So many named values: what is drawn again comes out different."""
    values = ", ".join(f'"v{i:02}"' for i in range(k))
    return (
        f'[[attributes]]\nname = "colour"\nquestion = "?"\nvalues = [{values}]\n'
        f'otherwise = "v{k - 1:02}"\n'
    )


def way_text(
    reporting: Reporting,
    *,
    attributes: str = FUELS,
    first: int | None = FIRST,
    period: int = DAY,
    count: int = 365,
    grace: int = DAY,
    each: int = 1,
    eps_inf: float = 2.0,
    eps_1: float = 0.6,
    max_values: int = 1,
    slug: str = "test",
) -> str:
    """A year of daily rounds, unless said otherwise; with `first` None, from now on."""
    once, start = reporting == "once", int(time.time()) - 1 if first is None else first
    return f"""
format = 1
slug = "{slug}"
title = "A test"
purpose = "Testing"
owner = "The tests"
contact = "tests@example.org"
reporting = "{reporting}"
eps_inf = {eps_inf}
{"" if once else f"eps_1 = {eps_1}"}
min_reports = 1
{f"max_values = {max_values}" if reporting == "memoized" else ""}
[rounds]
first = {start}
period = {period}
count = {count}
grace = {grace}
{f"each = {each}" if once else ""}
{attributes}"""


def way_manifest(reporting: Reporting, **options: object) -> Manifest:
    return read_manifest(way_text(reporting, **options))  # type: ignore[arg-type]


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


def draw_all(agent: Agent, clock: FakeClock, value: object = "wood") -> list[Queued]:
    """Every report that leaves from now to the campaign's end."""
    found: list[Queued] = []
    while clock.now < only(agent).manifest.rounds.end:
        drawn = agent.draw(only(agent), lambda _: value)
        found += [drawn] if isinstance(drawn, Queued) else []
        clock.pass_time(DAY)
    return found


def broken(_attribute: str) -> object:
    raise SourceFailure("the sensor is gone; nothing was drawn or sent")


# --- many devices that begin alike: a state directory is made once and copied ---------------------


Files = dict[str, bytes]  # the files of a closed state directory, by name


def files_of(directory: Path) -> Files:
    """What a closed store left, held in memory: copying from there costs a third of `copytree`."""
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def lay_out(files: Files, directory: Path) -> Path:
    """A new state directory with these files, private as the agent insists."""
    directory.mkdir(mode=0o700)
    for name, content in files.items():
        descriptor = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(descriptor, content)
        finally:
            os.close(descriptor)
    return directory
