"""What one dishonest device can shift: the bound that results carry is attained, never exceeded."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from collector.records import Campaign, Tally
from collector.rounds.results import pooled_result, round_result
from collector.store.common import count_bodies
from protocol_spec import Result
from tests.support.collector import COLOUR, FIRST, FUEL, TOWN, random_counts, three_questions

CAMPAIGN = Campaign(1, three_questions(min_reports=4), FIRST, None)
SENT = (1, 3, 2, 4, 1, 4)  # reports of each device over four rounds
TRIALS = 200


def of_one_round(attribute: int, bodies: Sequence[bytes]) -> Result:
    form = CAMPAIGN.manifest.body_formats[attribute]
    return round_result(CAMPAIGN, 0, attribute, Tally(len(bodies), count_bodies(bodies, form)), {})


def of_all_rounds(attribute: int, bodies: Sequence[bytes]) -> Result:
    form = CAMPAIGN.manifest.body_formats[attribute]
    total = Tally(len(bodies), count_bodies(bodies, form))
    groups = sorted(set(SENT))
    who = (groups, [SENT.count(m) for m in groups])
    return pooled_result(CAMPAIGN, attribute, 4, total, who, {})


def shift(one: Result, other: Result) -> float:
    assert one.device_bound == other.device_bound, "it does not depend on what was said"
    return float(np.abs(np.subtract(one.raw, other.raw)).max())


def extremes(attribute: int) -> tuple[bytes, bytes]:
    """A body that supports value 0 and one that does not."""
    form = CAMPAIGN.manifest.body_formats[attribute]
    return form.encode(0), form.encode(1)


@pytest.mark.parametrize("attribute", [FUEL, TOWN, COLOUR])
def test_one_round(attribute: int) -> None:
    form = CAMPAIGN.manifest.body_formats[attribute]
    honest, _ = random_counts(form, 20, seed=1)
    lies, _ = random_counts(form, TRIALS, seed=2)
    before = of_one_round(attribute, honest)
    for lie in lies:
        assert shift(before, of_one_round(attribute, [lie, *honest[1:]])) <= (
            before.device_bound * (1 + 1e-12)
        )
    yes, no = extremes(attribute)
    attained = shift(
        *(of_one_round(attribute, [body, *honest[1:]]) for body in (yes, no)),
    )
    assert attained == pytest.approx(before.device_bound, rel=1e-12)


@pytest.mark.parametrize("attribute", [FUEL, TOWN, COLOUR])
def test_pooled_rounds_are_bound_by_whoever_reported_most(attribute: int) -> None:
    form = CAMPAIGN.manifest.body_formats[attribute]
    honest, _ = random_counts(form, sum(SENT), seed=3)
    lies, _ = random_counts(form, 4 * TRIALS, seed=4)
    before = of_all_rounds(attribute, honest)
    ends = np.cumsum(SENT)
    for trial in range(TRIALS):
        device = trial % len(SENT)
        mine = lies[4 * trial : 4 * trial + SENT[device]]
        start, end = ends[device] - SENT[device], ends[device]
        after = of_all_rounds(attribute, [*honest[:start], *mine, *honest[end:]])
        assert shift(before, after) <= before.device_bound * (1 + 1e-12)
    yes, no = extremes(attribute)
    start, end = ends[3] - 4, ends[3]
    attained = shift(
        *(
            of_all_rounds(attribute, [*honest[:start], *([b] * 4), *honest[end:]])
            for b in (yes, no)
        ),
    )
    assert attained == pytest.approx(before.device_bound, rel=1e-12)


def test_a_withheld_result_tells_no_bound() -> None:
    form = CAMPAIGN.manifest.body_formats[FUEL]
    few, _ = random_counts(form, 3, seed=5)
    assert of_one_round(FUEL, few).device_bound == 0.0
    alone = pooled_result(CAMPAIGN, FUEL, 4, Tally(3, count_bodies(few, form)), ([3], [1]), {})
    assert (alone.withheld, alone.device_bound) == (True, 0.0)
