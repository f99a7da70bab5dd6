"""Undocumented is broken: whatever a device's owner can type, set or meet is in the pages."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import shlex
import subprocess
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import click
import pytest

import edge_client
from edge_client import errors
from edge_client.__main__ import main
from edge_client.policy import Policy
from edge_client.records import Fate
from edge_client.settings import SETTINGS, default_state_dir, resolve
from edge_client.sources import KINDS, build_all
from edge_client.sources.command import CommandSource
from edge_client.sources.json_file import JsonFileSource
from edge_client.sources.machine import FACTS, MachineSource
from edge_client.sources.plugin import plugin_source
from edge_client.sources.static import StaticSource
from edge_client.states import Problem, ReportState
from protocol_spec import Manifest
from protocol_spec.programs.mqtt import CONNECT_SECONDS
from protocol_spec.programs.settings import Setting
from tests.support.needs import path_of
from tests.support.places import ROOT

UNIT = ROOT / "deploy" / "allomfree-edge.service"
EXAMPLE = ROOT / "deploy" / "edge.toml.example"
PAGES = sorted([*ROOT.glob("README.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/*.md")])
OWN = [ROOT / "docs" / f"{name}.md" for name in ("settings", "raspberry-pi", "python-api")]
SETTINGS_PAGE = (ROOT / "docs/settings.md").read_text(encoding="utf-8")
OWNERS_PAGE = (ROOT / "docs/raspberry-pi.md").read_text(encoding="utf-8")
API_PAGE = (ROOT / "docs/python-api.md").read_text(encoding="utf-8")

COMMANDS = sorted(main.commands)
OPTIONS: dict[str, Callable[..., Any]] = {
    "static": StaticSource,
    "command": CommandSource,
    "json": JsonFileSource,
    "machine": MachineSource,
    "plugin": plugin_source,
}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def rows(text: str) -> list[list[str]]:
    """The cells of every table row of a page."""
    lines = (line.strip() for line in text.splitlines())
    return [[c.strip() for c in x.strip("|").split("|")] for x in lines if x.startswith("|")]


def row_with(text: str, cell: str) -> list[str]:
    found = [row for row in rows(text) if cell in row]
    assert len(found) == 1, f"{cell} has {len(found)} rows"
    return found[0]


def section(text: str, heading: str) -> str:
    """What stands below a heading, up to the next one of any level."""
    start = text.index(f"\n{heading}")
    return re.split(r"\n#+ ", text[start + len(heading) + 1 :], maxsplit=1)[0]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def shown(value: object) -> str:
    """A default as the pages write it."""
    if isinstance(value, tuple):
        return f"`{json.dumps(list(value))}`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`"


# --- commands and settings ----------------------------------------------------------------------


def command_row(name: str) -> list[str]:
    table = rows(section(SETTINGS_PAGE, "## Commands"))
    (found,) = (row for row in table if re.match(rf"`{name}[ `]", row[0]))
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_in_both_pages_and_has_an_example(name: str) -> None:
    assert command_row(name)
    assert f"allomfree-edge {name}" in OWNERS_PAGE
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
    row = row_with(SETTINGS_PAGE, f"`{setting.name}`")
    assert row[:3] == [f"`{setting.flag}`", f"`{setting.variable}`", f"`{setting.name}`"]
    if setting.default is not None:
        assert row[3] == shown(setting.default)
    assert setting.help.split(",")[0].split(" or ")[0] in row[4].replace("`", "")


def test_the_variables_that_are_no_setting() -> None:
    for variable in ("ALLOMFREE_CONFIG", "ALLOMFREE_PASSWORD", "STATE_DIRECTORY"):
        assert variable in SETTINGS_PAGE


@pytest.mark.parametrize("field", dataclasses.fields(Policy), ids=lambda field: field.name)
def test_every_limit_of_the_policy(field: dataclasses.Field[object]) -> None:
    row = row_with(section(SETTINGS_PAGE, "## `[policy]`"), f"`{field.name}`")
    assert row[1] == shown(field.default)


def test_every_kind_of_source_has_a_section() -> None:
    assert set(re.findall(r"^### `(\w+)`", SETTINGS_PAGE, re.MULTILINE)) == set(KINDS)
    assert OPTIONS.keys() == KINDS.keys()


@pytest.mark.parametrize("kind", sorted(OPTIONS))
def test_every_option_of_a_source(kind: str) -> None:
    text = section(SETTINGS_PAGE, f"### `{kind}`")
    for name, option in inspect.signature(OPTIONS[kind]).parameters.items():
        if option.kind is option.VAR_KEYWORD:
            continue
        required = option.default is option.empty
        expected = "required" if required else f"`{option.default:g}`"
        assert row_with(text, f"`{name}`")[1] == expected


def test_every_machine_fact() -> None:
    table = rows(section(SETTINGS_PAGE, "### `machine`"))
    at = next(i for i, row in enumerate(table) if row[0] == "fact")
    assert [row[0].strip("`") for row in table[at + 2 :]] == list(FACTS)


def exit_codes() -> set[int]:
    kinds = [k for _, k in inspect.getmembers(errors, inspect.isclass)]
    return {0} | {
        k.exit_code for k in kinds if issubclass(k, errors.EdgeError | errors.SettingsError)
    }


def test_every_exit_code() -> None:
    table = rows(section(SETTINGS_PAGE, "## Exit codes"))
    assert {int(row[0]) for row in table if row[0].isdigit()} == exit_codes()


def test_every_word_that_status_shows_in_trouble() -> None:
    table = rows(section(OWNERS_PAGE, "## When something is wrong"))
    assert {row[0].strip("`") for row in table[2:]} == set(Problem)


# --- the Python interface -----------------------------------------------------------------------


def test_every_public_name() -> None:
    for name in edge_client.__all__:
        assert f"`{name}`" in API_PAGE or f"`{name}(" in API_PAGE, name


def test_every_method_and_parameter() -> None:
    table = section(API_PAGE, "## `EdgeClient`")
    methods = inspect.getmembers(edge_client.EdgeClient, inspect.isfunction)
    for name, _ in methods:
        assert name.startswith("_") or f"`{name}(" in table, name
    for name in inspect.signature(edge_client.EdgeClient).parameters:
        assert f"`{name}`" in table, name


def test_every_error_and_what_builtin_it_is() -> None:
    table = section(API_PAGE, "## Errors")
    for name, kind in inspect.getmembers(errors, inspect.isclass):
        if issubclass(kind, errors.EdgeError):
            assert f"`{name}`" in table, name
            for base in kind.__bases__:
                if base.__module__ == "builtins":
                    assert row_with(table, f"`{name}`")[1] == f"`{base.__name__}`"


def test_every_state_of_a_report() -> None:
    table = section(API_PAGE, "## `EdgeClient`")
    assert set(get_args(Fate)) < set(ReportState)
    for state in ReportState:
        assert row_with(table, f"`{state}`")[1] == f"`{state.name}`"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_examples_compile(page: Path) -> None:
    for block in blocks(page.read_text(encoding="utf-8"), "python"):
        compile(block, name_of(page), "exec")


# --- examples -----------------------------------------------------------------------------------


def toml_examples() -> Iterator[tuple[str, str]]:
    for page in OWN:
        for i, block in enumerate(blocks(page.read_text(encoding="utf-8"), "toml")):
            yield f"{name_of(page)}[{i}]", block
    example = EXAMPLE.read_text(encoding="utf-8")
    yield name_of(EXAMPLE), example
    yield "with every comment taken up", re.sub(r"(?m)^# (\[|\w+ = )", r"\1", example)


EXAMPLES = dict(toml_examples())


@pytest.mark.parametrize("where", EXAMPLES)
def test_toml_examples_are_taken(where: str, tmp_path: Path) -> None:
    document = tomllib.loads(EXAMPLES[where])
    if "project" in document:  # a package's own file, not ours
        return
    if "attributes" in document:
        assert Manifest.from_toml(EXAMPLES[where]).attributes
        return
    config = tmp_path / "edge.toml"
    config.write_text(EXAMPLES[where], encoding="utf-8")
    settings = resolve({}, config=config, environ={})
    build_all({n: t for n, t in settings.sources.items() if t.get("kind") != "plugin"})


def test_the_example_file_shows_every_setting_it_can(tmp_path: Path) -> None:
    text = EXAMPLES["with every comment taken up"]
    document = tomllib.loads(text)
    everyday = {s.name for s in SETTINGS} - {"allow_plaintext", "keepalive", "log_level"}
    assert everyday <= document.keys()
    assert Policy.from_table(document["policy"]) == Policy()
    assert {t.get("kind", "static") for t in document["sources"].values()} == KINDS.keys() - {
        "plugin"
    }


def commands_shown() -> Iterator[tuple[str, list[str]]]:
    """Every use of the agent's command line in a console block or a unit file."""
    for page in PAGES:
        for block in blocks(page.read_text(encoding="utf-8"), "console"):
            for line in block.splitlines():
                if line.startswith("$ ") and "allomfree-edge " in line:
                    yield name_of(page), shlex.split(re.split(r" [|>&]", line[2:])[0])


def test_commands_shown_can_be_typed() -> None:
    tried = set()
    for where, words in commands_shown():
        programs = [i for i, word in enumerate(words) if word.endswith("allomfree-edge")]
        arguments = words[programs[-1] + 1 :]
        if not arguments or words[0] == "systemctl" or arguments[0].startswith("-"):
            continue
        if arguments[0] in main.commands:
            main.commands[arguments[0]].make_context(where, arguments[1:])
            tried.add(arguments[0])
    assert tried == set(COMMANDS) - {"run"}, "every command is shown at work; run is the service"


# --- links --------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """The names GitHub gives to a page's headings."""
    text = re.sub(r"(?ms)^```.*?^```", "", page.read_text(encoding="utf-8"))
    found = re.findall(r"(?m)^#+ (.+)$", text)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in found}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_resolve(page: Path) -> None:
    text = re.sub(r"(?ms)^```.*?^```", "", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        assert other.exists(), f"{name_of(page)} links to {target}"
        assert not anchor or anchor in anchors(other), f"{name_of(page)} links to {target}"


# --- the unit -----------------------------------------------------------------------------------


def unit() -> dict[str, list[str]]:
    keys: dict[str, list[str]] = defaultdict(list)
    for line in UNIT.read_text(encoding="utf-8").splitlines():
        if line and line[0] not in "#[":
            key, _, value = line.partition("=")
            keys[key].append(value)
    return dict(keys)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("Type", "notify"),
        ("Restart", "on-failure"),
        ("User", "allomfree-edge"),
        ("StateDirectory", "allomfree-edge"),
        ("StateDirectoryMode", "0700"),
        ("UMask", "0077"),
        ("NoNewPrivileges", "yes"),
        ("CapabilityBoundingSet", ""),
        ("ProtectSystem", "strict"),
        ("ProtectHome", "yes"),
        ("PrivateTmp", "yes"),
        ("PrivateDevices", "yes"),
        ("MemoryDenyWriteExecute", "yes"),
        ("RestrictAddressFamilies", "AF_INET AF_INET6 AF_UNIX"),
        ("SystemCallArchitectures", "native"),
        ("LimitCORE", "0"),
        ("ProcSubset", "all"),
        ("WantedBy", "multi-user.target"),
    ],
)
def test_the_unit_keeps_what_matters(key: str, value: str) -> None:
    assert unit()[key] == [value]


def test_the_unit_filters_system_calls_and_memory() -> None:
    assert unit()["SystemCallFilter"][0] == "@system-service"
    assert unit()["MemoryMax"] == ["128M"]
    assert int(unit()["RestartSec"][0]) >= 10


def test_the_unit_runs_the_agent() -> None:
    (start,) = unit()["ExecStart"]
    program, command = start.split()
    assert Path(program).name == "allomfree-edge"
    assert command in main.commands


def test_the_watchdog_is_slower_than_a_broker_that_hangs() -> None:
    slowest = 2 * 3 * CONNECT_SECONDS + CommandSource(["true"]).timeout
    assert int(unit()["WatchdogSec"][0]) > 2 * slowest


def test_no_restart_where_only_the_owner_can_help() -> None:
    codes = {int(code) for code in unit()["RestartPreventExitStatus"][0].split()}
    assert codes == {errors.SettingsError.exit_code, errors.PolicyRefusal.exit_code}


def test_service_and_commands_agree_on_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", f"/var/lib/{unit()['StateDirectory'][0]}")
    assert str(default_state_dir()) == tomllib.loads(EXAMPLES[name_of(EXAMPLE)])["state_dir"]


@pytest.mark.parametrize(
    "check", [["verify"], ["security", "--offline=true", "--threshold=15", "--no-pager"]]
)
def test_systemd_takes_the_unit(check: list[str], tmp_path: Path) -> None:
    """The threshold is of the exposure level, in tenths: lower is better."""
    analyze = path_of("systemd-analyze")
    text = UNIT.read_text(encoding="utf-8")
    copy = tmp_path / UNIT.name
    copy.write_text(re.sub(r"(?m)^ExecStart=.*$", "ExecStart=/bin/true", text), encoding="utf-8")
    done = subprocess.run(
        [analyze, *check, str(copy)], capture_output=True, text=True, check=False, timeout=60
    )
    complaints = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert done.returncode == 0, done.stdout + done.stderr
    assert not complaints
