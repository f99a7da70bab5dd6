"""The page's server: one socket, one loop, nothing that can change anything."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path
from typing import Final

import uvicorn

from collector.settings import Address
from collector.web.routes import Pages

CONNECTIONS: Final = 256
LONGEST_HEAD: Final = 16_384
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
    config = uvicorn.Config(
        pages.application(address, token),
        log_config=None,
        log_level="critical",  # not a line for every malformed request
        lifespan="off",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        http="h11",
        ws="none",
        limit_concurrency=CONNECTIONS,
        h11_max_incomplete_event_size=LONGEST_HEAD,
        timeout_graceful_shutdown=2,
    )
    return _Server(config, pages)


def serve(directory: Path, address: Address, token: str | None, sock: socket.socket) -> None:
    """Serve until told to stop, giving way to everything else on the machine."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))  # while it runs, the server takes both
    os.nice(NICE)
    make_server(Pages(directory), address, token).run([sock])
