"""Measure what allomfree costs, against its own limits and against other libraries."""

from __future__ import annotations

import functools
import inspect
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import click

if find_spec("protocol_spec") is None:  # a checkout that is not installed
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import accuracy as accuracy_benchmark
from benchmarks import agent as agent_benchmark
from benchmarks import ingest as ingest_benchmark
from benchmarks import live as live_benchmark
from benchmarks import peers as peers_benchmark
from benchmarks import report
from benchmarks import soak as soak_benchmark
from benchmarks.peers import Bench, PeerFailed, Peers
from benchmarks.report import Measurement
from testbed.processes import TestbedError

Rows = list[Measurement]

NOT_SHOWN: Final = ("in_json", "write", "peer_python")  # they change no number
PYTHON: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
TYPES: Final = {"peer_python": PYTHON, "errors": click.IntRange(2), "campaigns": click.IntRange(2)}
HELP: Final = {
    "campaigns": "Runs of multi-freq-ldpy for each budget; half as many for a day.",
    "connections": "Connections that publish them.",
    "devices": "Devices in one round, report by report.",
    "errors": "Campaigns of multi-freq-ldpy for each budget.",
    "large": "Reports in a larger round; 0 for none.",
    "minutes": "Length of the run.",
    "peer": "Also compare with multi-freq-ldpy, installed for it.",
    "peer_python": "Python that has the other libraries, instead of a temporary environment.",
    "rate": "Reports a second.",
    "readers": "Instead measure ingest while N readers use the page.",
    "reports": "Reports published.",
    "runs": "Runs of which the median counts.",
    "share": "Share of a core that each worker gets.",
    "statistics": "Devices simulated as counts alone.",
    "values": "Values of the attribute.",
}


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
def main() -> None:
    """Measure what allomfree costs, against its own limits and against other libraries.

    Every command exits with status 1 when a limit is broken.

    \b
    Examples:
      python scripts/benchmark.py agent
      python scripts/benchmark.py live --reports 5000 --runs 1 --json
      python scripts/benchmark.py all --write
    """


@dataclass(slots=True)
class Run:
    """One call of a command: the name its numbers get, whether it writes to the docs, and the
    versions of the libraries that it compared with."""

    name: str
    write: bool
    versions: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def peers(self, python: Path | None) -> Iterator[Peers]:
        with peers_benchmark.peers(python) as driver:
            self.versions = driver.versions()
            yield driver


def option(name: str, default: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    flag, kind = f"--{name.replace('_', '-')}", TYPES.get(name)
    return click.option(
        flag, name, default=default, type=kind, is_flag=default is False, help=HELP[name]
    )


def verb(measure: Callable[..., Rows]) -> click.Command:
    """A command that prints what `measure` returns; its parameters become the options. The exit
    status is 1 when a limit is broken."""

    @click.option("--json", "in_json", is_flag=True, help="Print one JSON object.")
    @click.option("--write", is_flag=True, help="Write the numbers to docs/benchmarks.md.")
    @click.pass_context
    @functools.wraps(measure)
    def command(context: click.Context, /, in_json: bool, write: bool, **options: Any) -> None:
        machine = report.machine()
        run = Run(str(context.info_name), write)
        try:
            measured = measure(run, **options)
        except (PeerFailed, TestbedError) as error:
            raise click.ClickException(f"{error}; nothing was written") from None
        more = {"machine": machine, "peers": run.versions}
        shown = report.as_json(run.name, measured, **more) if in_json else report.as_text(measured)
        click.echo(shown)
        if write:
            report.write(run.name, _command(context), measured, machine, run.versions)
        context.exit(1 if any(m.broken for m in measured) else 0)

    made: Callable[..., None] = command
    for name, parameter in reversed(list(inspect.signature(measure).parameters.items())[1:]):
        made = option(name, parameter.default)(made)
    return main.command()(made)


def _command(context: click.Context) -> str:
    """How to measure the same again: the command with the options that differ from the default."""
    words = ["python scripts/benchmark.py", str(context.info_name)]
    for given in context.command.params:
        value = context.params.get(str(given.name))
        if given.name not in NOT_SHOWN and value != given.get_default(context):
            words += [given.opts[0]] if value is True else [given.opts[0], str(value)]
    return " ".join(words)


@verb
def agent(_run: Run) -> Rows:
    """Measure what the agent costs a device: memory, start-up, bytes sent, syncs of the disk."""
    return agent_benchmark.measure()


@verb
def startup(_run: Run) -> Rows:
    """Measure the CPU time of short commands, against that of `python -c pass`."""
    return agent_benchmark.measure_startup()


@verb
def ingest(
    run: Run, reports: int = 100_000, runs: int = 5, large: int = 1_000_000, values: int = 100,
    readers: int = 0,
) -> Rows:  # fmt: skip
    """Measure durable exactly-once ingest against a bare paho subscriber that only counts.

    With --readers: ingest while the analyst's page is read, against ingest while it is not.
    """
    if readers:
        run.name = "readers"
        return ingest_benchmark.measure_with_readers(reports, runs, values, readers)
    return ingest_benchmark.measure(reports, runs, large, values)


@verb
def stores(_run: Run, reports: int = 100_000, runs: int = 5, values: int = 100) -> Rows:
    """Measure ingest into PostgreSQL against ingest into SQLite; `ingest` does this as well."""
    return ingest_benchmark.measure_stores(reports, runs, values)


@verb
def workers(_run: Run, reports: int = 100_000, runs: int = 3, share: float = 0.05) -> Rows:
    """Measure one, two and four workers on one NATS and one PostgreSQL."""
    return ingest_benchmark.measure_workers(reports, runs, share)


@verb
def live(
    _run: Run, reports: int = 20_000, connections: int = 20, runs: int = 3, values: int = 100
) -> Rows:
    """Measure counting while devices publish: reports a second, and time until the receipts.

    On NATS as it is embedded, and on mosquitto; both over TLS as well.
    """
    return live_benchmark.measure(live_benchmark.Effort(reports, connections, runs, values))


@verb
def brokers(_run: Run, reports: int = 50_000, runs: int = 3, values: int = 41) -> Rows:
    """Measure what a report costs the broker: NATS, three nodes of it, and mosquitto."""
    return live_benchmark.measure_brokers(reports, runs, values)


@verb
def simulate(
    run: Run, devices: int = 1_000_000, statistics: int = 100_000_000, runs: int = 5,
    peer: bool = False, peer_python: Path | None = None,
) -> Rows:  # fmt: skip
    """Measure what the simulator costs at each depth, against a loop over users."""
    with run.peers(peer_python) if peer or peer_python else nullcontext() as driver:
        return peers_benchmark.measure_simulator(statistics, devices, runs, driver)


@verb
def peers(
    run: Run, devices: int = 1_000_000, runs: int = 5, errors: int = 20,
    peer_python: Path | None = None,
) -> Rows:  # fmt: skip
    """Compare with multi-freq-ldpy and pure-ldp: speed, and error at equal budgets.

    They are installed into a temporary environment, which is removed at the end.
    """
    with run.peers(peer_python) as driver, tempfile.TemporaryDirectory() as scratch:
        bench = Bench(driver, Path(scratch), runs)
        speed = peers_benchmark.measure_speed(bench, devices)
        return speed + accuracy_benchmark.measure_errors(bench, errors)


@verb
def accuracy(run: Run, campaigns: int = 10, peer_python: Path | None = None) -> Rows:
    """Compare the errors of the mechanisms, with each other and with multi-freq-ldpy.

    With --write, the picture of docs/pictures is drawn as well.
    """
    run.name = "accuracy"
    with run.peers(peer_python) as driver:
        picture = accuracy_benchmark.PICTURE if run.write else None
        return accuracy_benchmark.measure(driver, campaigns, picture)


@verb
def soak(run: Run, minutes: float = 20.0, rate: int = 200) -> Rows:
    """Count at a constant rate over TLS with the page open: memory, files and sizes stay flat.

    With --write, docs/pictures/soak.svg is drawn as well.
    """
    return soak_benchmark.measure(60 * minutes, rate, soak_benchmark.PICTURE if run.write else None)


@main.command("all")
@option("peer_python", None)
@click.option("--json", "in_json", is_flag=True, help="Print one JSON object a line.")
@click.option("--write", is_flag=True, help="Write the numbers to docs/benchmarks.md.")
@click.pass_context
def run_all(context: click.Context, peer_python: Path | None, in_json: bool, write: bool) -> None:
    """Run all but `soak`, `workers`, `brokers` and `stores`. Takes half an hour."""
    broken = 0
    chosen: list[tuple[click.Command, dict[str, Any]]] = [
        *((command, {}) for command in (agent, startup, ingest, live)),
        (ingest, {"readers": 10, "reports": 300_000}),
        *((command, {"peer_python": peer_python}) for command in (simulate, peers, accuracy)),
    ]
    for command, options in chosen:
        try:
            context.invoke(command, in_json=in_json, write=write, **options)
        except click.exceptions.Exit as end:
            broken |= end.exit_code
    context.exit(broken)


if __name__ == "__main__":
    main()
