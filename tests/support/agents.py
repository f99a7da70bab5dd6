"""Agents as processes: as their owner runs them, killed at a named point, and several at once.

One kind of them is wrong on purpose: it takes the broker's acknowledgement for delivery. It is a
negative control, for which the checks for lost reports must fail.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from edge_client import EdgeClient
from edge_client.cli.report import serve
from edge_client.clock import SystemClock
from edge_client.link import MakeLink, PahoLink
from edge_client.records import Queued, Timing
from edge_client.settings import resolve
from protocol_spec import Manifest, Rejected, decode_report, parse_from_device
from protocol_spec.programs.output import set_up_logging
from protocol_spec.programs.packets import Message
from testbed.agents import RoundClock
from tests.support.campaigns import manifest
from tests.support.edge import ROOMY, receipt, runner_of
from tests.support.processes import Forked, Logged, run_command, start

EDGE = (sys.executable, "-m", "edge_client")
PROGRAM = (sys.executable, "-m", "tests.support.agents")


def edge(
    *words: str | Path,
    timeout: float = 60.0,
    extra_environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run one command of the agent to its end."""
    return run_command([*EDGE, *map(str, words)], timeout, extra_environment)


def fresh_manifest(**options: object) -> Manifest:
    """A campaign that no other test has, for brokers that several tests use."""
    return manifest(slug=f"t-{os.urandom(4).hex()}", **options)


def join(state: Path, asked: Manifest, broker: str, device: str) -> None:
    """Without asking the broker."""
    with EdgeClient(state, policy=ROOMY) as client:
        client.join(client.invitation(manifest=asked, broker=broker), device=device)


def joined(
    state: Path, asked: Manifest, broker: str, *, device: str = "device", value: str = "wood"
) -> Path:
    """Join a campaign; returns a configuration file for the agent."""
    join(state, asked, broker, device)
    config = state.with_suffix(".toml")
    sources = "".join(f'[sources.{a.name}]\nvalue = "{value}"\n' for a in asked.attributes)
    config.write_text(f'state_dir = "{state}"\n{sources}')
    return config


def draw_now(state: Path, value: str = "wood") -> bytes:
    """Draw this round's report without sending it: what an agent cut off from its broker has."""
    with EdgeClient(state) as client:
        drawn = client.agent.draw(client.find(), lambda _: value)
    assert isinstance(drawn, Queued)
    return drawn.payload


class AgentProcess(Logged):
    """`allomfree-edge run`; with a `timing` it is the same code, started by the program below."""

    def __init__(
        self,
        config: Path,
        *flags: str,
        extra_environment: Mapping[str, str] | None = None,
        timing: Timing | None = None,
    ) -> None:
        command = [*EDGE, "run", "--config", str(config), *flags]
        if timing is not None:
            command = [*PROGRAM, "serve", str(config), json.dumps(asdict(timing))]
        super().__init__(command, extra_environment)


def _serve(config: str, timing: str) -> None:
    """`allomfree-edge run` with other pauses."""
    settings = resolve({}, config=Path(config))
    set_up_logging(settings.log_level)
    serve(settings, Timing(**json.loads(timing)))


def trusting_link(asked: Manifest) -> MakeLink:
    """The `make_link` of an agent that trusts acknowledgements of this campaign's reports."""

    class TrustingLink(PahoLink):
        """Passes every acknowledgement off as a receipt of the collector."""

        def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> int:
            number = super().publish(topic, payload, retain=retain)
            origin, report = parse_from_device(topic), decode_report(payload)
            assert origin is not None
            assert not isinstance(report, Rejected)
            receipts[number] = Message(*receipt(asked, origin.device, report.round))
            return number

        def step(self, timeout_seconds: float) -> list[Message]:
            arrived = super().step(timeout_seconds)
            return arrived + [receipts[n] for n in self._answered if n in receipts]

    receipts: dict[int, Message] = {}
    return TrustingLink


# --- one report, and death at a named point -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Run:
    """Join if need be, report once, and die when a point is passed, if one is named."""

    state: str
    manifest: str
    broker: str
    device: str
    values: dict[str, str]
    die_at: str | None = None
    round: int | None = None
    timeout: float = 30.0
    trust_puback: bool = False


@dataclass(slots=True)
class Memory:
    """What the state directory holds: in hex, so that it can be compared byte by byte."""

    attribute: int | None = None
    rounds: list[int] | None = None
    memos: dict[str, str] = field(default_factory=dict)
    charges: list[float] = field(default_factory=list)
    outbox: dict[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(slots=True)
class Ended:
    """What was stored at the start of a run and, unless it was killed, at its end."""

    before: Memory
    _after: Memory | None
    states: list[str]

    @property
    def after(self) -> Memory:
        assert self._after, "it was killed"
        return self._after


def report_once(run: Run) -> Ended:
    """Run an agent to its end; a killed one must have been killed where it was to be."""
    done = run_command([*PROGRAM, "report", json.dumps(asdict(run))], 90.0)
    assert done.returncode == (-signal.SIGKILL if run.die_at else 0), (run, done.stderr)
    before, *rest = map(json.loads, done.stdout.splitlines())
    if not rest:
        return Ended(Memory(**before), None, [])
    after, states = rest
    return Ended(Memory(**before), Memory(**after), states)


def _report(given: str) -> None:
    run = Run(**json.loads(given))
    asked = Manifest.from_bytes(bytes.fromhex(run.manifest))
    clock = SystemClock() if run.round is None else RoundClock(asked.rounds, run.round)
    with EdgeClient(
        run.state,
        policy=ROOMY,
        clock=clock,
        trace=lambda point: _die() if point == run.die_at else None,
        timing=Timing(step_seconds=0.1),
        make_link=trusting_link(asked) if run.trust_puback else PahoLink,
    ) as client:
        _print(asdict(_memory(client)))
        if not client.memberships():
            invitation = client.invitation(manifest=asked, broker=run.broker)
            client.join(invitation, device=run.device)
        reported = client.report(run.values, timeout=run.timeout)
        _print(asdict(_memory(client)))
        _print([r.text for r in reported])


def _print(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _memory(client: EdgeClient) -> Memory:
    memory = Memory(charges=[line.epsilon for line in client.store.ledger()])
    for membership in client.memberships():
        memory.attribute = membership.attribute_index
        if membership.drawn_rounds is not None:
            memory.rounds = list(membership.drawn_rounds)
        for value, memo in client.store.memos(membership.name).items():
            memory.memos[str(value)] = memo.body.hex()
        for row in client.store.reports(membership.name):
            memory.outbox[str(row.round)] = (row.payload.hex(), row.fate)
    return memory


# --- several in one process, each with its own memory and connection ------------------------------


class Fleet:
    """The process, which can be killed -9, and what its agents remember."""

    def __init__(
        self, root: Path, asked: Manifest, broker: str, names: list[str], *, naive: bool = False
    ) -> None:
        self.root = root
        self.names = names
        self._command = [*PROGRAM, "fleet", str(root), "naive" if naive else "", *names]
        root.mkdir(exist_ok=True)
        for name in names:
            join(root / name, asked, broker, name)
        self.process: subprocess.Popen[bytes] | Forked | None = None

    def start(self) -> None:
        with (self.root / "log").open("ab") as log:
            self.process = start(self._command, stderr=log.fileno())

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            assert self.process.poll() is None, (self.root / "log").read_text()
            self.process.kill()
            self.process.wait(20)
            self.process = None

    def outbox(self) -> dict[str, list[Queued]]:
        """Every report that every device ever drew, by the device's own memory."""
        return {name: self._outbox(name) for name in self.names}

    def _outbox(self, name: str) -> list[Queued]:
        with EdgeClient(self.root / name, exclusive=False) as client:
            return client.store.reports(client.find().name)

    @property
    def has_delivered(self) -> bool:
        """Whether every device has drawn something, and nothing waits for a receipt."""
        return all(
            rows and all(row.fate != "queued" for row in rows) for rows in self.outbox().values()
        )


FLEET_TIMING = Timing(
    resend_seconds=1.0, receipt_seconds=0.1, reconnect_seconds=0.2, reconnect_longest_seconds=0.5
)


def _fleet(root: str, naive: str, *names: str) -> None:
    """Report at the first moment of each round, until killed."""
    agents = []
    for name in names:
        client = EdgeClient(Path(root) / name)
        known = client.find()
        value = known.attribute.values[0]
        link = trusting_link(known.manifest) if naive else PahoLink
        read = lambda _, value=value: value  # noqa: E731
        agents.append(runner_of(client.agent, read, make_link=link, timing=FLEET_TIMING))
    while True:
        for agent in agents:
            agent.tick(wait=0.01)


if __name__ == "__main__":
    known: dict[str, Callable[..., None]] = {"serve": _serve, "report": _report, "fleet": _fleet}
    known[sys.argv[1]](*sys.argv[2:])
