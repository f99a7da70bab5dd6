"""`plan`, `open`, `invite` and `close`, trials, and mistakes in a manifest."""

from __future__ import annotations

import re
import shlex
import time
import tomllib
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from collector.data_dir import open_store, read_store
from collector.opening import (
    ADDRESS_FILE,
    is_for_others,
    join_link,
    read_campaign,
    trial_of,
)
from collector.records import Campaign
from edge_client import EdgeClient
from edge_client.errors import PolicyRefusal
from edge_client.policy import Policy
from protocol_spec import TRIAL_MARK, Manifest, ManifestError, is_trial
from protocol_spec.programs.settings import parse_invitation
from testbed.brokers import BROKERS
from tests.support.campaigns import manifest_text
from tests.support.collector import candidate, seal
from tests.support.command_line import NOBODY, Cli, facts_of, mistaken, read_code, squares_of
from tests.support.harness import ROOT, need

HEAT = ROOT / "docs/examples/home-heat.toml"
EXAMPLES = sorted((ROOT / "docs/examples").glob("*.toml"))
NOW = 1_800_000_000
BROKER = "mqtts://broker.example"


def opened(cli: Cli, data: Path, file: Path, *words: str, broker: str = NOBODY) -> Any:
    return facts_of(cli("open", file, *words, "--data-dir", data, "--broker", broker, "--json"))


# --- plan and open --------------------------------------------------------------------------------


def test_plan_prints_what_it_reports_as_json(cli: Cli, file: Path) -> None:
    words = ("plan", file, "--devices", 90, "--precision", 0.01)
    text, planned = cli(*words).stdout, facts_of(cli(*words, "--json"))
    assert [a["devices"] for a in planned["attributes"]] == [30] * 3
    fuel = planned["attributes"][0]
    one, pooled = fuel["verdict"]
    assert "one round of 30 devices" in text
    assert f"for ±1 in one round: {fuel['devices_for_precision']:,} devices in all" in text
    assert f"verdict, one round: {one['sentence']}" in text
    assert f"verdict, 1,000 rounds together: {pooled['sentence']}" in text
    assert all(f"    {suggested['sentence']}\n" in text for suggested in fuel["suggestions"])
    for mechanism in fuel["mechanisms"]:
        assert f"{'>' if mechanism['chosen'] else ' '} {mechanism['reporting']} " in text
    assert 'choose_for = "pooled": L-GRR' in text
    assert f"off by {100 * fuel['lie_shift']:.1f} points" in text


def test_plan_says_how_many_devices_to_state(cli: Cli, file: Path) -> None:
    """The number of receipt pages follows from it, and cannot change afterwards (F5)."""
    planned = facts_of(cli("plan", file, "--devices", 270_000, "--json"))
    assert planned["receipt_pages"] == 1_080
    text = cli("plan", file, "--devices", 270_000).stdout
    assert "with devices = 270000 in the manifest, receipts take 1080 pages" in text


def test_open_stores_the_campaign_once(cli: Cli, file: Path, data: Path) -> None:
    facts = opened(cli, data, file)
    manifest = Manifest.from_file(file)
    assert (facts["campaign"], facts["digest"]) == (manifest.campaign, manifest.digest.hex())
    assert facts["join"] == f"allomfree-edge join {NOBODY}/allomfree/{manifest.full_name}"
    assert (facts["running"], facts["published"]) == (False, False)
    assert "cannot be used" in facts["trouble"]
    again = cli("open", file, "--data-dir", data, "--broker", NOBODY)
    assert facts["join"] in again.stdout
    with closing(read_store(data)) as store:
        assert [c.name for c in store.campaigns()] == [manifest.campaign]


@pytest.mark.parametrize("name", BROKERS)
def test_a_device_joins_before_any_collector_runs(
    cli: Cli, file: Path, data: Path, tmp_path: Path, name: str
) -> None:
    need({"nats": "nats-server"}.get(name, name))
    with BROKERS[name](tmp_path / "broker") as broker:
        facts = opened(cli, data, file, broker=broker.url)
        assert (facts["published"], facts["running"], facts["trouble"]) == (True, False, None)
        with EdgeClient(tmp_path / "device") as client:
            address = facts["join"].removeprefix("allomfree-edge join ")
            assert client.join(address).name == facts["campaign"]


def test_several_mistakes_in_a_manifest_are_reported_at_once(
    cli: Cli, file: Path, data: Path
) -> None:
    text = file.read_text().replace('slug = "heat"', 'slug = "Heat!"').replace("eps_1", "eps1")
    file.write_text(text.replace("period = 3600", 'period = "often"'))
    error = mistaken(cli, 2, "open", file, "--data-dir", data)
    for field in ("slug = ", "eps1 = ", "rounds.period = "):
        assert f"{file}: {field}" in error
    file.write_text("slug = heat")
    assert "is not TOML" in mistaken(cli, 2, "open", file, "--data-dir", data)
    file.unlink()
    assert "cannot be read: No such file" in mistaken(cli, 2, "open", file, "--data-dir", data)
    assert not data.exists()


@pytest.mark.parametrize("words", [("--devices", "0"), ("--frequency", "2.0")])
def test_an_impossible_plan_is_refused(cli: Cli, file: Path, words: tuple[str, str]) -> None:
    error = mistaken(cli, 2, "plan", file, "--devices", 9, *words)
    assert error.startswith(f"error: {words[0]} = {words[1]}: ")


def test_a_campaign_that_is_over_is_not_opened(cli: Cli, file: Path, data: Path) -> None:
    file.write_text(manifest_text(first=1_500_000_000, count=3))
    error = mistaken(cli, 2, "open", file, "--data-dir", data, "--broker", NOBODY)
    assert error.startswith(f"error: {file}: rounds.first = ")
    assert "the last round ended at 2017-07-14T06:40:00Z; nothing was opened" in error
    assert not data.exists()
    assert opened(cli, data, file, "--trial")["trial"], "a trial of it begins now"


def test_close_asks_first_and_is_final(cli: Cli, file: Path, data: Path, used: Campaign) -> None:
    refused = cli("close", "heat", "--data-dir", data, answer="n\n")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "Nothing was changed." in refused.stderr
    silent = cli("close", "heat", "--data-dir", data, answer="")
    assert silent.exit_code == 1
    assert "Nothing was changed. (--yes agrees" in silent.stderr
    assert cli("close", "heat", "--data-dir", data, answer="y\n").exit_code == 0
    with closing(read_store(data)) as store:
        assert store.campaign(None).closed is not None
    assert cli("close", "heat", "--yes", "--data-dir", data).exit_code == 0
    error = mistaken(cli, 1, "open", file, "--data-dir", data, "--broker", NOBODY)
    assert f"{used.name} was closed at" in error
    assert "open another campaign" in error


# --- A trial is the same campaign with short rounds, and is marked as one everywhere --------------


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
    assert (trial.eps_inf, trial.eps_1) == (meant.eps_inf, meant.eps_1), "no device reveals more"
    assert [a.values for a in trial.attributes] == [a.values for a in meant.attributes]
    assert Manifest.from_bytes(trial.to_bytes()) == trial


def test_a_trial_shortens_long_texts_and_lifetime_rounds(tmp_path: Path) -> None:
    document = tomllib.loads(HEAT.read_text())
    long = {"slug": "a" * 31 + "b", "title": "t" * 80, "purpose": "p" * 500}
    made = Manifest.from_authored(trial_of({**document, **long}), now=NOW)
    assert made.slug == "a" * 26 + "-trial"
    assert is_trial(made)
    once = {**document, "reporting": "once", "rounds": {**document["rounds"], "each": 300}}
    assert Manifest.from_authored(trial_of(once), now=NOW).rounds.each == 15
    file = tmp_path / "heat.toml"
    file.write_text(HEAT.read_text().replace('period = "1h"', 'period = "1 hour"'))
    with pytest.raises(ManifestError, match=r"heat\.toml: rounds\.period = "):
        read_campaign(file, [], NOW, trial_seconds=60)


def test_open_prints_the_policy_that_allows_short_rounds(cli: Cli, data: Path) -> None:
    """A device refuses them otherwise, whatever join line is given to its owner."""
    words = ("--trial", "--data-dir", data, "--broker", NOBODY)
    text = cli("open", HEAT, *words).stdout
    assert "Devices refuse rounds as short as 20 s unless their configuration has:" in text
    (given,) = re.findall(r"    (\[policy\])\n    (.*)\n", text)
    with closing(read_store(data)) as store:
        trial = store.campaign(None).manifest
    Policy.from_table(tomllib.loads("\n".join(given))["policy"]).check(trial)
    with pytest.raises(PolicyRefusal, match="min_period"):
        Policy().check(trial)
    assert "Devices refuse" not in cli("open", HEAT, *words, "--trial-round", "1h").stdout


def test_a_trial_opened_again_is_the_same_until_it_is_over(cli: Cli, data: Path) -> None:
    first, other = opened(cli, data, HEAT, "--trial"), opened(cli, data, HEAT)
    time.sleep(1.1)  # another second would be another campaign
    assert opened(cli, data, HEAT, "--trial")["campaign"] == first["campaign"]
    assert opened(cli, data, HEAT)["campaign"] == other["campaign"]
    longer = opened(cli, data, HEAT, "--trial", "--trial-round", "2m")
    assert cli("close", first["campaign"], "--yes", "--data-dir", data).exit_code == 0
    third = opened(cli, data, HEAT, "--trial")
    assert len({first["campaign"], longer["campaign"], third["campaign"]}) == 3


def test_every_result_of_a_trial_is_marked(cli: Cli, data: Path) -> None:
    opened(cli, data, HEAT, "--trial", "--trial-round", "1h")
    with closing(open_store(data)) as store:
        campaign = store.campaign(None)
        store.commit([candidate(campaign, device, 0, 0, device % 6) for device in range(12)], [])
        seal(store, campaign, 0)
    text = cli("estimate", "--round", "0", "--data-dir", data).stdout
    assert (
        "careful: this is a TRIAL: devices make their answers up, and the results mean nothing"
        in text
    )
    plotted = cli("estimate", "--plot", "--round", "0", "--data-dir", data).stdout
    for output in (text, plotted):
        assert "What heats your home? (a TRIAL)" in output
    assert "●" in plotted, "how often devices make up each value is known"
    assert "TRIAL: How homes are heated" in cli("status", "--data-dir", data).stdout


@pytest.mark.parametrize("wrong", ["0s", "soon", "1.5m"])
def test_a_wrong_length_of_trial_rounds_is_refused(cli: Cli, data: Path, wrong: str) -> None:
    done = cli("open", HEAT, "--trial", "--trial-round", wrong, "--data-dir", data)
    assert done.exit_code == 2
    assert "is not a duration such as 90s, 15m or 6h" in done.stderr
    assert not data.exists()


# --- `invite`: the link with the whole digest, as text and as a QR code ---------------------------


def test_the_link_and_its_code_name_broker_and_whole_digest(
    cli: Cli, data: Path, used: Campaign
) -> None:
    words = ("invite", used.name, "--data-dir", data, "--broker", BROKER, "--namespace", "ours")
    facts = facts_of(cli(*words, "--json"))
    assert facts["link"] == f"{BROKER}:8883/ours/{used.manifest.full_name}"
    assert parse_invitation(facts["link"]).digest == used.manifest.digest
    assert facts["digest"] == used.manifest.digest.hex()
    lines = cli(*words).stdout.splitlines()
    code = [line for line in lines if set(line) <= set(" ▀▄█") and len(line) > 40]
    assert read_code(squares_of(code)) == facts["link"]
    assert {f"    allomfree-edge join {facts['link']}", facts["link"]} <= set(lines)


def test_a_link_to_this_machine_is_of_no_use_to_others(
    cli: Cli, data: Path, used: Campaign
) -> None:
    text = cli("invite", "--data-dir", data, "--broker", "mqtt://localhost").stdout
    assert "name the broker as they reach it, as in --broker mqtts://broker.example" in text
    assert "broker-config" not in text
    assert "▀" not in text
    assert not any(map(is_for_others, ("mqtt://127.0.0.1/a", "mqtt://[::1]:1/a", "nonsense")))


def test_invite_prints_how_to_configure_the_embedded_broker_for_others(
    cli: Cli, data: Path, used: Campaign
) -> None:
    """With a host, without which the command fails; also if it was for this machine before."""
    for before in ("set up a broker, NAME being this", "configure it again, NAME being this"):
        text = cli("invite", "--data-dir", data).stdout
        assert before in text
        (line,) = re.findall(r"allomfree-collector (broker-config .*)", text)
        words = shlex.split(line)
        assert words == ["broker-config", "--data-dir", str(data), "nats", "--host", "NAME"]
        assert cli(*words[:-1], "localhost").exit_code == 0
    assert cli(*words[:-1], "192.0.2.7", "--bind", "127.0.0.1").exit_code == 0
    assert "▀" in cli("invite", "--data-dir", data).stdout


def test_the_page_links_to_the_last_address_while_the_campaign_is_open(
    cli: Cli, data: Path, used: Campaign
) -> None:
    assert join_link(data, used.manifest) is None
    cli("invite", "--data-dir", data, "--broker", BROKER)
    link = f"{BROKER}:8883/allomfree/{used.manifest.full_name}"
    assert join_link(data, used.manifest) == link
    (data / ADDRESS_FILE).write_bytes(b"\xff")
    assert join_link(data, used.manifest) is None
    with closing(open_store(data)) as store:
        store.close_campaign(used, 1)
    error = mistaken(cli, 1, "invite", "--data-dir", data, "--broker", BROKER)
    assert "nobody can join it any more" in error
