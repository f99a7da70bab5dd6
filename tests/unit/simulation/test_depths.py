"""Every depth of a simulation, the runs made of them, and what one round costs a collector."""

from __future__ import annotations

from pathlib import Path

import pytest

from collector.data_dir import read_store
from collector.results.facts import read_truth
from collector.results.tables import COLUMNS
from protocol_spec import Outcome, Report, decode_report, make_report, parse_from_device
from simulation.depths import as_reports, as_statistics, holdings, into, reading, retimed
from simulation.fleet import Fleet, messages
from simulation.population import SimulationError, by_value, populate
from simulation.results import TRUTH_COLUMNS, Simulated
from simulation.runs import Run, compare
from simulation.scaling import measure
from tests.support.simulation import FUEL, NUMERIC, both, fleet


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


def test_the_truth_is_stored_with_the_data(tmp_path: Path) -> None:
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


def test_every_report_of_the_round_is_counted_and_every_step_costs(tmp_path: Path) -> None:
    cost = measure(500, tmp_path / "data")
    store = read_store(tmp_path / "data")
    assert store.outcomes() == {Outcome.ACCEPTED: 500}
    assert store.last_sealed(1) == 0
    store.close()
    assert min(cost.steps()) > 0.0
    assert cost.disk_bytes > 500 * 20
    assert cost.row().startswith("| 500 | ")


# --- runs ----------------------------------------------------------------------------------------


def run_of(made: Simulated) -> Run:
    return Run({"depth": "test"}, list(made.rows()))


def test_the_columns_are_the_collector_s_and_a_few_more() -> None:
    assert (*COLUMNS, "truth", "z") == TRUTH_COLUMNS
    row = next(as_reports(fleet(both())).rows())
    assert tuple(row) == TRUTH_COLUMNS


def test_a_withheld_histogram_has_no_score() -> None:
    made = fleet(both(), 8, rounds=1, dropout=1.0)
    rows = list(as_reports(made).rows())
    assert {row["z"] for row in rows} == {None}
    assert {row["withheld"] for row in rows} == {True}


def test_a_run_is_kept_and_read_back(tmp_path: Path) -> None:
    made = run_of(as_reports(fleet(both())))
    made.save(tmp_path / "deep" / "run")
    assert Run.load(tmp_path / "deep" / "run") == made


def test_a_directory_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(SimulationError, match="does not hold a run"):
        Run.load(tmp_path)


def test_two_runs_of_one_thing_agree() -> None:
    made = fleet(both(), 4_000, dropout=0.1)
    counted = as_statistics(made.manifest, made.truth, made.behaviour, rounds=2, seed=1)
    pairs = compare(run_of(as_reports(made)), run_of(counted))
    assert [(p.attribute, p.round) for p in pairs] == [
        (name, number) for name in ("fuel", "hour") for number in (None, 0, 1)
    ]
    assert all(pair.agree for pair in pairs), "seed 1"


def test_two_runs_that_differ_do_not() -> None:
    campaign = both(attributes=FUEL)
    rates = by_value(campaign, ["wood=0.8"])
    fair = run_of(as_reports(fleet(campaign, 40_000)))
    biased = run_of(as_reports(fleet(campaign, 40_000, dropout_by_value=rates)))
    assert not any(pair.agree for pair in compare(fair, biased))
    assert all(pair.agree for pair in compare(fair, fair))


def test_runs_of_other_questions_cannot_be_compared() -> None:
    left = run_of(as_reports(fleet(both(attributes=FUEL))))
    renamed = both(attributes=FUEL.replace("fuel", "heat"))
    with pytest.raises(SimulationError, match="no histogram in common"):
        compare(left, run_of(as_reports(fleet(renamed))))
