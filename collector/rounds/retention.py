"""Retention: when it is over, nothing is kept that says which devices took part."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from collector.records import Campaign
from collector.store import Store

log = logging.getLogger("allomfree.collector")


def end_retention(store: Store, campaigns: Iterable[Campaign], now: float) -> None:
    """Forget the devices of campaigns whose retention is over.

    Not while a round is due but not sealed: its pooled result still needs to know how many devices
    took part in how many rounds.
    """
    for campaign in campaigns:
        over = now >= campaign.manifest.expires + campaign.manifest.retention
        if over and store.drop_devices(campaign.id):
            log.info("%s: retention is over, devices forgotten", campaign.name)
