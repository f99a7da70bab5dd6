"""`allomfree-collector`: plan a campaign, open it, collect, and read the histograms.

Exit codes: 0 done, 1 something at run time, 2 settings or manifest.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from collector import pages, rounds
from collector.announce import publish_manifest
from collector.broker import EmbeddedBroker
from collector.data import only_service, open_store, read_store
from collector.devices import DeviceKey
from collector.errors import CollectorError, UnknownCampaign
from collector.export import summary, write
from collector.health import Heartbeat, examine
from collector.planning import plan_manifest
from collector.service import Service
from collector.settings import SETTINGS, Settings, resolve
from collector.store import Campaign
from collector.views import campaign_status, chosen_results, instant, plan_facts, result_facts
from protocol_spec import Manifest, ManifestError, Problem, Result
from protocol_spec.common.address import BrokerUrl
from protocol_spec.common.commands import AS_JSON, STYLE, command_of, show, version_option
from protocol_spec.common.errors import SettingsError
from protocol_spec.common.systemd import notify
from protocol_spec.topics import is_device

CAMPAIGN = click.argument("campaign", required=False)
FILE = click.argument("manifest", type=click.Path(path_type=Path))
FORMATS = ("csv", "json", "ndjson")

log = logging.getLogger("allomfree.collector")


@click.group(context_settings=STYLE)
@version_option("allomfree-collector")
def main() -> None:
    """Count what devices know without learning what any one of them knows.

    \b
    allomfree-collector plan heat.toml --devices 10000
    allomfree-collector open heat.toml --broker mqtt://localhost
    allomfree-collector run --broker mqtt://localhost
    allomfree-collector estimate
    """


command = command_of(main, SETTINGS, resolve, "collector")


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
        address = settings.broker or EmbeddedBroker(settings.data_dir / "broker").url
        campaign = store.open_campaign(_still_ahead(loaded), int(time.time()))
    finally:
        store.close()
    if campaign.closed is not None:
        raise CollectorError(
            f"{campaign.name} was closed at {instant(campaign.closed)} and stays closed. Change "
            "something in the manifest to begin another campaign"
        )
    running = examine(settings.data_dir)[2] != {}
    alone = settings.broker is not None and not running
    trouble = publish_manifest(settings, campaign) if alone else None
    facts = {
        "campaign": campaign.name,
        "digest": loaded.digest.hex(),
        "join": f"allomfree-edge join {address}/{settings.namespace}/{campaign.name}",
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
        broker, supervise = _broker(settings, stack)
        store = open_store(settings.data_dir)
        stack.callback(store.close)
        service = Service(
            store,
            DeviceKey(settings.data_dir / "device.key", make=store.received() == 0),
            broker,
            credentials=settings.credentials(),
            namespace=settings.namespace,
            client_id=settings.client_id,
            keepalive=settings.keepalive,
            emit=_silent if quiet else _emit,
        )
        if settings.listen is not None:
            from collector.web.server import serving  # noqa: PLC0415 - only when asked for

            port = stack.enter_context(
                serving(settings.listen, settings.data_dir, lambda: service.standing)
            )
            log.info("health and metrics on http://%s:%d", settings.listen[0], port)
        heartbeat = Heartbeat(settings.data_dir)
        notify("READY=1")
        service.run(lambda: bool(stopping), lambda: _beat(heartbeat, service, supervise))
        notify("STOPPING=1")


def _broker(settings: Settings, stack: ExitStack) -> tuple[BrokerUrl, Callable[[], None]]:
    """The broker that was named, or the one in the box; and what keeps it alive."""
    if settings.broker is not None:
        return settings.required_broker(), lambda: None
    embedded = stack.enter_context(EmbeddedBroker(settings.data_dir / "broker"))
    return embedded.url, embedded.supervise


def _beat(heartbeat: Heartbeat, service: Service, supervise: Callable[[], None]) -> None:
    supervise()
    heartbeat.beat(service.standing)
    state = service.standing.trouble or f"{service.standing.accepted} reports accepted"
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
    well, text, _ = examine(settings.data_dir)
    found = [store.campaign(campaign)] if campaign else store.campaigns()
    facts = {
        "service": text,
        "healthy": well,
        "received": store.received(),
        "campaigns": [campaign_status(store, c, time.time()) for c in found],
        "elsewhere": {str(name): n for name, n in store.outcomes(0).items()},
    }
    store.close()
    show(facts, as_json, pages.status_text)


@command
@CAMPAIGN
@click.option("--attribute", help="Only this attribute.")
@click.option("--round", "number", help="A round's number, `latest`, `pooled` or `all`.")
@AS_JSON
def estimate(
    settings: Settings,
    campaign: str | None,
    attribute: str | None,
    number: str | None,
    as_json: bool,
) -> None:
    """Print histograms with their intervals; without --round the pooled ones.

    \b
    allomfree-collector estimate
    allomfree-collector estimate home-heat --attribute fuel --round latest --json
    """
    store = read_store(settings.data_dir)
    found = store.campaign(campaign)
    results = chosen_results(store, found, attribute, number)
    last = store.last_sealed(found.id)
    store.close()
    facts = [result_facts(found, result, last) for result in results]
    show(facts, as_json, lambda f: "\n\n".join(map(pages.result_text, f)))


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
def export(
    settings: Settings,
    campaign: str | None,
    form: Any,
    attribute: str | None,
    number: str,
    output: Path | None,
) -> None:
    """Write results as rows with fixed columns.

    \b
    allomfree-collector export --format csv --output heat.csv
    """
    store = read_store(settings.data_dir)
    found = store.campaign(campaign)
    text = write(found, chosen_results(store, found, attribute, number), form)
    store.close()
    if output is None:
        click.echo(text, nl=False)
    else:
        _write_file(output, text)
        click.echo(f"wrote {output}", err=True)


def _write_file(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"--output {path} cannot be written: {error.strerror}") from None


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
@click.argument("device")
@click.option("--undo", is_flag=True, help="Take its reports again.")
def revoke(settings: Settings, device: str, undo: bool) -> None:
    """Take no more reports from a device.

    \b
    allomfree-collector revoke kitchen-7
    """
    if not is_device(device):
        raise UnknownCampaign(f"{device!r} is no device name: it is 1 to 32 of a-z, 0-9 and -")
    store = open_store(settings.data_dir)
    if undo:
        store.reinstate(device)
    else:
        store.revoke(device, int(time.time()))
    store.close()
    click.echo(f"{device} is {'welcome again' if undo else 'revoked; its reports are refused'}.")


@command
@AS_JSON
def health(settings: Settings, as_json: bool) -> None:
    """Exit 0 if the collector is connected and counting, else 1 and say why.

    \b
    allomfree-collector health
    """
    well, text, record = examine(settings.data_dir)
    show({"healthy": well, "finding": text, **record}, as_json, lambda f: str(f["finding"]))
    sys.exit(0 if well else 1)


@command
@AS_JSON
def doctor(settings: Settings, as_json: bool) -> None:
    """Check data, key, broker and campaigns, and say what to do.

    \b
    allomfree-collector doctor --broker mqtts://broker.example
    """
    from collector.doctor import examine_all  # noqa: PLC0415 - only when asked for

    findings = examine_all(_with_broker(settings))
    show([f.facts() for f in findings], as_json, lambda _: "\n".join(map(str, findings)))
    if any(not f.ok for f in findings):
        sys.exit(1)


def _with_broker(settings: Settings) -> Settings:
    """The settings with the broker in the box, if none is named and that one has been used."""
    box = settings.data_dir / "broker"
    if settings.broker is not None or not (box / "port").exists():
        return settings
    return replace(settings, broker=EmbeddedBroker(box).url)


if __name__ == "__main__":
    main()
