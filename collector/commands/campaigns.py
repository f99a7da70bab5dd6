"""`invite`: the link by which owners join a campaign, and its QR code."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Final, TypedDict

import click

from collector.brokers.choose import choose_broker, let_report_to
from collector.brokers.directory import BrokerDirectory
from collector.commands import reading
from collector.commands.broker import must_reload_text
from collector.commands.options import CAMPAIGN, DURATION, MANIFEST, command, show
from collector.data_dir import existing_store, open_store, read_store
from collector.errors import CollectorError
from collector.health import examine
from collector.opening import OperatorKey, is_for_others, is_trial, read_campaign, remember_address
from collector.planning import (
    AttributePlan,
    Judgement,
    NumbersPlan,
    Plan,
    WayPlan,
    plan_manifest,
    receipts_on,
    too_few_pages,
)
from collector.records import NO_CAMPAIGN, Campaign
from collector.results.tables import instant
from collector.results.terminal import Ink, ink_of, terminal_code
from collector.results.words import median_between, quantity, rounds_name
from collector.settings import Settings
from collector.store import Store
from protocol_spec import Manifest, ManifestError, ParameterError, Problem
from protocol_spec.programs.cli import AS_JSON, completed
from protocol_spec.programs.output import allow_colours


class InviteFacts(TypedDict):
    """What `invite --json` prints."""

    campaign: str
    digest: str
    link: str


@command
@CAMPAIGN
@AS_JSON
def invite(settings: Settings, campaign: str | None, as_json: bool) -> None:
    """Print the link by which owners join a campaign, with its QR code.

    \b
    allomfree-collector invite
    allomfree-collector invite home-heat --json
    """
    with closing(read_store(settings.data_dir, settings.store)) as store:
        found = store.campaign(campaign)
    if found.closed is not None:
        raise CollectorError(f"{found.name} is closed: nobody can join it any more")
    link = f"{remember_address(settings)}/{found.manifest.full_name}"
    digest = found.manifest.digest.hex()
    facts: InviteFacts = {"campaign": found.name, "digest": digest, "link": link}
    ink = ink_of(sys.stdout, os.environ)
    if ink.colour:
        allow_colours()  # names and addresses hold no control characters
    elsewhere = [] if is_for_others(link) else _for_others(settings)
    show(facts, as_json, lambda told: _text(told, elsewhere, ink))


def _for_others(settings: Settings) -> list[str]:
    """How to let other machines in, where the broker is for this one."""
    only = "That is an address of this very machine. For devices elsewhere,"
    if settings.broker is not None:
        return [f"{only} name the broker as they reach it, as in --broker mqtts://broker.example"]
    kind, step = "nats", "set up a broker"
    if BrokerDirectory.exists(settings.broker_dir):
        kind, step = BrokerDirectory.load(settings.broker_dir).plan.kind, "configure it again"
    return [
        f"{only} {step}, NAME being this machine's name or address in their network:",
        f"    allomfree-collector broker-config {kind} --host NAME",
    ]


def _text(facts: InviteFacts, elsewhere: list[str], ink: Ink) -> str:
    link = facts["link"]
    lines = [f"Join {facts['campaign']} with:", f"    allomfree-edge join {link}", ""]
    if elsewhere:
        return "\n".join([*lines[:-1], *elsewhere])
    told = "The link names the campaign by its whole digest: no other can be taken for it."
    code = terminal_code(link, colours=ink.colour)
    return "\n".join([*lines, code, "", link, told])


# --- A plan as text for the terminal.


def plan_text(plan: Plan) -> str:
    """What to expect, attribute by attribute."""
    way = "" if plan.reporting == "memoized" else f", reporting {plan.reporting}"
    lines = [
        (
            f"{plan.n:,} devices, eps_inf {plan.eps_inf:g}, eps_1 {plan.eps_1:g}{way}, "
            f"{plan.rounds:,} rounds, bound for life {plan.lifetime_epsilon:g}"
        ),
        f"half-widths of 95 % intervals at a true frequency of {plan.f:g}, in percentage points",
        f"set receipt_pages to about {plan.receipt_pages} (a thousand devices a page)",
    ]
    if plan.receipts_warning is not None:
        lines.append(f"careful: {plan.receipts_warning}")
    for attribute in plan.attributes:
        lines += ["", *_attribute(attribute, plan)]
    return "\n".join(lines)


def _attribute(a: AttributePlan, plan: Plan) -> Iterator[str]:
    yield f"{a.name} ({a.k} values): {a.protocol} ({a.why})"
    yield from (f"  careful: {warning}" for warning in a.warnings)
    for judged in a.verdict:
        yield f"  verdict, {rounds_name(judged.rounds)}: {judged.sentence}"
    yield from _widths(a, plan)
    yield from (f"  {line}" for line in numbers_lines(a.numbers, a.unit))
    yield from (f"  advice: {line}" for line in a.advice)
    yield from _suggestions(a)
    yield from (f"  {line}" for line in ways_table(a.ways))
    yield from _choices(a, plan)


def _widths(a: AttributePlan, plan: Plan) -> Iterator[str]:
    reports = _round_reports(a.verdict)
    pooled = ", ".join(f"{t}: ±{100 * w:.2f}" for t, w in a.half_width_pooled.items())
    yield (
        f"  one round of {reports:,.0f} devices   ±{100 * a.half_width:.2f}"
        f"   all values at once ±{100 * a.half_width_all:.2f}"
    )
    yield (
        f"  a difference in one round   ±{100 * a.difference:.2f}"
        f"   any pair ±{100 * a.difference_all:.2f}"
    )
    yield f"  pooled over rounds          {pooled}"
    yield f"  floor, however many rounds  ±{100 * a.floor:.2f} ({_FLOORS[a.reporting]})"
    if a.split_budget_ratio is not None and a.split_budget_ratio > 1.0:
        yield (
            f"  if every device answered all questions instead of one: "
            f"{a.split_budget_ratio:.2f} times wider"
        )
    if plan.precision is not None:
        yield (
            f"  for ±{100 * plan.precision:g} in one round: "
            f"{a.devices_for_precision:,} devices in all"
        )


_FLOORS = {
    "memoized": "noise of the one memo per device",
    "once": "every device has answered",
    "hashed": "noise of the memos and of the groups",
    "nested": "the last level",
}


def _round_reports(verdict: Iterable[Judgement]) -> float:
    return next(judged.reports for judged in verdict)


def numbers_lines(numbers: Iterable[NumbersPlan], unit: str) -> Iterator[str]:
    """Mean and median, if numbers were spread evenly over the bins."""
    for each in numbers:
        mean = "no mean"
        if each.mean_half_width is not None:
            mean = (
                f"mean ±{quantity(each.mean_half_width, unit)}, and up to "
                f"±{quantity(each.mean_bias, unit)} because bins have a width"
            )
        median = median_between(each.median_low, each.median_high, unit)
        yield f"{rounds_name(each.rounds)}: {mean}; {median}"


def _suggestions(a: AttributePlan) -> Iterator[str]:
    if a.suggestions:
        read = a.verdict[-1].rounds
        yield f"  for ±{100 * a.target:g} with {rounds_name(read)}, one of these would do:"
        yield from (f"    {each.sentence}" for each in a.suggestions)


def ways_table(ways: Iterable[WayPlan]) -> Iterator[str]:
    """The ways of reporting, the chosen one marked."""
    yield "way of reporting   one round    7 rounds   28 rounds   bound   hides"
    for way in ways:
        widths = "   ".join(f"{f'±{100 * w:.2f}':>9}" for w in way.half_width.values())
        mark = ">" if way.chosen else " "
        unfit = "" if way.suits else "; not for values that change"
        yield (
            f"{mark} {way.reporting:<14}   {widths}   {way.lifetime_epsilon:>5g}   "
            f"{way.hides}{unfit}"
        )


def _choices(a: AttributePlan, plan: Plan) -> Iterator[str]:
    for choice in a.choices:
        yield (
            f'  choose_for = "{choice.choose_for}": {choice.protocol}, '
            f"±{100 * choice.half_width:.2f} in one round, "
            f"±{100 * choice.half_width_pooled:.2f} over {plan.rounds:,} rounds"
        )


# --- Before and after collecting: plan a campaign, open it, close it.


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
    facts: reading.OpenedFacts = {
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
    show(facts, as_json, reading.opened_text)


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
    if not unsigned and key.public:
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
