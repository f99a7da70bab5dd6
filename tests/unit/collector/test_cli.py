"""The command line: help with examples, JSON that parses, and mistakes that end in one line."""

from __future__ import annotations

import csv
import io
import json
import socket
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import Result

from collector.commands import main
from collector.data_dir import only_service, open_store
from collector.health import Heartbeat, Status
from collector.records import Campaign
from collector.settings import SETTINGS
from collector.show.tables import COLUMNS
from collector.store.sqlite import SqliteStore
from protocol_spec import Manifest, Topics
from tests.support.campaigns import manifest_text
from tests.support.collector_cli import data, file, mistaken, used
from tests.support.collector_fakes import FIRST, HOUR, candidate, seal, three_questions
from tests.support.command_line import Cli
from tests.support.results import MANIFEST as ROOMS
from tests.support.results import rooms, store_windows

__all__ = ["data", "file", "used"]  # fixtures

NOBODY = "mqtt://127.0.0.1:1"
BUDGET = "eps_inf = 4.0\neps_1 = 1.5"


def facts(result: Result) -> Any:
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def read(data: Path) -> SqliteStore:
    return SqliteStore(data / "collector.db", read_only=True)


# --- help -----------------------------------------------------------------------------------------

COMMANDS = sorted(main.commands)


def test_the_commands_people_were_promised_are_there() -> None:
    promised = {"plan", "open", "run", "status", "estimate", "export", "seal", "close"}
    assert promised | {"doctor", "health", "revoke"} <= set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(cli: Cli, name: str) -> None:
    shown = cli(name, "--help")
    assert shown.exit_code == 0
    assert f"allomfree-collector {name}" in shown.stdout.split("Options:")[0].split("\n", 1)[1]
    assert cli(name, "-h").stdout == shown.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_takes_every_setting(name: str) -> None:
    flags = {flag for option in main.commands[name].params for flag in option.opts}
    assert {setting.flag for setting in SETTINGS} | {"--config"} <= flags


def test_every_command_has_a_line_in_the_overview(cli: Cli) -> None:
    shown = cli("--help").stdout
    assert all(f"\n  {name} " in shown for name in COMMANDS)
    assert "allomfree-collector" in cli("--version").stdout


def test_no_secret_is_a_flag() -> None:
    options = [o for c in main.commands.values() for o in c.params if isinstance(o, click.Option)]
    assert not {flag for o in options for flag in o.opts} & {"--password", "--key", "--secret"}


# --- what it is for -------------------------------------------------------------------------------


def test_plan_says_verdict_ways_and_what_would_do(cli: Cli, file: Path) -> None:
    text = cli("plan", file, "--devices", 90).stdout
    planned = facts(cli("plan", file, "--devices", 90, "--json"))["attributes"][0]
    one, pooled = planned["verdict"]
    assert f"verdict, one round: {one['sentence']}" in text
    assert one["sentence"].startswith("this would show nothing: ±")
    assert f"verdict, 1,000 rounds together: {pooled['sentence']}" in text
    for suggested in planned["suggestions"]:
        assert f"    {suggested['sentence']}\n" in text
    for way in planned["ways"]:
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


def test_plan(cli: Cli, file: Path) -> None:
    planned = facts(cli("plan", file, "--devices", 30_000, "--precision", 0.01, "--json"))
    assert [a["name"] for a in planned["attributes"]] == ["fuel", "town", "colour"]
    assert [a["devices"] for a in planned["attributes"]] == [10_000] * 3
    text = cli("plan", file, "--devices", 30_000, "--precision", 0.01)
    assert text.exit_code == 0
    assert "one round of 10,000 devices" in text.stdout
    needed = planned["attributes"][0]["devices_for_precision"]
    assert f"for ±1 in one round: {needed:,} devices in all" in text.stdout


def test_open(cli: Cli, file: Path, data: Path) -> None:
    told = facts(cli("open", file, "--data-dir", data, "--broker", NOBODY, "--json"))
    manifest = Manifest.from_file(file)
    assert (told["campaign"], told["digest"]) == (manifest.campaign, manifest.digest.hex())
    assert told["join"] == f"allomfree-edge join {NOBODY}/allomfree/{manifest.campaign}"
    assert told["running"] is False
    again = cli("open", file, "--data-dir", data, "--broker", NOBODY)
    assert again.exit_code == 0
    assert told["join"] in again.stdout
    with closing(read(data)) as store:
        assert [c.name for c in store.campaigns()] == [manifest.campaign]


def test_status(cli: Cli, data: Path, used: Campaign) -> None:
    told = facts(cli("status", "--data-dir", data, "--json"))
    (campaign,) = told["campaigns"]
    assert (told["received"], told["healthy"]) == (180, False)
    assert (campaign["open"], campaign["round"], campaign["sealed"]) == (True, 2, 1)
    assert campaign["filling"] == [
        {"round": 1, "reports": {"fuel": 30, "town": 30, "colour": 30}, "enough": 1}
    ]
    assert campaign["outcomes"] == {"accepted": 180}
    text = cli("status", "heat", "--data-dir", data)
    assert text.exit_code == 0
    assert "round 2 of 1000; 1 sealed" in text.stdout
    assert "counted in its round" in text.stdout


def test_status_before_the_first_round(cli: Cli, data: Path) -> None:
    with closing(open_store(data)) as store:
        store.open_campaign(three_questions(first=int(time.time()) + HOUR), 0)
    shown = cli("status", "--data-dir", data)
    assert shown.exit_code == 0
    assert "no round now" in shown.stdout
    assert "None" not in shown.stdout


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], [("fuel", None), ("town", None), ("colour", None)]),
        (["--round", "latest", "--attribute", "fuel"], [("fuel", 0)]),
        (["--round", "0", "--attribute", "colour"], [("colour", 0)]),
        (["--round", "1", "--attribute", "fuel"], [("fuel", 1)]),
        (["--round", "all", "--attribute", "fuel"], [("fuel", None), ("fuel", 0)]),
        (["--round", "pooled", "--attribute", "town"], [("town", None)]),
    ],
)
def test_estimate(
    cli: Cli,
    data: Path,
    used: Campaign,
    options: list[str],
    expected: list[tuple[str, int | None]],
) -> None:
    told = facts(cli("estimate", "--data-dir", data, *options, "--json"))
    assert [(r["attribute"], r["round"]) for r in told] == expected
    assert all(len(r["histogram"]) > 1 and r["n"] == 30 for r in told)
    text = cli("estimate", "--data-dir", data, *options)
    assert text.exit_code == 0
    assert "95 % interval" in text.stdout
    assert "no two values can be told apart" in text.stdout  # thirty reports
    assert all(r["difference"]["pair"] == r["smallest_visible"] > 1 for r in told)
    assert all(r["difference"]["tallest"] > r["difference"]["pair"] for r in told)


@pytest.mark.parametrize("number", ["pooled", "0", "1", "all"])
def test_estimate_compares_two_values(cli: Cli, data: Path, used: Campaign, number: str) -> None:
    words = ("estimate", "--data-dir", data, "--round", number, "--compare", "gas", "oil")
    told = facts(cli(*words, "--json"))
    shown = facts(cli("estimate", "--data-dir", data, "--round", number, "--json"))
    fuel = [r for r in shown if r["attribute"] == "fuel"]
    assert [c["round"] for c in told] == [r["round"] for r in fuel]
    for found, result in zip(told, fuel):
        raw = {row["value"]: row["raw"] for row in result["histogram"]}
        assert found["difference"] == pytest.approx(raw["gas"] - raw["oil"])
        assert found["answer"] == "not shown"
        assert found["low"] < found["difference"] < found["high"]
    text = cli(*words).stdout
    assert "is gas above oil? not shown: gas and oil may be equally frequent" in text
    assert f"difference {100 * told[0]['difference']:.1f} points, 95 % interval" in text
    assert "town" not in text


def test_estimate_compares_only_what_is_there(cli: Cli, data: Path, used: Campaign) -> None:
    words = ("estimate", "--data-dir", data, "--attribute", "fuel", "--compare")
    assert "unknown value 'coal'; the attribute has:" in mistaken(cli, 1, *words, "gas", "coal")
    assert "compared with itself" in mistaken(cli, 1, *words, "gas", "gas")


def test_estimate_says_numbers_windows_and_the_way(cli: Cli, data: Path) -> None:
    with closing(open_store(data)) as store:
        store_windows(store, store.open_campaign(rooms("once"), 0))
    text = cli("estimate", "--data-dir", data, "--attribute", "room").stdout
    assert "rounds 0 to 4, 130 reports of 130 devices, GRR, once" in text
    (told,) = facts(cli("estimate", "--data-dir", data, "--attribute", "room", "--json"))
    numbers, middle = told["numbers"], told["numbers"]["quantiles"][2]
    assert f"mean {numbers['mean']:.4g} °C   {numbers['mean_low']:.4g} …" in text
    assert f"median {middle['value']:.4g} °C   {middle['low']:g} … {middle['high']:g}" in text
    assert numbers["edges"] == [16, 18, 20, 22, 24]
    assert (told["first"], told["last"], told["n_eff"], told["warnings"]) == (0, 4, 130, [])
    fills = cli("estimate", "--data-dir", data, "--round", "3", "--attribute", "room").stdout
    assert "rounds 2 to 3, 40 reports of 40 devices, GRR, once" in fills
    assert "not enough reports: 40 of 50; withheld" in fills


def test_estimate_warns_of_values_that_change(cli: Cli, data: Path) -> None:
    edges = '[[attributes]]\nname = "t"\nquestion = "?"\nedges = [0, 1, 2]\n'
    with closing(open_store(data)) as store:
        campaign = store.open_campaign(three_questions(attributes=edges), 0)
        store.commit([candidate(campaign, d) for d in range(9)], [])
        seal(store, campaign, 0)
    assert 'choose reporting = "once"' in cli("estimate", "--data-dir", data).stdout
    (told,) = facts(cli("estimate", "--data-dir", data, "--json"))
    assert told["warnings"][0].startswith("t may change over time")


def test_estimate_below_min_reports(cli: Cli, data: Path, home: Path) -> None:
    with closing(open_store(data)) as store:
        first = int(time.time()) - 3 * HOUR
        campaign = store.open_campaign(three_questions(first=first, min_reports=200), 0)
        store.commit([candidate(campaign, d) for d in range(37)], [])
        seal(store, campaign, 0)
    text = cli("estimate", "--data-dir", data, "--round", 0, "--attribute", "fuel")
    assert "not enough reports: 37 of 200; withheld" in text.stdout
    told = facts(cli("estimate", "--data-dir", data, "--round", 0, "--json"))
    assert [(r["withheld"], r["histogram"]) for r in told] == [(True, [])] * 3


def parsed(text: str, form: str) -> list[dict[str, Any]]:
    if form == "csv":
        return list(csv.DictReader(io.StringIO(text)))
    lines = [text] if form == "json" else text.splitlines()
    read_lines = [json.loads(line) for line in lines]
    return list(read_lines[0]) if form == "json" else read_lines


@pytest.mark.parametrize("form", ["csv", "json", "ndjson"])
def test_export(cli: Cli, data: Path, home: Path, used: Campaign, form: str) -> None:
    words = ["export", "--data-dir", data, "--format", form, "--attribute", "fuel"]
    shown = cli(*words)
    assert shown.exit_code == 0
    table = parsed(shown.stdout, form)
    assert [tuple(row) for row in table] == [COLUMNS] * 8  # four values, pooled and one round
    wrote = cli(*words, "--output", home / "out")
    assert (wrote.exit_code, wrote.stdout) == (0, "")
    assert (home / "out").read_text() == shown.stdout


def test_seal(cli: Cli, data: Path, used: Campaign) -> None:
    told = facts(cli("seal", "--data-dir", data, "--json"))
    assert told == {"campaign": used.name, "sealed": []}
    assert "nothing was due" in cli("seal", "--data-dir", data).stdout
    assert facts(cli("seal", "--early", "--data-dir", data, "--json"))["sealed"] == [1]
    with closing(read(data)) as store:
        assert store.last_sealed(used.id) == 1


def test_close_asks_first(cli: Cli, data: Path, used: Campaign) -> None:
    refused = cli("close", "heat", "--data-dir", data, answer="n\n")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "Nothing was changed." in refused.stderr
    closed = cli("close", "heat", "--data-dir", data, answer="y\n")
    assert closed.exit_code == 0
    with closing(read(data)) as store:
        assert store.campaign(None).closed is not None
    assert cli("close", "heat", "--yes", "--data-dir", data).exit_code == 0


def test_revoke_and_undo(cli: Cli, data: Path, used: Campaign) -> None:
    assert cli("revoke", "kitchen-7", "--data-dir", data).exit_code == 0
    with closing(read(data)) as store:
        assert store.revoked() == {"kitchen-7"}
    assert "is no longer revoked" in cli("revoke", "kitchen-7", "--undo", "--data-dir", data).stdout
    with closing(read(data)) as store:
        assert store.revoked() == frozenset()


def test_health(cli: Cli, data: Path, used: Campaign) -> None:
    silent = cli("health", "--data-dir", data, "--json")
    assert silent.exit_code == 1
    assert json.loads(silent.stdout)["finding"].startswith("no collector is running")
    Heartbeat(data).beat(Status(connected=True, trouble=""))
    assert facts(cli("health", "--data-dir", data, "--json"))["healthy"] is True
    assert cli("health", "--data-dir", data).stdout == "connected and counting\n"


def test_doctor(cli: Cli, data: Path, used: Campaign) -> None:
    shown = cli("doctor", "--data-dir", data, "--broker", NOBODY, "--json")
    assert shown.exit_code == 1
    found = {f["check"]: (f["ok"], f["finding"]) for f in json.loads(shown.stdout)}
    assert found["database"] == (True, "every message received has one outcome")
    assert found["campaigns"] == (True, used.name)
    assert found["device key"][0] is False, "reports came, so a missing key is a lost one"
    assert found["broker"][0] is False
    text = cli("doctor", "--data-dir", data, "--broker", NOBODY)
    assert "FAIL  broker: the broker mqtt://127.0.0.1:1 cannot be used" in text.stdout


def test_settings_come_from_the_environment_too(
    cli: Cli, data: Path, used: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALLOMFREE_DATA_DIR", str(data))
    assert facts(cli("status", "--json"))["received"] == 180


def test_reading_changes_nothing(cli: Cli, data: Path, used: Campaign) -> None:
    before = (data / "collector.db").read_bytes()
    for command in ("status", "estimate", "export"):
        assert cli(command, "--data-dir", data).exit_code == 0
    assert (data / "collector.db").read_bytes() == before


# --- mistakes -------------------------------------------------------------------------------------


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
    for field in ("slug", "eps_1", "eps1", "rounds.period"):
        assert f"{field} = " in told
    assert not data.exists()


def test_a_protocol_that_cannot_reach_its_budget(cli: Cli, file: Path, data: Path) -> None:
    text = file.read_text().replace("L-OSUE", "L-SOUE").replace("eps_1 = 0.6", "eps_1 = 1.9")
    file.write_text(text)
    told = mistaken(cli, 2, "open", file, "--data-dir", data)
    assert "attributes[2].protocol = 'L-SOUE'" in told
    assert "at most eps_1 = 1.31" in told


@pytest.mark.parametrize("url", ["http://broker.example", "broker.example", "mqtt:/broker", ""])
def test_a_broker_that_is_no_address(cli: Cli, data: Path, url: str) -> None:
    told = mistaken(cli, 2, "run", "--data-dir", data, "--broker", url)
    assert "--broker" in told
    assert "mqtts://" in told


def test_plain_text_to_another_machine(cli: Cli, data: Path) -> None:
    told = mistaken(cli, 2, "run", "--data-dir", data, "--broker", "mqtt://broker.example")
    assert "nothing was sent. Use mqtts://" in told


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


@pytest.mark.parametrize("command", ["status", "estimate", "export", "seal", "close"])
def test_a_database_that_is_none(cli: Cli, data: Path, command: str) -> None:
    data.mkdir(mode=0o700)
    (data / "collector.db").write_bytes(b"somebody's letters, not a database" * 99)
    assert "cannot be used" in mistaken(cli, 1, command, "--data-dir", data)


def test_a_second_collector_on_the_same_data(cli: Cli, data: Path) -> None:
    with only_service(data):
        told = mistaken(cli, 1, "run", "--data-dir", data, "--broker", NOBODY)
    assert "another collector is running" in told
    assert "nothing was changed" in told


def test_a_lost_device_key(cli: Cli, data: Path, used: Campaign) -> None:
    told = mistaken(cli, 1, "run", "--data-dir", data, "--broker", NOBODY)
    assert "device.key is missing; nothing was changed. Restore it" in told


def test_a_port_that_is_taken(cli: Cli, data: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        told = mistaken(cli, 1, "run", "--data-dir", data, "--broker", NOBODY, "--listen", address)
    assert f"{address} cannot be listened on: Address already in use" in told


@pytest.mark.parametrize("command", ["status", "estimate", "export", "seal", "close"])
def test_an_unknown_campaign(cli: Cli, data: Path, used: Campaign, command: str) -> None:
    told = mistaken(cli, 1, command, "nosuch", "--data-dir", data)
    assert f"unknown campaign 'nosuch'; known campaigns: {used.name}" in told


@pytest.mark.parametrize("command", ["status", "estimate", "export"])
def test_no_data_at_all(cli: Cli, data: Path, command: str) -> None:
    told = mistaken(cli, 1, command, "--data-dir", data)
    assert "open a campaign first" in told
    assert not data.exists()


@pytest.mark.parametrize("command", ["estimate", "export"])
def test_an_unknown_attribute(cli: Cli, data: Path, used: Campaign, command: str) -> None:
    told = mistaken(cli, 1, command, "--data-dir", data, "--attribute", "fule")
    assert "unknown attribute 'fule'; the campaign has: fuel, town, colour" in told


@pytest.mark.parametrize("command", ["estimate", "export"])
@pytest.mark.parametrize("number", ["-1", "first", "1000", "9" * 20, "9" * 5000, "1.5", "²"])
def test_an_unknown_round(cli: Cli, data: Path, used: Campaign, command: str, number: str) -> None:
    told = mistaken(cli, 1, command, "--data-dir", data, f"--round={number}")
    assert "give a number below 1000, latest, pooled or all" in told


def test_a_round_without_reports(cli: Cli, data: Path, used: Campaign) -> None:
    told = mistaken(cli, 1, "estimate", "--data-dir", data, "--round", 500)
    assert "round 500 has no reports; see allomfree-collector status" in told


def test_results_before_the_first_sealing(cli: Cli, data: Path, file: Path) -> None:
    cli("open", file, "--data-dir", data)
    told = mistaken(cli, 1, "estimate", "--data-dir", data)
    assert "no round is sealed yet" in told


def test_a_campaign_that_is_over(cli: Cli, file: Path, data: Path) -> None:
    file.write_text(manifest_text(first=1_500_000_000, count=3))
    told = mistaken(cli, 2, "open", file, "--data-dir", data)
    assert "the last round ended at 2017-07-14T06:40:00Z; nothing was opened" in told


def test_a_campaign_that_was_closed(cli: Cli, data: Path, file: Path, used: Campaign) -> None:
    cli("close", "--yes", "--data-dir", data)
    told = mistaken(cli, 1, "open", file, "--data-dir", data)
    assert f"{used.name} was closed at" in told
    assert "open another campaign" in told


def test_an_output_that_cannot_be_written(cli: Cli, data: Path, used: Campaign) -> None:
    told = mistaken(cli, 2, "export", "--data-dir", data, "--output", data / "no" / "such.csv")
    assert "cannot be written: No such file or directory" in told


def test_a_name_that_is_no_device(cli: Cli, data: Path) -> None:
    assert "invalid device name 'Kitchen 7': use 1 to 32 of a-z" in mistaken(
        cli, 2, "revoke", "Kitchen 7", "--data-dir", data
    )


def test_a_setting_that_is_none(cli: Cli, home: Path) -> None:
    (home / "c.toml").write_text("brocker = 'mqtts://broker.example'\n")
    told = mistaken(cli, 2, "status", "--config", home / "c.toml")
    assert "brocker is not a setting; there are data_dir, broker" in told


def test_a_plan_that_is_impossible(cli: Cli, file: Path) -> None:
    assert "n = 0: " in mistaken(cli, 2, "plan", file, "--devices", 0)
    assert "f = 2.0: " in mistaken(cli, 2, "plan", file, "--devices", 9, "--frequency", 2)


@pytest.mark.parametrize(
    "words", [["nosuch"], ["plan"], ["status", "--nosuch"], ["export", "--format", "xml"]]
)
def test_words_the_command_line_does_not_know(cli: Cli, words: list[str]) -> None:
    shown = cli(*words)
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert "--help" in shown.stderr or "-h" in shown.stderr


def test_topics_of_the_join_line_are_the_campaigns(cli: Cli, file: Path, data: Path) -> None:
    told = facts(cli("open", file, "--data-dir", data, "--namespace", "other", "--json"))
    address = told["join"].split("/", 3)[3]
    assert address == f"other/{told['campaign']}"
    assert Topics(told["campaign"], "other").manifest.startswith("other/")
