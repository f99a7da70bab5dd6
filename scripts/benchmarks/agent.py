"""What the agent costs a device (memory, start-up, bytes on the wire, syncs of the disk), and the
CPU time of short commands over that of Python doing nothing."""

from __future__ import annotations

import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Final

from benchmarks.report import Measurement, median_of, ratio_of
from benchmarks.workload import manifest
from collector.data_dir import device_key, open_store
from collector.health import Heartbeat, Status
from collector.records import Candidate
from collector.settings import resolve
from edge_client import EdgeClient, Policy
from edge_client.records import Queued
from faults.proxy import Proxy
from protocol_spec import BodyFormat, Manifest, Report, receipt_page
from testbed import processes
from testbed.agents import RoundClock
from testbed.brokers import Nats, Tally
from testbed.collector import CollectorProcess
from testbed.processes import TestbedError, find_program, resident_bytes

ROUNDS: Final = 5
BARE: Final = "import paho.mqtt.client, msgpack, sqlite3"
AGENT: Final = "import edge_client.__main__, edge_client.cli.report"
LAST_ROUND, LAST_ATTRIBUTE = 65_535, 127  # the largest numbers there are
ROOT: Final = Path(__file__).resolve().parents[2]
STARTUP_LIMIT: Final = 10.0  # for --help and --version, and for what monitors run every few seconds
SYNCS: Final = {"disk syncs before a report is sent": 2, "disk syncs of a round in all": 3}
AGENTS, PERIODS = 12, 2
FLEETS: Final = ((1_000, 4), (100_000, 400), (1_000_000, 4_000), (1_000_000, 1_000))
CALLS: Final = "pwrite64,write,fdatasync,fsync,sendto"
_LINE: Final = re.compile(r"(?:\d+ +)?(\w+)\(\d+<(.*?)>(.*)", re.DOTALL)
_ENDED: Final = ("+++ exited with", "+++ killed by")


def measure(repeat: int = 7) -> list[Measurement]:
    """Everything, in a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="allomfree-benchmark-") as name:
        directory = Path(name)
        environment = compiled(directory)
        return [
            *running(directory / "running", environment),
            *import_times(environment, repeat),
            *wire_sizes(),
            *(
                row
                for n, pages in FLEETS
                for row in round_bytes(directory / f"{n}-{pages}", n, pages)
            ),
            *disk_syncs(directory / "traced", environment),
            draw_time(directory / "draws"),
        ]


def compiled(directory: Path) -> dict[str, str]:
    """Variables of processes that find the agent compiled, as installed packages are: compiling
    takes time and memory."""
    environment = {**processes.environment(), "PYTHONPYCACHEPREFIX": str(directory / "compiled")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    for code in (BARE, f"{AGENT}, edge_client.sources, encodings.idna"):
        _import_ms(code, environment)
    return environment


# --- a running agent -----------------------------------------------------------------------------


def running(directory: Path, environment: dict[str, str]) -> list[Measurement]:
    """Memory of `allomfree-edge run`, connected, after several rounds; and no numpy in it."""
    with _agent(directory, environment) as (process, tally, _):
        tally.wait_for(ROUNDS)
        resident = resident_bytes(process.pid) / (1 << 20)
        maps = Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8")
    installed = "installed" if find_spec("numpy") else "not installed at all"
    return [
        Measurement("resident memory, running", resident, "MiB", 30, f"after {ROUNDS} rounds"),
        Measurement("numpy loaded", float("numpy" in maps), "", 0, f"numpy is {installed}"),
    ]


def disk_syncs(directory: Path, environment: dict[str, str]) -> list[Measurement]:
    """How often a round of the running agent waits for the disk."""
    if missing := why_not():
        return [Measurement(name, None, "", limit, missing) for name, limit in SYNCS.items()]
    output = directory.with_suffix(".strace")
    with _agent(directory, environment, output) as (_, tally, state):
        tally.wait_for(ROUNDS)
    counts = syncs_per_round(calls(output), payloads(state))
    return [
        Measurement(name, statistics.median(column), "", limit, f"median of {len(counts)} rounds")
        for (name, limit), column in zip(SYNCS.items(), zip(*counts))
    ]


def syncs_per_round(trace: list[Call], sent: list[bytes]) -> list[tuple[int, int]]:
    """Before the send and in all, for each round that is neither the first nor the last.

    A receipt that comes only after the next draw counts there; the median is not affected.
    """
    written = [first(trace, "pwrite64", "state.db-wal", payload) for payload in sent]
    counts = []
    for payload, begin, end in list(zip(sent, written, written[1:]))[1:]:
        leaves = first(trace, "sendto", "socket:", payload)
        before, in_all = (
            sum(call.name in ("fsync", "fdatasync") for call in trace[begin:stop])
            for stop in (leaves, end)
        )
        counts.append((before, in_all))
    return counts


def payloads(state: Path) -> list[bytes]:
    """Every report that a state directory remembers, oldest first."""
    with EdgeClient(state) as client:
        return [row.payload for row in client.store.reports(client.find().name)]


@contextmanager
def _agent(
    directory: Path, environment: dict[str, str], trace_to: Path | None = None
) -> Iterator[tuple[subprocess.Popen[bytes], Tally, Path]]:
    """`allomfree-edge run` on rounds of a second, with a broker and a tally that gives receipts."""
    asked = manifest(4, period_seconds=1, rounds=1000, grace_seconds=3600)
    state, config = directory / "state", directory / "edge.toml"
    with Nats(directory / "nats") as nats, Tally(nats.port, asked) as tally:
        with EdgeClient(state, policy=Policy(min_period=1)) as client:
            client.join(client.invitation(manifest=asked, broker=nats.url), device="device")
        policy = "[policy]\nmin_period = 1\n"
        config.write_text(f'state_dir = "{state}"\n{policy}[sources.a]\nvalue = "v0"\n')
        program = find_program("allomfree-edge")
        start = [program] if program else [sys.executable, "-m", "edge_client"]
        command = [*start, "run", "--config", str(config), "--log-level", "error"]
        process = subprocess.Popen(
            traced(command, trace_to) if trace_to else command, env=environment
        )
        try:
            yield process, tally, state
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


# --- what strace saw -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Call:
    """One call: its name, the file or socket, and the rest of the line with the bytes decoded."""

    name: str
    where: str
    rest: str


def why_not() -> str:
    """Why strace cannot be used here, or empty."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    tried = subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, check=False)
    return "" if tried.returncode == 0 else "strace may not trace here"


def traced(command: list[str], output: Path) -> list[str]:
    """The command under strace, which keeps its process id (-D: the tracer is the child)."""
    options = ["-D", "-f", "-y", "-xx", "-s", "100000", "-e", f"trace={CALLS}", "-o", str(output)]
    return ["strace", *options, *command]


def calls(output: Path, timeout: float = 30.0) -> list[Call]:
    """All calls in order, once the traced process has ended and strace has written everything."""
    limit = time.monotonic() + timeout
    while not output.exists() or not any(e in output.read_text()[-200:] for e in _ENDED):
        if time.monotonic() > limit:
            raise TimeoutError(f"strace did not finish {output}")
        time.sleep(0.02)
    lines = output.read_text(encoding="ascii").splitlines()
    plain = (re.sub(r"\\x([0-9a-f]{2})", lambda h: chr(int(h[1], 16)), line) for line in lines)
    return [Call(*match.groups()) for match in map(_LINE.fullmatch, plain) if match]


def first(trace: list[Call], name: str, where: str, content: bytes = b"", *, after: int = 0) -> int:
    """Index of the first such call, from `after` on; `where` may be the end of a path."""
    wanted = content.decode("latin-1")
    for index, call in enumerate(trace[after:], start=after):
        if call.name == name and where in call.where and wanted in call.rest:
            return index
    raise LookupError(f"no {name} of {where}")


# --- imports, bytes, draws -----------------------------------------------------------------------


def import_times(environment: dict[str, str], repeat: int) -> list[Measurement]:
    """The agent's imports against those of its libraries alone, in turns, in new processes."""
    pairs = [(_import_ms(BARE, environment), _import_ms(AGENT, environment)) for _ in range(repeat)]
    bare, agent = zip(*pairs)
    note = f"paho, msgpack, sqlite3 alone: {statistics.median(bare):.0f}"
    return [
        ratio_of("import time / that of its libraries", agent, bare, note=f"median of {repeat}"),
        median_of("import time", agent, "ms", note=note),
    ]


def _import_ms(code: str, environment: dict[str, str]) -> float:
    timed = f"import time; begin = time.perf_counter(); {code}; print(time.perf_counter() - begin)"
    command = [sys.executable, "-c", timed]
    done = subprocess.run(command, env=environment, capture_output=True, check=True)
    return float(done.stdout) * 1000


def wire_sizes() -> Iterator[Measurement]:
    """The longest payload there is for a domain of k values."""
    for form, limit in (
        *((BodyFormat(False, k), 20.0) for k in (2, 41, 256, 4096)),
        *((BodyFormat(True, k), 20 + k / 8) for k in (8, 41, 256, 4096)),
    ):
        body = form.encode(form.k - 1)
        report = Report(bytes(range(200, 208)), LAST_ROUND, LAST_ATTRIBUTE, body)
        name = f"payload, {'L-UE' if form.unary else 'L-GRR'}, k = {form.k}"
        yield Measurement(name, len(report.encode()), "bytes", limit)


def round_bytes(directory: Path, devices: int, pages: int) -> Iterator[Measurement]:
    """What agents that stay connected send and read in a round, at its end: the reports of all
    other devices of their page are counted already. A proxy counts; the rest is real."""
    first = int(time.time()) + 10
    asked = manifest(
        4, period_seconds=10, rounds=PERIODS, grace_seconds=600, first=first, receipt_pages=pages
    )
    names = (f"{i:016x}" for i in count() if receipt_page(asked, f"{i:016x}") == 0)
    data, timeout = directory / "data", time.monotonic() + 120
    with ExitStack() as stack:
        broker = stack.enter_context(Nats(directory / "nats"))
        _count_others(data, asked, devices // pages)
        collector = stack.enter_context(CollectorProcess(data, broker=broker.url))
        collector.wait_until_connected()
        proxies = [stack.enter_context(Proxy(broker.port)) for _ in range(AGENTS)]
        agents, runners = [], []
        for name, proxy in zip(names, proxies):
            agent = stack.enter_context(EdgeClient(directory / name, policy=Policy(min_period=1)))
            agent.join(agent.invitation(manifest=asked, broker=proxy.url), device=name)
            agents.append(agent)
            runners.append(stack.enter_context(closing(agent.runner(lambda _: "v0"))))
        while not all(_counted(agent) == PERIODS for agent in agents):
            if time.monotonic() > timeout:
                raise TestbedError("the agents have no receipts")
            for runner in runners:
                runner.tick(wait=0.01)
        made = [proxy.connections for proxy in proxies]
    both = max(sum(c.received + c.sent for c in each) for each in made) / PERIODS
    what = f"sent and read in a round, {devices:,} devices on {pages:,} pages"
    yield Measurement(what, both, "bytes", 4_000, f"{PERIODS} rounds and connecting")


def _counted(agent: EdgeClient) -> int:
    rows = agent.store.reports(agent.find().name)
    return sum(row.fate == "counted" for row in rows)


def _count_others(data: Path, asked: Manifest, others: int) -> None:
    """Reports on page 0 of every round, of devices that are not there."""
    body = asked.body_formats[0].encode(0)
    with closing(open_store(data)) as store:
        device_key(resolve({"data_dir": data}), store)
        campaign = store.open_campaign(asked, asked.rounds.first).id
        for number in range(PERIODS):
            tags = (int.from_bytes(os.urandom(4)) for _ in range(others))
            rows = [Candidate(campaign, number, d, 0, 0, tag, body) for d, tag in enumerate(tags)]
            store.commit(rows, [])


def draw_time(directory: Path, draws: int = 200) -> Measurement:
    """One round's draw until it is durable, on this disk."""
    asked = manifest(4, period_seconds=60, rounds=1000)
    clock = RoundClock(asked.rounds)
    times = []
    with EdgeClient(directory, clock=clock, policy=Policy(min_period=1)) as client:
        client.join(client.invitation(manifest=asked, broker="mqtt://localhost"), device="device")
        for clock.round in range(draws):
            membership = client.find()
            begin = time.perf_counter()
            drawn = client.agent.draw(membership, lambda _: "v0")
            times.append(1000 * (time.perf_counter() - begin))
            if not isinstance(drawn, Queued):
                raise TypeError(f"nothing was drawn: {drawn}")
    return median_of("time per report", times, "ms", note=f"drawn and committed, {draws} times")


# --- short commands ------------------------------------------------------------------------------


def measure_startup(repeat: int = 9) -> list[Measurement]:
    """Every command in turns with Python doing nothing, in a temporary environment."""
    with tempfile.TemporaryDirectory(prefix="allomfree-benchmark-") as name:
        directory = Path(name)
        python, commands = _bare_python(directory), _commands(directory)
        for words in commands.values():
            _cpu_ms(python, words)  # compiled now, as installed packages are
        turns = [
            {name: _cpu_ms(python, words) for name, words in commands.items()}
            for _ in range(repeat)
        ]
    columns = {name: [turn[name] for turn in turns] for name in turns[0]}
    bare = columns.pop("")
    rows = []
    for name, spent in columns.items():
        limit = None if name.endswith("status") else STARTUP_LIMIT
        rows.append(ratio_of(name, spent, bare, limit=limit, note=f"{repeat} starts"))
    return [*rows, median_of("python -c pass", bare, "ms")]


def _bare_python(directory: Path) -> Path:
    """A Python that finds the checkout and its libraries by their paths alone: an editable install
    runs code at every start of Python, which would make everything else look cheap."""
    venv.create(directory / "venv", symlinks=True)
    paths = dict.fromkeys([str(ROOT), *(sysconfig.get_path(p) for p in ("purelib", "platlib"))])
    inside = sysconfig.get_path("purelib", "venv", {"base": str(directory / "venv")})
    (Path(inside) / "checkout.pth").write_text("\n".join(paths), encoding="utf-8")
    return directory / "venv" / "bin" / "python"


def _commands(directory: Path) -> dict[str, list[str]]:
    """On a small campaign with a service, and on a device that joined none; "" does nothing."""
    data, state = directory / "data", directory / "state"
    with closing(open_store(data)) as store:
        store.open_campaign(manifest(4), int(time.time()), b"")
    Heartbeat(data).beat(Status(connected=True, trouble=""))
    EdgeClient(state).close()
    places = {"collector": ("--data-dir", str(data)), "edge": ("--state-dir", str(state))}
    modules = {"collector": "collector", "edge": "edge_client"}
    found = {"": ["-c", "pass"]}
    for program, words in (
        *(("collector", word) for word in ("--help", "--version", "health", "status")),
        *(("edge", word) for word in ("--help", "--version", "status")),
    ):
        settings = () if words.startswith("--") else ("--config", os.devnull, *places[program])
        found[f"allomfree-{program} {words}"] = ["-m", modules[program], words, *settings]
    return found


def _cpu_ms(python: Path, words: list[str]) -> float:
    """CPU time of one process, from its start to its end."""
    variables = {k: v for k, v in processes.environment().items() if not k.startswith("PYTHON")}
    compiled = sys.pycache_prefix or str(python.parent / "compiled")  # never in the checkout
    child = subprocess.Popen(
        [str(python), *words],
        env={**variables, "PYTHONPYCACHEPREFIX": compiled},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd=python.parent,
    )
    with child:
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode and child.stderr:
            raise RuntimeError(f"{' '.join(words)}: {child.stderr.read().decode()}")
    return (used.ru_utime + used.ru_stime) * 1000
