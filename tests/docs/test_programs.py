"""Undocumented is broken: whatever people can type, set or meet is in the pages."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, get_args

import click
import pytest

import collector.errors
import collector.settings
import edge_client
import edge_client.errors
import edge_client.settings
from collector import health
from collector.__main__ import main as collector_main
from collector.results.tables import FORMATS
from collector.web.metrics import METRICS
from edge_client.__main__ import main as edge_main
from edge_client.policy import Policy
from edge_client.records import Fate
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
from protocol_spec import AllomfreeError
from protocol_spec.programs.settings import Setting, SettingsError, parse_invitation
from tests.support.documents import PAGES, blocks, name_of, names_in, read, row_with, rows, section
from tests.support.harness import ROOT

EDGE_PAGE = ROOT / "docs/settings.md"
COLLECTOR_PAGE = ROOT / "docs/collector-settings.md"
PYTHON_API = ROOT / "docs/python-api.md"


class Documented(NamedTuple):
    """A program, the page that lists all of it, and the guide that shows it at work."""

    name: str
    main: click.Group
    settings: tuple[Setting, ...]
    errors: ModuleType
    page: Path
    guide: Path

    def row(self, command: str) -> list[str]:
        table = rows(section(self.page, "## Commands"))
        (found,) = (r for r in table if re.match(rf"`{command}[ `]", r[0]))
        return found


EDGE = Documented(
    *("allomfree-edge", edge_main, tuple(edge_client.settings.SETTINGS), edge_client.errors),
    *(EDGE_PAGE, ROOT / "docs/raspberry-pi.md"),
)
COLLECTOR = Documented(
    *("allomfree-collector", collector_main, tuple(collector.settings.SETTINGS), collector.errors),
    *(COLLECTOR_PAGE, ROOT / "docs/operator-guide.md"),
)
PROGRAMS = [EDGE, COLLECTOR]
each_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
each_command = pytest.mark.parametrize(
    ("program", "command"),
    [pytest.param(p, c, id=f"{p.name} {c}") for p in PROGRAMS for c in sorted(p.main.commands)],
)


# --- both programs -------------------------------------------------------------------------------


@each_command
def test_every_command_and_option_is_in_the_pages_and_has_an_example(
    program: Documented, command: str
) -> None:
    found, row = program.main.commands[command], program.row(command)
    assert f"{program.name} {command}" in read(program.guide)
    assert f"{program.name} {command}" in (found.help or "")
    general = {"--config", "--help-all", *(setting.flag for setting in program.settings)}
    flags = {flag for p in found.params for flag in p.opts if flag.startswith("--")}
    assert flags - general == set(re.findall(r"--[a-z-]+", row[2]))
    assert all(p.help for p in found.params if isinstance(p, click.Option))
    if program.name == "allomfree-collector":
        arguments = [p for p in found.params if isinstance(p, click.Argument)]
        words = [str(a.name).upper() if a.required else f"[{a.name}]".upper() for a in arguments]
        assert row[0] == "`" + " ".join([command, *words]) + "`"


@each_program
def test_the_commands_shown_are_all_there_are_and_can_be_typed(program: Documented) -> None:
    assert {n.split()[0] for n in names_in(section(program.page, "## Commands"))} == {
        *program.main.commands
    }
    tried = set()
    for where, words in commands_shown(program.name):
        if words and words[0] in program.main.commands:
            program.main.commands[words[0]].make_context(where, words[1:])
            tried.add(words[0])
    assert tried | {"run"} == set(program.main.commands), "every command is shown at work"


def commands_shown(program: str) -> Iterator[tuple[str, list[str]]]:
    """Every use of a program in a console block: the page, and the words after its name."""
    for page in PAGES:
        for line in "".join(blocks(read(page), "console")).splitlines():
            if line.startswith("$ ") and f"{program} " in line:
                words = shlex.split(re.split(r" [|>&]", line[2:])[0])
                places = [i for i, word in enumerate(words) if Path(word).name == program]
                if places and words[0] != "systemctl":
                    yield name_of(page), words[places[-1] + 1 :]


@each_program
def test_every_setting_has_its_flag_variable_key_and_default(program: Documented) -> None:
    for setting in program.settings:
        row = row_with(read(program.page), f"`{setting.name}`")
        assert row[:3] == [f"`{setting.flag}`", f"`{setting.variable}`", f"`{setting.name}`"]
        if setting.default is not None:
            assert row[3] == shown(setting.default)
        assert setting.help.split(",")[0].split(" or ")[0] in row[4].replace("`", "")
    for variable in ("ALLOMFREE_CONFIG", "ALLOMFREE_PASSWORD", "STATE_DIRECTORY"):
        assert variable in read(program.page)


def shown(value: object) -> str:
    """A default as the pages write it."""
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return f"`{json.dumps(list(value))}`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


@each_program
def test_every_exit_code(program: Documented) -> None:
    kinds = [kind for _, kind in inspect.getmembers(program.errors, inspect.isclass)]
    codes = {getattr(k, "exit_code", 0) for k in kinds if issubclass(k, AllomfreeError)}
    table = rows(section(program.page, "## Exit codes"))
    documented = {int(row[0]) for row in table if row[0].isdigit()}
    assert documented == codes | {0, SettingsError.exit_code}


# --- the collector -------------------------------------------------------------------------------


def test_every_form_of_export_and_every_metric() -> None:
    row = COLLECTOR.row("export")
    assert all(f"`{form}`" in row[2] for form in FORMATS)
    table = section(COLLECTOR_PAGE, "## Metrics")
    assert names_in(table) == list(METRICS)
    for name, meaning in METRICS.items():
        assert row_with(table, f"`{name}`")[2].startswith(meaning.split(", by ")[0]), name


def test_health_and_log() -> None:
    text = " ".join(section(COLLECTOR_PAGE, "## Health").split())
    for field in ("healthy", "finding", "pid", "at", *health.Status.__dataclass_fields__):
        assert f"`{field}`" in text, field
    assert f"every {health.EVERY_SECONDS:g} seconds" in text
    assert f"silent for {health.STALE_SECONDS:g} seconds" in text
    assert "`/health`" in text
    assert "`/metrics`" in text
    (block,) = blocks(section(COLLECTOR_PAGE, "## Log"), "json")
    assert json.loads(block).keys() == {"at", "level", "message"}


# --- the agent -----------------------------------------------------------------------------------

OPTIONS: dict[str, Callable[..., Any]] = {
    "static": StaticSource,
    "command": CommandSource,
    "json": JsonFileSource,
    "machine": MachineSource,
    "plugin": plugin_source,
}


def test_every_limit_of_the_policy() -> None:
    for field in dataclasses.fields(Policy):
        row = row_with(section(EDGE_PAGE, "## `[policy]`"), f"`{field.name}`")
        assert row[1] == shown(field.default)


def test_every_source_and_its_options() -> None:
    kinds = re.findall(r"^### `(\w+)`", read(EDGE_PAGE), re.MULTILINE)
    assert set(kinds) == KINDS.keys() == OPTIONS.keys()
    for kind, build in OPTIONS.items():
        text = section(EDGE_PAGE, f"### `{kind}`")
        for name, option in inspect.signature(build).parameters.items():
            if option.kind is not option.VAR_KEYWORD:
                plain = isinstance(option.default, int | float)
                default = f"`{option.default:g}`" if plain else "none"
                expected = "required" if option.default is option.empty else default
                assert row_with(text, f"`{name}`")[1] == expected
    table = rows(section(EDGE_PAGE, "### `machine`"))
    at = next(i for i, row in enumerate(table) if row[0] == "fact")
    assert [row[0].strip("`") for row in table[at + 2 :]] == list(FACTS)


def test_every_problem_that_status_shows() -> None:
    table = rows(section(EDGE.guide, "## When something is wrong"))
    assert {row[0].strip("`") for row in table[2:]} == set(Problem)


def test_the_python_interface() -> None:
    text, table = read(PYTHON_API), section(PYTHON_API, "## `EdgeClient`")
    for name in edge_client.__all__:
        assert f"`{name}`" in text or f"`{name}(" in text, name
    for name, _ in inspect.getmembers(edge_client.EdgeClient, inspect.isfunction):
        assert name.startswith("_") or f"`{name}(" in table, name
    for name in inspect.signature(edge_client.EdgeClient).parameters:
        assert f"`{name}`" in table, name
    for fate in get_args(Fate):
        assert f"| `{fate}` |" in table or f"| `{fate}: ...` |" in table, fate
    assert set(get_args(Fate)) < set(ReportState)
    for state in ReportState:
        assert row_with(table, f"`{state}`")[1] == f"`{state.name}`"


def test_every_error_and_what_builtin_it_is() -> None:
    table = section(PYTHON_API, "## Errors")
    for name, kind in inspect.getmembers(edge_client.errors, inspect.isclass):
        if issubclass(kind, edge_client.errors.EdgeError):
            assert f"`{name}`" in table, name
            for base in kind.__bases__:
                if base.__module__ == "builtins":
                    assert row_with(table, f"`{name}`")[1] == f"`{base.__name__}`"


def test_examples_of_join_give_the_whole_digest() -> None:
    """The address as `open` prints it: 8 digits do not tell a campaign from a forged one (P3)."""
    helped = [edge_main.help or "", edge_main.commands["join"].help or ""]
    for text in helped:
        (address,) = re.findall(r"allomfree-edge join (mqtts?://\S+)", text)
        assert parse_invitation(address).digest is not None, address


SCRIPTS = sorted(path for path in (ROOT / "scripts").glob("*.py") if path.stem != "needs")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_says_what_installs_the_libraries_it_lacks(script: Path) -> None:
    """In an environment with Python alone; never a traceback."""
    alone = [sys.executable, "-S", "-E", str(script), "--help"]
    done = subprocess.run(alone, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith(f"error: {script.name} needs ")
    assert f"Run: {sys.executable} -m pip install --editable" in line
