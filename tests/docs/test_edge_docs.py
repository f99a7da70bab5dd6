"""Undocumented is broken: whatever a device's owner can type, set or meet is in the pages."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from typing import Any, get_args

import click
import pytest

import edge_client
from edge_client import errors
from edge_client.__main__ import main
from edge_client.policy import Policy
from edge_client.records import Fate
from edge_client.settings import SETTINGS
from edge_client.sources import (
    FACTS,
    KINDS,
    CommandSource,
    JsonFileSource,
    MachineSource,
    StaticSource,
    plugin_source,
)
from edge_client.status import Problem, ReportState
from protocol_spec.programs.settings import Setting, parse_invitation
from tests.support.docs import (
    EDGE_SETTINGS,
    OWNERS_PAGE,
    PYTHON_API,
    commands_shown,
    read,
    row_with,
    rows,
    section,
    shown,
)
from tests.support.places import ROOT

COMMANDS = sorted(main.commands)
OPTIONS: dict[str, Callable[..., Any]] = {
    "static": StaticSource,
    "command": CommandSource,
    "json": JsonFileSource,
    "machine": MachineSource,
    "plugin": plugin_source,
}


# --- commands and settings ----------------------------------------------------------------------


def command_row(name: str) -> list[str]:
    table = rows(section(EDGE_SETTINGS, "## Commands"))
    (found,) = (row for row in table if re.match(rf"`{name}[ `]", row[0]))
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_in_both_pages_and_has_an_example(name: str) -> None:
    assert command_row(name)
    assert f"allomfree-edge {name}" in read(OWNERS_PAGE)
    assert f"allomfree-edge {name}" in (main.commands[name].help or "")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_documented(name: str) -> None:
    general = {"--config", *(setting.flag for setting in SETTINGS)}
    documented = set(re.findall(r"--[a-z-]+", command_row(name)[2]))
    flags = {flag for p in main.commands[name].params for flag in p.opts if flag[:2] == "--"}
    assert flags - general == documented
    assert all(p.help for p in main.commands[name].params if isinstance(p, click.Option))


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_setting_has_its_flag_variable_key_and_default(setting: Setting) -> None:
    row = row_with(read(EDGE_SETTINGS), f"`{setting.name}`")
    assert row[:3] == [f"`{setting.flag}`", f"`{setting.variable}`", f"`{setting.name}`"]
    if setting.default is not None:
        assert row[3] == shown(setting.default)
    assert setting.help.split(",")[0].split(" or ")[0] in row[4].replace("`", "")


def test_the_variables_that_are_no_setting() -> None:
    for variable in ("ALLOMFREE_CONFIG", "ALLOMFREE_PASSWORD", "STATE_DIRECTORY"):
        assert variable in read(EDGE_SETTINGS)


@pytest.mark.parametrize("field", dataclasses.fields(Policy), ids=lambda field: field.name)
def test_every_limit_of_the_policy(field: dataclasses.Field[object]) -> None:
    row = row_with(section(EDGE_SETTINGS, "## `[policy]`"), f"`{field.name}`")
    assert row[1] == shown(field.default)


def test_every_kind_of_source_has_a_section() -> None:
    assert set(re.findall(r"^### `(\w+)`", read(EDGE_SETTINGS), re.MULTILINE)) == set(KINDS)
    assert OPTIONS.keys() == KINDS.keys()


@pytest.mark.parametrize("kind", sorted(OPTIONS))
def test_every_option_of_a_source(kind: str) -> None:
    text = section(EDGE_SETTINGS, f"### `{kind}`")
    for name, option in inspect.signature(OPTIONS[kind]).parameters.items():
        if option.kind is option.VAR_KEYWORD:
            continue
        required = option.default is option.empty
        plain = isinstance(option.default, int | float)
        expected = "required" if required else f"`{option.default:g}`" if plain else "none"
        assert row_with(text, f"`{name}`")[1] == expected


def test_every_machine_fact() -> None:
    table = rows(section(EDGE_SETTINGS, "### `machine`"))
    at = next(i for i, row in enumerate(table) if row[0] == "fact")
    assert [row[0].strip("`") for row in table[at + 2 :]] == list(FACTS)


def exit_codes() -> set[int]:
    kinds = [k for _, k in inspect.getmembers(errors, inspect.isclass)]
    return {0} | {
        k.exit_code for k in kinds if issubclass(k, errors.EdgeError | errors.SettingsError)
    }


def test_every_exit_code() -> None:
    table = rows(section(EDGE_SETTINGS, "## Exit codes"))
    assert {int(row[0]) for row in table if row[0].isdigit()} == exit_codes()


def test_every_word_that_status_shows_in_trouble() -> None:
    table = rows(section(OWNERS_PAGE, "## When something is wrong"))
    assert {row[0].strip("`") for row in table[2:]} == set(Problem)


# --- the Python interface -----------------------------------------------------------------------


def test_every_public_name() -> None:
    text = read(PYTHON_API)
    for name in edge_client.__all__:
        assert f"`{name}`" in text or f"`{name}(" in text, name


def test_every_method_and_parameter() -> None:
    table = section(PYTHON_API, "## `EdgeClient`")
    methods = inspect.getmembers(edge_client.EdgeClient, inspect.isfunction)
    for name, _ in methods:
        assert name.startswith("_") or f"`{name}(" in table, name
    for name in inspect.signature(edge_client.EdgeClient).parameters:
        assert f"`{name}`" in table, name


def test_every_error_and_what_builtin_it_is() -> None:
    table = section(PYTHON_API, "## Errors")
    for name, kind in inspect.getmembers(errors, inspect.isclass):
        if issubclass(kind, errors.EdgeError):
            assert f"`{name}`" in table, name
            for base in kind.__bases__:
                if base.__module__ == "builtins":
                    assert row_with(table, f"`{name}`")[1] == f"`{base.__name__}`"


def test_every_fate_of_a_report() -> None:
    table = section(PYTHON_API, "## `EdgeClient`")
    for fate in get_args(Fate):
        assert f"| `{fate}` |" in table or f"| `{fate}: ...` |" in table, fate


def test_commands_shown_can_be_typed() -> None:
    tried = set()
    for where, words in commands_shown("allomfree-edge"):
        if words and words[0] in main.commands:
            main.commands[words[0]].make_context(where, words[1:])
            tried.add(words[0])
    assert tried == set(COMMANDS) - {"run"}, "every command is shown at work; run is the service"


def test_every_state_of_a_report() -> None:
    table = section(PYTHON_API, "## `EdgeClient`")
    assert set(get_args(Fate)) < set(ReportState)
    for state in ReportState:
        assert row_with(table, f"`{state}`")[1] == f"`{state.name}`"


def test_who_copies_an_example_of_join_learns_to_give_the_whole_digest() -> None:
    """The address as `open` prints it: 8 digits do not tell a campaign from a forged one."""
    helped = [main.help or "", main.commands["join"].help or ""]
    for text in (read(ROOT / "README.md"), *helped):
        (address,) = re.findall(r"allomfree-edge join (mqtts?://\S+)", text)
        assert parse_invitation(address).digest is not None, address
