"""The page as a child of the service: it gives way to counting, and its failures cost no report.

The service keeps the listening socket, so that the address stays while a new child starts, and
never waits for the child: at worst the page is away for a while.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Final, Self

from collector.errors import CollectorError
from collector.processes import ChildProcess, Timing
from collector.settings import PAGE, Address, Settings
from collector.web.listen import bound, link, listening
from protocol_spec.programs.pasting import completed

TIMING: Final = Timing(stop_seconds=5.0)

log = logging.getLogger("allomfree.page")


class PageProcess:
    """`allomfree-collector page` on a socket of ours."""

    trouble: Final = ""  # whatever happens to the page, counting goes on

    def __init__(self, settings: Settings, address: Address, timing: Timing = TIMING) -> None:
        self._socket = listening(address)
        self.address = bound(address, self._socket)
        descriptor = self._socket.fileno()
        command = page_command(settings, self.address, descriptor)
        self._child = ChildProcess("the page", command, pass_fds=[descriptor], timing=timing)

    def __enter__(self) -> Self:
        self._child.start()
        link_to = completed("allomfree-collector page --link")
        needs = "" if self.address.is_loopback else f" (token: {link_to})"
        log.info("page, health and metrics on %s%s", link(self.address, None), needs)
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._child.stop()

    def supervise(self) -> None:
        """Restart it if it has ended."""
        self._child.supervise()


def page_command(settings: Settings, address: Address, descriptor: int) -> list[str]:
    """The command, with every setting it needs resolved: no file is read again."""
    token = settings.page_token_file
    return [
        *(sys.executable, "-P", "-m", "collector", "page"),
        *("--config", os.devnull, "--data-dir", str(settings.data_dir.absolute())),
        *("--broker-dir", str(settings.broker_dir.absolute())),
        *("--socket", str(descriptor), "--listen", str(address)),
        *("--log-level", settings.log_level),
        *(() if token is None else ("--page-token-file", str(token.absolute()))),
        *_store(settings),
    ]


def _store(settings: Settings) -> tuple[str, ...]:
    store = settings.store
    if store is None:
        return ()
    file = store.password_file
    secret = () if file is None else ("--store-password-file", str(file.absolute()))
    return "--store", store.url, *secret


def page_process(settings: Settings) -> PageProcess | None:
    """The page; none if it is off, or if nobody chose the port and it is taken."""
    if settings.listen is None:
        return None
    try:
        return PageProcess(settings, settings.listen)
    except CollectorError as error:
        if settings.listen is not PAGE:
            raise
        log.warning("%s; collecting without a page", error)
        return None
