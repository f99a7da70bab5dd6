"""Typed facts as text for the terminal."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final, TypedDict, TypeVar

import click

from collector import charts
from collector.commands.options import ATTRIBUTE, CAMPAIGN, FILE, command, show
from collector.data_dir import read_store
from collector.records import Campaign
from collector.results import tables
from collector.results.estimates import Comparison, compare
from collector.results.facts import (
    CampaignStatus,
    FillingFacts,
    ResultFacts,
    StatusFacts,
    WaitingFacts,
    WorkerFacts,
    chosen_results,
    outcome_help,
    read_truth,
    result_facts,
    role_of,
    status_facts,
)
from collector.results.tables import Row
from collector.results.terminal import ink_of, plot_text
from collector.results.words import (
    answer_text,
    difference_lines,
    heading,
    numbers_lines,
    which,
    withheld_text,
)
from collector.settings import Settings
from protocol_spec import Result
from protocol_spec.programs.cli import AS_JSON
from protocol_spec.programs.output import allow_colours, clear_screen, json_escaped, shown
from protocol_spec.programs.settings import SettingsError

_UNSIGNED: Final = (
    "Not signed: owners cannot tell who made it. See: allomfree-collector operator-key create"
)
_USUAL_MIN_PERIOD_SECONDS: Final = 3_600  # which devices allow without a policy of their own


class OpenedFacts(TypedDict):
    """What `open --json` prints."""

    campaign: str
    digest: str
    operator: str
    join: str
    running: bool
    published: bool
    trouble: str | None
    receipts: str
    trial: bool
    period_seconds: int
    first_result: str


class SealedFacts(TypedDict):
    """What `seal --json` prints."""

    campaign: str
    sealed: list[int]


def opened_text(facts: OpenedFacts) -> str:
    """What to do next with a new campaign."""
    published = "Published: devices can join it now."
    waiting = "Not published yet: the collector publishes it when it runs."
    if facts["trouble"]:
        waiting = (
            f"Not published yet ({facts['trouble']}): the collector publishes it when it runs."
        )
    return "\n".join(
        [
            f"Opened {facts['campaign']}{' (a TRIAL)' if facts['trial'] else ''}",
            f"Digest {facts['digest']}",
            f"Signed by {facts['operator']}" if facts["operator"] else _UNSIGNED,
            facts["receipts"],
            published if facts["published"] else waiting,
            *([] if facts["running"] else ["Start collecting with: allomfree-collector run"]),
            "An owner joins with:",
            f"    {facts['join']}",
            *(_short_rounds_lines(facts["period_seconds"]) if facts["trial"] else []),
            f"The first result comes soon after {facts['first_result']}.",
            f"As a QR code: allomfree-collector invite {facts['campaign']}",
        ]
    )


def _short_rounds_lines(period_seconds: int) -> list[str]:
    """What an owner must allow before a device joins a trial."""
    if period_seconds >= _USUAL_MIN_PERIOD_SECONDS:
        return []
    return [
        f"Devices refuse rounds as short as {period_seconds} s unless their configuration has:",
        "    [policy]",
        f"    min_period = {period_seconds}",
    ]


def sealed_text(facts: SealedFacts) -> str:
    """Which rounds became final."""
    sealed = ", ".join(map(str, facts["sealed"]))
    return f"{facts['campaign']}: " + (f"sealed {sealed}" if sealed else "nothing was due")


def status_text(facts: StatusFacts) -> str:
    """The service, then every campaign."""
    lines = [f"service: {facts['service']}; {facts['received']:,} messages received"]
    lines += map(_worker_line, facts["workers"])
    for campaign in facts["campaigns"]:
        lines += ["", *_campaign_lines(campaign)]
    if facts["elsewhere"]:
        lines += ["", "messages of no campaign here:", *_outcome_lines(facts["elsewhere"])]
    if facts["requests"]:
        counted = ", ".join(f"{n:,} {name}" for name, n in sorted(facts["requests"].items()))
        lines += ["", f"requests to be forgotten: {counted}"]
    for name in facts["suspended_names"]:
        lines += ["", *_suspended_lines(name)]
    return "\n".join(lines)


def _worker_line(worker: WorkerFacts) -> str:
    drained = "" if worker["drained"] is None else f", drained {worker['drained']:.0f} s ago"
    return (
        f"  worker {worker['number']} on {shown(worker['name'])} {role_of(worker)}: seen "
        f"{worker['silent']:.0f} s ago{drained}; {worker['received']:,} messages since it started"
    )


def _suspended_lines(name: str) -> list[str]:
    return [
        f"{name} floods and is suspended until it stops; other devices are counted.",
        f"If it goes on: allomfree-collector revoke {name}",
    ]


def _campaign_lines(c: CampaignStatus) -> list[str]:
    now = "no round now" if c["round"] is None else f"round {c['round']}"
    rounds = f"{now} of {c['rounds']}; {c['sealed']} sealed{_next_sealing(c)}"
    if c["state"] == "finished":
        rounds = f"all rounds are sealed: {c['rounds']}"
    return [
        f"{c['campaign']} ({c['state']}): {c['title']}",
        f"  {rounds}",
        *_waiting_lines(c["waiting"]),
        *map(_filling_line, c["filling"]),
        *_outcome_lines(c["outcomes"]),
    ]


def _next_sealing(c: CampaignStatus) -> str:
    ahead = c["open"] and c["sealed"] < c["rounds"]
    return f", next sealing at {c['next_seal']}" if ahead else ""


def _waiting_lines(waits: WaitingFacts | None) -> list[str]:
    if waits is None:
        return []
    longest = "" if waits["until"] is None else f"; until {waits['until']} at most"
    return [f"  round {waits['round']} is over but not sealed: {waits['why']}{longest}"]


def _filling_line(row: FillingFacts) -> str:
    counts = ", ".join(f"{name} {n:,}" for name, n in row["reports"].items())
    return f"  round {row['round']} fills: {counts} (a histogram needs {row['enough']:,})"


def _outcome_lines(outcomes: dict[str, int]) -> list[str]:
    texts = outcome_help()
    return [f"  {n:>10,}  {name:<18} {texts[name]}" for name, n in sorted(outcomes.items())]


def result_text(facts: ResultFacts) -> str:
    """A histogram as a table."""
    head = [*heading(facts), *(f"  careful: {warning}" for warning in facts["warnings"])]
    if facts["device_bound"] is None:
        return "\n".join([*head, f"  {withheld_text(facts)}; withheld"])
    width = max(5, *(len(row["value"]) for row in facts["histogram"]))
    told = [] if facts["numbers"] is None else numbers_lines(facts["numbers"])
    return "\n".join(
        [
            *head,
            f"  {'value':<{width}}      raw   95 % interval     for all at once   projected",
            *(_row(row, width) for row in facts["histogram"]),
            *(f"  {line}" for line in told),
            *(f"  {line}" for line in difference_lines(facts)),
            (
                "  one dishonest device can move a raw bar by at most "
                f"{100 * facts['device_bound']:.3g} points"
            ),
        ]
    )


def _row(row: Row, width: int) -> str:
    one = f"{100 * row['low']:5.1f} … {100 * row['high']:5.1f}"
    every = f"{100 * row['low_all']:5.1f} … {100 * row['high_all']:5.1f}"
    return (
        f"  {row['value']:<{width}}  {100 * row['raw']:6.1f}%  {one}     {every}     "
        f"{100 * row['projected']:6.1f}%"
    )


def comparisons_text(facts: Sequence[ResultFacts], found: Sequence[Comparison]) -> str:
    """One comparison in sentences, several of a question as a table."""
    parts = []
    for attribute in dict.fromkeys(each["attribute"] for each in found):
        mine = [(f, c) for f, c in zip(facts, found) if c["attribute"] == attribute]
        parts.append(comparison_text(*mine[0]) if len(mine) == 1 else _comparison_table(mine))
    return "\n\n".join(parts)


_SHORTLY: Final = {"above": "yes", "below": "no", "not shown": "not shown", "withheld": "withheld"}


def _comparison_table(compared: Sequence[tuple[ResultFacts, Comparison]]) -> str:
    facts, first = compared[0]
    a, b = first["a"], first["b"]
    width = max(6, *(len(which(each)) for each, _ in compared))
    columns = (
        f"{'reports':>10}  {'difference':>10}   {'95 % interval':<15}  {'answer':<9}  if picked"
    )
    return "\n".join(
        [
            f"{facts['attribute']}: {facts['question']}",
            f"  is {a} above {b}? {a} minus {b}, in points",
            f"  {'rounds':<{width}}  {columns}",
            *(_comparison_row(which(each), width, c) for each, c in compared),
            "  if picked: the answer for two values that you picked because of their bars",
        ]
    )


def _comparison_row(rounds: str, width: int, c: Comparison) -> str:
    difference, interval = "", ""
    if c["difference"] is not None and c["low"] is not None and c["high"] is not None:
        difference = f"{100 * c['difference']:.1f}"
        interval = f"{100 * c['low']:6.1f} … {100 * c['high']:6.1f}"
    answers = f"{_SHORTLY[c['answer']]:<9}  {_SHORTLY[c['answer_all']]}"
    return f"  {rounds:<{width}}  {c['n']:>10,}  {difference:>10}   {interval:<15}  {answers}"


def comparison_text(facts: ResultFacts, found: Comparison) -> str:
    """Whether A is above B, and by how much."""
    if found["difference"] is None:
        return "\n".join([*heading(facts), f"  {withheld_text(facts)}; withheld"])
    ends = ((found["low"], found["high"]), (found["low_all"], found["high_all"]))
    named, every = (f"{100 * (low or 0.0):.1f} … {100 * (high or 0.0):.1f}" for low, high in ends)
    return "\n".join(
        [
            *heading(facts),
            f"  is {found['a']} above {found['b']}? {answer_text(found)}",
            f"  difference {100 * found['difference']:.1f} points, 95 % interval {named}",
            (
                f"  if you picked the two by their bars: {answer_text(found, every_pair=True)} "
                f"({every})"
            ),
        ]
    )


# --- Facts shown again whenever they change, until somebody has seen enough.


EVERY_SECONDS: Final = 1.0

Facts = TypeVar("Facts")


def watched(
    facts: Callable[[], Facts],
    as_json: bool,
    text: Callable[[Facts], str],
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """On a terminal each time in place of the last; elsewhere, and as JSON, one after the other.

    Ctrl-C ends it, and is no failure.
    """
    try:
        told = facts()
        _say(told, as_json, text)
        while True:
            wait(EVERY_SECONDS)
            now = facts()
            if now != told:
                _say(now, as_json, text)
            told = now
    except KeyboardInterrupt:
        return


def _say(facts: Facts, as_json: bool, text: Callable[[Facts], str]) -> None:
    moment = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    if not as_json:
        clear_screen()
        click.echo(f"{moment}; Ctrl-C ends")
    show(facts, as_json, text)
    if not as_json:
        click.echo()


# --- Reading: the status of campaigns, their histograms, and results as files.


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
        watched(facts, as_json, status_text)
    else:
        show(facts(), as_json, status_text)


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
    draw = _plotter(settings, found) if plot else result_text
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
    show(found, as_json, lambda shown: comparisons_text(facts, shown))


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
    type=click.Choice(tables.FILE_FORMATS),
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
    form: tables.FileFormat | None,
    output: Path | None,
    figure: Path | None,
) -> None:
    """Write results as rows with fixed columns, or as a figure.

    \b
    allomfree-collector export --output heat.csv
    allomfree-collector export --output heat.parquet
    allomfree-collector export --round pooled --figure heat.svg
    """
    form = tables.chosen_format(form, output, figure)
    with closing(read_store(settings.data_dir, settings.store)) as store:
        found = store.campaign(campaign)
        results = chosen_results(store, found, attribute, number)
    if figure is not None:
        truth = read_truth(settings.data_dir, found.name)
        _write_file("--figure", figure, charts.figure(found, results, truth, figure))
    if output is not None:
        _write_file("--output", output, tables.content(found, results, form))
    elif figure is None:
        rows = tables.content(found, results, form).decode()
        click.echo(rows if form == "csv" else json_escaped(rows), nl=False)


def _write_file(flag: str, path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise SettingsError(f"{flag} {path} cannot be written: {error.strerror}") from None
    click.echo(f"wrote {path}", err=True)
