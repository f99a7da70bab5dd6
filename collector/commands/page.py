"""The verb `page`: the analyst's page by itself, on data that is there."""

from __future__ import annotations

import logging

import click

from collector.commands.group import command
from collector.settings import PAGE, Settings

log = logging.getLogger("allomfree.page")


@command
@click.option("--link", is_flag=True, help="Print the page's address, with its token, and end.")
@click.option("--socket", "descriptor", type=int, help="Listening socket to take over, for `run`.")
def page(settings: Settings, link: bool, descriptor: int | None) -> None:
    """Serve the analyst's page on data that is there; `run` does so by itself.

    \b
    allomfree-collector page
    allomfree-collector page --link
    """
    from collector.web import listen, token  # noqa: PLC0415 - only when asked for

    address = settings.listen or PAGE
    secret = token.needed(settings, address)
    if link:
        click.echo(listen.link(address, secret))
        return
    from collector.web.server import serve  # noqa: PLC0415 - only when asked for

    if descriptor is None:
        sock = listen.listening(address)
        log.info("page on %s", listen.link(listen.bound(address, sock), None))
    else:
        sock = listen.inherited(descriptor)
    serve(settings.data_dir, address, secret, sock)
