"""`show`, `status` and `doctor`: what left, how the agent is doing, and what is wrong with it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import click

from edge_client.commands.common import open_device
from edge_client.commands.options import CAMPAIGN, command
from edge_client.device import Device
from edge_client.language import ENGLISH, speaking
from edge_client.records import Membership
from edge_client.settings import Settings
from protocol_spec.programs.commands import AS_JSON
from protocol_spec.programs.commands import show as print_facts


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
    from edge_client.show import statement, text  # noqa: PLC0415 - `run` does not need it

    speech = ENGLISH if as_json else settings.speech
    with open_device(settings) as device, speaking(speech):
        found = [device.find(campaign)] if campaign else device.memberships()
        if html is not None:
            _write_html(device, found, html)
            return
        print_facts(statement.show_facts(device, found), as_json, text.show_text)


def _write_html(device: Device, found: list[Membership], file: str) -> None:
    from edge_client.show import owner_page  # noqa: PLC0415 - `run` does not need it

    text = owner_page.page(device, found)
    if file == "-":
        click.echo(text, nl=False)
    else:
        owner_page.write_page(Path(file), text)
        click.echo(f"wrote {file}; only you can read it", err=True)


@command
@AS_JSON
def status(settings: Settings, as_json: bool) -> None:
    """Show the agent's status.

    \b
    allomfree-edge status
    allomfree-edge status --json
    """
    from edge_client.show import statement, text  # noqa: PLC0415 - `run` does not need it

    with open_device(settings) as device:
        print_facts(statement.status_facts(device), as_json, text.status_text)


@command
@AS_JSON
def doctor(settings: Settings, as_json: bool) -> None:
    """Check state, clock, sources, brokers and policy, and name the next step.

    \b
    allomfree-edge doctor
    """
    from edge_client.doctor import examine  # noqa: PLC0415 - only when asked for
    from protocol_spec.programs.pasting import completed  # noqa: PLC0415

    findings = [replace(f, text=completed(f.text)) for f in examine(settings)]
    print_facts([f.facts() for f in findings], as_json, lambda _: "\n".join(map(str, findings)))
    if any(not f.ok for f in findings):
        sys.exit(1)
