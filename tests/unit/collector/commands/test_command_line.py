"""The collector's command line: help with examples, settings, and words it does not know."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import click
import pytest

from collector.commands import main
from collector.data_dir import read_store
from collector.errors import StorageFailure
from collector.records import Campaign
from collector.settings import SETTINGS
from tests.support.command_line import NOBODY, Cli, facts_of, mistaken
from tests.support.databases import new_schema
from tests.support.harness import need

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


@pytest.mark.parametrize(
    "words", [["revoke", "kitchen"], ["revoke", "kitchen", "--undo"], ["seal"], ["close", "--yes"]]
)
def test_a_mistyped_data_directory_is_not_made(cli: Cli, home: Path, words: list[str]) -> None:
    """Else the collector that was meant would know nothing of it."""
    mistyped, empty = home / "dta", home / "empty"
    empty.mkdir(mode=0o700)
    for place in (mistyped, empty):
        told = mistaken(cli, 1, *words, "--data-dir", place)
        assert f"there is no collector's database in {place}; open a campaign first" in told
    assert not mistyped.exists()
    assert not list(empty.iterdir())


@pytest.mark.parametrize("words", [["revoke", "kitchen"], ["seal"], ["close", "--yes"]])
def test_a_mistyped_database_is_left_empty(cli: Cli, data: Path, words: list[str]) -> None:
    need("postgres")
    address = new_schema()
    told = mistaken(cli, 1, *words, "--data-dir", data, "--store", address.url)
    assert "holds no collector's tables; open a campaign first" in told
    with pytest.raises(StorageFailure, match="holds no collector's tables"):
        read_store(data, address)
    assert not data.exists()


def test_a_device_is_revoked_before_anything_was_opened(cli: Cli, data: Path) -> None:
    """Its credential may be lost on the first day."""
    cli("broker-config", "nats", "--host", "localhost", "--data-dir", data)
    cli("enrol", "kitchen", "--data-dir", data)
    told = facts_of(cli("revoke", "kitchen", "--data-dir", data, "--json"))
    assert (told["enrolled"], told["changed"]) == (True, True)
    with closing(read_store(data)) as store:
        assert store.revoked() == {"kitchen"}


def test_no_secret_is_a_flag() -> None:
    options = [o for c in main.commands.values() for o in c.params if isinstance(o, click.Option)]
    assert not {flag for o in options for flag in o.opts} & {"--password", "--key", "--secret"}


def test_settings_come_from_the_environment_too(
    cli: Cli, data: Path, used: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALLOMFREE_DATA_DIR", str(data))
    assert facts_of(cli("status", "--json"))["received"] == 180


def test_an_unknown_setting(cli: Cli, home: Path) -> None:
    (home / "c.toml").write_text("brocker = 'mqtts://broker.example'\n")
    told = mistaken(cli, 2, "status", "--config", home / "c.toml")
    assert 'brocker is not a setting; did you mean "broker"? There are data_dir, broker' in told


def test_errors_in_settings_use_the_collectors_words(cli: Cli, home: Path, data: Path) -> None:
    """It is the agent that draws."""
    (home / "c.toml").write_text("brocker = 'mqtts://broker.example'\n")
    (home / "d.toml").mkdir()
    wrong: list[list[object]] = [
        ["status", "--config", home / "c.toml"],
        ["status", "--config", home / "d.toml"],
        ["status", "--keepalive", "0"],
        ["run", "--data-dir", data, "--broker", NOBODY, "--password-file", home / "nosuch"],
    ]
    for words in wrong:
        told = mistaken(cli, 2, *words)
        assert "drawn" not in told
        assert told.endswith(". Nothing was changed\n")
    (data / "collector.db").write_bytes(b"no database" * 100)
    told = mistaken(cli, 1, "status", "--data-dir", data)
    assert "drawn" not in told


@pytest.mark.parametrize(
    "words", [["nosuch"], ["plan"], ["status", "--nosuch"], ["export", "--format", "xml"]]
)
def test_words_the_command_line_does_not_know(cli: Cli, words: list[str]) -> None:
    shown = cli(*words)
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert "--help" in shown.stderr or "-h" in shown.stderr
