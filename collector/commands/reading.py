"""Reading: the status of campaigns, their histograms, and results as files."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import click

from collector.commands import text
from collector.commands.options import ATTRIBUTE, CAMPAIGN, FILE, command, show
from collector.commands.watching import watched
from collector.data_dir import read_store
from collector.records import Campaign
from collector.settings import Settings
from collector.show import figure_files, table_files
from collector.show.comparison import compare
from collector.show.facts import ResultFacts, StatusFacts, result_facts, status_facts
from collector.show.selection import chosen_results
from collector.show.terminal import ink_of, plot_text
from collector.show.truth import read_truth
from protocol_spec import Result
from protocol_spec.programs.commands import AS_JSON
from protocol_spec.programs.errors import SettingsError
from protocol_spec.programs.output import allow_colours, json_escaped

WHICH = "A round's number, `latest`, `pooled` or `all`."


@command
@CAMPAIGN
@click.option("--watch", is_flag=True, help="Show it again whenever it changes, until Ctrl-C.")
@AS_JSON
def status(settings: Settings, campaign: str | None, watch: bool, as_json: bool) -> None:
    """Show how rounds fill, and what became of every message.

    \b
    allomfree-collector status
    allomfree-collector status --watch
    """

    def facts() -> StatusFacts:
        with closing(read_store(settings.data_dir, settings.store)) as store:
            return status_facts(store, settings.data_dir, time.time(), campaign)

    if watch:
        watched(facts, as_json, text.status_text)
    else:
        show(facts(), as_json, text.status_text)


@command
@CAMPAIGN
@ATTRIBUTE
@click.option("--round", "number", default="pooled", show_default=True, help=WHICH)
@click.option("--plot", is_flag=True, help="Draw bars as wide as the terminal.")
@click.option(
    "--compare",
    "pair",
    nargs=2,
    metavar="A B",
    help="Say whether value A is more frequent than value B instead.",
)
@AS_JSON
def estimate(
    settings: Settings,
    campaign: str | None,
    attribute: str | None,
    number: str,
    plot: bool,
    pair: tuple[str, str] | None,
    as_json: bool,
) -> None:
    """Print histograms with their intervals.

    \b
    allomfree-collector estimate
    allomfree-collector estimate --plot
    allomfree-collector estimate home-heat --attribute fuel --round latest --json
    allomfree-collector estimate --attribute fuel --compare gas wood
    """
    with closing(read_store(settings.data_dir, settings.store)) as store:
        found = store.campaign(campaign)
        results = chosen_results(store, found, attribute, number)
        last = store.last_sealed(found.id)
    if pair is not None:
        _compare(found, _with_values(found, results, pair), pair, last, as_json)
        return
    facts = [result_facts(found, result, last) for result in results]
    draw = _plotter(settings, found) if plot else text.result_text
    show(facts, as_json, lambda shown: "\n\n".join(map(draw, shown)))


def _with_values(campaign: Campaign, results: list[Result], pair: tuple[str, str]) -> list[Result]:
    """Results of attributes that have both values; all of them if there is none, to say so."""
    having = {a.name for a in campaign.manifest.attributes if {*pair} <= {*a.values}}
    return [result for result in results if result.attribute in having] or results


def _compare(
    campaign: Campaign,
    results: list[Result],
    pair: tuple[str, str],
    last: int | None,
    as_json: bool,
) -> None:
    found = [compare(campaign.manifest, result, *pair) for result in results]
    facts = [result_facts(campaign, result, last) for result in results]
    show(found, as_json, lambda shown: text.comparisons_text(facts, shown))


def _plotter(settings: Settings, campaign: Campaign) -> Callable[[ResultFacts], str]:
    """What draws a result so that this terminal can show it."""
    ink, width = ink_of(sys.stdout, os.environ), shutil.get_terminal_size().columns
    if ink.colour:
        allow_colours()  # a manifest's texts hold no control characters
    truth = read_truth(settings.data_dir, campaign.name) or {}
    return lambda f: plot_text(f, width=width, ink=ink, true=truth.get(f["attribute"]))


@command
@CAMPAIGN
@ATTRIBUTE
@click.option("--round", "number", default="all", show_default=True, help=WHICH)
@click.option(
    "--format",
    "form",
    type=click.Choice(table_files.FORMATS),
    help="Format of the rows; else the ending of --output says it, or it is csv without one.",
)
@click.option("--output", type=FILE, help="Write the rows to this file instead of printing them.")
@click.option(
    "--figure", type=FILE, help="Draw the results instead, as a .svg, .png or .html file."
)
def export(
    settings: Settings,
    campaign: str | None,
    attribute: str | None,
    number: str,
    form: table_files.FileFormat | None,
    output: Path | None,
    figure: Path | None,
) -> None:
    """Write results as rows with fixed columns, or as a figure.

    \b
    allomfree-collector export --output heat.csv
    allomfree-collector export --output heat.parquet
    allomfree-collector export --round pooled --figure heat.svg
    """
    form = table_files.chosen_format(form, output, figure)
    with closing(read_store(settings.data_dir, settings.store)) as store:
        found = store.campaign(campaign)
        results = chosen_results(store, found, attribute, number)
    if figure is not None:
        truth = read_truth(settings.data_dir, found.name)
        _write_file("--figure", figure, figure_files.figure(found, results, truth, figure))
    if output is not None:
        _write_file("--output", output, table_files.content(found, results, form))
    elif figure is None:
        rows = table_files.content(found, results, form).decode()
        click.echo(rows if form == "csv" else json_escaped(rows), nl=False)


def _write_file(flag: str, path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise SettingsError(f"{flag} {path} cannot be written: {error.strerror}") from None
    click.echo(f"wrote {path}", err=True)
