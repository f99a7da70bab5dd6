"""The commands of `allomfree-sim`: from their options to a finished run."""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import click

from protocol_spec import Manifest
from protocol_spec.mechanisms import DEFAULT_MECHANISM, MECHANISMS, Reporting
from protocol_spec.programs.cli import STYLE, version_option, with_clear_errors
from simulation import campaigns, population, runs
from simulation.campaigns import LiveCampaign, Progress, Simulated
from simulation.devices import BATCH, Fleet
from simulation.population import Behaviour, Population, SimulationError, Weights

FILE: Final = click.Path(path_type=Path)
RATES: Final = ("dropout", "churn", "changes", "late", "duplicates")
SHOWN: Final = ("file_format", "output", "figure", "store")
SLOWEST_PER_SECOND: Final = 5_000  # messages that any machine publishes in a second
Command = Callable[..., None]
Option = Callable[[Command], Command]


class Asked:
    """The options of a command, read."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.manifest = manifest = Manifest.from_file(given["manifest"])
        self.words, self.rounds, self.seed = given["words"], given["rounds"], given["seed"]
        rates = {name: given[name] for name in RATES if name in given}
        if given.get("changes_per_year") is not None:
            if rates["changes"]:
                raise SimulationError("give --changes or --changes-per-year, not both")
            per_year, period = given["changes_per_year"], manifest.rounds.period
            rates["changes"] = population.change_probability(per_year, period)
        self.behaviour = Behaviour(
            dropout_by_value=population.by_value(manifest, given.get("dropout_by_value", ())),
            dishonest=population.dishonest(manifest, given.get("dishonest", ())),
            **rates,
        )
        if not 1 <= self.rounds <= manifest.rounds.count:
            raise SimulationError(
                f"--rounds {self.rounds}: the manifest has {manifest.rounds.count} rounds"
            )
        self.people = population.populate(manifest, self.words, given["devices"], self.seed)
        if any(number > self.people.devices for _, number, _ in self.behaviour.dishonest):
            raise SimulationError(
                f"--dishonest: more than the fleet's {self.people.devices:,} devices"
            )
        drift = given.get("drift", ())
        if drift and not self.behaviour.changes:
            raise SimulationError(
                "--drift says what changing values become; say with --changes or "
                "--changes-per-year how often they change"
            )
        self.drift: tuple[Weights, ...] = ()
        if drift:
            self.drift = population.targets(manifest, drift, self.seed)

    def fleet(self, batch: int, manifest: Manifest | None = None) -> Fleet:
        if batch < 1:
            raise SimulationError(f"--batch {batch}: must be 1 or more")
        truth, asked = self.people.drawn(self.seed), manifest or self.manifest
        return Fleet(asked, truth, self.behaviour, self.seed, self.rounds, batch, self.drift)

    def soon(self, period: int, lead: int) -> Manifest:
        """The same campaign in real time."""
        return campaigns.retimed(
            self.manifest, rounds=self.rounds, period_seconds=period, lead_seconds=lead
        )


def _live(
    stack: ExitStack, manifest: Manifest, into: Path | None, broker: str | None
) -> LiveCampaign:
    """A real collector on the campaign, in the directory or a temporary one."""
    if into is None:
        into = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="allomfree-")))
    return stack.enter_context(campaigns.collecting_live(into, manifest, broker))


def _run(
    given: dict[str, Any], depth: str, simulate: Callable[[Asked, Population, Progress], Simulated]
) -> None:
    def run() -> None:
        runs.check(*(given[name] for name in ("figure", "store", "output", "file_format")))
        asked = Asked(given)
        devices = asked.people.devices
        each = asked.manifest.rounds.each or asked.rounds  # with `once` a device answers no more
        what, most = "reports", devices * min(each, asked.rounds)
        if depth == "statistics":
            what, most = "rounds", len(asked.manifest.attributes) * asked.rounds
        with runs.progress_bar(what, most) as progress:
            began = time.perf_counter()
            made = simulate(asked, asked.people, progress)
            seconds = time.perf_counter() - began
        outcomes = sum(made.outcomes, Counter({"late": made.late}))
        facts = {
            "depth": depth,
            "campaign": made.manifest.campaign,
            "reporting": made.manifest.reporting,
            "population": list(asked.words),
            "devices": devices,
            "rounds": asked.rounds,
            "seed": asked.seed,
            "behaviour": asked.behaviour.facts(),
            "outcomes": {str(name): number for name, number in outcomes.items() if number},
            "seconds": round(seconds, 3),
        }
        finished = runs.Run(facts, list(made.rows()))
        runs.show(finished, **{name: given[name] for name in SHOWN})

    with_clear_errors(run, "collector")


# --- options -------------------------------------------------------------------------------------


def _option(flag: str, text: str, *names: str, **more: Any) -> Option:
    known = more.get("default") not in (None, 0.0) and "show_default" not in more
    return click.option(flag, *names, help=text, **{"show_default": known, **more})


def _rate(flag: str, text: str) -> Option:
    return _option(flag, f"Probability that {text}", default=0.0)


_FORMATS: Final = click.Choice(["csv", "json", "ndjson"])
_COMMON: Final[tuple[Option, ...]] = (
    _option(
        "--population",
        "What devices hold: uniform, zipf:1.2, dirichlet:0.5, geometric:0.3, a data set, a .csv or "
        ".json of records or counts; or ATTRIBUTE=one of these; repeatable.",
        "words",
        multiple=True,
        default=("uniform",),
    ),
    _option(
        "--devices",
        "Devices in the fleet.  [default: as many as the data set or file has]",
        type=int,
    ),
    _option("--rounds", "Rounds to simulate.", default=1),
    _option("--seed", "Seed of all random numbers.", type=click.IntRange(min=0), default=1),
    _option("--output", "Write every result to this .csv, .json or .ndjson file.", type=FILE),
    _option("--format", "Print every result in this format.", "file_format", type=_FORMATS),
    _option("--figure", "Draw the results into an .svg or .png file.", type=FILE),
    _option("--store", "Keep the run in this directory, for compare.", type=FILE),
)
_DEVICES: Final = (
    _rate("--dropout", "a device misses a round."),
    _option(
        "--dropout-by-value",
        "The same for devices that hold one value; repeatable.",
        multiple=True,
        metavar="[ATTRIBUTE:]VALUE=RATE",
    ),
    _rate("--churn", "a device is replaced by a new one after a round."),
    _option(
        "--dishonest",
        "N devices that always report one value; repeatable.",
        multiple=True,
        metavar="N:[ATTRIBUTE:]VALUE",
    ),
    _rate("--changes", "a device changes its value after a round."),
    _option(
        "--changes-per-year",
        "The same as a mean number of changes of a device in a year.",
        type=float,
    ),
    _option(
        "--drift",
        "Distribution that changing values drift to by the middle of the campaign, and back from "
        "by its end; as --population.",
        multiple=True,
    ),
)
_SINGLE: Final = (
    _rate("--late", "a report arrives after its round is sealed."),
    _rate("--duplicates", "a report is sent twice."),
)
_LIVE: Final = (
    _option("--into", "Collect into this data directory with a real collector.", type=FILE),
    _option("--broker", "Address of a broker to use instead of the embedded one."),
    _option("--period", "Seconds of a round.", default=10),
)


def _options(*chosen: Option) -> Option:
    def decorate(function: Command) -> Command:
        for option in reversed((*_COMMON, *chosen)):
            function = option(function)
        return click.argument("manifest", type=FILE)(function)

    return decorate


# --- commands ------------------------------------------------------------------------------------


@click.group(context_settings=STYLE)
@version_option("allomfree-sim")
def main() -> None:
    """Simulate a fleet: as statistics, report by report, or with real agents.

    \b
    Examples:
      allomfree-sim manifest adult > adult.toml
      allomfree-sim statistics adult.toml --population adult --rounds 7
    """


@main.command()
@_options(*_DEVICES)
def statistics(**given: Any) -> None:
    """Simulate counts alone, with their exact distribution: 100 million devices in seconds.

    \b
    allomfree-sim statistics home.toml --population zipf:1.2 --devices 100000000
    """

    def simulate(asked: Asked, people: Population, progress: Progress) -> Simulated:
        return campaigns.as_statistics(
            asked.manifest,
            people.drawn(asked.seed),
            asked.behaviour,
            rounds=asked.rounds,
            seed=asked.seed,
            progress=progress,
            drift=asked.drift,
        )

    _run(given, "statistics", simulate)


@main.command()
@_options(*_DEVICES, *_SINGLE, *_LIVE)
@_option("--live", "Send the reports through a broker to a collector, in real time.", is_flag=True)
@_option("--batch", "Devices in memory at once.", default=BATCH)
def reports(
    into: Path | None, live: bool, broker: str | None, period: int, batch: int, **given: Any
) -> None:
    """Simulate every report, counted at once or by a real collector (--into or --live).

    \b
    allomfree-sim reports home.toml --devices 1000000 --dropout 0.1
    allomfree-sim reports home.toml --devices 20000 --into data
    """

    def at_once(asked: Asked, _people: Population, progress: Progress) -> Simulated:
        fleet = asked.fleet(batch)
        if into is None:
            return campaigns.as_reports(fleet, progress)
        return campaigns.into(into, fleet, progress)

    def through_broker(asked: Asked, people: Population, progress: Progress) -> Simulated:
        soon = asked.soon(max(period, -(-people.devices // SLOWEST_PER_SECOND)), lead=8)
        with ExitStack() as stack:
            running = _live(stack, soon, into, broker)
            return campaigns.reports_through_broker(running, asked.fleet(batch, soon), progress)

    if live or broker:
        _run(given, "reports, broker", through_broker)
    else:
        _run(given, "reports" if into is None else "reports, store", at_once)


@main.command()
@_options(*_LIVE)
@_option("--processes", "Processes to run the agents in.", type=click.IntRange(min=1), default=2)
def agents(
    into: Path | None, broker: str | None, period: int, processes: int, **given: Any
) -> None:
    """Run real agents, a real broker and a real collector, in real time.

    \b
    allomfree-sim agents home.toml --devices 500 --rounds 3 --period 8
    """

    def simulate(asked: Asked, people: Population, progress: Progress) -> Simulated:
        # Each agent makes its state and syncs it to the disk before the first round.
        soon = asked.soon(period, lead=8 + people.devices // 30)
        with ExitStack() as stack:
            running = _live(stack, soon, into, broker)
            return campaigns.real_agents(running, people, asked.seed, processes, progress)

    _run(given, "agents", simulate)


@main.command()
@click.argument("left", type=FILE)
@click.argument("right", type=FILE)
@_option("--json", "Print one JSON object.", "as_json", is_flag=True)
@click.pass_context
def compare(context: click.Context, left: Path, right: Path, as_json: bool) -> None:
    """Compare two stored runs; exit status 1 when chance does not explain the difference.

    \b
    allomfree-sim compare run1 run2
    """

    def show() -> None:
        pairs = runs.compare(runs.Run.load(left), runs.Run.load(right))
        agree = all(pair.agree for pair in pairs)
        facts = {"agree": agree, "histograms": [pair.facts() for pair in pairs]}
        click.echo(json.dumps(facts) if as_json else runs.comparison(pairs, (left, right)))
        context.exit(0 if agree else 1)

    with_clear_errors(show, "collector")


@main.command()
@click.argument("name", type=click.Choice(population.NAMES))
@_option("--eps-inf", "Privacy budget of all reports together.", default=2.0)
@_option("--eps-1", "Privacy budget of one report.", default=0.6)
@_option("--rounds", "Number of rounds of a day.", default=365)
@_option(
    "--reporting",
    "The mechanism; with once, --eps-inf is for the one answer.",
    type=click.Choice(MECHANISMS),
    default=DEFAULT_MECHANISM,
)
def manifest(name: str, eps_inf: float, eps_1: float, rounds: int, reporting: Reporting) -> None:
    """Print a manifest for every attribute of one of the paper's data sets.

    \b
    allomfree-sim manifest adult --eps-inf 2 --eps-1 0.6 > adult.toml
    allomfree-sim manifest adult --reporting nested > nested.toml
    """

    def show() -> None:
        toml = population.for_dataset(
            name, eps_inf=eps_inf, eps_1=eps_1, rounds=rounds, reporting=reporting
        )
        Manifest.from_toml(toml)
        click.echo(toml, nl=False)

    with_clear_errors(show, "collector")
