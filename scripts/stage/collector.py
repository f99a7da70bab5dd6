"""A real collector, with its embedded broker or with one at an address."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from collector.data_dir import read_store
from collector.health import examine
from collector.records import Campaign
from collector.store import Store
from stage.processes import DEFAULT_TIMING, Process, Timing
from stage.programs import command_of, environment

NO_PAGE: Final = ("--listen", "off")


class CollectorProcess(Process):
    """`allomfree-collector run` on a data directory. Further flags go to the command."""

    def __init__(
        self,
        data: Path,
        *flags: str,
        broker: str | None = None,
        log: Path | None = None,
        timing: Timing = DEFAULT_TIMING,
    ) -> None:
        self.data = data
        self.broker = broker
        where = ("--broker", broker) if broker else ()
        command = collector_command(data, "run", "--quiet", *where, *(flags or NO_PAGE))
        super().__init__("the collector", command, log or data / "collector.log", timing=timing)

    @property
    def broker_url(self) -> str:
        """The broker's address, also that of the embedded one."""
        if self.broker:
            return self.broker
        port = (self.data / "broker" / "port").read_text(encoding="ascii")
        return f"mqtt://127.0.0.1:{port}"

    def wait_until_connected(self) -> None:
        """Until it reports that it is connected to its broker and counting."""
        self.wait_for("the collector to connect", self._is_healthy)

    def kill_and_restart(self) -> None:
        """kill -9, and again until it is connected. The embedded broker dies with it."""
        self.kill()
        self.start()
        self.wait_until_connected()

    def run(self, command: str, *words: str | Path) -> str:
        """Run another command on the same data; returns what it printed."""
        done = subprocess.run(
            collector_command(self.data, command, *words),
            env=environment(), capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout

    @contextmanager
    def store(self) -> Iterator[Store]:
        """Its database, for reading while it runs."""
        opened = read_store(self.data)
        try:
            yield opened
        finally:
            opened.close()

    def received(self) -> int:
        """Messages it has dealt with."""
        with self.store() as store:
            return store.received()

    def wait_until_received(self, messages: int) -> None:
        """Until it has dealt with so many messages."""
        self.wait_for(f"{messages:,} messages", lambda: self.received() >= messages)

    def wait_until_sealed(self, campaign: Campaign, number: int) -> None:
        """Until it has sealed a round, which is not before the round's deadline."""
        rest = max(0.0, campaign.manifest.rounds.deadline(number) - time.time())
        with self.store() as store:
            self.wait_for(
                f"round {number} to be sealed",
                lambda: is_sealed(store, campaign, number),
                rest + self.timing.ready_seconds,
            )

    def _is_healthy(self) -> bool:
        health = examine(self.data)
        return health.well and health.beat is not None and health.beat.pid == self.pid


def collector_command(data: Path, command: str, *words: str | Path) -> list[str]:
    """A command of the collector on a data directory."""
    return command_of("allomfree-collector", command, "--data-dir", data, *words)


def is_sealed(store: Store, campaign: Campaign, number: int) -> bool:
    """Whether a round and all before it are sealed."""
    last = store.last_sealed(campaign.id)
    return last is not None and last >= number
