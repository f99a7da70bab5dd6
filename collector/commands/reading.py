"""Reading: `status`, `estimate`, `export` and `page`."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import click

from collector import charts
from collector.charts import both_bars, ink_of, pair_table, plot_text
from collector.commands.options import ATTRIBUTE, CAMPAIGN, FILE, command, show
from collector.data_dir import read_store
from collector.records import Campaign
from collector.results import tables
from collector.results.estimates import compare
from collector.results.facts import (
    chosen_results,
    known_truth,
    result_facts,
    role_of,
    status_facts,
)
from collector.results.groups import COLUMNS as GROUP_COLUMNS
from collector.results.groups import by_group, group_rows
from collector.results.trends import COLUMNS, comparisons, trends
from collector.results.words import (
    Facts,
    answer_text,
    decimals,
    difference_lines,
    heading,
    in_percent,
    lies_text,
    number,
    numbers_lines,
    question_line,
    rounds_line,
)
from collector.settings import PAGE, Settings
from collector.store import Store
from collector.web import process
from protocol_spec import OUTCOME_HELP, Outcome, Result
from protocol_spec.programs.cli import AS_JSON
from protocol_spec.programs.output import allow_colours, clear_screen, json_escaped, shown
from protocol_spec.programs.settings import SettingsError

WHICH: Final = "A round's number, `latest`, `pooled` or `all`."

TREND: Final = click.option(
    "--trend",
    is_flag=False,
    flag_value="line",
    metavar="[FIT]",
    help="What changed over the rounds instead: line (the default), smooth, or the length of a "
    "wave, such as 1d or 52w.",
)
Watched = TypeVar("Watched")

# --- status ----------------------------------------------------------------------------------

EVERY_SECONDS: Final = 1.0


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

    def facts() -> Facts:
        with closing(read_store(settings.data_dir, settings.store)) as store:
            return status_facts(store, settings.data_dir, time.time(), campaign)

    if watch:
        watched(facts, as_json, status_text)
    else:
        show(facts(), as_json, status_text)


def watched(
    facts: Callable[[], Watched],
    as_json: bool,
    text: Callable[[Watched], str],
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Show facts again whenever they change: on a terminal in place of the previous ones;
    elsewhere, and as JSON, below them. Ctrl-C ends it, and is no failure."""
    last: Watched | None = None
    try:
        while True:
            now = facts()
            if now != last and as_json:
                show(now, as_json, text)
            elif now != last:
                clear_screen()
                moment = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
                click.echo(f"{moment}; Ctrl-C ends")
                show(now, as_json, text)
                click.echo()
            last = now
            wait(EVERY_SECONDS)
    except KeyboardInterrupt:
        return


def status_text(facts: Facts) -> str:
    """The service, then every campaign."""
    lines = [f"service: {facts['service']}; {facts['received']:,} messages received"]
    lines += [f"warn  {w['check']}: {w['finding']}\n      {w['next']}" for w in facts["warnings"]]
    for w in facts["workers"]:
        drained = "" if w["drained"] is None else f", drained {w['drained']:.0f} s ago"
        lines.append(
            f"  worker {w['number']} on {shown(w['name'])} {role_of(w)}: seen {w['silent']:.0f} s "
            f"ago{drained}; {w['received']:,} messages since it started"
        )
    for campaign in facts["campaigns"]:
        lines += ["", *_campaign_lines(campaign)]
    if facts["elsewhere"]:
        lines += ["", "messages of no campaign here:", *_outcome_lines(facts["elsewhere"])]
    if facts["requests"]:
        counted = ", ".join(f"{n:,} {name}" for name, n in sorted(facts["requests"].items()))
        lines += ["", f"requests to be forgotten: {counted}"]
    for name in facts["suspended_names"]:
        lines += [
            "",
            f"{name} floods and is suspended until it stops; other devices are counted.",
            f"If it continues: allomfree-collector revoke {name}",
        ]
    return "\n".join(lines)


def _campaign_lines(c: Facts) -> Iterator[str]:
    yield f"{c['campaign']} ({c['state']}): {c['title']}"
    if c["state"] == "finished":
        yield f"  all rounds are sealed: {c['rounds']}"
    else:
        now = "no round now" if c["round"] is None else f"round {c['round']}"
        ahead = c["open"] and c["sealed"] < c["rounds"]
        sealing = f", next sealing at {c['next_seal']}" if ahead else ""
        yield f"  {now} of {c['rounds']}; {c['sealed']} sealed{sealing}"
    waits = c["waiting"]
    if waits is not None:
        longest = "" if waits["until"] is None else f"; until {waits['until']} at most"
        yield f"  round {waits['round']} is over but not sealed: {waits['why']}{longest}"
    for row in c["filling"]:
        needed = row["enough"]
        counts = ", ".join(
            f"{name} {f'{n:,} or more' if n else f'fewer than {needed:,}'}"
            for name, n in row["reports"].items()
        )
        yield f"  round {row['round']} fills: {counts} (a histogram needs {needed:,})"
    yield from _outcome_lines(c["outcomes"])


def _outcome_lines(outcomes: dict[str, int]) -> list[str]:
    texts = {str(name): OUTCOME_HELP[name] for name in Outcome}
    return [f"  {n:>10,}  {name:<18} {texts[name]}" for name, n in sorted(outcomes.items())]


# --- estimate --------------------------------------------------------------------------------


@command
@CAMPAIGN
@ATTRIBUTE
@click.option("--round", "number", default="pooled", show_default=True, help=WHICH)
@click.option("--plot", is_flag=True, help="Draw bars as wide as the terminal.")
@click.option(
    "--raw", is_flag=True, help="For calculations: print unbiased estimates and their errors."
)
@click.option("--value", metavar="NAME", help="The value that --compare is about.")
@click.option(
    "--compare",
    "other",
    metavar="OTHER",
    help="Say how the result differs instead: from another round, from another campaign, here or "
    "in another data directory; or with --value whether it is above another value.",
)
@TREND
@click.option("--by", metavar="LABEL", help="Show results by group, and how groups differ.")
@click.option(
    "--totals",
    metavar="GROUP=DEVICES,...",
    help="With --by: also weigh groups by how many devices each is known to have.",
)
@AS_JSON
def estimate(
    settings: Settings,
    campaign: str | None,
    attribute: str | None,
    number: str,
    plot: bool,
    raw: bool,
    value: str | None,
    other: str | None,
    trend: str | None,
    by: str | None,
    totals: str | None,
    as_json: bool,
) -> None:
    """Print results: a sentence, and the histogram with its intervals.

    \b
    allomfree-collector estimate
    allomfree-collector estimate --plot
    allomfree-collector estimate home-heat --attribute fuel --round latest --json
    allomfree-collector estimate --attribute fuel --value gas --compare wood
    allomfree-collector estimate heat-2028 --compare heat-2027
    allomfree-collector estimate home-heat --trend
    allomfree-collector estimate --by region --totals north=1200,south=800
    """
    if totals is not None and by is None:
        raise SettingsError("--totals is for groups: name their label with --by")
    if value is not None and other is None:
        raise SettingsError(f"--value {value}: name what it is compared with, with --compare")
    if plot and raw:
        raise SettingsError("--plot draws shares, and --raw prints what they are made of: give one")
    with closing(read_store(settings.data_dir, settings.store)) as store:
        found = store.campaign(campaign)
        if trend is not None:
            _show_each(trends(store, found, attribute, trend), as_json, _trend_lines)
            return
        if other is not None and value is None:
            compared = _compared(store, found, attribute, number, other)
            _show_each(compared, as_json, _difference_lines)
            return
        if by is not None:
            grouped = by_group(store, found, attribute, number, by, _totals(totals))
            _show_each(grouped, as_json, _group_lines)
            return
        results = chosen_results(store, found, attribute, number)
        last = store.last_sealed(found.id)
    if value is not None and other is not None:
        _show_two_values(found, results, last, (value, other), as_json)
        return
    facts = [result_facts(found, result, last) for result in results]
    if not plot:
        _show_each(facts, as_json, partial(result_lines, raw=raw))
        return
    ink, width = ink_of(sys.stdout, os.environ), shutil.get_terminal_size().columns
    if ink.colour:
        allow_colours()  # a manifest's texts hold no control characters
    truth = known_truth(settings.data_dir, found) or {}
    _show_each(
        facts,
        as_json,
        lambda f: [plot_text(f, width=width, ink=ink, true=truth.get(f["attribute"]))],
    )


def _show_each(found: list[Facts], as_json: bool, lines: Callable[[Facts], Iterable[str]]) -> None:
    """A paragraph for each question."""
    show(found, as_json, lambda all_: "\n\n".join("\n".join(lines(each)) for each in all_))


def result_lines(facts: Facts, *, raw: bool = False) -> list[str]:
    """A histogram as a table: shares, or the unbiased estimates and their errors."""
    if facts["withheld"]:
        return heading(facts)
    table = _raw_table(facts) if raw else _pair_table(facts) or _share_table(facts)
    lines = [*numbers_lines(facts), *difference_lines(facts), lies_text(facts["lies"])]
    return [*heading(facts), *(f"  {line}" for line in (*table, *lines))]


def _share_table(facts: Facts) -> list[str]:
    bars, width = both_bars(facts), max(5, *(len(row["value"]) for row in facts["histogram"]))
    lines = [f"{'value':<{width}}   share   95 % interval   for all at once"]
    return lines + [
        f"{a.name:<{width}}  {a.percent(a.share):>4} %   {a.ends:<13}   {b.ends}" for a, b in bars
    ]


def _pair_table(facts: Facts) -> list[str]:
    """Shares with their intervals below; a row and a column more with the sums."""
    table = pair_table(facts)
    if not table:
        return []
    first, second = facts["pair"]["margins"]
    names = [*(row["value"] for row in first["histogram"]), "all"]
    heads = [*(row["value"] for row in second["histogram"]), "all"]
    corner = f"{first['attribute']} / {second['attribute']}"
    width = max(len(corner), *map(len, names))
    wide = [max(len(head), *(len(b.ends) for row in table for b, _ in row)) for head in heads]
    lines = [(corner, heads)]
    for name, row in zip(names, table):
        lines += [(name, [f"{bar.percent(bar.share)} %" for bar, _ in row])]
        lines += [("", [bar.ends for bar, _ in row])]
    return [
        f"{name:<{width}}" + "".join(f"  {text:>{n}}" for text, n in zip(texts, wide))
        for name, texts in lines
    ]


def _raw_table(facts: Facts) -> list[str]:
    rows, width = facts["histogram"], max(5, *(len(row["value"]) for row in facts["histogram"]))
    names = ("raw", "low", "high", "low_all", "high_all", "privacy_error", "sampling_error")
    titles = ("raw %", "low", "high", "low_all", "high_all", "privacy ±", "sampling ±")
    lines = [f"{'value':<{width}}" + "".join(f"{title:>11}" for title in titles)]
    return lines + [
        f"{row['value']:<{width}}" + "".join(f"{100 * row[name]:11.2f}" for name in names)
        for row in rows
    ]


def _show_two_values(
    found: Campaign, results: list[Result], last: int | None, pair: tuple[str, str], as_json: bool
) -> None:
    """Of the attributes that have both values; of all if there is none, to say so."""
    having = {a.name for a in found.manifest.attributes if {*pair} <= {*a.values}}
    results = [result for result in results if result.attribute in having] or results
    compared = [compare(found.manifest, result, *pair) for result in results]
    facts = [result_facts(found, result, last) for result in results]
    texts = [_comparison_text(*both) for both in zip(facts, compared)]
    show(compared, as_json, lambda _: "\n\n".join(texts))


def _comparison_text(facts: Facts, found: Facts) -> str:
    lines = [question_line(facts), f"  {rounds_line(facts)}"]
    if found["difference"] is None:
        return "\n".join([*lines, f"  {facts['sentence']}"])
    ends = ((found["low"], found["high"]), (found["low_all"], found["high_all"]))
    named, every = (" … ".join(in_percent(end or 0.0) for end in pair) for pair in ends)
    picked = answer_text(found, every_pair=True)
    return "\n".join(
        [
            *lines,
            f"  is {found['a']} above {found['b']}? {answer_text(found)}",
            f"  difference {in_percent(found['difference'])} points, 95 % interval {named}",
            f"  if you picked the two by their bars: {picked} ({every})",
        ]
    )


def _compared(
    store: Store, found: Campaign, attribute: str | None, number: str, other: str
) -> list[Facts]:
    """A name is that of a campaign here rather than that of a directory, of whose only campaign."""
    known = any(campaign.name.startswith(other) for campaign in store.campaigns())
    if known or not Path(other).is_dir():
        return comparisons(store, found, attribute, number, store, other)
    with closing(read_store(Path(other))) as there:
        return comparisons(store, found, attribute, number, there, "")


def _difference_lines(facts: Facts) -> Iterator[str]:
    a, b, rows = facts["a"], facts["b"], facts["differences"]
    yield from (f"{facts['attribute']}: {facts['question']}", f"  {facts['sentence']}")
    yield f"  {a['label']} ({a['n']:,} reports) less {b['label']} ({b['n']:,} reports)"
    yield from _change_table("points", [(row["value"], 100.0, row) for row in rows], "difference")


def _totals(text: str | None) -> dict[str, float] | None:
    if text is None:
        return None
    pairs = [part.rpartition("=")[::2] for part in text.split(",")]
    if not all(name and devices.isdecimal() for name, devices in pairs):
        raise SettingsError(f"--totals {text}: write it like north=1200,south=800")
    return {name.strip(): float(devices) for name, devices in pairs}


def _group_lines(facts: Facts) -> Iterator[str]:
    yield f"{facts['attribute']}: {facts['question']}"
    for group in facts["groups"]:
        yield f"  {facts['label']} {group['group']}: {group['sentence']}"
        if not group["withheld"]:
            yield f"    {rounds_line(group)}"
            yield from (f"    {line}" for line in _share_table(group))
    yield from (f"  {compared['sentence']}" for compared in facts["differences"])
    if facts["fleet"] is not None:
        yield "  all devices, groups weighed by their known sizes"
        yield from (f"    {line}" for line in _share_table(facts["fleet"]))


def _trend_lines(facts: Facts) -> Iterator[str]:
    rows, misfits = facts["trends"], [row["value"] for row in facts["trends"] if not row["fits"]]
    yield from (f"{facts['attribute']}: {facts['question']}", f"  {facts['sentence']}")
    yield from (f"  careful: {warning}" for warning in facts["warnings"])
    named = [
        (row["value"], 100.0, row) if row["unit"] is None else (f"mean, {row['unit']}", 1.0, row)
        for row in rows
    ]
    title = "" if not rows else "high - low" if rows[0]["highest"] else rows[0]["per"] or "change"
    yield from _change_table(title, named, "change")
    if misfits:
        yield f"  careful: chance does not explain how far rounds are from it: {', '.join(misfits)}"


def _change_table(title: str, rows: list[tuple[str, float, Facts]], size: str) -> Iterator[str]:
    """Shares in percentage points, a mean in its unit."""
    width = max([5, *(len(name) for name, _, _ in rows)])
    if rows:
        yield f"  {'value':<{width}}  {title:>10}   95 % interval   for all at once"
    for name, scale, row in rows:
        digits = decimals(scale * (row["high"] - row["low"]) / 2.0)
        columns = (size, "low", "high", "low_all", "high_all")
        change, low, high, *ends = (number(scale * row[c], digits) for c in columns)
        yield f"  {name:<{width}}  {change:>10}   {f'{low} … {high}':<13}   {' … '.join(ends)}"


# --- export ----------------------------------------------------------------------------------


@command
@CAMPAIGN
@ATTRIBUTE
@click.option("--round", "number", default="all", show_default=True, help=WHICH)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(tables.FORMATS),
    help="Format of the rows; else the ending of --output says it, or it is csv without one.",
)
@click.option("--output", type=FILE, help="Write the rows to this file instead of printing them.")
@click.option(
    "--figure", type=FILE, help="Draw the results instead, as a .svg, .png or .html file."
)
@TREND
@click.option("--by", metavar="LABEL", help="Write the results of groups; of all rounds together.")
def export(
    settings: Settings,
    campaign: str | None,
    attribute: str | None,
    number: str,
    trend: str | None,
    by: str | None,
    file_format: tables.Format | None,
    output: Path | None,
    figure: Path | None,
) -> None:
    """Write results as rows with fixed columns, or as a figure.

    \b
    allomfree-collector export --output heat.csv
    allomfree-collector export --output heat.parquet
    allomfree-collector export --round pooled --figure heat.svg
    allomfree-collector export --trend --output changes.csv
    allomfree-collector export --by region --output regions.csv
    """
    file_format = tables.chosen_format(file_format, output, figure)
    with closing(read_store(settings.data_dir, settings.store)) as store:
        found = store.campaign(campaign)
        results = chosen_results(store, found, attribute, number)
        fitted = [] if trend is None else trends(store, found, attribute, trend)
        which = "pooled" if number == "all" else number
        grouped = [] if by is None else list(group_rows(store, found, attribute, which, by))
    if figure is not None:
        truth = known_truth(settings.data_dir, found)
        _write_file("--figure", figure, charts.figure(found, results, truth, figure, fitted))
        if output is None:
            return
    if by is not None:
        content = _text_rows("--by", grouped, GROUP_COLUMNS, file_format)
    elif trend is not None:
        changes = [row for facts in fitted for row in facts["trends"]]
        content = _text_rows("--trend", changes, COLUMNS, file_format)
    else:
        content = tables.content(found, results, file_format)
    if output is not None:
        _write_file("--output", output, content)
    else:
        rows = content.decode()
        click.echo(rows if file_format == "csv" else json_escaped(rows), nl=False)


def _text_rows(
    flag: str, rows: Iterable[Facts], columns: Sequence[str], file_format: tables.Format
) -> bytes:
    if file_format == "parquet":
        raise SettingsError(f"{flag} writes rows as csv, json or ndjson; nothing was written")
    listed = ({name: row[name] for name in columns} for row in rows)
    return tables.write_rows(listed, columns, file_format).encode()


def _write_file(flag: str, path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise SettingsError(f"{flag} {path} cannot be written: {error.strerror}") from None
    click.echo(f"wrote {path}", err=True)


# --- page ------------------------------------------------------------------------------------


@command
@click.option("--link", is_flag=True, help="Print the page's address, with its token, and exit.")
@click.option(
    "--socket",
    "descriptor",
    type=int,
    metavar="NUMBER",
    help="File descriptor of a listening socket; `run` uses it.",
)
def page(settings: Settings, link: bool, descriptor: int | None) -> None:
    """Serve the analyst's page without collecting.

    `run` serves it too, as its child process.

    \b
    allomfree-collector page
    allomfree-collector page --link
    """
    address = settings.listen or PAGE
    secret = process.required_token(settings, address)
    if link:
        click.echo(process.link(address, secret))
        return
    from collector.web.server import serve  # noqa: PLC0415 - the web server, only when asked for

    if descriptor is None:
        sock = process.listening(address)
        where = process.link(process.bound(address, sock), None)
        logging.getLogger("allomfree.page").info("page on %s", where)
    else:
        sock = process.inherited(descriptor)
    serve(settings, address, secret, sock, partial(read_store, address=settings.store))
