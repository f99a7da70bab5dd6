"""Health and metrics over HTTP: nothing here can change anything, and ingest never waits for it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from collector.errors import CollectorError
from collector.metrics import exposition, registry
from collector.service import Standing


def application(directory: Path, standing: Callable[[], Standing]) -> Starlette:
    """The HTTP application."""
    metrics = registry(directory, standing)

    def show_metrics(_request: Request) -> Response:
        return Response(exposition(metrics), media_type="text/plain; version=0.0.4; charset=utf-8")

    def show_health(_request: Request) -> Response:
        now = standing()
        facts = {"healthy": not now.trouble, "connected": now.connected, "trouble": now.trouble}
        return JSONResponse(facts, 503 if now.trouble else 200)

    return Starlette(routes=[Route("/metrics", show_metrics), Route("/health", show_health)])


@contextmanager
def serving(
    address: tuple[str, int], directory: Path, standing: Callable[[], Standing]
) -> Iterator[int]:
    """Serve while the context lasts; yields the port, which is chosen when 0 was asked for."""
    sock = _listening(address)
    config = uvicorn.Config(
        application(directory, standing), log_config=None, lifespan="off", access_log=False
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([sock],), name="http", daemon=True)
    thread.start()
    try:
        yield int(sock.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(5)
        sock.close()


def _listening(address: tuple[str, int]) -> socket.socket:
    """A request that comes before the server's thread is ready waits in the socket's queue."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    try:
        return socket.create_server(address, family=family)
    except OSError as error:
        reason = str(error.strerror).partition(" (")[0]
        raise CollectorError(
            f"{address[0]}:{address[1]} cannot be listened on: {reason}; choose another with "
            "--listen"
        ) from None
