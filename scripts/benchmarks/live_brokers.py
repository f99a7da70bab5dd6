"""The embedded broker with the configuration that the collector writes for it, of any version."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final

from collector.brokers.config import GO_RUNTIME, on_this_machine
from testbed.brokers import Broker, Nats

HOST: Final = "127.0.0.1"
WRITES: Final = """
import sys
from pathlib import Path
from collector.brokers.config import on_this_machine
sys.stdout.write(on_this_machine(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
"""


class Embedded(Nats):
    """As this version has it."""

    environment: ClassVar[Mapping[str, str]] = GO_RUNTIME

    @property
    def ports(self) -> list[int]:
        """That for MQTT; no workers pull from it."""
        return [self.port]

    def command(self) -> list[str]:
        made = super().command()
        (self.directory / "nats.conf").write_text(self.configuration())
        return made

    def configuration(self) -> str:
        """What the collector writes when it is told nothing about brokers."""
        return on_this_machine(self.directory, HOST, self.port)


class _Another(Embedded):
    """As the version in a checkout has it."""

    checkout: ClassVar[Path]
    environment: ClassVar[Mapping[str, str]] = {}  # earlier versions gave it nothing

    def configuration(self) -> str:
        words = (str(self.directory), HOST, str(self.port))
        command = [sys.executable, "-c", WRITES, *words]
        return subprocess.run(
            command, cwd=self.checkout, stdout=subprocess.PIPE, text=True, check=True
        ).stdout


def embedded_by(checkout: Path) -> type[Broker]:
    """The embedded broker of another version."""
    return type("EmbeddedBefore", (_Another,), {"checkout": checkout})
