"""Messages to the service manager, if there is one."""

from __future__ import annotations

import os
import socket
from contextlib import suppress


def notify(message: str) -> None:
    """Send systemd our state, if it started us (`Type=notify`); otherwise do nothing.

    Each line is a field of its own, so foreign text in one must not hold a line end.
    """
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.connect("\0" + address[1:] if address.startswith("@") else address)
        channel.sendall(message.encode())
