"""In real time: a real broker, a real collector, and real agents or many devices a connection."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from collector.show.truth import read_truth
from protocol_spec import Outcome
from simulation.behaviour import Behaviour
from simulation.depths import as_reports
from simulation.fleet import Fleet
from simulation.live import holdings, reading, real_agents, reports_through_broker
from simulation.population import populate
from simulation.stage import Stage, StageFailure, retimed
from tests.support.brokers import Nats
from tests.support.simulation.campaigns import FUEL, both, fleet
from tests.support.simulation.users import real_user

NUMERIC = """[[attributes]]
name = "heat"
question = "?"
edges = [-inf, 40, 60, inf]
"""


def nothing(_: int) -> None:
    """Nobody watches."""


@pytest.mark.slow
def test_a_broker_and_a_collector_count_what_counting_at_once_counts(tmp_path: Path) -> None:
    campaign = retimed(both(), rounds=2, period=3, lead=5)
    made = fleet(campaign, 600, dropout=0.1, late=0.1, duplicates=0.1)
    with Nats(tmp_path / "broker") as broker, Stage(tmp_path / "data", campaign, broker.url) as on:
        found = reports_through_broker(on, made, nothing)
    direct = as_reports(made)
    for ours, theirs in zip(direct.attributes, found.attributes):
        assert (ours.counts == theirs.counts).all()
        assert (ours.participation == theirs.participation).all()
    assert found.late == direct.late > 0
    assert found.outcomes[0][Outcome.DUPLICATE] == direct.outcomes[0][Outcome.DUPLICATE] > 0


@pytest.mark.slow
def test_real_agents_are_all_counted_in_every_round(tmp_path: Path) -> None:
    campaign = retimed(both(attributes=FUEL + NUMERIC), rounds=2, period=6, lead=20)
    devices = holdings(campaign, populate(campaign, ["zipf"], 24, 1), 1)
    with Nats(tmp_path / "broker") as broker, Stage(tmp_path / "data", campaign, broker.url) as on:
        found = real_agents(on, devices, 2, nothing)
    assert [sum(int(a.n[t]) for a in found.attributes) for t in (0, 1)] == [24, 24]
    for tally in found.attributes:
        assert tally.truth[0].sum() == tally.n[0]
        assert tally.participation[2] == tally.n[0]
    assert set(read_truth(tmp_path / "data", campaign.campaign) or ()) == {"fuel", "heat"}


def test_devices_hold_the_population_s_values() -> None:
    campaign = both(attributes=FUEL + NUMERIC)
    population = populate(campaign, ["zipf"], 50, 1)
    devices = holdings(campaign, population, 1)
    for attribute, counts in zip(campaign.attributes, population.counts):
        places = [device[attribute.name] for device in devices]
        assert [places.count(place) for place in range(attribute.k)] == counts.tolist()
        for place in range(attribute.k):
            assert attribute.index_of(reading(attribute, place)) == place


def test_a_collector_that_ends_is_noticed(tmp_path: Path) -> None:
    campaign = retimed(both(), rounds=1, period=3, lead=5)
    with (
        pytest.raises(StageFailure, match="the collector ended; see"),
        Stage(tmp_path / "data", campaign, "not-a-broker"),
    ):
        pass


@pytest.mark.parametrize("source", ["variables", "files"])
def test_a_collector_hears_nothing_of_its_user_s_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    for name, value in real_user(tmp_path / "home").items():
        if (name == "HOME") == (source == "files"):
            monkeypatch.setenv(name, value)
    with Stage(tmp_path / "data", retimed(both(), rounds=1, period=3, lead=5)) as stage:
        assert stage.url.startswith("mqtt://127.0.0.1:")


def test_agents_that_end_at_once_are_noticed(tmp_path: Path) -> None:
    campaign = both()
    stage = Stage(tmp_path, campaign, "no address")
    devices = holdings(campaign, populate(campaign, ["zipf"], 4, 1), 1)
    with ExitStack() as stack:
        stack.push(stage.__exit__)
        with pytest.raises(StageFailure, match=r"agents ended; .* See .*agents-0\.log"):
            real_agents(stage, devices, 1, nothing)


def test_a_retimed_campaign_asks_the_same_questions() -> None:
    campaign = both()
    soon = retimed(campaign, rounds=3, period=7, lead=5)
    assert soon.attributes == campaign.attributes
    assert (soon.rounds.count, soon.rounds.period) == (3, 7)
    assert soon.campaign != campaign.campaign
    assert Fleet(soon, (), Behaviour(), 1, 3).memos == 1
