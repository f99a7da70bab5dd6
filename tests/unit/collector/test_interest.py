"""Over time the page begins with what changed beyond chance, else with the most frequent value."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collector.records import Campaign, Tally
from collector.results.estimates import Seen, most_interesting
from collector.rounds.results import pooled_result, round_result
from protocol_spec import Result
from tests.support.collector_fakes import FIRST, FUEL, random_counts, three_questions

CAMPAIGN = Campaign(1, three_questions(min_reports=50), FIRST, None)


def made(number: int, n: int = 500) -> Result:
    _, counts = random_counts(CAMPAIGN.manifest.body_formats[FUEL], n, seed=number)
    return round_result(CAMPAIGN, number, FUEL, Tally(n, counts), {})


def told(number: int, *raw: float, error: float = 0.01) -> Result:
    errors = (error,) * len(raw)
    zero = (0.0,) * len(raw)
    return replace(made(number), raw=raw, privacy_error=errors, sampling_error=zero)


def test_the_largest_change_beyond_chance() -> None:
    rounds = [told(3, 0.1, 0.5, 0.2, 0.2), told(4, 0.3, 0.4, 0.1, 0.2), told(5, 0.4, 0.3, 0.1, 0.2)]
    found = most_interesting(rounds, None)
    assert found is not None
    assert (found.place, found.change) == (0, (Seen(3, 0.1), Seen(5, 0.4)))


def test_a_fall_is_a_change_too() -> None:
    found = most_interesting([told(0, 0.1, 0.9), told(1, 0.2, 0.3)], None)
    assert found is not None
    assert (found.place, found.change) == (1, (Seen(0, 0.9), Seen(1, 0.3)))


def test_a_change_must_be_beyond_chance_for_every_value_and_pair_of_rounds() -> None:
    """With two values and two rounds the critical value is that of 95 % over two comparisons."""
    apart = 2.2414027 * 0.01 * 2**0.5  # the normal quantile of 1 - 0.05 / 4
    for factor, changed in ((0.999, False), (1.001, True)):
        found = most_interesting([told(0, 0.2, 0.8), told(1, 0.2 + factor * apart, 0.8)], None)
        assert found is not None
        assert (found.change is not None) is changed
    many = [told(i, 0.2, 0.8) for i in range(30)]
    found = most_interesting([*many, told(30, 0.2 + 1.001 * apart, 0.8)], None)
    assert found is not None
    assert found.change is None, "among so many pairs that is chance"


def test_without_a_change_it_is_the_most_frequent_of_the_pooled_result() -> None:
    _, counts = random_counts(CAMPAIGN.manifest.body_formats[FUEL], 1000, seed=1)
    pooled = pooled_result(CAMPAIGN, FUEL, 2, Tally(1000, counts), ([2], [500]), {})
    pooled = replace(pooled, raw=(0.1, 0.2, 0.6, 0.1))
    wide = [told(i, 0.4, 0.3, 0.2, 0.1, error=0.5) for i in range(2)]
    found = most_interesting(wide, pooled)
    assert found is not None
    assert (found.place, found.change) == (2, None)
    found = most_interesting(wide, None)
    assert found is not None
    assert found.place == 0, "of the latest round, where nothing is pooled"


@pytest.mark.parametrize("rounds", [[], [made(0, n=20)]])
def test_nothing_where_everything_is_withheld(rounds: list[Result]) -> None:
    assert most_interesting(rounds, None) is None
