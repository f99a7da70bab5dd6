"""The commands of `allomfree-sim`: their options; what they do is in `runs`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from protocol_spec import Manifest
from protocol_spec.mechanisms import MECHANISMS, Reporting
from protocol_spec.programs.cli import STYLE, version_option, with_clear_errors
from simulation import population, runs
from simulation.fleet import BATCH
from simulation.population import SimulationError

FILE = click.Path(path_type=Path)
Command = Callable[..., None]
Option = Callable[[Command], Command]


@click.group(context_settings=STYLE)
@version_option("allomfree-sim")
def main() -> None:
    """Simulate a fleet: as statistics, report by report, or with real agents.

    \b
    Examples:
      allomfree-sim manifest adult > adult.toml
      allomfree-sim statistics adult.toml --population adult --rounds 7
    """


def _options(*chosen: Option) -> Option:
    def decorate(function: Command) -> Command:
        every: tuple[Option, ...] = (*_COMMON, *chosen)
        for option in reversed(every):
            function = option(function)
        return click.argument("manifest", type=FILE)(function)

    return decorate


_COMMON: tuple[Option, ...] = (
    click.option(
        "--population",
        "words",
        multiple=True,
        default=("uniform",),
        show_default=True,
        help="Distribution of values: uniform, zipf:1.2, dirichlet:0.5, geometric:0.3, "
        "a data set, a .csv or .json of counts; or ATTRIBUTE=one of these; repeatable.",
    ),
    click.option(
        "--devices",
        type=int,
        help="Devices in the fleet.  [default: as many as the data set or file has]",
    ),
    click.option("--rounds", default=1, show_default=True, help="Rounds to simulate."),
    click.option(
        "--seed",
        type=click.IntRange(min=0),
        default=1,
        show_default=True,
        help="Seed of all random numbers.",
    ),
    click.option(
        "--format",
        "form",
        type=click.Choice(["csv", "json", "ndjson"]),
        default="csv",
        show_default=True,
        help="Format of the results.",
    ),
    click.option(
        "--output", type=FILE, help="Write the results to this file.  [default: standard output]"
    ),
    click.option("--figure", type=FILE, help="Draw the results into an .svg or .png file."),
    click.option("--store", type=FILE, help="Keep the run in this directory, for compare."),
)
_DEVICES = (
    click.option("--dropout", default=0.0, help="Probability that a device misses a round."),
    click.option(
        "--dropout-by-value",
        multiple=True,
        metavar="[ATTRIBUTE:]VALUE=RATE",
        help="The same for devices that hold one value; repeatable.",
    ),
    click.option(
        "--churn",
        default=0.0,
        help="Probability that a device is replaced by a new one after a round.",
    ),
    click.option(
        "--dishonest",
        multiple=True,
        metavar="N:[ATTRIBUTE:]VALUE",
        help="N devices that always report one value; repeatable.",
    ),
)
_CHANGES = (
    click.option(
        "--changes", default=0.0, help="Probability that a device changes its value after a round."
    ),
    click.option(
        "--changes-per-year",
        type=float,
        help="The same as a mean number of changes of a device in a year.",
    ),
    click.option(
        "--drift",
        multiple=True,
        help="Distribution that changing values drift to by the middle of the campaign, and back "
        "from by its end; as --population.",
    ),
)
_SINGLE = (
    click.option(
        "--late", default=0.0, help="Probability that a report arrives after its round is sealed."
    ),
    click.option("--duplicates", default=0.0, help="Probability that a report is sent twice."),
)
_INTO = click.option(
    "--into", type=FILE, help="Collect into this data directory with a real collector."
)
_BROKER = click.option("--broker", help="Address of a broker to use instead of the embedded one.")
_PERIOD = click.option("--period", default=10, show_default=True, help="Seconds of a round.")


@main.command()
@_options(*_DEVICES, *_CHANGES)
def statistics(**given: Any) -> None:
    """Simulate counts alone, with their exact distribution: 100 million devices in seconds.

    \b
    allomfree-sim statistics home.toml --population zipf:1.2 --devices 100000000
    """
    _run(given, runs.statistics)


@main.command()
@_options(*_DEVICES, *_CHANGES, *_SINGLE, _INTO, _BROKER, _PERIOD)
@click.option(
    "--live", is_flag=True, help="Send the reports through a broker to a collector, in real time."
)
@click.option("--batch", default=BATCH, show_default=True, help="Devices in memory at once.")
def reports(
    into: Path | None, live: bool, broker: str | None, period: int, batch: int, **given: Any
) -> None:
    """Simulate every report, counted at once or by a real collector (--into or --live).

    \b
    allomfree-sim reports home.toml --devices 1000000 --dropout 0.1
    allomfree-sim reports home.toml --devices 20000 --into data
    """
    if live or broker:
        _run(given, lambda asked: runs.reports_live(asked, into, broker, period, batch))
    else:
        _run(given, lambda asked: runs.reports(asked, into, batch))


@main.command()
@_options(_INTO, _BROKER, _PERIOD)
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Processes to run the agents in.",
)
def agents(
    into: Path | None, broker: str | None, period: int, processes: int, **given: Any
) -> None:
    """Run real agents, a real broker and a real collector, in real time.

    \b
    allomfree-sim agents home.toml --devices 500 --rounds 3 --period 8
    """
    _run(given, lambda asked: runs.agents(asked, into, broker, period, processes))


@main.command()
@click.argument("left", type=FILE)
@click.argument("right", type=FILE)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
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
@click.option(
    "--eps-inf", default=2.0, show_default=True, help="Privacy budget of all reports together."
)
@click.option("--eps-1", default=0.6, show_default=True, help="Privacy budget of one report.")
@click.option("--rounds", default=365, show_default=True, help="Number of rounds of a day.")
@click.option(
    "--reporting",
    type=click.Choice(MECHANISMS),
    default="memoized",
    show_default=True,
    help="The mechanism; with once, --eps-inf is for the one answer.",
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


def _run(given: dict[str, Any], simulate: Callable[[runs.Asked], runs.Run]) -> None:
    def run() -> None:
        runs.check(given["figure"], given["store"])
        made = simulate(_asked(given))
        runs.show(made, **{name: given[name] for name in ("form", "output", "figure", "store")})

    with_clear_errors(run, "collector")


def _asked(given: dict[str, Any]) -> runs.Asked:
    read = Manifest.from_file(given["manifest"])
    rates = {
        name: given[name]
        for name in ("dropout", "churn", "changes", "late", "duplicates")
        if name in given
    }
    if given.get("changes_per_year") is not None:
        if rates["changes"]:
            raise SimulationError("give --changes or --changes-per-year, not both")
        rates["changes"] = population.change_probability(
            given["changes_per_year"], read.rounds.period
        )
    return runs.Asked(
        read,
        given["words"],
        given["devices"],
        given["rounds"],
        given["seed"],
        population.Behaviour(
            dropout_by_value=population.by_value(read, given.get("dropout_by_value", ())),
            dishonest=population.dishonest(read, given.get("dishonest", ())),
            **rates,
        ),
        given.get("drift", ()),
    )
