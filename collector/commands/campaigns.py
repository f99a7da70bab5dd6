"""Before and after collecting: `plan`, `open`, `invite` and `close`."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Final

import click

from collector.brokers.choose import choose_broker, grant_campaigns
from collector.brokers.directory import BrokerDirectory
from collector.charts import ink_of, terminal_code
from collector.commands.broker import reloaded_text
from collector.commands.options import (
    CAMPAIGN,
    DURATION,
    MANIFEST,
    YES,
    Facts,
    command,
    confirm,
    show,
)
from collector.data_dir import existing_store, open_store, read_store
from collector.errors import CollectorError
from collector.health import examine
from collector.opening import OperatorKey, is_for_others, read_campaign, remember_address
from collector.planning import (
    LIARS,
    AttributePlan,
    MechanismPlan,
    NumbersPlan,
    Plan,
    plan_manifest,
)
from collector.records import NO_CAMPAIGN
from collector.results.tables import instant
from collector.results.words import between, lies_text, quantity, rounds_name
from collector.settings import Settings
from collector.store import Store
from protocol_spec import Manifest, ManifestError, ParameterError, Problem, is_trial
from protocol_spec.mechanisms import DEFAULT_MECHANISM, MECHANISMS
from protocol_spec.programs.cli import AS_JSON, completed
from protocol_spec.programs.output import allow_colours

# --- plan ------------------------------------------------------------------------------------

_PLAN_FLAGS: Final = {
    "n": "--devices",
    "f": "--frequency",
    "precision": "--precision",
    "participation": "--participation",
}


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
@click.option(
    "--participation",
    multiple=True,
    metavar="SHARE",
    help="Share of rounds in which devices report, as 0.6; or those with one value, as gas=0.5; "
    "may be repeated.",
)
@AS_JSON
def plan(
    _settings: Settings,
    manifest: Path,
    n: int,
    f: float,
    precision: float | None,
    participation: tuple[str, ...],
    as_json: bool,
) -> None:
    """Predict how precise a campaign's results will be.

    \b
    allomfree-collector plan heat.toml --devices 10000
    allomfree-collector plan heat.toml --devices 10000 --precision 0.01 --json
    allomfree-collector plan heat.toml --devices 10000 --participation 0.9 --participation gas=0.5
    """
    asked, shares = Manifest.from_file(manifest), _participation(participation)
    try:
        planned = plan_manifest(asked, n=n, f=f, precision=precision, participation=shares)
    except ParameterError as error:  # named by its flag
        flag = _PLAN_FLAGS.get(error.field, error.field)
        raise ParameterError(flag, error.value, error.remedy) from None
    show(asdict(planned), as_json, lambda _: plan_text(planned))


def _participation(given: Iterable[str]) -> dict[str, float]:
    """By value, and under the empty name for all others."""
    shares = {}
    for text in given:
        value, _, share = text.rpartition("=")
        try:
            shares[value] = float(share)
        except ValueError:
            raise ParameterError("--participation", text, "write 0.6, or gas=0.5") from None
    return shares


def plan_text(plan: Plan) -> str:
    mechanism = "" if plan.reporting == DEFAULT_MECHANISM else f", reporting {plan.reporting}"
    lines = [
        (
            f"{plan.n:,} devices, eps_inf {plan.eps_inf:g}, eps_1 {plan.eps_1:g}{mechanism}, "
            f"{plan.rounds:,} rounds, lifetime bound {plan.lifetime_epsilon:g}"
        ),
        f"half-widths of 95 % intervals at a true frequency of {plan.f:g}, in percentage points",
        f"with devices = {plan.n} in the manifest, receipts take {plan.receipt_pages} pages",
    ]
    for a in plan.attributes:
        lines += ["", f"{a.name} ({a.k} values): {a.protocol} ({a.why})"]
        lines += [f"  {line}" for line in _attribute_lines(a, plan)]
    return "\n".join(lines)


def _attribute_lines(a: AttributePlan, plan: Plan) -> Iterator[str]:
    yield from (f"careful: {warning}" for warning in a.warnings)
    for judged in a.verdict:
        yield f"verdict, {rounds_name(judged.rounds)}: {judged.sentence}"
    yield (
        f"one round of {a.verdict[0].reports:,.0f} devices   ±{100 * a.half_width:.2f}"
        f"   all values at once ±{100 * a.half_width_all:.2f}"
    )
    apart, any_pair = 100 * a.difference, 100 * a.difference_all
    yield f"a difference in one round   ±{apart:.2f}   any pair ±{any_pair:.2f}"
    pooled = ", ".join(f"{t}: ±{100 * w:.2f}" for t, w in a.half_width_pooled.items())
    yield f"pooled over rounds          {pooled}"
    reason = MECHANISMS[a.reporting].analysis.floor
    yield f"floor, however many rounds  ±{100 * a.floor:.2f} ({reason})"
    lies = {"share": LIARS, "shift": a.lie_shift, "error": a.target, "share_for_error": a.lie_share}
    yield lies_text(lies)
    for each in a.uneven:
        yield (
            f"if devices with “{each.value}” report in {100 * each.participation:g} % of rounds, "
            f"others in {100 * each.others:g} %: a share of {100 * plan.f:.1f} % is shown as "
            f"{100 * each.by_reports:.1f} %; with nested, after {rounds_name(each.rounds)}, as "
            f"{100 * each.by_devices:.1f} %"
        )
    ratio = a.split_budget_ratio
    if ratio is not None and ratio > 1.0:
        yield f"if every device answered all questions instead of one: {ratio:.2f} times wider"
    if plan.precision is not None:
        needed = f"{a.devices_for_precision:,} devices in all"
        yield f"for ±{100 * plan.precision:g} in one round: {needed}"
    yield from numbers_lines(a.numbers, a.unit)
    yield from (f"advice: {line}" for line in a.advice)
    if a.suggestions:
        read = rounds_name(a.verdict[-1].rounds)
        yield f"for ±{100 * a.target:g} with {read}, one of these is enough:"
        yield from (f"  {each.sentence}" for each in a.suggestions)
    yield from mechanisms_table(a.mechanisms)
    for choice in a.choices:
        yield (
            f'choose_for = "{choice.choose_for}": {choice.protocol}, '
            f"±{100 * choice.half_width:.2f} in one round, "
            f"±{100 * choice.half_width_pooled:.2f} over {plan.rounds:,} rounds"
        )


def numbers_lines(numbers: Iterable[NumbersPlan], unit: str) -> Iterator[str]:
    """Mean and median, if numbers were spread evenly over the bins."""
    for each in numbers:
        mean = "no mean"
        if each.mean_half_width is not None:
            mean = (
                f"mean ±{quantity(each.mean_half_width, unit)}, and up to "
                f"±{quantity(each.mean_bias, unit)} because of the bins' width"
            )
        median = f"median {between(each.median_low, each.median_high, unit)}"
        yield f"{rounds_name(each.rounds)}: {mean}; {median}"


def mechanisms_table(mechanisms: Iterable[MechanismPlan]) -> Iterator[str]:
    """All mechanisms, the chosen one marked."""
    yield "mechanism          one round    7 rounds   28 rounds   bound   hides"
    for each in mechanisms:
        widths = "   ".join(f"{f'±{100 * w:.2f}':>9}" for w in each.half_width.values())
        mark = ">" if each.chosen else " "
        unfit = "" if each.suits else "; not for values that change"
        yield (
            f"{mark} {each.reporting:<14}   {widths}   {each.lifetime_epsilon:>5g}   "
            f"{each.hides}{unfit}"
        )


# --- open ------------------------------------------------------------------------------------

_UNSIGNED: Final = (
    "Unsigned: device owners cannot verify who published this campaign. See: "
    "allomfree-collector operator-key create"
)
_USUAL_MIN_PERIOD_SECONDS: Final = 3_600  # what devices allow without a policy of their own


@command
@MANIFEST
@click.option("--unsigned", is_flag=True, help="Open it without a signature, despite a key.")
@click.option("--trial", is_flag=True, help="Open a trial of it: short rounds that begin now.")
@click.option(
    "--trial-round",
    type=DURATION,
    default="20s",
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

    With --trial, a separate campaign is opened that is marked as a trial: rounds of 20 s that begin
    now, histograms from 10 reports on, and devices that make their answers up.

    \b
    allomfree-collector open heat.toml --broker mqtts://broker.example
    allomfree-collector open heat.toml --trial
    """
    seconds, now = trial_round if trial else None, int(time.time())
    # What is invalid or over is refused before a data directory is made.
    loaded = read_campaign(manifest, [], now, trial_seconds=seconds)
    if loaded.rounds.end <= now:
        ended = f"the last round ended at {instant(loaded.rounds.end)}; nothing was opened"
        problem = Problem("rounds.first", instant(loaded.rounds.first), ended)
        raise ManifestError([problem], str(manifest))
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
    changed = grant_campaigns(settings, names)
    if changed is not None and not changed.reload():
        click.echo(reloaded_text(False, changed.plan.kind, {}), err=True)
    running = examine(settings.data_dir).running
    alone, trouble = embedded is None and not running, None
    if alone:
        # Imported here because it loads the MQTT client, which other commands do without.
        from collector.service import publish_invitation  # noqa: PLC0415

        trouble = publish_invitation(known, campaign, signature)
    trust = ""  # where the broker was configured here, the device's credential contains it
    if known.ca_file is not None and not BrokerDirectory.exists(known.broker_dir):
        trust = f" --ca-file {shlex.quote(str(known.ca_file))}"
    facts = {
        "campaign": campaign.name,
        "digest": loaded.digest.hex(),
        "operator": loaded.operator.hex(),
        "join": f"allomfree-edge join {address}/{loaded.full_name}{trust}",
        "trial": is_trial(loaded),
        "period_seconds": loaded.rounds.period,
        "first_result": instant(loaded.rounds.deadline(0)),
        "running": running,
        "published": running or (alone and trouble is None),
        "trouble": trouble,
    }
    show(facts, as_json, _opened_text)


def _signature(settings: Settings, store: Store, manifest: Manifest, unsigned: bool) -> bytes:
    """The operator's signature; empty for a manifest that names none, which must be intended.

    What was signed before stays signed, even if the key has been replaced.
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


def _opened_text(facts: Facts) -> str:
    lines = [
        f"Opened {facts['campaign']}{' (a TRIAL)' if facts['trial'] else ''}",
        f"Digest {facts['digest']}",
        f"Signed by {facts['operator']}" if facts["operator"] else _UNSIGNED,
    ]
    if facts["published"]:
        lines.append("Published: devices can join it now.")
    else:
        why = f" ({facts['trouble']})" if facts["trouble"] else ""
        lines.append(f"Not published yet{why}: the collector publishes it when it runs.")
    if not facts["running"]:
        lines.append("Start collecting with: allomfree-collector run")
    lines += ["An owner joins with:", f"    {facts['join']}"]
    period = facts["period_seconds"]
    if facts["trial"] and period < _USUAL_MIN_PERIOD_SECONDS:
        lines.append(
            f"Devices refuse rounds as short as {period} s unless their configuration has:"
        )
        lines += ["    [policy]", f"    min_period = {period}"]
    lines.append(f"The first result comes soon after {facts['first_result']}.")
    return "\n".join([*lines, f"As a QR code: allomfree-collector invite {facts['campaign']}"])


# --- invite ----------------------------------------------------------------------------------

_WHOLE: Final = "The link contains the campaign's whole digest, so it cannot mean another campaign."


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
    facts = {"campaign": found.name, "digest": found.manifest.digest.hex(), "link": link}
    ink = ink_of(sys.stdout, os.environ)
    if ink.colour:
        allow_colours()  # names and addresses hold no control characters
    lines = [f"Join {found.name} with:", f"    allomfree-edge join {link}"]
    if is_for_others(link):
        code = terminal_code(link, colours=ink.colour)
        lines += ["", code, "", link, _WHOLE]
    else:
        lines += _for_others(settings)
    show(facts, as_json, lambda _: "\n".join(lines))


def _for_others(settings: Settings) -> list[str]:
    """How to let other machines in, if the broker is for this one only."""
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


# --- close -----------------------------------------------------------------------------------


@command
@CAMPAIGN
@YES
def close(settings: Settings, campaign: str | None, yes: bool) -> None:
    """End a campaign.

    Further reports are refused, its rounds are sealed and the devices are notified.

    \b
    allomfree-collector close home-heat
    """
    with closing(existing_store(settings.data_dir, settings.store)) as store:
        found = store.campaign(campaign)
        confirm(f"Close {found.name} for ever? Devices stop reporting to it.", yes)
        store.close_campaign(found, int(time.time()))
    next_step = (
        f"Closed {found.name}. The running service seals its rounds and notifies the devices; "
        "if none is running, start it once: allomfree-collector run"
    )
    click.echo(completed(next_step))
