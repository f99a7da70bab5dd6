"""Devices for a trial: what they wait for is said at once, and what is told can be pasted."""

from __future__ import annotations

import shlex
from contextlib import closing
from pathlib import Path

import pytest

import trial_devices
from collector.data_dir import open_store
from collector.opening import read_campaign
from collector.settings import Settings, resolve
from tests.support.places import ROOT

NOW = 1_800_000_000


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return resolve({"data_dir": tmp_path / "of mine"}, environ={})


def test_that_no_collector_runs_is_said_at_once(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(open_store(settings.data_dir)) as store:
        trial = read_campaign(ROOT / "docs/examples/home-heat.toml", [], NOW, trial_seconds=60)
        campaign = store.open_campaign(trial, NOW)
    place = shlex.quote(str(settings.data_dir))
    with pytest.raises(TimeoutError, match=f"health --data-dir {place}"):
        trial_devices.run(settings, campaign, 1, 1, start_seconds=0.0)
    told = capsys.readouterr().out
    assert told.startswith("Waiting for the collector. Start it in another terminal:\n")
    assert told.endswith(f"    allomfree-collector run --data-dir {place}\n")


def test_without_a_trial_one_is_opened_in_the_same_place(settings: Settings) -> None:
    open_store(settings.data_dir).close()
    with pytest.raises(
        TimeoutError, match=f"--trial --data-dir {shlex.quote(str(settings.data_dir))}"
    ):
        trial_devices.found_trial(settings)


def test_the_usual_place_need_not_be_named() -> None:
    assert trial_devices.command(resolve({}), "run") == "allomfree-collector run"
