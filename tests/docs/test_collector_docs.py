"""Undocumented is broken: whatever an operator can type, set or meet is in the pages."""

from __future__ import annotations

import inspect
import json
import re

import click
import pytest

from collector import errors, health
from collector.commands import main
from collector.health import Status
from collector.metrics import METRICS
from collector.results.tables import FORMATS
from collector.settings import SETTINGS
from protocol_spec.programs.settings import Setting, SettingsError
from tests.support.docs import (
    COLLECTOR_SETTINGS,
    GUIDE,
    blocks,
    commands_shown,
    names_in,
    read,
    row_with,
    rows,
    section,
    shown,
)

COMMANDS = sorted(main.commands)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_in_both_pages_and_has_an_example(name: str) -> None:
    row = next(
        r for r in rows(section(COLLECTOR_SETTINGS, "## Commands")) if r[0].startswith(f"`{name}")
    )
    arguments = [p for p in main.commands[name].params if isinstance(p, click.Argument)]
    words = [f"[{a.name}]" if not a.required else str(a.name) for a in arguments]
    assert row[0] == "`" + " ".join([name, *(text.upper() for text in words)]) + "`"
    assert f"allomfree-collector {name}" in read(GUIDE)
    assert f"allomfree-collector {name}" in (main.commands[name].help or "")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_documented(name: str) -> None:
    general = {"--config", *(setting.flag for setting in SETTINGS)}
    table = rows(section(COLLECTOR_SETTINGS, "## Commands"))
    own = next(r for r in table if r[0].split()[0].strip("`") == name)[2]
    flags = {flag for p in main.commands[name].params for flag in p.opts if flag[:2] == "--"}
    assert flags - general == set(re.findall(r"--[a-z-]+", own))
    assert all(p.help for p in main.commands[name].params if isinstance(p, click.Option))


def test_no_command_is_documented_that_is_not_there() -> None:
    documented = {name.split()[0] for name in names_in(section(COLLECTOR_SETTINGS, "## Commands"))}
    assert documented == set(COMMANDS)


def test_every_form_of_export() -> None:
    row = row_with(section(COLLECTOR_SETTINGS, "## Commands"), "`export [CAMPAIGN]`")
    assert all(f"`{form}`" in row[2] for form in FORMATS)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_setting_has_its_flag_variable_key_and_default(setting: Setting) -> None:
    row = row_with(section(COLLECTOR_SETTINGS, "## Settings"), f"`{setting.name}`")
    assert row[:3] == [f"`{setting.flag}`", f"`{setting.variable}`", f"`{setting.name}`"]
    if setting.default is not None:
        assert row[3] == shown(setting.default)
    assert setting.help.split(",")[0].split(" or ")[0] in row[4].replace("`", "")


def test_the_variables_that_are_no_setting() -> None:
    for variable in ("ALLOMFREE_CONFIG", "ALLOMFREE_PASSWORD", "STATE_DIRECTORY"):
        assert variable in read(COLLECTOR_SETTINGS)


def test_every_exit_code() -> None:
    kinds = [k for _, k in inspect.getmembers(errors, inspect.isclass)]
    ours = {k.exit_code for k in kinds if issubclass(k, errors.CollectorError)}
    table = rows(section(COLLECTOR_SETTINGS, "## Exit codes"))
    assert {int(row[0]) for row in table if row[0].isdigit()} == ours | {0, SettingsError.exit_code}


def test_every_metric() -> None:
    assert names_in(section(COLLECTOR_SETTINGS, "## Metrics")) == list(METRICS)
    for name, meaning in METRICS.items():
        told = row_with(section(COLLECTOR_SETTINGS, "## Metrics"), f"`{name}`")[2]
        assert told.startswith(meaning.split(", by ")[0]), name


def test_health_tells_its_record_and_its_times() -> None:
    text = " ".join(section(COLLECTOR_SETTINGS, "## Health").split())
    for field in ("healthy", "finding", "pid", "at", *Status.__dataclass_fields__):
        assert f"`{field}`" in text, field
    assert f"every {health.EVERY_SECONDS:g} seconds" in text
    assert f"silent for {health.STALE_SECONDS:g} seconds" in text
    assert "`/health`" in text
    assert "`/metrics`" in text


def test_commands_shown_can_be_typed() -> None:
    tried = set()
    for where, words in commands_shown("allomfree-collector"):
        if words and words[0] in main.commands:
            main.commands[words[0]].make_context(where, words[1:])
            tried.add(words[0])
    assert tried == set(COMMANDS), "every command is shown at work"


def test_the_log_example_is_a_line_of_json() -> None:
    (block,) = blocks(section(COLLECTOR_SETTINGS, "## Log"), "json")
    assert json.loads(block).keys() == {"at", "level", "message"}
