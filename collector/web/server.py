"""The page's server: one socket, one loop, nothing that can change anything."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import uvicorn

from collector.settings import Address, Settings
from collector.store import Store
from collector.web.connections import Connection, Places
from collector.web.routes import Pages

LONGEST_HEAD: Final = 16_384
BACKLOG: Final = 256  # also how many are accepted in one turn, so that descriptors last
NICE: Final = 10


class _Server(uvicorn.Server):
    """Ends at once: open event streams are told to end, not waited for."""

    def __init__(self, config: uvicorn.Config, pages: Pages) -> None:
        super().__init__(config)
        self._pages = pages

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._pages.hub.stop()
        await super().shutdown(sockets)


def make_server(pages: Pages, address: Address, token: str | None) -> uvicorn.Server:
    """A server for a socket that listens; a token is needed unless it is None."""
    protocol: Any = partial(Connection, places=Places(pages.limits))
    config = uvicorn.Config(
        pages.application(address, token),
        log_config=None,
        log_level="critical",  # not a line for every malformed request
        lifespan="off",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        http=protocol,
        ws="none",
        backlog=BACKLOG,
        h11_max_incomplete_event_size=LONGEST_HEAD,
        timeout_graceful_shutdown=2,
    )
    return _Server(config, pages)


def serve(
    settings: Settings,
    address: Address,
    token: str | None,
    sock: socket.socket,
    open_store: Callable[[Path], Store],
) -> None:
    """Serve until told to stop, giving way to everything else on the machine."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))  # while it runs, the server takes both
    os.nice(NICE)
    pages = Pages(settings.data_dir, open_store=open_store, broker_dir=settings.broker_dir)
    make_server(pages, address, token).run([sock])
