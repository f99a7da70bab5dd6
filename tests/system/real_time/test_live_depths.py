"""In real time: a real broker, a real collector, and real agents or many devices a connection."""

from __future__ import annotations

import pytest

from collector.results.facts import read_truth
from protocol_spec import Outcome
from simulation.results import Simulated
from tests.support.real_time import AGENTS, Finished

pytestmark = pytest.mark.slow


def test_a_broker_and_a_collector_count_what_counting_at_once_counts(
    counted_twice: Finished[tuple[Simulated, Simulated]],
) -> None:
    direct, found = counted_twice.result
    for ours, theirs in zip(direct.attributes, found.attributes):
        assert (ours.counts == theirs.counts).all()
        assert (ours.participation == theirs.participation).all()
    assert found.late == direct.late > 0
    assert found.outcomes[0][Outcome.DUPLICATE] == direct.outcomes[0][Outcome.DUPLICATE] > 0


def test_real_agents_are_all_counted_in_every_round(agents: Finished[Simulated]) -> None:
    found = agents.result
    assert [sum(int(a.n[t]) for a in found.attributes) for t in (0, 1)] == [AGENTS, AGENTS]
    for tally in found.attributes:
        assert tally.truth[0].sum() == tally.n[0]
        assert tally.participation[2] == tally.n[0]
    truth = read_truth(agents.directory / "data", found.manifest.campaign)
    assert set(truth or ()) == {"fuel", "heat"}
