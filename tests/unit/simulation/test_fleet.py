"""Fleets report by report: the law of the statistics, and devices that behave as devices do."""

from __future__ import annotations

import tracemalloc
from collections import Counter

import numpy as np
import pytest

from protocol_spec import as_drawn
from simulation.depths import as_reports, as_statistics
from simulation.fleet import Fleet
from simulation.population import SimulationError, by_value, dishonest
from tests.support.protocol.statistics import LIMIT, binomial_z
from tests.support.simulation import FUEL, both, fleet, hours, same_z

SEEDS = 600


def of_seed(made: Fleet, seed: int) -> Fleet:
    return Fleet(made.manifest, made.truth, made.behaviour, seed, made.rounds, made.batch)


@pytest.mark.slow
@pytest.mark.parametrize("unruly", [False, True])
@pytest.mark.parametrize("attribute", ["fuel", "hour"])
def test_reports_and_statistics_have_one_law(attribute: str, unruly: bool) -> None:
    """The first value's count in two rounds and who took part in both, coarsened, jointly. With
    eps_1 near a small eps_inf nearly all noise is the memo's, and ties the rounds together."""
    questions = FUEL if attribute == "fuel" else hours()
    campaign = both(attributes=questions, eps_inf=1.0, eps_1=0.9)
    rates = by_value(campaign, ["wood=0.6" if attribute == "fuel" else "h0=0.6"])
    lies = dishonest(campaign, ["5:gas" if attribute == "fuel" else "5:h0"])
    made = fleet(campaign, 120)
    if unruly:
        made = fleet(campaign, 120, dropout=0.2, dropout_by_value=rates, churn=0.3, dishonest=lies)
    ours, theirs = Counter(), Counter()  # type: ignore[var-annotated]
    for seed in range(SEEDS):
        report = as_reports(of_seed(made, seed)).attributes[0]
        counted = as_statistics(
            campaign, made.truth, made.behaviour, rounds=2, seed=seed
        ).attributes[0]
        for tally, found in ((report, ours), (counted, theirs)):
            cell = (*(tally.counts[:, 0] // 6), tally.participation[2] // 12)
            found[cell] += 1
    assert sum(n >= 20 for n in (ours + theirs).values()) > 7  # enough cells to tell them apart
    assert abs(same_z(ours, theirs)) < LIMIT, f"seeds 0 to {SEEDS}"


def test_the_same_seed_gives_the_same_reports_and_another_seed_others() -> None:
    made = fleet(both())
    first, again = as_reports(made), as_reports(made)
    other = as_reports(of_seed(made, 2))
    for a, b, c in zip(first.attributes, again.attributes, other.attributes):
        assert (a.counts == b.counts).all()
        assert (a.counts != c.counts).any()


def test_the_truth_is_what_the_devices_hold() -> None:
    made = fleet(both(), rounds=1)
    found = as_reports(made)
    for tally, truth in zip(found.attributes, made.truth):
        assert (tally.truth[0] == truth).all()
        assert tally.n[0] == truth.sum()


def test_memory_is_bounded_by_the_batch() -> None:
    def peak(devices: int) -> int:
        made = fleet(both(), devices, batch=2_000)
        tracemalloc.start()
        as_reports(made)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(4_000)
    assert peak(80_000) < 1.1 * peak(4_000)


# --- behaviour ---------------------------------------------------------------------------------


def test_a_dishonest_device_shifts_a_bin_by_no_more_than_the_bound() -> None:
    campaign, liars = both(), 30
    honest = as_reports(fleet(campaign, 4_000, rounds=1))
    texts = [f"{liars}:pump", f"{liars}:h19"]
    lying = as_reports(fleet(campaign, 4_000, rounds=1, dishonest=dishonest(campaign, texts)))
    for index, calibration in enumerate(map(as_drawn, campaign.calibrations)):
        before, after = honest.attributes[index], lying.attributes[index]
        n, moved = int(before.n[0]), after.counts[0] - before.counts[0]
        shift = moved / n / calibration.gap
        assert after.n[0] == n
        assert np.abs(shift).max() <= liars / (n * calibration.gap) + 1e-12
        assert moved[-1] > liars / 4  # and they do shift it


@pytest.mark.parametrize("liars", [0, 1, 7, 150, 200])
def test_both_depths_have_the_same_number_of_dishonest_devices(liars: int) -> None:
    campaign = both(attributes=FUEL)
    made = fleet(campaign, 200, rounds=1, dropout=1.0, dishonest=((0, liars, 2),))
    tally = as_reports(made).attributes[0]
    assert (tally.n[0], tally.counts[0, 2]) == (liars, liars)  # they alone never miss a round
    counted = as_statistics(campaign, made.truth, made.behaviour, rounds=1, seed=1).attributes[0]
    assert (counted.n[0], counted.counts[0, 2]) == (liars, liars)
    assert counted.participation.tolist() == tally.participation.tolist() == [0, liars]


def test_drop_out_that_depends_on_the_value_biases_the_estimate_and_shows() -> None:
    campaign = both(attributes=FUEL)
    rates = by_value(campaign, ["fuel:wood=0.8"])
    made = as_reports(fleet(campaign, 40_000, rounds=1, dropout_by_value=rates))
    wood = int(made.attributes[0].truth[0, 0])
    missing = 40_000 - int(made.attributes[0].n[0])
    assert abs(binomial_z(missing, wood, 0.8)) < LIMIT
    row = next(row for row in made.rows() if row["value"] == "wood")
    assert row["z"] < -LIMIT
    assert row["high"] < row["truth"]


def test_a_replaced_device_has_a_new_name_and_a_new_memo() -> None:
    made = fleet(both(attributes=FUEL), rounds=2, churn=1.0)
    batch = next(made.batches())
    before = batch.reports()
    memos = batch._memos.copy()
    after = batch.reports()
    assert not set(before.names()) & set(after.names())
    assert (memos != batch._memos).any()
    assert batch.participation().tolist() == [0, 2 * len(before.names()), 0]


@pytest.mark.parametrize("cap", [1, 2, 3])
def test_a_device_answers_for_so_many_values_and_then_freezes(cap: int) -> None:
    made = fleet(both(attributes=FUEL, max_values=cap), 150, rounds=8, changes=0.7)
    batch = next(made.batches())
    everyone = np.arange(batch.values.size)
    known: list[list[int]] = [[] for _ in everyone]
    last = np.full(batch.values.size, -1)
    for _ in range(8):
        batch.reports()
        for device, value in enumerate(batch.values.tolist()):
            if value not in known[device] and len(known[device]) < cap:
                known[device].append(value)
            last[device] = value if value in known[device] else last[device]
        # As the agent: the value's own memo, or the one used last.
        assert (batch._known[everyone, batch._used] == last).all()


@pytest.mark.parametrize("name", ["changes", "late", "duplicates"])
def test_statistics_refuse_what_needs_single_devices(name: str) -> None:
    made = fleet(both(), **{name: 0.1})  # type: ignore[arg-type]
    with pytest.raises(SimulationError, match=f"--{name} needs single devices"):
        as_statistics(made.manifest, made.truth, made.behaviour, rounds=1, seed=1)
