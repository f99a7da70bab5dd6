"""`allomfree-edge`: a thin layer over `EdgeClient`.

Exit codes: 0 done, 1 something at run time, 2 settings, 3 refused by the owner's policy.
"""

from __future__ import annotations

import logging
import signal
import sys
from pathlib import Path
from typing import Any

import click

from edge_client.agent import Wait
from edge_client.client import EdgeClient, accept_loss
from edge_client.errors import SettingsError
from edge_client.heartbeat import last_heartbeat
from edge_client.records import Membership
from edge_client.settings import SETTINGS, Settings, resolve
from edge_client.sources import build, build_all, reader
from protocol_spec import (
    DEFAULT_NAMESPACE,
    Manifest,
    ManifestError,
)
from protocol_spec.programs.commands import (
    AS_JSON,
    STYLE,
    Program,
    command_of,
    fail,
    version_option,
)
from protocol_spec.programs.commands import show as show_facts
from protocol_spec.programs.systemd import notify

CAMPAIGN = click.argument("campaign", required=False)


@click.group(cls=Program, context_settings=STYLE)
@version_option("allomfree-edge")
def main() -> None:
    """Answer a campaign's question with noise, for years, and see exactly what leaves.

    \b
    allomfree-edge join mqtts://broker.example/allomfree/home-heat-1a2b3c4d
    allomfree-edge run
    """


command = command_of(SETTINGS, resolve, "edge", main)


def _client(settings: Settings, *, exclusive: bool = False) -> EdgeClient:
    return EdgeClient(
        settings.state_dir,
        policy=settings.policy,
        credentials=settings.credentials(),
        allow_plaintext=settings.allow_plaintext,
        keepalive=settings.keepalive,
        exclusive=exclusive,
    )


@command
@click.argument("address", required=False)
@click.option(
    "--manifest", type=click.Path(path_type=Path), help="Manifest file instead of ADDRESS."
)
@click.option("--broker", help="With --manifest: where to report, as mqtts://host.")
@click.option("--namespace", default=DEFAULT_NAMESPACE, help="With --manifest: the topics' root.")
@click.option("--yes", is_flag=True, help="Agree without being asked, for fleets.")
@click.option("--preview", is_flag=True, help="Only show what joining would mean.")
@click.option("--timeout", default=20.0, show_default=True, help="Seconds to wait for the broker.")
@AS_JSON
def join(
    settings: Settings,
    address: str | None,
    manifest: Path | None,
    broker: str | None,
    namespace: str,
    yes: bool,
    preview: bool,
    timeout: float,
    as_json: bool,
) -> None:
    """Read what a campaign asks, and agree to it or not.

    \b
    allomfree-edge join mqtts://broker.example/allomfree/home-heat-1a2b3c4d
    allomfree-edge join --manifest heat.toml --broker mqtt://localhost --yes
    """
    from edge_client.show import statement  # noqa: PLC0415 - `run` needs neither
    from edge_client.show import text as pages  # noqa: PLC0415 - `run` needs neither

    _check_one_way_to_join(address, manifest, broker)
    loaded = None if manifest is None else _load_manifest(manifest)
    with _client(settings) as client:
        invitation = client.invitation(
            address, manifest=loaded, broker=broker, namespace=namespace, timeout=timeout
        )
        facts = statement.invitation_facts(invitation, settings.username)
        if preview:
            show_facts(facts, as_json, pages.invitation_text)
            return
        if not (as_json and yes):  # with --json, standard output is one object
            click.echo(pages.invitation_text(facts), err=as_json)
        if not yes:
            _ask("\nDo you agree?", "Not joined; nothing was drawn, sent or spent.")
        membership = client.join(invitation)
        joined = {
            "campaign": membership.name,
            "device": membership.device,
            "attribute": membership.attribute.name,
        }
        running = last_heartbeat(settings.state_dir)
        next_step = "The running agent takes it up." if running else "Next: allomfree-edge run"
        show_facts(
            joined,
            as_json,
            lambda f: (
                f"\nJoined {f['campaign']}. This device will answer "
                f"{f['attribute']!r}, for life.\n{next_step}"
            ),
        )


def _check_one_way_to_join(address: str | None, manifest: Path | None, broker: str | None) -> None:
    if address is None and manifest is None:
        raise SettingsError(
            "which campaign? Give its address, as in allomfree-edge join "
            "mqtts://broker.example/allomfree/home-heat-1a2b3c4d, or --manifest FILE and --broker"
        )
    if (manifest is None) != (broker is None):
        raise SettingsError("--manifest and --broker go together: what is asked, and where to send")
    if address is not None and manifest is not None:
        raise SettingsError("give an ADDRESS, or --manifest and --broker, not both")


def _ask(question: str, otherwise: str) -> None:
    """Go on if the owner says yes; no answer, as from cron, is a no."""
    try:
        if click.confirm(question, default=False, err=True):
            return
    except click.Abort:
        click.echo(err=True)
    click.echo(f"{otherwise} (--yes agrees without being asked)", err=True)
    sys.exit(3)


def _load_manifest(path: Path) -> Manifest:
    try:
        return Manifest.from_file(path)
    except ManifestError as error:
        raise SettingsError(f"{path} is not a valid manifest; nothing was sent.\n{error}") from None


@command
@CAMPAIGN
@click.option(
    "--html", metavar="FILE", help="Write it as a page for a browser; `-` prints the page."
)
@AS_JSON
def show(settings: Settings, campaign: str | None, html: str | None, as_json: bool) -> None:
    """Show what left, what is queued, what never leaves, and the ledger.

    \b
    allomfree-edge show
    allomfree-edge show home-heat --json
    allomfree-edge show --html statement.html
    """
    from edge_client.show import statement  # noqa: PLC0415 - `run` does not need it

    with _client(settings) as client:
        found = [client.find(campaign)] if campaign else client.memberships()
        if html is not None:
            _write_html(client, found, html)
            return
        facts = {
            "campaigns": [statement.campaign_facts(client, m) for m in found],
            "ledger": statement.ledger_facts(client),
        }
    show_facts(facts, as_json, _show_text)


def _write_html(client: EdgeClient, found: list[Membership], file: str) -> None:
    from edge_client.show import owner_page  # noqa: PLC0415 - `run` does not need it

    text = owner_page.page(client, found)
    if file == "-":
        click.echo(text, nl=False)
    else:
        owner_page.write_page(Path(file), text)
        click.echo(f"wrote {file}; only you can read it", err=True)


def _show_text(facts: dict[str, Any]) -> str:
    from edge_client.show import text as pages  # noqa: PLC0415 - `run` does not need it

    shown = [pages.campaign_text(c) for c in facts["campaigns"]] or [pages.NONE_JOINED]
    return "\n\n\n".join([*shown, pages.ledger_text(facts["ledger"])])


@command
@AS_JSON
def status(settings: Settings, as_json: bool) -> None:
    """Say in a few lines how the agent stands.

    \b
    allomfree-edge status
    allomfree-edge status --json
    """
    from edge_client.show import statement  # noqa: PLC0415 - `run` needs neither
    from edge_client.show import text as pages  # noqa: PLC0415 - `run` needs neither

    with _client(settings) as client:
        show_facts(statement.status_facts(client), as_json, pages.status_text)


@command
def run(settings: Settings) -> None:
    """Report every round until stopped: for systemd, or in the foreground.

    \b
    allomfree-edge run
    """
    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _frame: stopping.append(received))
    with _client(settings, exclusive=True) as client:
        runner = client.runner(reader(build_all(settings.sources)))
        names = ", ".join(m.name for m in client.memberships() if m.status == "joined")
        started = f"running for {names}: a report leaves at a random moment of each round"
        idle = "running; no campaign is joined, see: allomfree-edge join"
        logging.getLogger("allomfree.edge").info(started if names else idle)
        notify("READY=1")
        runner.run(lambda: bool(stopping), lambda text: notify(f"WATCHDOG=1\nSTATUS={text[:120]}"))
        notify("STOPPING=1")


@command
@click.option(
    "--value",
    "values",
    multiple=True,
    metavar="ATTRIBUTE=VALUE",
    help="A value instead of the configured source; may be repeated.",
)
@click.option(
    "--timeout", default=30.0, show_default=True, help="Seconds to wait for broker and receipt."
)
@AS_JSON
def report(settings: Settings, values: tuple[str, ...], timeout: float, as_json: bool) -> None:
    """Report this round once and exit: for cron and battery-powered devices.

    \b
    allomfree-edge report
    allomfree-edge report --value fuel=wood
    """
    sources = build_all(settings.sources)
    for given in values:
        name, equals, value = given.partition("=")
        if not equals:
            raise SettingsError(
                "--value: write ATTRIBUTE=VALUE, as in fuel=wood; nothing was drawn or sent"
            )
        sources[name] = build(name, {"value": value})
    with _client(settings, exclusive=True) as client:
        done = client.report_from(reader(sources), timeout=timeout)
        facts = [{"campaign": d.campaign, "round": d.round, "state": d.state} for d in done]
        show_facts({"reports": facts}, as_json, _report_text)
    for one in done:
        if one.state.startswith("queued: "):
            trouble = one.state.removeprefix("queued: ")
            fail(f"{one.campaign}: stored but not sent, {trouble}. Run `report` again, or `run`", 1)
        if one.state == Wait.CLOCK_EARLY.value:
            fail(f"{one.campaign}: {one.state}; nothing was drawn or sent. Set the clock", 1)


def _report_text(facts: dict[str, Any]) -> str:
    if not facts["reports"]:
        return "No campaign joined; nothing was drawn or sent."
    return "\n".join(
        f"{r['campaign']}: "
        + (f"round {r['round']}: " if r["round"] is not None else "")
        + r["state"]
        for r in facts["reports"]
    )


@command
@CAMPAIGN
def pause(settings: Settings, campaign: str | None) -> None:
    """Draw and send nothing until resumed.

    \b
    allomfree-edge pause home-heat
    """
    with _client(settings) as client:
        click.echo(f"Paused {client.pause(campaign).name}; nothing is drawn or sent until resumed.")


@command
@CAMPAIGN
def resume(settings: Settings, campaign: str | None) -> None:
    """Go on after pause or leave.

    \b
    allomfree-edge resume home-heat
    """
    with _client(settings) as client:
        click.echo(f"Resumed {client.resume(campaign).name}.")


@command
@CAMPAIGN
def leave(settings: Settings, campaign: str | None) -> None:
    """Stop for good, keeping the memory so that rejoining reveals nothing new.

    \b
    allomfree-edge leave home-heat
    """
    with _client(settings) as client:
        name = client.leave(campaign).name
        click.echo(f"Left {name}. What was spent stays spent; joining again costs nothing more.")


@command
@CAMPAIGN
@click.option(
    "--lost", is_flag=True, help="Accept that the memory is lost, damaged or rolled back."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--timeout",
    default=10.0,
    show_default=True,
    help="Seconds to wait for the collector's answer.",
)
def forget(settings: Settings, campaign: str | None, lost: bool, yes: bool, timeout: float) -> None:
    """Withdraw what can be withdrawn, wipe the memory, and verify; the ledger keeps its line.

    \b
    allomfree-edge forget home-heat
    allomfree-edge forget --lost
    """
    warning = "Forgetting cannot be undone, and joining again is charged in full. Go on?"
    if not yes:
        _ask(warning, "Nothing was changed.")
    if lost:
        kept = accept_loss(settings.state_dir, settings.policy)
        named = {"every source" if name == "*" else name: kept[name] for name in kept}
        total = ", ".join(f"{epsilon:g} on {name}" for name, epsilon in named.items()) or "nothing"
        click.echo(
            f"Started an empty memory in {settings.state_dir}. Stays booked as spent: {total}."
        )
        return
    with _client(settings, exclusive=True) as client:
        name, answer = client.forget(campaign, timeout=timeout)
    click.echo(f"Forgot {name} here; no trace is left. The collector {answer}.")


@command
@AS_JSON
def doctor(settings: Settings, as_json: bool) -> None:
    """Check state, clock, sources, brokers and policy, and say what to do.

    \b
    allomfree-edge doctor
    """
    from edge_client.doctor import examine  # noqa: PLC0415 - only when asked for

    findings = examine(settings)
    show_facts([f.facts() for f in findings], as_json, lambda _: "\n".join(map(str, findings)))
    if any(not f.ok for f in findings):
        sys.exit(1)


if __name__ == "__main__":
    main()
