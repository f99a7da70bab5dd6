"""The same fleet through a real collector's admission, store and sealing."""

from __future__ import annotations

from pathlib import Path

import pytest

from collector.data_dir import read_store
from collector.results.facts import read_truth
from protocol_spec import Outcome, Report, decode_report, make_report, parse_from_device
from simulation.depths.collecting import into
from simulation.depths.reports import as_reports
from simulation.errors import SimulationError
from simulation.model.fleet import Fleet
from simulation.model.messages import messages
from tests.support.simulation.campaigns import both, fleet


@pytest.fixture
def unruly() -> Fleet:
    """Everything that can go wrong, at once."""
    return fleet(
        both(max_values=2), 1_200, rounds=3, batch=250, dropout=0.2, churn=0.1, changes=0.2,
        late=0.1, duplicates=0.2, dishonest=((1, 9, 3),),
    )  # fmt: skip


def test_the_messages_are_those_of_the_real_encoder(unruly: Fleet) -> None:
    manifest = unruly.manifest
    for batch in unruly.batches():
        batch.reports(only_state=True)
        sent = batch.reports()
        on_time = list(messages(manifest, sent, late=False))
        late = list(messages(manifest, sent, late=True))
        assert len(on_time) + len(late) == len(sent.bodies) + sent.twice.sum()
        wanted = {
            (name, make_report(manifest, 1, batch.attribute, body.tobytes()).encode())
            for name, body in zip(sent.names(), sent.bodies)
        }
        found = set()
        for topic, payload in on_time + late:
            origin = parse_from_device(topic)
            assert origin is not None
            assert isinstance(decode_report(payload), Report)
            found.add((origin.device, payload))
        assert found == wanted


def test_a_collector_counts_what_counting_at_once_counts(unruly: Fleet, tmp_path: Path) -> None:
    direct, real = as_reports(unruly), into(tmp_path / "data", unruly)
    for ours, theirs in zip(direct.attributes, real.attributes):
        for name in ("n", "counts", "truth", "participation"):
            assert (getattr(ours, name) == getattr(theirs, name)).all(), name
    assert direct.outcomes == real.outcomes
    assert direct.late == real.late > 0
    assert all(outcomes[Outcome.DUPLICATE] > 0 for outcomes in real.outcomes)


def test_the_rows_are_what_the_collector_published(unruly: Fleet, tmp_path: Path) -> None:
    found = into(tmp_path / "data", unruly)
    store = read_store(tmp_path / "data")
    stored = {
        (r.attribute, r.round): (r.n, r.devices, r.rounds, r.counts, r.raw, r.low, r.high_all)
        for r in store.results(store.campaign(None).id)
    }
    store.close()
    made = {
        (r.attribute, r.round): (r.n, r.devices, r.rounds, r.counts, r.raw, r.low, r.high_all)
        for r in found.results()
    }
    assert made == stored


def test_the_truth_lies_beside_the_data(tmp_path: Path) -> None:
    made = fleet(both(), rounds=1)
    into(tmp_path / "data", made)
    truth = read_truth(tmp_path / "data", made.manifest.campaign)
    assert truth is not None
    assert truth["fuel"] == (made.truth[0] / made.truth[0].sum()).tolist()


def test_reports_that_are_there_are_not_mixed_with_simulated_ones(tmp_path: Path) -> None:
    made = fleet(both(), rounds=1)
    into(tmp_path / "data", made)
    with pytest.raises(SimulationError, match="already holds reports"):
        into(tmp_path / "data", made)
