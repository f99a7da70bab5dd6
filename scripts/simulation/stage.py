"""A real broker and a real collector for a simulated fleet, as processes that end with it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Self

from collector.data_dir import open_store, read_store
from collector.records import Campaign
from collector.store import Store
from protocol_spec import AllomfreeError, Manifest, Schedule
from simulation.children import command_of, end_process, environment
from simulation.collected import Simulated, from_store
from simulation.collecting import empty_campaign, keep_truth
from simulation.sufficient import Counts

PATIENCE = 120.0


class StageFailure(AllomfreeError, RuntimeError):
    """A process of the simulation did not do its part."""


def retimed(manifest: Manifest, *, rounds: int, period: int, lead: int) -> Manifest:
    """The same campaign with short rounds that begin soon. It is another campaign by name."""
    now = int(time.time())
    schedule = Schedule(now + lead, period, rounds, grace=period)
    made = replace(manifest, created=now, expires=schedule.end, rounds=schedule)
    return Manifest.from_bytes(made.to_bytes())


class Stage:
    """The collector on a data directory, with the embedded broker or one at an address."""

    def __init__(self, directory: Path, manifest: Manifest, broker: str | None = None) -> None:
        self.directory = directory
        self.manifest = manifest
        self._broker = broker
        self._processes = ExitStack()
        self._logs = ExitStack()
        self.campaign: Campaign

    def __enter__(self) -> Self:
        with closing(open_store(self.directory)) as store:
            self.campaign = empty_campaign(store, self.manifest, self.directory)
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        command = self._collector("run", "--quiet", "--listen", "off")
        command += ["--broker", self._broker] if self._broker else []
        collector = self.spawn(command, "collector")
        self.wait("the collector to connect", lambda: self._well(collector))

    def __exit__(self, *_: object) -> None:
        self._processes.close()
        self._logs.close()

    @property
    def url(self) -> str:
        """The broker's address."""
        if self._broker:
            return self._broker
        port = (self.directory / "broker" / "port").read_text(encoding="ascii")
        return f"mqtt://127.0.0.1:{port}"

    def spawn(self, command: list[str], name: str) -> subprocess.Popen[bytes]:
        """A process with a pipe to read and a log beside the data; it ends with the stage."""
        log = self._logs.enter_context((self.directory / f"{name}.log").open("ab"))
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environment())
        self._processes.callback(end_process, process)
        return process

    def wait(self, what: str, ready: Callable[[], bool], patience: float = PATIENCE) -> None:
        """Until it is so; or say what was waited for."""
        limit = time.monotonic() + patience
        while not ready():
            if time.monotonic() > limit:
                raise StageFailure(f"waited in vain for {what}; logs are in {self.directory}")
            time.sleep(0.1)

    def wait_until_sealed(self, number: int) -> None:
        """Until the collector has sealed a round."""
        rest = max(0.0, self.manifest.rounds.deadline(number) - time.time())
        with closing(read_store(self.directory)) as store:
            sealed = partial(_is_sealed, store, self.campaign.id, number)
            self.wait(f"round {number} to be sealed", sealed, rest + PATIENCE)

    def received(self) -> int:
        """Messages the collector has dealt with."""
        with closing(read_store(self.directory)) as store:
            return store.received()

    def simulated(self, truth: list[Counts]) -> Simulated:
        """What the collector has in the end; the truth is kept beside it for its page."""
        with closing(read_store(self.directory)) as store:
            made = from_store(store, self.campaign, self.manifest.rounds.count, truth)
        keep_truth(self.directory, made)
        return made

    def _well(self, collector: subprocess.Popen[bytes]) -> bool:
        if collector.poll() is not None:
            raise StageFailure(f"the collector ended; see {self.directory / 'collector.log'}")
        done = subprocess.run(
            self._collector("health"), capture_output=True, check=False, env=environment()
        )
        return done.returncode == 0

    def _collector(self, command: str, *words: str) -> list[str]:
        return command_of("allomfree-collector", command, "--data-dir", self.directory, *words)


def _is_sealed(store: Store, campaign: int, number: int) -> bool:
    last = store.last_sealed(campaign)
    return last is not None and last >= number
