"""The page as a child process of the service, its socket and its token.

The service keeps the listening socket, so that the address stays while a new child starts, and
never waits for the child: the page has a lower priority than counting, and its failures cost no
report. Nothing here loads the web server.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from collector.errors import CollectorError
from collector.processes import ChildProcess, Timing
from collector.settings import PAGE, Address, Settings
from protocol_spec.programs.cli import completed
from protocol_spec.programs.settings import SettingsError
from protocol_spec.programs.system import create_durably


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


# --- the child ----------------------------------------------------------------------------------


PORTS: Final = 20  # that are tried for the page
TIMING: Final = Timing(stop_seconds=5.0)

log = logging.getLogger("allomfree.page")


class PageProcess:
    """`allomfree-collector page` on a socket that the service holds."""

    trouble: Final = ""  # whatever happens to the page, counting continues

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
    store = settings.store
    options = {
        "--config": os.devnull,
        "--data-dir": settings.data_dir.absolute(),
        "--broker-dir": settings.broker_dir.absolute(),
        "--socket": descriptor,
        "--listen": address,
        "--log-level": settings.log_level,
        "--page-token-file": settings.page_token_file and settings.page_token_file.absolute(),
        "--store": store and store.url,
        "--store-password-file": store and store.password_file and store.password_file.absolute(),
    }
    given = [(name, str(value)) for name, value in options.items() if value is not None]
    words = [sys.executable, "-P", "-m", "collector", "page"]
    return [*words, *(word for option in given for word in option)]


def page_process(settings: Settings) -> tuple[PageProcess | None, str]:
    """The page, unless it is off; and what the operator should know about its address.

    If nobody chose the port and it is taken, the page gets the next free one.
    """
    if settings.listen is None:
        return None, ""
    if settings.listen is not PAGE:
        return PageProcess(settings, settings.listen), ""
    ports = range(PAGE.port, PAGE.port + PORTS)
    page, note = None, f"there is none: ports {ports[0]} to {ports[-1]} cannot be used"
    for port in ports:
        with suppress(CollectorError):
            page = PageProcess(settings, PAGE._replace(port=port))
            note = f"port {PAGE.port} cannot be used; the page is at {link(page.address, None)}"
            break
    if page is not None and page.address == PAGE:
        return page, ""
    log.warning("page: %s", note)
    return page, note


# --- the token, needed wherever other machines can connect --------------------------------------


VARIABLE: Final = "ALLOMFREE_PAGE_TOKEN"
FILE: Final = "page.token"
SHORTEST: Final = 16


def required_token(settings: Settings, address: Address) -> str | None:
    """The token, or None where only this machine can connect."""
    if address.is_loopback:
        return None
    return page_token(settings.data_dir, settings.page_token_file)


def page_token(
    directory: Path,
    file: Path | None,
    environ: Mapping[str, str] = os.environ,
    make: Callable[[], str] = lambda: secrets.token_urlsafe(24),
) -> str:
    """The token from its file or the environment, else one made once and kept with the data."""
    if file is None and environ.get(VARIABLE):
        token, where = environ[VARIABLE], VARIABLE
    else:
        kept = file or directory / FILE
        if file is None and not kept.exists():
            try:
                create_durably(kept, make())  # of several processes that do, the first one's stays
            except OSError as error:
                raise SettingsError(
                    f"{kept} cannot be created: {error.strerror}. Nothing was served; name a token "
                    "file with --page-token-file"
                ) from None
        try:
            token, where = kept.read_text(encoding="utf-8").strip(), str(kept)
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise SettingsError(
                f"the page's token {kept} cannot be read: {reason}. Nothing was served; correct "
                "the file, or name another with --page-token-file"
            ) from None
    if len(token) < SHORTEST or not (token.isascii() and token.isprintable()) or " " in token:
        raise SettingsError(
            f"{where} holds no usable token: it must be {SHORTEST} or more printable ASCII "
            "characters without spaces. Nothing was served"
        )
    return token
