"""Have what runs use a broker's new configuration, and see that it does."""

from __future__ import annotations

import time
from typing import Final

from collector.brokers.directory import BrokerDirectory
from collector.configuration import fingerprint
from collector.health import Health, examine, is_outdated
from collector.settings import Settings

PATIENCE_SECONDS: Final = 30.0


def hand_over(
    settings: Settings, configured: BrokerDirectory, seconds: float = PATIENCE_SECONDS
) -> bool:
    """Whether the running broker uses the configuration now.

    Mostly it reads its files again. Where it cannot, the running collector starts its broker or
    its connection anew, by itself; we wait until it has.
    """
    limit = time.monotonic() + seconds
    health = examine(settings.data_dir)
    if configured.plan.kind == "mosquitto" or not _is_outdated(health):
        reloaded = configured.reload()
        if not reloaded or not _is_outdated(health):
            return reloaded
    while time.monotonic() < limit and health.running:
        if health.well and not _is_outdated(health):
            return True
        time.sleep(0.2)
        health = examine(settings.data_dir)
    return False


def needs_restart(configured: BrokerDirectory, before: str) -> bool:
    """Whether a broker that is not ours to restart has to be: mosquitto reads again who may do
    what and its certificates, but not where it listens. `before` is what was configured."""
    return configured.plan.kind == "mosquitto" and fingerprint(configured.path) != before


def _is_outdated(health: Health) -> bool:
    return health.beat is not None and is_outdated(health.beat.status)
