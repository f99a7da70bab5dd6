"""Every report as a message through a broker to a real collector, in real time."""

from __future__ import annotations

import time

from simulation.collected import Progress, Simulated
from simulation.depths.collecting import held
from simulation.depths.live import LiveCampaign
from simulation.model.fleet import Fleet
from simulation.model.messages import of_round
from testbed.brokers import publish


def reports_through_broker(live: LiveCampaign, fleet: Fleet, progress: Progress) -> Simulated:
    """Every report in the round it belongs to; late ones after it was sealed."""
    schedule, url, sent = fleet.manifest.rounds, live.collector.broker_url, 0
    for t in range(fleet.rounds):
        time.sleep(max(0.0, schedule.opens(t) - time.time()))
        sent += publish(url, of_round(fleet, t, late=False), progress)
        if fleet.behaviour.late:
            live.wait_until_sealed(t)
            sent += publish(url, of_round(fleet, t, late=True), progress)
    live.wait_until_sealed(fleet.rounds - 1)
    live.collector.wait_until_received(sent)
    return live.simulated(held(fleet))
