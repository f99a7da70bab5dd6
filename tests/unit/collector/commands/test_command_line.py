"""The collector's command line: help with examples, settings, and words it does not know."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from collector.commands import main
from collector.records import Campaign
from collector.settings import SETTINGS
from tests.support.collector_cli import mistaken
from tests.support.command_line import Cli, facts_of

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


def test_settings_come_from_the_environment_too(
    cli: Cli, data: Path, used: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALLOMFREE_DATA_DIR", str(data))
    assert facts_of(cli("status", "--json"))["received"] == 180


def test_an_unknown_setting(cli: Cli, home: Path) -> None:
    (home / "c.toml").write_text("brocker = 'mqtts://broker.example'\n")
    told = mistaken(cli, 2, "status", "--config", home / "c.toml")
    assert "brocker is not a setting; there are data_dir, broker" in told


@pytest.mark.parametrize(
    "words", [["nosuch"], ["plan"], ["status", "--nosuch"], ["export", "--format", "xml"]]
)
def test_words_the_command_line_does_not_know(cli: Cli, words: list[str]) -> None:
    shown = cli(*words)
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert "--help" in shown.stderr or "-h" in shown.stderr
