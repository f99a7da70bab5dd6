"""The page as a child of the service: ends with it, is started again if it dies, and gives way.

The service keeps the listening socket, so that the address stays while a new child starts, and
never waits for the child: at worst the page is away for a while.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from contextlib import suppress
from typing import Final, Self

from collector.child_process import end_with_parent
from collector.errors import CollectorError
from collector.settings import PAGE, Address, Settings
from collector.web.listen import bound, link, listening

FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 60.0

log = logging.getLogger("allomfree.page")


class PageProcess:
    """`allomfree-collector page` on a socket of ours."""

    def __init__(self, settings: Settings, address: Address) -> None:
        self._settings = settings
        self._socket = listening(address)
        self.address = bound(address, self._socket)
        self._process: subprocess.Popen[bytes] | None = None
        self._pause = FIRST_PAUSE
        self._started = 0.0

    def __enter__(self) -> Self:
        self._start()
        needs = "" if self.address.is_loopback else " (token: allomfree-collector page --link)"
        log.info("page, health and metrics on %s%s", link(self.address, None), needs)
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        if self._process is not None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
            self._process.kill()
            self._process.wait()

    @property
    def pid(self) -> int | None:
        """The child that serves now."""
        return None if self._process is None else self._process.pid

    def supervise(self) -> None:
        """Start it again if it has died or never began, later each time if that goes on."""
        if self._process is not None and self._process.poll() is None:
            return
        lived = time.monotonic() - self._started
        if lived < self._pause:
            return
        self._pause = FIRST_PAUSE if lived > LONGEST_PAUSE else min(self._pause * 2, LONGEST_PAUSE)
        if self._process is not None:
            log.warning("the page ended (code %s); restarting", self._process.returncode)
        self._start()

    def _start(self) -> None:
        self._started, self._process = time.monotonic(), None
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                self._command(),
                pass_fds=[self._socket.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                preexec_fn=end_with_parent,  # noqa: PLW1509 - the service has one thread
            )
        except OSError as error:  # no memory, no processes: counting matters more
            log.warning("the page cannot be started: %s", error.strerror)

    def _command(self) -> list[str]:
        """The verb, with every setting it needs resolved: no file is read again."""
        settings, token = self._settings, self._settings.page_token_file
        return [
            *(sys.executable, "-P", "-m", "collector", "page"),
            *("--config", os.devnull, "--data-dir", str(settings.data_dir.absolute())),
            *("--socket", str(self._socket.fileno()), "--listen", str(self.address)),
            *("--log-level", settings.log_level),
            *(() if token is None else ("--page-token-file", str(token.absolute()))),
        ]


def page_process(settings: Settings) -> PageProcess | None:
    """The page that was asked for; none if it is off, or on a port nobody named and it is taken."""
    if settings.listen is None:
        return None
    try:
        return PageProcess(settings, settings.listen)
    except CollectorError as error:
        if settings.listen is not PAGE:
            raise
        log.warning("%s; collecting without a page", error)
        return None
