"""Which broker to use: the one named, the one configured here, or the embedded one.

`broker-config` and `enrol` are other processes: they write files, and make the broker reload them.
No broker changes its listeners while it runs, and NATS reports a refused reload only in its log. So
the running service compares the configuration on disk with the one it started with.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from collector.brokers.config import Kind
from collector.brokers.directory import BrokerDirectory
from collector.brokers.embedded import EmbeddedBroker
from collector.health import fingerprint
from collector.settings import Settings
from protocol_spec import AllomfreeError
from protocol_spec.programs.settings import BrokerUrl
from protocol_spec.programs.system import try_lock

EVERY_SECONDS: Final = 1.0

log = logging.getLogger("allomfree.broker")


def choose_broker(settings: Settings) -> tuple[Settings, EmbeddedBroker | None]:
    """The settings with a broker and its credential; and the embedded broker, if it is that."""
    if settings.broker is not None:
        return settings, None
    if not BrokerDirectory.exists(settings.broker_dir):
        embedded = EmbeddedBroker(settings.broker_dir)
        return replace(settings, broker=embedded.url), embedded
    configured = BrokerDirectory.load(settings.broker_dir)
    known = replace(settings, **configured.settings())
    if settings.home_assistant is None:
        known = replace(known, home_assistant=configured.plan.home_assistant)
    ours = configured.plan.kind == "nats" and not configured.plan.nodes
    return known, EmbeddedBroker(settings.broker_dir) if ours else None


def address_for_devices(settings: Settings) -> BrokerUrl:
    if settings.broker is None and BrokerDirectory.exists(settings.broker_dir):
        return BrokerDirectory.load(settings.broker_dir).plan.url
    return choose_broker(settings)[0].required_broker()


def grant_discovery(settings: Settings) -> BrokerDirectory | None:
    """Let the collector announce campaigns to Home Assistant, if that was asked for, at a broker
    configured here. Returns what has to be reloaded; None if nothing changed."""
    if settings.broker is not None or settings.home_assistant is None:
        return None
    return _change_plan(
        settings, ("mosquitto", "nats"), home_assistant=settings.home_assistant or None
    )


def grant_campaigns(settings: Settings, campaigns: Iterable[str]) -> BrokerDirectory | None:
    """Name the campaigns in the access list of a broker configured here. Returns what has to be
    reloaded; None if nothing changed.

    mosquitto's list needs one line each; NATS's would need one per device, and NATS retains nothing
    for devices.
    """
    return _change_plan(settings, ("mosquitto",), campaigns=tuple(sorted(campaigns)))


def _change_plan(
    settings: Settings, kinds: Sequence[Kind], **changes: Any
) -> BrokerDirectory | None:
    path = settings.broker_dir.absolute()
    if not BrokerDirectory.exists(path):
        return None
    with BrokerDirectory.changing(path):
        configured = BrokerDirectory.load(path)
        plan = configured.plan
        if plan.kind not in kinds or plan == replace(plan, **changes):
            return None
        configured.change_plan(**changes)
    return configured


class ConfigurationWatch:
    """Which configuration is in use, and whether another one is on disk (F9).

    Nothing is watched if the broker was named explicitly: then no directory says how to reach it.
    """

    def __init__(self, settings: Settings, every_seconds: float = EVERY_SECONDS) -> None:
        self._settings = settings
        self._every_seconds = every_seconds
        self._next = 0.0
        self._unusable = ""
        self.in_use = "" if settings.broker is not None else fingerprint(settings.broker_dir)

    def started(self, embedded: EmbeddedBroker | None) -> None:
        """The broker is running; the embedded one may have updated its files at its start."""
        if embedded is not None:
            self.in_use = embedded.in_use

    def changed(self) -> bool:
        """Whether another, usable configuration is on disk: restart with it."""
        if not self.in_use or time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + self._every_seconds
        found = fingerprint(self._settings.broker_dir)
        if found in ("", self.in_use, self._unusable):
            return False
        try:
            lock = try_lock(self._settings.broker_dir / "lock")
        except OSError:
            lock = None
        if lock is None:  # a command that changes the directory holds it until all is written
            return False
        os.close(lock)
        try:
            choose_broker(self._settings)
        except (AllomfreeError, OSError) as error:  # must not end a service that works
            self._unusable = found
            log.error("the broker's new configuration cannot be used: %s", error)
            return False
        log.warning(
            "the broker's configuration was changed: restarting with it. Devices reconnect, and "
            "nothing is lost"
        )
        return True
