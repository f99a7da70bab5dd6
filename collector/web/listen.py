"""The page's socket and address, for the service too, which does not load the web server."""

from __future__ import annotations

import socket

from collector.errors import CollectorError
from collector.settings import Address


def listening(address: Address) -> socket.socket:
    """A request that comes before the server is ready waits in the socket's queue."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server(address, family=family)
    except OSError as error:
        reason = str(error.strerror).partition(" (")[0]
        raise CollectorError(
            f"{address} cannot be listened on: {reason}; choose another with --listen"
        ) from None


def inherited(descriptor: int) -> socket.socket:
    """A socket that the parent process listens on."""
    try:
        return socket.socket(fileno=descriptor)
    except OSError as error:
        raise CollectorError(f"--socket {descriptor} is not a socket: {error.strerror}") from None


def bound(address: Address, sock: socket.socket) -> Address:
    """The same address with the port that was chosen, if 0 was asked for."""
    return Address(address.host, int(sock.getsockname()[1]))


def link(address: Address, token: str | None) -> str:
    """What to open in a browser, with the token if it needs one."""
    anywhere = address.host in ("0.0.0.0", "::")  # noqa: S104 - compared, not bound
    host = socket.gethostname() if anywhere else address.host
    return f"http://{Address(host, address.port)}/" + (f"?token={token}" if token else "")
