"""What is deleted in the end: counts of too few devices, and which devices took part."""

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


def drop_unreleased(store: Store, campaigns: Iterable[Campaign], now: float) -> None:
    """Delete what was not released of campaigns that are over: no round can be added to it."""
    for campaign in campaigns:
        over = campaign.closed is not None or now >= campaign.manifest.rounds.end
        if over and store.drop_unreleased(campaign.id):
            log.info("%s: over; counts of too few devices deleted", campaign.name)
