"""Before and after collecting: plan a campaign, open it, close it."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import click

from collector.brokers.choose import address_for_devices, choose_broker
from collector.commands import text
from collector.commands.options import CAMPAIGN, MANIFEST, command
from collector.commands.plan_text import plan_text
from collector.data_dir import open_store
from collector.errors import CollectorError
from collector.health import examine
from collector.records import Campaign
from collector.settings import Settings
from collector.show.facts import instant
from collector.show.planning import plan_manifest
from protocol_spec import Manifest, ManifestError, Problem
from protocol_spec.programs.commands import AS_JSON, show


@command
@MANIFEST
@click.option("--devices", "n", type=int, required=True, help="Number of devices expected.")
@click.option(
    "--frequency",
    "f",
    default=0.1,
    show_default=True,
    help="True frequency that the intervals are for.",
)
@click.option(
    "--precision",
    type=float,
    metavar="HALF-WIDTH",
    help="Also print how many devices give intervals this narrow, such as 0.01.",
)
@AS_JSON
def plan(
    _settings: Settings, manifest: Path, n: int, f: float, precision: float | None, as_json: bool
) -> None:
    """Predict how precise a campaign's results will be.

    \b
    allomfree-collector plan heat.toml --devices 10000
    allomfree-collector plan heat.toml --devices 10000 --precision 0.01 --json
    """
    planned = plan_manifest(Manifest.from_file(manifest), n=n, f=f, precision=precision)
    show(asdict(planned), as_json, lambda _: plan_text(planned))


@command
@MANIFEST
@AS_JSON
def open(settings: Settings, manifest: Path, as_json: bool) -> None:  # noqa: A001 - the verb
    """Check a manifest, open its campaign and publish it.

    \b
    allomfree-collector open heat.toml --broker mqtts://broker.example
    """
    loaded = Manifest.from_file(manifest)
    with closing(open_store(settings.data_dir)) as store:
        address = address_for_devices(settings)
        known, embedded = choose_broker(settings)
        campaign = store.open_campaign(_not_over(loaded), int(time.time()))
    if campaign.closed is not None:
        raise CollectorError(
            f"{campaign.name} was closed at {instant(campaign.closed)} and stays closed. Change "
            "something in the manifest to open another campaign"
        )
    running = examine(settings.data_dir).running
    alone = embedded is None and not running
    trouble = _publish(known, campaign) if alone else None
    facts: text.OpenedFacts = {
        "campaign": campaign.name,
        "digest": loaded.digest.hex(),
        "join": f"allomfree-edge join {address}/{known.namespace}/{campaign.name}",
        "running": running,
        "published": running or (alone and trouble is None),
        "trouble": trouble,
    }
    show(facts, as_json, text.opened_text)


def _publish(settings: Settings, campaign: Campaign) -> str | None:
    # Here and not above: it brings the MQTT client in, which other commands do without.
    from collector.rounds.invitation import publish_manifest  # noqa: PLC0415

    return publish_manifest(settings, campaign)


def _not_over(manifest: Manifest) -> Manifest:
    if manifest.rounds.end > time.time():
        return manifest
    ended = f"the last round ended at {instant(manifest.rounds.end)}; nothing was opened"
    raise ManifestError([Problem("rounds.first", instant(manifest.rounds.first), ended)])


@command
@CAMPAIGN
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def close(settings: Settings, campaign: str | None, yes: bool) -> None:
    """End a campaign.

    Further reports are refused, its rounds are sealed and the devices are told.

    \b
    allomfree-collector close home-heat
    """
    with closing(open_store(settings.data_dir)) as store:
        found = store.campaign(campaign)
        question = f"Close {found.name} for ever? Devices stop reporting to it."
        if not yes and not click.confirm(question, default=False, err=True):
            click.echo("Nothing was changed.", err=True)
            sys.exit(1)
        store.close_campaign(found, int(time.time()))
    click.echo(
        f"Closed {found.name}. The running service seals its rounds and tells the devices; "
        "without one, start it once: allomfree-collector run"
    )
