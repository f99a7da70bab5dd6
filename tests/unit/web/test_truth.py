"""A simulation's true frequencies are shown, and nothing is called a simulation that is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from collector.errors import StorageFailure
from collector.records import Campaign
from collector.results.facts import read_truth, write_truth
from tests.support.page_data import Own
from tests.support.site import Site, serving

TRUE = {"fuel": [0.5, 0.25, 0.125, 0.125]}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert read_truth(tmp_path, "demo-1") is None
    write_truth(tmp_path, "demo-1", {"fuel": (1, 0.5)})
    write_truth(tmp_path, "demo-1", TRUE)
    assert read_truth(tmp_path, "demo-1") == TRUE
    assert read_truth(tmp_path, "demo-2") is None
    assert [path.name for path in tmp_path.iterdir()] == ["truth-demo-1.json"]


@pytest.mark.parametrize("content", ["", "[]", '{"fuel": 1}', '{"fuel": ["x"]}', "\0"])
def test_another_file_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "truth-demo-1.json").write_text(content)
    with pytest.raises(StorageFailure, match="does not hold a simulation's true frequencies"):
        read_truth(tmp_path, "demo-1")


def test_a_real_campaign_is_no_simulation(site: Site, campaign: Campaign, fuel: str) -> None:
    for path in (f"/campaigns/{campaign.name}", fuel, f"{fuel}/rounds/0"):
        assert "imulat" not in site.get(path).text
    assert json.loads(site.get(f"{fuel}.json").text)["truth"] is None


def test_a_simulation_says_so_and_shows_the_truth(own: Own) -> None:
    write_truth(own.data, own.campaign.name, TRUE)
    with serving(own.data) as site:
        page = site.get(f"{own.fuel}/rounds/0").text
        over_time = json.loads(site.get(f"{own.fuel}.json").text)
        campaign = json.loads(site.get(f"/campaigns/{own.campaign.name}.json").text)
    assert 'id="simulation"' in page
    assert 'data-truth="[0.5, 0.25, 0.125, 0.125]"' in page
    assert '<td class="number">50.0 %</td></tr>' in page
    assert over_time["truth"] == TRUE["fuel"]
    assert campaign["simulation"] is True


def test_a_truth_of_another_length_is_not_drawn(own: Own) -> None:
    write_truth(own.data, own.campaign.name, {"fuel": [1.0]})
    with serving(own.data) as site:
        reply = site.get(f"{own.fuel}/rounds/0")
    assert (reply.status, "data-truth" in reply.text) == (200, False)
