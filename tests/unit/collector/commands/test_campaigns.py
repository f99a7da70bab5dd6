"""`plan`, `open`, `invite` and `close`, trials, and mistakes in a manifest."""

from __future__ import annotations

import json
import re
import shlex
import time
import tomllib
from contextlib import closing
from pathlib import Path

import pytest

from collector.data_dir import open_store, read_store
from collector.opening import (
    ADDRESS_FILE,
    TRIAL_MARK,
    is_for_others,
    is_trial,
    join_link,
    read_campaign,
    trial_of,
)
from collector.records import Campaign
from edge_client.errors import PolicyRefusal
from edge_client.policy import Policy
from protocol_spec import Manifest, ManifestError
from protocol_spec.programs.settings import parse_invitation
from tests.support.campaigns import manifest_text
from tests.support.collector import FIRST, candidate
from tests.support.command_line import NOBODY, Cli, facts_of, mistaken, read_code, squares_of
from tests.support.harness import ROOT
from tests.support.pages import MANIFEST as ROOMS


def test_plan(cli: Cli, file: Path) -> None:
    planned = facts_of(cli("plan", file, "--devices", 30_000, "--precision", 0.01, "--json"))
    assert [a["name"] for a in planned["attributes"]] == ["fuel", "town", "colour"]
    assert [a["devices"] for a in planned["attributes"]] == [10_000] * 3
    text = cli("plan", file, "--devices", 30_000, "--precision", 0.01)
    assert text.exit_code == 0
    assert "one round of 10,000 devices" in text.stdout
    needed = planned["attributes"][0]["devices_for_precision"]
    assert f"for ±1 in one round: {needed:,} devices in all" in text.stdout


def test_plan_warns_of_too_few_receipt_pages(cli: Cli, file: Path) -> None:
    """16 pages of 8192 receipts (F5)."""
    fits = facts_of(cli("plan", file, "--devices", 131_072, "--json"))
    assert (fits["receipt_pages"], fits["receipts_warning"]) == (132, None)
    crowd = facts_of(cli("plan", file, "--devices", 270_000, "--json"))
    assert "room for 131,072 receipts at a time" in crowd["receipts_warning"]
    assert "Set receipt_pages = 270" in crowd["receipts_warning"]
    assert f"careful: {crowd['receipts_warning']}" in cli("plan", file, "--devices", 270_000).stdout
    most = facts_of(cli("plan", file, "--devices", 10**9, "--json"))
    assert most["receipt_pages"] == 65_536


def test_open_says_how_many_receipts_there_is_room_for(cli: Cli, home: Path, data: Path) -> None:
    """The number of pages cannot change afterwards (F5)."""
    place = home / "crowd.toml"
    text = ROOMS.format(reporting="memoized", budget=BUDGET, min_reports=1, first=FIRST)
    for devices, said in ((10_000, "Receipts of 81,920 devices"), (100_000, "Careful: ")):
        place.write_text(f"devices = {devices}\nreceipt_pages = 10\n{text}")
        told = facts_of(cli("open", place, "--data-dir", data, "--broker", NOBODY, "--json"))
        assert told["receipts"].startswith(said)
        opened = cli("open", place, "--data-dir", data, "--broker", NOBODY)
        assert told["receipts"] in opened.stdout


def test_a_plan_that_is_impossible(cli: Cli, file: Path) -> None:
    told = mistaken(cli, 2, "plan", file, "--devices", 0)
    assert told == "error: --devices = 0: a number of devices is 1 or more\n"
    told = mistaken(cli, 2, "plan", file, "--devices", 9, "--frequency", 2)
    assert "--frequency = 2.0: " in told
    told = mistaken(cli, 2, "plan", file, "--devices", 9, "--precision", 7)
    assert "--precision = 7.0: " in told


def test_open(cli: Cli, file: Path, data: Path) -> None:
    told = facts_of(cli("open", file, "--data-dir", data, "--broker", NOBODY, "--json"))
    manifest = Manifest.from_file(file)
    assert (told["campaign"], told["digest"]) == (manifest.campaign, manifest.digest.hex())
    assert told["join"] == f"allomfree-edge join {NOBODY}/allomfree/{manifest.full_name}"
    assert told["running"] is False
    again = cli("open", file, "--data-dir", data, "--broker", NOBODY)
    assert again.exit_code == 0
    assert told["join"] in again.stdout
    with closing(read_store(data)) as store:
        assert [c.name for c in store.campaigns()] == [manifest.campaign]


def test_no_manifest_file(cli: Cli, home: Path) -> None:
    for words in (["plan", home / "nosuch.toml", "--devices", 9], ["open", home / "nosuch.toml"]):
        assert "cannot be read: No such file" in mistaken(cli, 2, *words)
    (home / "x.toml").write_text("slug = heat")
    assert "is not TOML" in mistaken(cli, 2, "plan", home / "x.toml", "--devices", 9)


def test_several_mistakes_in_a_manifest_are_told_at_once(cli: Cli, file: Path, data: Path) -> None:
    text = file.read_text().replace('slug = "heat"', 'slug = "Heat!"').replace("eps_1", "eps1")
    file.write_text(text.replace("period = 3600", 'period = "often"'))
    told = mistaken(cli, 2, "open", file, "--data-dir", data)
    for field in ("slug = ", "eps_1: is required", "eps1 = ", "rounds.period = "):
        assert f"{file}: {field}" in told
    assert not data.exists()


def test_a_campaign_that_is_over(cli: Cli, file: Path, data: Path) -> None:
    file.write_text(manifest_text(first=1_500_000_000, count=3))
    told = mistaken(cli, 2, "open", file, "--data-dir", data, "--broker", NOBODY)
    assert told.startswith(f"error: {file}: rounds.first = ")
    assert "the last round ended at 2017-07-14T06:40:00Z; nothing was opened" in told
    assert not data.exists()
    trial = cli("open", file, "--trial", "--data-dir", data, "--broker", NOBODY)
    assert trial.exit_code == 0, "a trial of it begins now"


def test_a_campaign_that_was_closed(cli: Cli, data: Path, file: Path, used: Campaign) -> None:
    cli("close", "--yes", "--data-dir", data)
    told = mistaken(cli, 1, "open", file, "--data-dir", data, "--broker", NOBODY)
    assert f"{used.name} was closed at" in told
    assert "open another campaign" in told


def test_close_asks_first(cli: Cli, data: Path, used: Campaign) -> None:
    refused = cli("close", "heat", "--data-dir", data, answer="n\n")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "Nothing was changed." in refused.stderr
    closed = cli("close", "heat", "--data-dir", data, answer="y\n")
    assert closed.exit_code == 0
    with closing(read_store(data)) as store:
        assert store.campaign(None).closed is not None
    assert cli("close", "heat", "--yes", "--data-dir", data).exit_code == 0


BUDGET = "eps_inf = 4.0\neps_1 = 1.5"


def test_plan_says_verdict_ways_and_what_would_do(cli: Cli, file: Path) -> None:
    text = cli("plan", file, "--devices", 90).stdout
    planned = facts_of(cli("plan", file, "--devices", 90, "--json"))["attributes"][0]
    one, pooled = planned["verdict"]
    assert f"verdict, one round: {one['sentence']}" in text
    assert one["sentence"].startswith("shows nothing: ±")
    assert f"verdict, 1,000 rounds together: {pooled['sentence']}" in text
    for suggested in planned["suggestions"]:
        assert f"    {suggested['sentence']}\n" in text
    for way in planned["mechanisms"]:
        assert f"{'>' if way['chosen'] else ' '} {way['reporting']} " in text
    assert 'choose_for = "pooled": L-GRR' in text


def test_plan_of_numbers_that_change(cli: Cli, home: Path) -> None:
    place = home / "rooms.toml"
    place.write_text(ROOMS.format(reporting="memoized", budget=BUDGET, min_reports=1, first=FIRST))
    text = cli("plan", place, "--devices", 5000).stdout
    assert 'careful: room may change over time, but with reporting = "memoized"' in text
    assert "mean ±" in text
    assert "median between" in text
    assert "careful: fuel" not in text


# --- A trial is the same campaign with short rounds, and says everywhere that it is one.


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


# --- `invite`: the link with the whole digest, as text and as a code that can be scanned.


BROKER = "mqtts://broker.example"


def test_the_link_names_broker_and_whole_digest(cli: Cli, data: Path, used: Campaign) -> None:
    told = facts_of(cli("invite", "--data-dir", data, "--broker", BROKER, "--json"))
    named = parse_invitation(told["link"])
    assert (str(named.broker), named.campaign) == (f"{BROKER}:8883", used.name)
    assert named.digest == used.manifest.digest
    assert told["digest"] == used.manifest.digest.hex()


def test_the_code_is_the_link(cli: Cli, data: Path, used: Campaign) -> None:
    said = cli("invite", used.name, "--data-dir", data, "--broker", BROKER, "--namespace", "ours")
    lines = said.stdout.splitlines()
    code = [line for line in lines if set(line) <= set(" ▀▄█") and len(line) > 40]
    link = f"{BROKER}:8883/ours/{used.manifest.full_name}"
    assert read_code(squares_of(code)) == link
    assert f"    allomfree-edge join {link}" in lines
    assert link in lines


def test_a_link_to_this_machine_is_of_no_use_to_others(
    cli: Cli, data: Path, used: Campaign
) -> None:
    said = cli("invite", "--data-dir", data, "--broker", "mqtt://localhost").stdout
    assert "name the broker as they reach it, as in --broker mqtts://broker.example" in said
    assert "broker-config" not in said
    assert "▀" not in said
    assert not any(map(is_for_others, ("mqtt://127.0.0.1/a", "mqtt://[::1]:1/a", "nonsense")))


def test_the_embedded_broker_is_set_up_for_others_as_told(
    cli: Cli, data: Path, used: Campaign
) -> None:
    """With a host, without which the command fails; also if it was for this machine before."""
    for before in ("set up a broker, NAME being this", "configure it again, NAME being this"):
        said = cli("invite", "--data-dir", data).stdout
        assert before in said
        (line,) = re.findall(r"allomfree-collector (broker-config .*)", said)
        words = shlex.split(line)
        assert words == ["broker-config", "--data-dir", str(data), "nats", "--host", "NAME"]
        done = cli(*words[:-1], "localhost")
        assert done.exit_code == 0, done.stderr
    assert cli(*words[:-1], "192.0.2.7", "--bind", "127.0.0.1").exit_code == 0
    assert "▀" in cli("invite", "--data-dir", data).stdout


def test_a_closed_campaign_invites_nobody(cli: Cli, data: Path, used: Campaign) -> None:
    with closing(open_store(data)) as store:
        store.close_campaign(used, 1)
    told = mistaken(cli, 1, "invite", "--data-dir", data, "--broker", BROKER)
    assert "nobody can join it any more" in told


def test_the_page_knows_the_address_of_the_last_time(cli: Cli, data: Path, used: Campaign) -> None:
    assert join_link(data, used.manifest) is None
    cli("invite", "--data-dir", data, "--broker", BROKER)
    link = f"{BROKER}:8883/allomfree/{used.manifest.full_name}"
    assert join_link(data, used.manifest) == link
    (data / ADDRESS_FILE).write_bytes(b"\xff")
    assert join_link(data, used.manifest) is None
    with closing(read_store(data)) as store:
        assert store.campaigns()
