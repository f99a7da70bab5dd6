"""Real brokers: NATS from the wheel always, mosquitto where it is installed."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Self

from collector.brokers.authority import Authority
from collector.brokers.config import Pair
from stage.processes import StageError
from stage.programs import find_program, free_port, is_open

# mosquitto started by root would become another user, who may not read our files.
AS_OURSELVES = "user root\n" if os.geteuid() == 0 else ""


def _installed(name: str) -> str:
    program = find_program(name)
    if program is None:
        raise StageError(f"{name} is not installed")
    return program


@dataclass
class Broker(ABC):
    """A broker process on a port of its own, with its data in a directory of its own."""

    directory: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None
    tls: ClassVar[bool] = False
    start_seconds: ClassVar[float] = 30.0
    environment: ClassVar[Mapping[str, str]] = {}  # beside what we have ourselves

    @property
    def url(self) -> str:
        return f"mqtt{'s' if self.tls else ''}://127.0.0.1:{self.port}"

    @property
    def ports(self) -> list[int]:
        """All it listens at."""
        return [self.port]

    @property
    def ca_file(self) -> Path | None:
        """Whom clients must trust; None without TLS."""
        return self.directory / "ca.crt" if self.tls else None

    @property
    def server_files(self) -> Pair:
        """The broker's certificate and key, if it has TLS."""
        return Pair(self.directory / "server.crt", self.directory / "server.key")

    @abstractmethod
    def command(self) -> list[str]:
        """What starts it, in the foreground."""

    def start(self) -> Self:
        """Start, and return once it accepts connections."""
        self.directory.mkdir(parents=True, exist_ok=True)
        if self.tls and not self.server_files.certificate.exists():
            Authority(self.directory).issue_server(self.server_files, ["127.0.0.1", "localhost"])
        with (self.directory / "log").open("ab") as log:
            env = {**self.environment, **os.environ}
            self.process = subprocess.Popen(self.command(), stdout=log, stderr=log, env=env)
        limit = time.monotonic() + self.start_seconds
        while self.process.poll() is None and time.monotonic() < limit:
            if all(is_open(port) for port in self.ports):
                return self
            time.sleep(0.02)
        self.kill()
        raise StageError(f"the broker did not start: {(self.directory / 'log').read_text()}")

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """A polite end."""
        self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(timeout=20)
            self.process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()


class Nats(Broker):
    """nats-server with its MQTT listener, JetStream synced once a second as the product has it."""

    server_name = "stage"
    extra = ""
    listener = ""
    clients = ""  # what is said of the port of NATS's own

    @cached_property
    def stream_port(self) -> int:
        """At which workers pull reports."""
        return free_port()

    @property
    def ports(self) -> list[int]:
        """NATS opens its own after that for MQTT."""
        return [self.port, self.stream_port]

    def command(self) -> list[str]:
        program = _installed("nats-server")
        config = self.directory / "nats.conf"
        pair = self.server_files
        tls = f'tls {{ cert_file: "{pair.certificate}", key_file: "{pair.key}" }}'
        config.write_text(
            f"""
            server_name: {self.server_name}
            listen: 127.0.0.1:{self.stream_port}
            {self.clients}
            jetstream {{ store_dir: "{self.directory}/js", sync_interval: "1s" }}
            mqtt {{ listen: 127.0.0.1:{self.port}, max_ack_pending: 20000, {self.listener}
              {tls if self.tls else ""} }}
            {self.extra}
            """
        )
        return [program, "-c", str(config)]


class Mosquitto(Broker):
    """mosquitto without access control."""

    extra = "allow_anonymous true\n"

    def command(self) -> list[str]:
        program = _installed("mosquitto")
        config = self.directory / "mosquitto.conf"
        pair = self.server_files
        tls = f"certfile {pair.certificate}\nkeyfile {pair.key}\n{AS_OURSELVES}"
        listener = f"listener {self.port} 127.0.0.1\n{tls if self.tls else ''}"
        config.write_text(f"{listener}{self.extra}")
        return [program, "-c", str(config)]


def with_tls(kind: type[Broker]) -> type[Broker]:
    """The same broker, that speaks TLS and nothing else."""
    return type(f"{kind.__name__}WithTls", (kind,), {"tls": True})


BROKERS: dict[str, type[Broker]] = {"nats": Nats, "mosquitto": Mosquitto}
