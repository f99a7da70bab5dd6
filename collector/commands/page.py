"""The analyst's page by itself, without collecting."""

from __future__ import annotations

import logging
from functools import partial

import click

from collector.commands.options import command
from collector.data_dir import read_store
from collector.settings import PAGE, Settings
from collector.web import listen, token

log = logging.getLogger("allomfree.page")


@command
@click.option("--link", is_flag=True, help="Print the page's address, with its token, and exit.")
@click.option(
    "--socket",
    "descriptor",
    type=int,
    metavar="NUMBER",
    help="File descriptor of a listening socket; `run` uses it.",
)
def page(settings: Settings, link: bool, descriptor: int | None) -> None:
    """Serve the analyst's page without collecting.

    `run` serves it too, as its child process.

    \b
    allomfree-collector page
    allomfree-collector page --link
    """
    address = settings.listen or PAGE
    secret = token.needed(settings, address)
    if link:
        click.echo(listen.link(address, secret))
        return
    from collector.web.server import serve  # noqa: PLC0415 - the web server, only when asked for

    if descriptor is None:
        sock = listen.listening(address)
        log.info("page on %s", listen.link(listen.bound(address, sock), None))
    else:
        sock = listen.inherited(descriptor)
    opening = partial(read_store, address=settings.store)
    serve(settings, address, secret, sock, opening)
