"""Measure what allomfree costs, against its own limits and against other libraries."""

from __future__ import annotations

import functools
import inspect
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import needs  # noqa: F401 - first: it explains what is not installed

# isort: split
import click

from benchmarks import report
from benchmarks.report import Measurement
from testbed.processes import TestbedError

if TYPE_CHECKING:
    from benchmarks.peers import Peers

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
    "name": "The mechanism, as a manifest's `reporting` names it.",
    "peer_python": "Python that has the other libraries, instead of a temporary environment.",
    "rate": "Reports a second.",
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
    """One call of a command: whether it writes to the docs, and the versions of the libraries that
    it compared with."""

    write: bool
    versions: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def peers(self, python: Path | None) -> Iterator[Peers]:
        with _module("peers").peers(python) as driver:
            self.versions = driver.versions()
            yield driver


def _module(name: str) -> Any:
    """Imported when it is needed: each benchmark needs other libraries."""
    return import_module(f"benchmarks.{name}")


def option(name: str, default: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    flag, kind = f"--{name.replace('_', '-')}", TYPES.get(name)
    return click.option(flag, name, default=default, type=kind, help=HELP[name])


def verb(measure: Callable[..., Rows]) -> click.Command:
    """A command that prints what `measure` returns; its parameters become the options."""

    @click.option("--json", "in_json", is_flag=True, help="Print one JSON object.")
    @click.option("--write", is_flag=True, help="Write the numbers to docs/benchmarks.md.")
    @click.pass_context
    @functools.wraps(measure)
    def command(context: click.Context, /, in_json: bool, write: bool, **options: Any) -> None:
        machine, run, name = report.machine(), Run(write), str(context.info_name)
        try:
            measured = measure(run, **options)
        except TestbedError as error:
            raise click.ClickException(f"{error}; nothing was written") from None
        more = {"machine": machine, "peers": run.versions}
        click.echo(report.as_json(name, measured, **more) if in_json else report.as_text(measured))
        if write:
            report.write(name, _command(context), measured, machine, run.versions)
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
            words += [given.opts[0], str(value)]
    return " ".join(words)


@verb
def agent(_run: Run) -> Rows:
    """What the agent costs a device: memory, start-up, bytes sent, syncs of the disk."""
    return list(_module("agent").measure())


@verb
def startup(_run: Run) -> Rows:
    """CPU time of short commands, against that of `python -c pass`."""
    return list(_module("agent").measure_startup())


@verb
def ingest(
    _run: Run, reports: int = 100_000, runs: int = 5, large: int = 1_000_000, values: int = 100
) -> Rows:
    """Durable exactly-once ingest against a bare paho subscriber that only counts.

    Also over TLS against plain text, and into PostgreSQL against SQLite.
    """
    return list(_module("counting").measure(reports, runs, large, values))


@verb
def workers(_run: Run, reports: int = 100_000, runs: int = 3, share: float = 0.05) -> Rows:
    """One, two and four workers on one NATS and one PostgreSQL."""
    return list(_module("counting").measure_workers(reports, runs, share))


@verb
def live(
    _run: Run, reports: int = 20_000, connections: int = 20, runs: int = 3, values: int = 100
) -> Rows:
    """Counting while devices publish: reports a second, and time until the receipts.

    On NATS as it is embedded, and on mosquitto; both over TLS as well.
    """
    module = _module("live")
    return list(module.measure(module.Effort(reports, connections, runs, values)))


@verb
def simulate(
    _run: Run, devices: int = 1_000_000, statistics: int = 100_000_000, runs: int = 5
) -> Rows:
    """What the simulator costs at each depth, against a loop over users."""
    return list(_module("peers").measure_simulator(statistics, devices, runs))


@verb
def peers(
    run: Run, devices: int = 1_000_000, runs: int = 5, errors: int = 20,
    peer_python: Path | None = None,
) -> Rows:  # fmt: skip
    """Compare with multi-freq-ldpy and pure-ldp: speed, and error at equal budgets.

    They are installed into a temporary environment, which is removed at the end.
    """
    with run.peers(peer_python) as driver, tempfile.TemporaryDirectory() as scratch:
        bench = _module("peers").Bench(driver, Path(scratch), runs)
        speed = _module("peers").measure_speed(bench, devices)
        return [*speed, *_module("accuracy").measure_errors(bench, errors)]


@verb
def accuracy(run: Run, campaigns: int = 10, peer_python: Path | None = None) -> Rows:
    """Compare the errors of the mechanisms, with each other and with multi-freq-ldpy.

    With --write, the picture of docs/pictures is drawn as well.
    """
    module = _module("accuracy")
    with run.peers(peer_python) as driver:
        return list(module.measure(driver, campaigns, module.PICTURE if run.write else None))


@verb
def poisoning(_run: Run, devices: int = 5_000, runs: int = 3) -> Rows:
    """What devices that lie together gain, with each mechanism, and what refusals take from it."""
    return list(_module("poisoning").measure(devices, runs))


@verb
def mechanism(_run: Run, name: str = "nested", devices: int = 12_960, runs: int = 5) -> Rows:
    """Error, coverage and cost of a mechanism, against memoized; also one of your own.

    See docs/research.md.
    """
    known = import_module("protocol_spec.mechanisms").MECHANISMS
    if name not in known:
        raise click.BadParameter(f"{name!r} is none of {', '.join(known)}", param_hint="--name")
    return list(_module("mechanism").measure(name, devices, runs))


@verb
def soak(run: Run, minutes: float = 20.0, rate: int = 200) -> Rows:
    """Count at a constant rate over TLS with the page open: memory, files and sizes stay flat.

    With --write, docs/pictures/soak.svg is drawn as well.
    """
    module = _module("soak")
    return list(module.measure(60 * minutes, rate, module.PICTURE if run.write else None))


@main.command("all")
@option("peer_python", None)
@click.option("--json", "in_json", is_flag=True, help="Print one JSON object a line.")
@click.option("--write", is_flag=True, help="Write the numbers to docs/benchmarks.md.")
@click.pass_context
def run_all(context: click.Context, peer_python: Path | None, in_json: bool, write: bool) -> None:
    """Run all but `soak`, `workers` and `mechanism`. Takes half an hour."""
    broken = 0
    for command in (agent, startup, ingest, live, simulate, peers, accuracy, poisoning):
        options = {"peer_python": peer_python} if command in (peers, accuracy) else {}
        try:
            context.invoke(command, in_json=in_json, write=write, **options)
        except click.exceptions.Exit as end:
            broken |= end.exit_code
    context.exit(broken)


if __name__ == "__main__":
    main()
