"""What the simulator tells real agents, and the campaign that it opens for them."""

from __future__ import annotations

from simulation.depths.agents import holdings, reading
from simulation.depths.live import retimed
from simulation.model.population import populate
from tests.support.simulation.campaigns import FUEL, both
from tests.support.simulation.real_time import NUMERIC


def test_devices_hold_the_population_s_values() -> None:
    campaign = both(attributes=FUEL + NUMERIC)
    population = populate(campaign, ["zipf"], 50, 1)
    devices = holdings(campaign, population, 1)
    for attribute, counts in zip(campaign.attributes, population.counts):
        places = [device[attribute.name] for device in devices]
        assert [places.count(place) for place in range(attribute.k)] == counts.tolist()
        for place in range(attribute.k):
            assert attribute.index_of(reading(attribute, place)) == place


def test_a_retimed_campaign_asks_the_same_questions() -> None:
    campaign = both()
    soon = retimed(campaign, rounds=3, period_seconds=7, lead_seconds=5)
    assert soon.attributes == campaign.attributes
    assert (soon.rounds.count, soon.rounds.period) == (3, 7)
    assert soon.campaign != campaign.campaign
