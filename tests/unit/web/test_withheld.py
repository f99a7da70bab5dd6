"""Too few reports: the sentence, and no number of a histogram in any form of the page."""

from __future__ import annotations

import json

import pytest

from tests.support.site import Site


@pytest.fixture
def colour(fuel: str) -> str:
    return fuel.replace("fuel", "colour")


def test_a_round_with_too_few_reports_has_a_sentence_and_no_bars(site: Site, colour: str) -> None:
    page = site.get(f"{colour}/rounds/1").text
    assert "not enough reports: 3 of 4" in page
    assert 'data-withheld="yes"' in page
    assert "data-value=" not in page
    assert "Half-width of a difference" not in page
    (facts,) = json.loads(site.get(f"{colour}/rounds/1.json").text)
    assert (facts["withheld"], facts["histogram"]) == (True, [])
    rows = site.get(f"{colour}/rounds/1.csv").text.splitlines()[1:]
    assert all(",true,,,,,," in row for row in rows)


def test_so_has_a_round_that_fills(site: Site, colour: str) -> None:
    page = site.get(f"{colour}/rounds/2").text
    assert "not enough reports: 0 of 4" in page
    assert "data-value=" not in page


def test_over_time_goes_on_with_the_others(site: Site, colour: str) -> None:
    page = site.get(colour).text
    assert '<tr data-round="0">' in page
    assert page.count("not enough reports") == 1
    assert "Pooled over " in page
