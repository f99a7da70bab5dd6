"""Before and after collecting: plan a campaign, open it, close it."""

from __future__ import annotations

import shlex
import sys
import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Final

import click

from collector.brokers.choose import choose_broker, let_report_to
from collector.brokers.directory import BrokerDirectory
from collector.commands import text
from collector.commands.broker_text import must_reload_text
from collector.commands.options import CAMPAIGN, DURATION, MANIFEST, command, show
from collector.commands.plan_text import plan_text
from collector.data_dir import existing_store, open_store
from collector.errors import CollectorError
from collector.health import examine
from collector.joining import remember_address
from collector.operator_key import OperatorKey
from collector.records import NO_CAMPAIGN, Campaign
from collector.settings import Settings
from collector.show.planning import plan_manifest, receipts_on, too_few_pages
from collector.show.tables import instant
from collector.store import Store
from collector.trial import is_trial, read_campaign
from protocol_spec import Manifest, ManifestError, ParameterError, Problem
from protocol_spec.programs.commands import AS_JSON
from protocol_spec.programs.pasting import completed

_PLAN_FLAGS: Final = {"n": "--devices", "f": "--frequency", "precision": "--precision"}


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
    try:
        planned = plan_manifest(Manifest.from_file(manifest), n=n, f=f, precision=precision)
    except ParameterError as error:  # as it was typed
        flag = _PLAN_FLAGS.get(error.field, error.field)
        raise ParameterError(flag, error.value, error.remedy) from None
    show(asdict(planned), as_json, lambda _: plan_text(planned))


@command
@MANIFEST
@click.option("--unsigned", is_flag=True, help="Open it without a signature, despite a key.")
@click.option("--trial", is_flag=True, help="Open a trial of it: short rounds that begin now.")
@click.option(
    "--trial-round",
    type=DURATION,
    default="1m",
    show_default=True,
    envvar="ALLOMFREE_TRIAL_ROUND",
    metavar="DURATION",
    help="Length of a trial's rounds.",
)
@AS_JSON
def open(  # noqa: A001 - the verb
    settings: Settings,
    manifest: Path,
    unsigned: bool,
    trial: bool,
    trial_round: int,
    as_json: bool,
) -> None:
    """Check a manifest, sign it if it names you as its operator, open it and publish it.

    With --trial, a campaign beside it is opened that is marked as a trial: rounds of a minute that
    begin now, histograms from 10 reports on.

    \b
    allomfree-collector open heat.toml --broker mqtts://broker.example
    allomfree-collector open heat.toml --trial
    """
    seconds, now = trial_round if trial else None, int(time.time())
    # What is wrong or over is refused before a data directory is made.
    _check_not_over(read_campaign(manifest, [], now, trial_seconds=seconds), manifest)
    with closing(open_store(settings.data_dir, settings.store)) as store:
        loaded = read_campaign(manifest, store.campaigns(), now, trial_seconds=seconds)
        address = remember_address(settings)
        known, embedded = choose_broker(settings)
        signature = _signature(settings, store, loaded, unsigned)
        campaign = store.open_campaign(loaded, int(time.time()), signature)
        names = [known_one.name for known_one in store.campaigns()]
    if campaign.closed is not None:
        raise CollectorError(
            f"{campaign.name} was closed at {instant(campaign.closed)} and stays closed. Change "
            "something in the manifest to open another campaign"
        )
    changed = let_report_to(settings, names)
    if changed is not None and not changed.reload():
        click.echo(must_reload_text(changed.plan.kind), err=True)
    running = examine(settings.data_dir).running
    alone = embedded is None and not running
    trouble = _publish(known, campaign, signature) if alone else None
    facts: text.OpenedFacts = {
        "campaign": campaign.name,
        "digest": loaded.digest.hex(),
        "operator": loaded.operator.hex(),
        "join": f"allomfree-edge join {address}/{loaded.full_name}{_trust(known)}",
        "trial": is_trial(loaded),
        "period_seconds": loaded.rounds.period,
        "first_result": instant(loaded.rounds.deadline(0)),
        "running": running,
        "published": running or (alone and trouble is None),
        "trouble": trouble,
        "receipts": _receipts(loaded),
    }
    show(facts, as_json, text.opened_text)


def _trust(settings: Settings) -> str:
    """What a device needs, too, if the broker's certificate is not one that every system trusts.
    Where the broker was configured here, the device's credential brings it along."""
    if settings.ca_file is None or BrokerDirectory.exists(settings.broker_dir):
        return ""
    return f" --ca-file {shlex.quote(str(settings.ca_file))}"


def _receipts(manifest: Manifest) -> str:
    """How many devices the receipt pages are good for."""
    pages = manifest.receipt_pages
    warning = too_few_pages(pages, manifest.devices)
    if warning is not None:
        return f"Careful: {warning}"
    return f"Receipts of {receipts_on(pages):,} devices at a time (receipt_pages = {pages})"


def _signature(settings: Settings, store: Store, manifest: Manifest, unsigned: bool) -> bytes:
    """The operator's signature; nothing for a manifest that names none, which must be meant.

    What was signed before stays signed, also when the key has been replaced.
    """
    key = OperatorKey(settings.data_dir)
    if manifest.operator:
        digests = {c.manifest.digest: c.id for c in store.campaigns()}
        return store.signature(digests.get(manifest.digest, NO_CAMPAIGN)) or key.sign(manifest)
    if manifest.format > 1 and not unsigned and key.public:
        raise CollectorError(
            "you have an operator key, but the manifest does not name it, so it would be unsigned; "
            f'nothing was opened. Add operator = "{key.public.hex()}" to it before [rounds], or '
            "open it with --unsigned"
        )
    return b""


def _publish(settings: Settings, campaign: Campaign, signature: bytes) -> str | None:
    # Here and not above: it brings the MQTT client in, which other commands do without.
    from collector.rounds.invitation import publish_invitation  # noqa: PLC0415

    return publish_invitation(settings, campaign, signature)


def _check_not_over(manifest: Manifest, file: Path) -> None:
    if manifest.rounds.end > time.time():
        return
    ended = f"the last round ended at {instant(manifest.rounds.end)}; nothing was opened"
    raise ManifestError([Problem("rounds.first", instant(manifest.rounds.first), ended)], str(file))


@command
@CAMPAIGN
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def close(settings: Settings, campaign: str | None, yes: bool) -> None:
    """End a campaign.

    Further reports are refused, its rounds are sealed and the devices are told.

    \b
    allomfree-collector close home-heat
    """
    with closing(existing_store(settings.data_dir, settings.store)) as store:
        found = store.campaign(campaign)
        question = f"Close {found.name} for ever? Devices stop reporting to it."
        if not yes and not click.confirm(question, default=False, err=True):
            click.echo("Nothing was changed.", err=True)
            sys.exit(1)
        store.close_campaign(found, int(time.time()))
    told = (
        f"Closed {found.name}. The running service seals its rounds and tells the devices; "
        "without one, start it once: allomfree-collector run"
    )
    click.echo(completed(told))
