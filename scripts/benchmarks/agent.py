"""What the agent costs a device: memory, start-up, bytes on the wire, syncs of the disk."""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from benchmarks import syscalls
from benchmarks.campaign import manifest
from benchmarks.measurements import Measurement
from edge_client import EdgeClient, Policy
from edge_client.clock import SystemClock
from edge_client.records import Queued
from protocol_spec import BodyFormat, Manifest, Report
from testbed import processes
from testbed.brokers import Nats, Tally
from testbed.processes import find_program

ROUNDS: Final = 5
BARE: Final = "import paho.mqtt.client, msgpack, sqlite3"
AGENT: Final = "import edge_client.__main__, edge_client.cli.report"
LAST_ROUND, LAST_ATTRIBUTE = 65_535, 127  # the longest that they get


def measure(repeat: int = 7) -> list[Measurement]:
    """Everything, in a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="allomfree-benchmark-") as name:
        directory = Path(name)
        environment = {**processes.environment(), "PYTHONPYCACHEPREFIX": name}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for code in (BARE, f"{AGENT}, edge_client.sources, encodings.idna"):
            _import_ms(code, environment)  # compiled now, as installed packages are
        return [
            *running(directory / "running", environment),
            *import_times(environment, repeat),
            *wire_sizes(),
            *disk_syncs(directory / "traced", environment),
            draw_time(directory / "draws"),
        ]


# --- a running agent -----------------------------------------------------------------------------


def running(directory: Path, environment: dict[str, str]) -> list[Measurement]:
    """Memory of `allomfree-edge run`, connected, after several rounds; and no numpy in it."""
    with _agent(directory, environment) as (process, tally, _):
        tally.wait_for(ROUNDS)
        resident = _resident_kib(process.pid) / 1024
        maps = Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8")
    installed = "installed" if find_spec("numpy") else "not even installed"
    return [
        Measurement("resident memory, running", resident, "MiB", 30, f"after {ROUNDS} rounds"),
        Measurement("numpy loaded", float("numpy" in maps), "", 0, f"numpy is {installed}"),
    ]


def disk_syncs(directory: Path, environment: dict[str, str]) -> list[Measurement]:
    """How often a round of the running agent waits for the disk."""
    names = ("disk syncs before a report is sent", "disk syncs of a round in all")
    limits = (2, 3)
    missing = syscalls.why_not()
    if missing:
        return [Measurement(n, None, "", limit, missing) for n, limit in zip(names, limits)]
    output = directory.with_suffix(".strace")
    with _agent(directory, environment, output) as (_, tally, state):
        tally.wait_for(ROUNDS)
    counts = syncs_per_round(syscalls.calls(output), payloads(state))
    medians = [statistics.median(column) for column in zip(*counts)]
    return [
        Measurement(n, value, "", limit, f"median of {len(counts)} rounds")
        for n, value, limit in zip(names, medians, limits)
    ]


def syncs_per_round(trace: list[syscalls.Call], sent: list[bytes]) -> list[tuple[int, int]]:
    """Before the send and in all, for each round that is neither the first nor the last.

    A receipt that comes only after the next draw is booked there; the median does not mind.
    """
    written = [syscalls.first(trace, "pwrite64", "state.db-wal", payload) for payload in sent]
    counts = []
    for payload, begin, end in list(zip(sent, written, written[1:]))[1:]:
        leaves = syscalls.first(trace, "sendto", "socket:", payload)
        counts.append((syscalls.syncs(trace, begin, leaves), syscalls.syncs(trace, begin, end)))
    return counts


def payloads(state: Path) -> list[bytes]:
    """Every report that a state directory remembers, oldest first."""
    with EdgeClient(state) as client:
        return [row.payload for row in client.store.outbox.rows(client.find().name)]


@contextmanager
def _agent(
    directory: Path, environment: dict[str, str], trace_to: Path | None = None
) -> Iterator[tuple[subprocess.Popen[bytes], Tally, Path]]:
    """`allomfree-edge run` on rounds of a second, with a broker and a tally that gives receipts."""
    asked = manifest(4, period_seconds=1, rounds=1000, grace_seconds=3600)
    state, config = directory / "state", directory / "edge.toml"
    with Nats(directory / "nats") as nats, Tally(nats.port, asked) as tally:
        _join(state, asked, nats.url)
        config.write_text(f'state_dir = "{state}"\n[sources.a]\nvalue = "v0"\n')
        program = find_program("allomfree-edge")
        start = [program] if program else [sys.executable, "-m", "edge_client"]
        command = [*start, "run", "--config", str(config), "--log-level", "error"]
        process = subprocess.Popen(
            syscalls.traced(command, trace_to) if trace_to else command, env=environment
        )
        try:
            yield process, tally, state
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def _join(state: Path, asked: Manifest, broker: str) -> None:
    with EdgeClient(state, policy=Policy(min_period=1)) as client:
        client.join(
            client.invitation(manifest=asked, broker=broker),
            device="device",
            accept_silence=asked.campaign,
        )


def _resident_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))


# --- imports, bytes, draws -----------------------------------------------------------------------


def import_times(environment: dict[str, str], repeat: int) -> list[Measurement]:
    """The agent's imports beside those of its libraries alone, in turns, each in a new process."""
    pairs = [(_import_ms(BARE, environment), _import_ms(AGENT, environment)) for _ in range(repeat)]
    bare, agent = (statistics.median(column) for column in zip(*pairs))
    ratio = statistics.median(mine / theirs for theirs, mine in pairs)
    return [
        Measurement("import time ÷ that of its libraries", ratio, "", None, f"median of {repeat}"),
        Measurement("import time", agent, "ms", None, f"paho, msgpack, sqlite3 alone: {bare:.0f}"),
    ]


def _import_ms(code: str, environment: dict[str, str]) -> float:
    timed = f"import time; begin = time.perf_counter(); {code}; print(time.perf_counter() - begin)"
    done = subprocess.run(
        [sys.executable, "-c", timed], env=environment, capture_output=True, check=True
    )
    return float(done.stdout) * 1000


def wire_sizes() -> list[Measurement]:
    """The longest payload there is for a domain of k values, and the same as JSON."""
    grr = [_wire_size("L-GRR", BodyFormat(False, k), 20) for k in (2, 41, 256, 4096)]
    return grr + [_wire_size("L-UE", BodyFormat(True, k), 20 + k / 8) for k in (8, 41, 256, 4096)]


def _wire_size(protocol: str, form: BodyFormat, limit: float) -> Measurement:
    body = form.encode(form.k - 1)
    report = Report(bytes(range(200, 208)), LAST_ROUND, LAST_ATTRIBUTE, body)
    answer = body.hex() if form.unary else form.to_number(body)
    fields = {
        "v": 1,
        "digest": report.digest8.hex(),
        "round": report.round,
        "attribute": report.attribute,
        "body": answer,
    }
    text = json.dumps(fields, separators=(",", ":"))
    name = f"payload, {protocol}, k = {form.k}"
    return Measurement(name, len(report.encode()), "bytes", limit, f"as JSON: {len(text)}")


def draw_time(directory: Path, draws: int = 200) -> Measurement:
    """One round's draw until it is durable, on this disk."""
    asked = manifest(4, period_seconds=60, rounds=1000)
    clock = _RoundClock(asked)
    times = []
    with EdgeClient(directory, clock=clock, policy=Policy(min_period=1)) as client:
        client.join(
            client.invitation(manifest=asked, broker="mqtt://localhost"),
            device="device",
            accept_silence=asked.campaign,
        )
        for clock.round in range(draws):
            membership = client.find()
            begin = time.perf_counter()
            drawn = client.agent.draw(membership, lambda _: "v0")
            times.append(time.perf_counter() - begin)
            if not isinstance(drawn, Queued):
                raise TypeError(f"nothing was drawn: {drawn}")
    note = f"drawn and committed, median of {draws}"
    return Measurement("time per report", statistics.median(times) * 1000, "ms", None, note)


class _RoundClock(SystemClock):
    """Stands inside the round that it is told."""

    def __init__(self, asked: Manifest) -> None:
        self._rounds = asked.rounds
        self.round = 0

    def wall(self) -> float:
        return self._rounds.opens(self.round) + 1.0

    def boot(self) -> str:
        return f"boot {self.round}"
