"""`plan`, `open` and `close`, and mistakes in a manifest."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from collector.data_dir import read_store
from collector.records import Campaign
from protocol_spec import Manifest, Topics
from tests.support.campaigns import manifest_text
from tests.support.collector import FIRST
from tests.support.command_line import NOBODY, Cli, facts_of, mistaken
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


def test_topics_of_the_join_line_are_the_campaigns(cli: Cli, file: Path, data: Path) -> None:
    told = facts_of(cli("open", file, "--data-dir", data, "--namespace", "other", "--json"))
    address = told["join"].split("/", 3)[3]
    assert address == f"other/{told['campaign']}{told['digest'][8:]}"
    assert Topics(told["campaign"], "other").manifest.startswith("other/")


def test_no_manifest_file(cli: Cli, home: Path) -> None:
    for words in (["plan", home / "nosuch.toml", "--devices", 9], ["open", home / "nosuch.toml"]):
        assert "cannot be read: No such file" in mistaken(cli, 2, *words)


def test_a_manifest_that_is_not_toml(cli: Cli, file: Path, data: Path) -> None:
    file.write_text("slug = heat")
    assert "is not TOML" in mistaken(cli, 2, "open", file, "--data-dir", data)
    assert not data.exists()


def test_several_mistakes_in_a_manifest_are_told_at_once(cli: Cli, file: Path, data: Path) -> None:
    text = file.read_text().replace('slug = "heat"', 'slug = "Heat!"').replace("eps_1", "eps1")
    file.write_text(text.replace("period = 3600", 'period = "often"'))
    told = mistaken(cli, 2, "open", file, "--data-dir", data)
    for field in ("slug = ", "eps_1: is required", "eps1 = ", "rounds.period = "):
        assert f"{file}: {field}" in told
    assert not data.exists()


def test_a_protocol_that_cannot_reach_its_budget(cli: Cli, file: Path, data: Path) -> None:
    text = file.read_text().replace("L-OSUE", "L-SOUE").replace("eps_1 = 0.6", "eps_1 = 1.9")
    file.write_text(text)
    told = mistaken(cli, 2, "open", file, "--data-dir", data)
    assert 'attributes[2].protocol = "L-SOUE"' in told
    assert "at most eps_1 = 1.31" in told


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


def test_a_file_where_the_data_should_be(cli: Cli, home: Path, file: Path) -> None:
    (home / "data").touch()
    told = mistaken(cli, 1, "open", file, "--data-dir", home / "data")
    assert "choose another with --data-dir" in told


def test_data_that_others_can_read(cli: Cli, home: Path, file: Path) -> None:
    (home / "data").mkdir(mode=0o755)
    assert "chmod 700" in mistaken(cli, 1, "open", file, "--data-dir", home / "data")


def test_a_database_that_cannot_be_opened(cli: Cli, data: Path, file: Path) -> None:
    (data / "collector.db").mkdir(parents=True)
    data.chmod(0o700)
    told = mistaken(cli, 1, "open", file, "--data-dir", data)
    assert "collector.db cannot be used: Is a directory" in told


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
