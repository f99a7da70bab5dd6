"""`pause`, `resume`, `leave` and `forget`: what an owner decides about a joined campaign."""

from __future__ import annotations

import click

from edge_client.commands.common import agree_or_exit, open_client, open_device
from edge_client.commands.options import CAMPAIGN, command
from edge_client.settings import Settings


@command
@CAMPAIGN
def pause(settings: Settings, campaign: str | None) -> None:
    """Draw and send nothing until resumed.

    \b
    allomfree-edge pause home-heat
    """
    with open_client(settings) as client:
        click.echo(f"Paused {client.pause(campaign).name}; nothing is drawn or sent until resumed.")


@command
@CAMPAIGN
def resume(settings: Settings, campaign: str | None) -> None:
    """Go on after pause or leave.

    \b
    allomfree-edge resume home-heat
    """
    with open_client(settings) as client:
        click.echo(f"Resumed {client.resume(campaign).name}.")


@command
@CAMPAIGN
def leave(settings: Settings, campaign: str | None) -> None:
    """Stop for good, keeping the memory so that rejoining reveals nothing new.

    \b
    allomfree-edge leave home-heat
    """
    with open_client(settings) as client:
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
    final = "The collector will not count this device in the campaign again.\n"
    if not lost:
        with open_device(settings) as device:
            device.find(campaign)  # who has nothing to forget is not asked
    if not yes:
        agree_or_exit(warning if lost else final + warning, "Nothing was changed.")
    if lost:
        _accept_loss(settings)
        return
    with open_client(settings, exclusive=True) as client:
        name, answer = client.forget(campaign, timeout=timeout)
    click.echo(f"Forgot {name} here; no trace is left. The collector {answer}.")


def _accept_loss(settings: Settings) -> None:
    from edge_client.client import accept_loss  # noqa: PLC0415 - rarely needed

    kept = accept_loss(settings.state_dir, settings.policy)
    named = {"every source" if name == "*" else name: kept[name] for name in kept}
    total = ", ".join(f"{epsilon:g} on {name}" for name, epsilon in named.items()) or "nothing"
    click.echo(f"Started an empty memory in {settings.state_dir}. Stays booked as spent: {total}.")
