"""`allomfree-collector`: plan a campaign, open it, collect, and read the histograms.

Exit codes: 0 done, 1 something at run time, 2 settings or manifest.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

import collector.commands.broker  # its commands join the group
import collector.commands.page  # noqa: F401 - imported for the commands alone, as the one above
from collector.brokers.choose import address_for_devices, choose_broker
from collector.commands import text as pages
from collector.commands.group import command, main
from collector.data_dir import client_id, only_service, open_store, read_store
from collector.device_key import DeviceKey
from collector.errors import CollectorError
from collector.health import Heartbeat, examine
from collector.mqtt.link import PahoConnector
from collector.records import Campaign
from collector.rounds import sealing as rounds
from collector.rounds.announce import publish_manifest
from collector.rounds.result_json import summary
from collector.service import Service
from collector.settings import Settings
from collector.show.facts import (
    Facts,
    chosen_results,
    instant,
    overview,
    plan_facts,
    result_facts,
)
from collector.show.planning import plan_manifest
from collector.show.tables import write
from collector.show.truth import read_truth
from protocol_spec import Manifest, ManifestError, Problem, Result
from protocol_spec.programs.commands import AS_JSON, show
from protocol_spec.programs.errors import SettingsError
from protocol_spec.programs.systemd import notify

__all__ = ["FORMATS", "main"]

CAMPAIGN = click.argument("campaign", required=False)
FILE = click.argument("manifest", type=click.Path(path_type=Path))
FORMATS = ("csv", "json", "ndjson")

log = logging.getLogger("allomfree.collector")


@command
@FILE
@click.option("--devices", "n", type=int, required=True, help="Devices expected in all.")
@click.option("--frequency", "f", default=0.1, help="True frequency the widths are for.")
@click.option("--precision", type=float, help="Wanted half-width; says how many devices it takes.")
@AS_JSON
def plan(
    _settings: Settings, manifest: Path, n: int, f: float, precision: float | None, as_json: bool
) -> None:
    """Say before anything is asked how precise the answers will be.

    \b
    allomfree-collector plan heat.toml --devices 10000
    allomfree-collector plan heat.toml --devices 10000 --precision 0.01 --json
    """
    planned = plan_manifest(Manifest.from_file(manifest), n=n, f=f, precision=precision)
    show(plan_facts(planned), as_json, pages.plan_text)


@command
@FILE
@AS_JSON
def open(settings: Settings, manifest: Path, as_json: bool) -> None:  # noqa: A001
    """Check a manifest, begin its campaign and publish the invitation to it.

    \b
    allomfree-collector open heat.toml --broker mqtts://broker.example
    """
    loaded = Manifest.from_file(manifest)
    store = open_store(settings.data_dir)
    try:
        address = address_for_devices(settings)
        known, box = choose_broker(settings)
        campaign = store.open_campaign(_still_ahead(loaded), int(time.time()))
    finally:
        store.close()
    if campaign.closed is not None:
        raise CollectorError(
            f"{campaign.name} was closed at {instant(campaign.closed)} and stays closed. Change "
            "something in the manifest to begin another campaign"
        )
    running = examine(settings.data_dir).running
    alone = box is None and not running
    trouble = publish_manifest(known, campaign) if alone else None
    facts = {
        "campaign": campaign.name,
        "digest": loaded.digest.hex(),
        "join": f"allomfree-edge join {address}/{known.namespace}/{campaign.name}",
        "running": running,
        "published": running or (alone and trouble is None),
        "trouble": trouble,
    }
    show(facts, as_json, pages.opened_text)


def _still_ahead(manifest: Manifest) -> Manifest:
    if manifest.rounds.end > time.time():
        return manifest
    ended = f"the last round ended at {instant(manifest.rounds.end)}; nothing was opened"
    raise ManifestError([Problem("rounds.first", instant(manifest.rounds.first), ended)])


@command
@click.option("--quiet", is_flag=True, help="Do not print results on standard output.")
def run(settings: Settings, quiet: bool) -> None:
    """Collect for every open campaign until stopped; each sealed result is a line of JSON.

    Without --broker it brings its own, on this machine only.

    \b
    allomfree-collector run
    allomfree-collector run --broker mqtts://broker.example
    """
    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _frame: stopping.append(received))
    with ExitStack() as stack:
        stack.enter_context(only_service(settings.data_dir))
        settings, box = choose_broker(settings)
        looked_after: list[Callable[[], None]] = []
        if box is not None:
            stack.enter_context(box)
            looked_after.append(box.supervise)
        store = open_store(settings.data_dir)
        stack.callback(store.close)
        service = Service(
            store,
            DeviceKey(settings.data_dir / "device.key", make=store.received() == 0),
            PahoConnector(
                settings.required_broker(),
                settings.credentials(),
                client_id=client_id(settings),
                keepalive=settings.keepalive,
            ),
            namespace=settings.namespace,
            home_assistant=settings.home_assistant,
            emit=_silent if quiet else _emit,
        )
        if settings.listen is not None:
            from collector.web.child import page_process  # noqa: PLC0415 - only when asked for

            page = page_process(settings)
            if page is not None:
                stack.enter_context(page)
                looked_after.append(page.supervise)
        heartbeat = Heartbeat(settings.data_dir)
        notify("READY=1")
        service.run(lambda: bool(stopping), lambda: _beat(heartbeat, service, looked_after))
        notify("STOPPING=1")


def _beat(heartbeat: Heartbeat, service: Service, looked_after: list[Callable[[], None]]) -> None:
    for supervise in looked_after:
        supervise()
    heartbeat.beat(service.status)
    state = service.status.trouble or f"{service.status.accepted} reports accepted"
    notify(f"WATCHDOG=1\nSTATUS={state[:120]}")


def _emit(campaign: Campaign, result: Result) -> None:
    click.echo(json.dumps(summary(campaign, result), ensure_ascii=False))


def _silent(_campaign: Campaign, _result: Result) -> None:
    return


@command
@CAMPAIGN
@AS_JSON
def status(settings: Settings, campaign: str | None, as_json: bool) -> None:
    """Say how rounds fill, and what became of every message.

    \b
    allomfree-collector status
    """
    store = read_store(settings.data_dir)
    facts = overview(store, settings.data_dir, time.time(), campaign)
    store.close()
    show(facts, as_json, pages.status_text)


@command
@CAMPAIGN
@click.option("--attribute", help="Only this attribute.")
@click.option("--round", "number", help="A round's number, `latest`, `pooled` or `all`.")
@click.option("--plot", is_flag=True, help="Draw bars as wide as the terminal.")
@AS_JSON
def estimate(
    settings: Settings,
    campaign: str | None,
    attribute: str | None,
    number: str | None,
    plot: bool,
    as_json: bool,
) -> None:
    """Print histograms with their intervals; without --round the pooled ones.

    \b
    allomfree-collector estimate
    allomfree-collector estimate --plot
    allomfree-collector estimate home-heat --attribute fuel --round latest --json
    """
    store = read_store(settings.data_dir)
    found = store.campaign(campaign)
    results = chosen_results(store, found, attribute, number)
    last = store.last_sealed(found.id)
    store.close()
    facts = [result_facts(found, result, last) for result in results]
    draw = _painter(settings, found) if plot else pages.result_text
    show(facts, as_json, lambda f: "\n\n".join(map(draw, f)))


def _painter(settings: Settings, campaign: Campaign) -> Callable[[Facts], str]:
    """What draws a result so that this terminal can show it."""
    from collector.show.terminal import ink_of, plot_text  # noqa: PLC0415 - only when asked for

    ink, width = ink_of(sys.stdout, os.environ), shutil.get_terminal_size().columns
    truth = read_truth(settings.data_dir, campaign.name) or {}
    return lambda f: plot_text(f, width=width, ink=ink, true=truth.get(f["attribute"]))


@command
@CAMPAIGN
@click.option(
    "--format", "form", type=click.Choice(FORMATS), default="csv", help="csv unless named."
)
@click.option("--attribute", help="Only this attribute.")
@click.option(
    "--round", "number", default="all", help="A round's number, `latest`, `pooled`, `all`."
)
@click.option(
    "--output", type=click.Path(path_type=Path), help="File to write instead of printing."
)
@click.option(
    "--figure", type=click.Path(path_type=Path), help="Draw instead: a .svg, .png or .html file."
)
def export(
    settings: Settings,
    campaign: str | None,
    form: Any,
    attribute: str | None,
    number: str,
    output: Path | None,
    figure: Path | None,
) -> None:
    """Write results as rows with fixed columns, or draw them.

    \b
    allomfree-collector export --format csv --output heat.csv
    allomfree-collector export --round pooled --figure heat.svg
    """
    store = read_store(settings.data_dir)
    found = store.campaign(campaign)
    results = chosen_results(store, found, attribute, number)
    store.close()
    if figure is not None:
        from collector.show.figure_files import figure as draw  # noqa: PLC0415 - only when asked for

        truth = read_truth(settings.data_dir, found.name)
        _write_file("--figure", figure, draw(found, results, truth, figure))
    if output is not None:
        _write_file("--output", output, write(found, results, form).encode())
    elif figure is None:
        click.echo(write(found, results, form), nl=False)


def _write_file(flag: str, path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise SettingsError(f"{flag} {path} cannot be written: {error.strerror}") from None
    click.echo(f"wrote {path}", err=True)


@command
@CAMPAIGN
@click.option(
    "--early", is_flag=True, help="Also rounds that have ended but are within their grace."
)
@AS_JSON
def seal(settings: Settings, campaign: str | None, early: bool, as_json: bool) -> None:
    """Make final what is due, without waiting for the service.

    \b
    allomfree-collector seal home-heat
    """
    store = open_store(settings.data_dir)
    found = store.campaign(campaign)
    now = time.time() + (found.manifest.rounds.grace if early else 0)
    sealed = []
    for number in list(rounds.due(store, found, now)):
        rounds.seal(store, found, number, int(time.time()))
        sealed.append(number)
    store.close()
    show({"campaign": found.name, "sealed": sealed}, as_json, pages.sealed_text)


@command
@CAMPAIGN
@click.option("--yes", is_flag=True, help="Do not ask.")
def close(settings: Settings, campaign: str | None, yes: bool) -> None:
    """End a campaign: take no more reports, seal what there is, tell the devices.

    \b
    allomfree-collector close home-heat
    """
    store = open_store(settings.data_dir)
    found = store.campaign(campaign)
    question = f"Close {found.name} for ever? Devices stop reporting to it."
    if not yes and not click.confirm(question, default=False, err=True):
        click.echo("Nothing was changed.", err=True)
        sys.exit(1)
    store.close_campaign(found, int(time.time()))
    store.close()
    click.echo(
        f"Closed {found.name}. The running service seals its rounds and tells the devices; "
        "without one, start it once: allomfree-collector run"
    )


@command
@AS_JSON
def health(settings: Settings, as_json: bool) -> None:
    """Exit 0 if the collector is connected and counting, else 1 and say why.

    \b
    allomfree-collector health
    """
    found = examine(settings.data_dir)
    show(found.facts(), as_json, lambda _: found.finding)
    sys.exit(0 if found.well else 1)


@command
@AS_JSON
def doctor(settings: Settings, as_json: bool) -> None:
    """Check data, key, broker and campaigns, and say what to do.

    \b
    allomfree-collector doctor --broker mqtts://broker.example
    """
    from collector.doctor import examine_all  # noqa: PLC0415 - only when asked for

    findings = examine_all(settings)
    show([f.facts() for f in findings], as_json, lambda _: "\n".join(map(str, findings)))
    if any(not f.ok for f in findings):
        sys.exit(1)
