"""`page`: the owner's statement in a browser, on this machine only."""

from __future__ import annotations

import signal

import click

from edge_client.commands.common import open_device
from edge_client.commands.options import CAMPAIGN, command
from edge_client.language import say, speaking
from edge_client.settings import Settings


@command
@CAMPAIGN
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8733,
    show_default=True,
    help="Port on this machine; 0 takes any that is free.",
)
def page(settings: Settings, campaign: str | None, port: int) -> None:
    """Show the statement as a page in a browser on this machine, until stopped.

    \b
    allomfree-edge page
    allomfree-edge page home-heat --port 0
    """
    from edge_client.show.owner_page import page as statement  # noqa: PLC0415 - only for this
    from edge_client.show.serving import PageServer  # noqa: PLC0415

    context = click.get_current_context()

    def render() -> str:
        with (
            context.scope(cleanup=False),
            open_device(settings) as device,
            speaking(settings.speech),
        ):
            found = [device.find(campaign)] if campaign else device.memberships()
            return statement(device, found, served=True)

    render()  # what is wrong is told here, before anybody looks
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with PageServer(render, port) as server:
        with speaking(settings.speech):
            click.echo(say("Open {url} on this machine; Ctrl+C ends it.", url=server.url))
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            click.echo(err=True)
