"""Watch the rounds fill, and kill the collector in the middle of one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from collector.records import Campaign
from collector.store import Store
from testbed.collector import CollectorProcess, is_sealed

LINE_SECONDS: Final = 3.0  # between two lines of progress
POLL_SECONDS: Final = 0.5


def watch(
    collector: CollectorProcess,
    campaign: Campaign,
    devices: int,
    say: Callable[[str], None],
    kill_and_restart: Callable[[], None],
) -> None:
    """Until every round is sealed. With two rounds or more the collector is killed in the second:
    what agents had sent and it had not counted then comes again."""
    schedule = campaign.manifest.rounds
    kill_at = schedule.opens(1) + schedule.period / 2 if schedule.count > 1 else None
    shown, next_line = "", 0.0
    with collector.store() as store:
        while not is_sealed(store, campaign, schedule.count - 1):
            line = progress(store, campaign, devices)
            if line != shown and time.monotonic() >= next_line:
                shown, next_line = line, time.monotonic() + LINE_SECONDS
                say(line)
            if kill_at is not None and time.time() > kill_at:
                kill_at = None
                kill_and_restart()
            collector.check_running()
            time.sleep(POLL_SECONDS)


def progress(store: Store, campaign: Campaign, devices: int) -> str:
    """How far the rounds are, in a line."""
    filling = [
        f"round {number}: {sum(t.n for t in store.tallies(campaign.id, number).values())}"
        for number in store.open_rounds(campaign.id)
    ]
    last = store.last_sealed(campaign.id)
    sealed = f"{0 if last is None else last + 1} of {campaign.manifest.rounds.count} rounds sealed"
    if not filling:
        return f"{sealed}; waiting for reports"
    return f"{sealed}; {', '.join(filling)} of {devices} devices counted"
