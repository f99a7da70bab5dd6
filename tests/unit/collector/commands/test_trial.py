"""A trial is the same campaign with short rounds, and says everywhere that it is one."""

from __future__ import annotations

import json
import re
import time
import tomllib
from contextlib import closing
from pathlib import Path

import pytest

from collector.data_dir import open_store, read_store
from collector.opening import TRIAL_MARK, is_trial, read_campaign, trial_of
from edge_client.errors import PolicyRefusal
from edge_client.policy import Policy
from protocol_spec import Manifest, ManifestError
from tests.support.collector import candidate
from tests.support.command_line import Cli, mistaken
from tests.support.harness import ROOT

HEAT = ROOT / "docs/examples/home-heat.toml"
EXAMPLES = sorted((ROOT / "docs/examples").glob("*.toml"))
NOW = 1_800_000_000


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_a_trial_of_every_example(file: Path) -> None:
    meant = Manifest.from_file(file, now=NOW)
    trial = read_campaign(file, [], NOW, trial_seconds=60)
    assert is_trial(trial)
    assert not is_trial(meant)
    assert trial.title == TRIAL_MARK + meant.title
    assert trial.purpose.startswith("A trial of the system")
    assert trial.purpose.endswith(meant.purpose)
    assert (trial.rounds.first, trial.rounds.period, trial.min_reports) == (NOW, 60, 10)
    assert (trial.eps_inf, trial.eps_1) == (meant.eps_inf, meant.eps_1), "nobody tells more in it"
    assert [a.values for a in trial.attributes] == [a.values for a in meant.attributes]
    assert Manifest.from_bytes(trial.to_bytes()) == trial


def test_the_longest_texts_still_fit() -> None:
    document = tomllib.loads(HEAT.read_text())
    long = {"slug": "a" * 31 + "b", "title": "t" * 80, "purpose": "p" * 500}
    made = Manifest.from_authored(trial_of({**document, **long}), now=NOW)
    assert made.slug == "a" * 26 + "-trial"
    assert is_trial(made)


def test_a_round_for_life() -> None:
    document = tomllib.loads(HEAT.read_text())
    rounds = {**document["rounds"], "each": 300}
    once = {**document, "reporting": "once", "rounds": rounds}
    del once["eps_1"]
    assert Manifest.from_authored(trial_of(once), now=NOW).rounds.each == 15


def test_what_is_wrong_is_told_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "heat.toml"
    file.write_text(HEAT.read_text().replace('period = "1d"', 'period = "1 day"'))
    with pytest.raises(ManifestError, match=r"heat\.toml: rounds\.period = "):
        read_campaign(file, [], NOW, trial_seconds=60)


def opened(cli: Cli, data: Path, file: Path, *words: str) -> dict[str, object]:
    done = cli("open", file, *words, "--data-dir", data, "--broker", "mqtt://127.0.0.1:1", "--json")
    assert done.exit_code == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_owners_are_told_to_allow_short_rounds(cli: Cli, data: Path) -> None:
    """A device refuses them otherwise, whatever join line is given to its owner."""
    words = ("--trial", "--data-dir", data, "--broker", "mqtt://127.0.0.1:1")
    told = cli("open", HEAT, *words).stdout
    assert "Devices refuse rounds as short as 60 s unless their configuration has:" in told
    (given,) = re.findall(r"    (\[policy\])\n    (.*)\n", told)
    policy = Policy.from_table(tomllib.loads("\n".join(given))["policy"])
    with closing(read_store(data)) as store:
        trial = store.campaign(None).manifest
    policy.check(trial)
    with pytest.raises(PolicyRefusal, match="min_period"):
        Policy().check(trial)
    assert "Devices refuse" not in cli("open", HEAT, *words, "--trial-round", "1h").stdout


def test_opened_again_it_is_the_same_until_it_is_over(cli: Cli, data: Path) -> None:
    first = opened(cli, data, HEAT, "--trial")
    assert first["trial"] is True
    time.sleep(1.1)  # another second would be another campaign
    assert opened(cli, data, HEAT, "--trial")["campaign"] == first["campaign"]
    assert (
        opened(cli, data, HEAT, "--trial", "--trial-round", "2m")["campaign"] != first["campaign"]
    )
    assert cli("close", str(first["campaign"]), "--yes", "--data-dir", data).exit_code == 0
    assert opened(cli, data, HEAT, "--trial")["campaign"] != first["campaign"]
    with closing(read_store(data)) as store:
        assert len(store.campaigns()) == 3


def test_a_file_that_begins_now_is_opened_once(cli: Cli, data: Path, home: Path) -> None:
    file = home / "now.toml"
    file.write_text(HEAT.read_text().replace("2027-01-01T00:00:00Z", '"now"'))
    first = opened(cli, data, file)
    time.sleep(1.1)
    assert opened(cli, data, file)["campaign"] == first["campaign"]


def test_every_result_says_so(cli: Cli, data: Path) -> None:
    opened(cli, data, HEAT, "--trial", "--trial-round", "1h")
    with closing(open_store(data)) as store:
        campaign = store.campaign(None)
        store.commit([candidate(campaign, device, 0, 0, device % 6) for device in range(12)], [])
    told = cli("estimate", "--round", "0", "--data-dir", data).stdout
    assert "What heats your home? (a TRIAL)" in told
    assert "careful: this is a TRIAL, to see the system at work: its results mean nothing" in told
    plotted = cli("estimate", "--plot", "--round", "0", "--data-dir", data).stdout
    assert "What heats your home? (a TRIAL)" in plotted
    assert "TRIAL: How homes are heated" in cli("status", "--data-dir", data).stdout


def test_a_length_that_is_none(cli: Cli, data: Path) -> None:
    for wrong in ("0s", "soon", "1.5m"):
        done = cli("open", HEAT, "--trial", "--trial-round", wrong, "--data-dir", data)
        assert done.exit_code == 2
        assert "is not a duration such as 90s, 15m or 6h" in done.stderr
    assert not data.exists()
    assert "cannot be read" in mistaken(cli, 2, "open", "cold.toml", "--trial", "--data-dir", data)
