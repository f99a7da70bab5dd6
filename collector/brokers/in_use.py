"""Notices that the broker was configured anew while the collector runs.

`broker-config` and `enrol` are other processes: they write files, and ask the broker to read them
again. Where it listens no broker changes while it runs, and NATS says so only in its log. So the
service compares, now and then, what is on disk with what it chose its broker by.
"""

from __future__ import annotations

import logging
import os
import time
from typing import Final

from collector.brokers.choose import choose_broker
from collector.brokers.embedded import EmbeddedBroker
from collector.configuration import fingerprint
from collector.settings import Settings
from protocol_spec import AllomfreeError
from protocol_spec.programs.locks import try_lock

EVERY_SECONDS: Final = 1.0

log = logging.getLogger("allomfree.broker")


class ConfigurationWatch:
    """Which configuration is in use, and whether another one is on disk.

    Nothing is watched where the broker was named by hand: then no directory says how to reach it.
    """

    def __init__(self, settings: Settings, every_seconds: float = EVERY_SECONDS) -> None:
        self._settings = settings
        self._every_seconds = every_seconds
        self._next = 0.0
        self._unusable = ""
        self.in_use = "" if settings.broker is not None else fingerprint(settings.broker_dir)

    def started(self, embedded: EmbeddedBroker | None) -> None:
        """The broker chosen runs; the embedded one may have brought its files up to date."""
        if embedded is not None:
            self.in_use = embedded.in_use

    def changed(self) -> bool:
        """Whether there is another configuration that can be used: start anew with it."""
        if not self.in_use or time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + self._every_seconds
        found = fingerprint(self._settings.broker_dir)
        if found in ("", self.in_use, self._unusable) or self._being_written():
            return False
        return self._can_be_used(found)

    def _being_written(self) -> bool:
        """A command that changes the directory holds its lock until all is written."""
        try:
            lock = try_lock(self._settings.broker_dir / "lock")
        except OSError:
            return True
        if lock is not None:
            os.close(lock)
        return lock is None

    def _can_be_used(self, found: str) -> bool:
        """What cannot be used must not end a service that works."""
        try:
            choose_broker(self._settings)
        except (AllomfreeError, OSError) as error:
            self._unusable = found
            log.error("the broker's new configuration cannot be used: %s", error)
            return False
        log.warning(
            "the broker was configured anew: starting again with it. Devices reconnect, and "
            "nothing is lost"
        )
        return True
