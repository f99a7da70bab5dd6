"""Real brokers: NATS from the wheel always, mosquitto where it is installed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from stage.processes import StageError
from stage.programs import find_program, free_port

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

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    @abstractmethod
    def command(self) -> list[str]:
        """What starts it, in the foreground."""

    def start(self) -> Self:
        """Start, and return once it accepts connections."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(self.command(), stdout=log, stderr=log)
        for _ in range(500):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return self
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
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
    """nats-server with its MQTT listener, JetStream synced at every write."""

    extra = ""
    listener = ""

    def command(self) -> list[str]:
        program = _installed("nats-server")
        config = self.directory / "nats.conf"
        config.write_text(
            f"""
            server_name: stage
            listen: 127.0.0.1:-1
            jetstream {{ store_dir: "{self.directory}/js", sync_interval: always }}
            mqtt {{ listen: 127.0.0.1:{self.port}, max_ack_pending: 20000, {self.listener} }}
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
        config.write_text(f"listener {self.port} 127.0.0.1\n{self.extra}")
        return [program, "-c", str(config)]


BROKERS: dict[str, type[Broker]] = {"nats": Nats, "mosquitto": Mosquitto}
