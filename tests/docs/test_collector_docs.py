"""Undocumented is broken: whatever an operator can type, set or meet is in the pages."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import shlex
import sqlite3
import subprocess
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from collector import errors, health
from collector.commands import main
from collector.health import Status
from collector.records import Campaign
from collector.rounds.home_assistant import discovery, discovery_topic
from collector.rounds.result_json import summary
from collector.rounds.results import round_result
from collector.settings import SETTINGS, resolve
from collector.show.metrics import METRICS
from collector.show.tables import COLUMNS, FORMATS
from collector.store.sqlite import SqliteStore
from protocol_spec import LONGITUDINAL, Manifest, Outcome, Result, Topics, as_drawn, calibrate
from protocol_spec.programs.errors import SettingsError
from protocol_spec.programs.mqtt import CONNECT_SECONDS
from protocol_spec.programs.settings import Setting
from tests.support.needs import path_of
from tests.support.places import ROOT

UNIT = ROOT / "deploy" / "allomfree-collector.service"
EXAMPLE = ROOT / "deploy" / "collector.toml.example"
GUIDE = ROOT / "docs/operator-guide.md"
RESULTS = ROOT / "docs/results.md"
PRIVACY = ROOT / "docs/privacy.md"
DASHBOARDS = ROOT / "docs/dashboards.md"
REFERENCE = ROOT / "docs/collector-settings.md"
SECURITY = ROOT / "docs/security.md"
DECISIONS = [page for page in sorted(ROOT.glob("docs/decisions/*.md")) if page.name >= "0006"]
PAGES = [GUIDE, RESULTS, PRIVACY, REFERENCE, DASHBOARDS, SECURITY, *DECISIONS]
PAGES.append(ROOT / "deploy/README.md")
COMMANDS = sorted(main.commands)


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


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


def names_in(text: str) -> list[str]:
    """First cells of a table that are code, without their back quotes."""
    return [row[0].strip("`") for row in rows(text) if row[0].startswith("`")]


def section(page: Path, heading: str) -> str:
    """What stands below a heading, up to the next one of any level."""
    text = read(page)
    start = text.index(f"\n{heading}\n")
    return re.split(r"\n#+ ", text[start + len(heading) + 1 :], maxsplit=1)[0]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


# --- commands and settings ----------------------------------------------------------------------


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_in_both_pages_and_has_an_example(name: str) -> None:
    row = next(r for r in rows(section(REFERENCE, "## Commands")) if r[0].startswith(f"`{name}"))
    arguments = [p for p in main.commands[name].params if isinstance(p, click.Argument)]
    shown = [f"[{a.name}]" if not a.required else str(a.name) for a in arguments]
    assert row[0] == "`" + " ".join([name, *(text.upper() for text in shown)]) + "`"
    assert f"allomfree-collector {name}" in read(GUIDE)
    assert f"allomfree-collector {name}" in (main.commands[name].help or "")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_documented(name: str) -> None:
    general = {"--config", *(setting.flag for setting in SETTINGS)}
    table = rows(section(REFERENCE, "## Commands"))
    own = next(r for r in table if r[0].split()[0].strip("`") == name)[2]
    flags = {flag for p in main.commands[name].params for flag in p.opts if flag[:2] == "--"}
    assert flags - general == set(re.findall(r"--[a-z-]+", own))
    assert all(p.help for p in main.commands[name].params if isinstance(p, click.Option))


def test_no_command_is_documented_that_is_not_there() -> None:
    documented = {name.split()[0] for name in names_in(section(REFERENCE, "## Commands"))}
    assert documented == set(COMMANDS)


def test_every_form_of_export() -> None:
    row = row_with(section(REFERENCE, "## Commands"), "`export [CAMPAIGN]`")
    assert all(f"`{form}`" in row[2] for form in FORMATS)


def shown(value: object) -> str:
    """A default as the pages write it."""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_setting_has_its_flag_variable_key_and_default(setting: Setting) -> None:
    row = row_with(section(REFERENCE, "## Settings"), f"`{setting.name}`")
    assert row[:3] == [f"`{setting.flag}`", f"`{setting.variable}`", f"`{setting.name}`"]
    if setting.default is not None:
        assert row[3] == shown(setting.default)
    assert setting.help.split(",")[0].split(" or ")[0] in row[4].replace("`", "")


def test_the_variables_that_are_no_setting() -> None:
    for variable in ("ALLOMFREE_CONFIG", "ALLOMFREE_PASSWORD", "STATE_DIRECTORY"):
        assert variable in read(REFERENCE)


def test_every_exit_code() -> None:
    kinds = [k for _, k in inspect.getmembers(errors, inspect.isclass)]
    ours = {k.exit_code for k in kinds if issubclass(k, errors.CollectorError)}
    table = rows(section(REFERENCE, "## Exit codes"))
    assert {int(row[0]) for row in table if row[0].isdigit()} == ours | {0, SettingsError.exit_code}


def test_every_metric() -> None:
    assert names_in(section(REFERENCE, "## Metrics")) == list(METRICS)
    for name, meaning in METRICS.items():
        told = row_with(section(REFERENCE, "## Metrics"), f"`{name}`")[2]
        assert told.startswith(meaning.split(", by ")[0]), name


def test_health_tells_its_record_and_its_times() -> None:
    text = " ".join(section(REFERENCE, "## Health").split())
    for field in ("healthy", "finding", "pid", "at", *Status.__dataclass_fields__):
        assert f"`{field}`" in text, field
    assert f"every {health.EVERY_SECONDS:g} seconds" in text
    assert f"silent for {health.STALE_SECONDS:g} seconds" in text
    assert "`/health`" in text
    assert "`/metrics`" in text


# --- results --------------------------------------------------------------------------------------


def test_every_column_of_export_in_order() -> None:
    assert names_in(section(RESULTS, "## Columns of export")) == list(COLUMNS)


def test_every_field_of_a_result_in_order() -> None:
    fields = [field.name for field in dataclasses.fields(Result)]
    assert names_in(section(RESULTS, "## The result message")) == ["v", *fields]


def test_every_key_of_a_result_in_json_in_order() -> None:
    campaign = Campaign(1, Manifest.from_toml(next(iter(MANIFESTS.values()))), 0, None)
    told = summary(campaign, round_result(campaign, 0, 0, None, {}))
    text = section(DASHBOARDS, "## Any MQTT dashboard")
    assert names_in(text) == list(told)
    topic = Topics(campaign.name).result_json("ATTRIBUTE").replace(campaign.name, "CAMPAIGN")
    assert topic in text


def test_every_sensor_of_home_assistant() -> None:
    campaign = Campaign(1, Manifest.from_toml(next(iter(MANIFESTS.values()))), 0, None)
    found = json.loads(discovery(campaign, Topics(campaign.name)))["components"].values()
    first = campaign.manifest.attributes[0].name
    names = [c["name"].replace(first, "ATTRIBUTE") for c in list(found)[:4]]
    text = section(DASHBOARDS, "## Home Assistant")
    assert sorted(names_in(text)) == sorted(names)
    shown = discovery_topic("homeassistant", campaign).replace(campaign.name, "CAMPAIGN")
    assert shown in text


def test_every_outcome_in_order() -> None:
    assert names_in(section(RESULTS, "## Outcomes")) == [str(outcome) for outcome in Outcome]


def test_every_table_of_the_database(tmp_path: Path) -> None:
    SqliteStore(tmp_path / "collector.db").close()
    db = sqlite3.connect(tmp_path / "collector.db")
    tables = [t for (t,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    text = section(RESULTS, "## The database")
    for table in tables:
        if table.startswith(("_", "sqlite_")):
            continue
        columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
        assert f"`{table}`" in text, table
        if any(row[0] == f"`{table}`" for row in rows(text)):
            assert row_with(text, f"`{table}`")[1] == ", ".join(f"`{c}`" for c in columns)
    db.close()


def test_the_privacy_statement_names_what_is_kept() -> None:
    text = section(PRIVACY, "## What the collector keeps")
    for table in ("report", "device", "tally", "result", "outcome", "revoked"):
        assert f"`{table}`" in text


BUDGET = re.compile(r"`eps_inf` ([\d.]+), `eps_1` ([\d.]+), (\d+) values \((L-\w+)\)")


def budgets(page: Path, heading: str) -> Iterator[tuple[tuple[float, float, int, str], list[str]]]:
    for row in rows(section(page, heading)):
        found = BUDGET.fullmatch(row[0])
        if found:
            yield (float(found[1]), float(found[2]), int(found[3]), found[4]), row[1:]


def test_epsilon_over_time_is_what_the_code_says() -> None:
    table = list(budgets(PRIVACY, "## What is promised"))
    assert table
    for (eps_inf, eps_1, k, protocol), cells in table:
        c = as_drawn(calibrate("ALLOMFREE", k=k, eps_inf=eps_inf, eps_1=eps_1))
        assert c.protocol == protocol
        assert cells[:5] == [f"{c.epsilon_after(t):.3f}" for t in (1, 2, 3, 7, 30)]
        assert float(cells[5]) == eps_inf


def test_what_a_lie_weighs_is_what_the_code_says() -> None:
    table = list(budgets(PRIVACY, "## What a dishonest device can do"))
    assert table
    for (eps_inf, eps_1, k, protocol), cells in table:
        c = as_drawn(calibrate("ALLOMFREE", k=k, eps_inf=eps_inf, eps_1=eps_1))
        assert c.protocol == protocol
        weights = ((1 - c.qs) / c.gap, c.qs / c.gap)
        assert cells == [f"{100 * w / n:.2f}" for w in weights for n in (200, 1000, 10_000)]


def test_the_floor_is_what_the_code_says() -> None:
    table = list(budgets(RESULTS, "## Pooled results"))
    assert table
    for (eps_inf, eps_1, k, protocol), cells in table:
        c = calibrate("ALLOMFREE", k=k, eps_inf=eps_inf, eps_1=eps_1)
        assert c.protocol == protocol
        variances = [c.pooled_variance(1000, t, 0.1) for t in (1, 2, 7, 30, 90, 365, 10**9)]
        widths = [100 * 1.959964 * (v + 0.1 * 0.9 / 1000) ** 0.5 for v in variances]
        assert [cell.strip("*") for cell in cells] == [f"{w:.2f}" for w in widths]


# --- examples -------------------------------------------------------------------------------------


def manifests() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for i, block in enumerate(blocks(read(page), "toml")):
            if "attributes" in tomllib.loads(block):
                yield f"{name_of(page)}[{i}]", block
    for file in sorted(ROOT.glob("docs/examples/*.toml")):
        yield name_of(file), read(file)


MANIFESTS = dict(manifests())


@pytest.mark.parametrize("where", MANIFESTS)
def test_example_manifests_are_valid(where: str) -> None:
    assert Manifest.from_toml(MANIFESTS[where]).calibrations


def test_the_annotated_manifest_shows_every_field() -> None:
    (text,) = (block for where, block in MANIFESTS.items() if name_of(GUIDE) in where)
    document = tomllib.loads(text)
    manifest = Manifest.from_toml(text)
    assert {field.name for field in dataclasses.fields(Manifest)} | {"format"} == document.keys()
    assert {field.name for field in dataclasses.fields(manifest.rounds)} == document[
        "rounds"
    ].keys()
    kinds = {key for attribute in document["attributes"] for key in attribute}
    assert kinds == {"name", "question", "values", "edges", "unit", "protocol", "calibration"}
    assert all(protocol in text for protocol in LONGITUDINAL)


def configurations() -> Iterator[tuple[str, str]]:
    """Fenced as `toml collector`, because plain `toml` is the agent's or a manifest."""
    for page in PAGES:
        for i, block in enumerate(blocks(read(page), "toml collector")):
            yield f"{name_of(page)}[{i}]", block
    yield name_of(EXAMPLE), read(EXAMPLE)
    yield "with every comment taken up", re.sub(r"(?m)^# (\w+ = )", r"\1", read(EXAMPLE))


CONFIGURATIONS = dict(configurations())


@pytest.mark.parametrize("where", CONFIGURATIONS)
def test_configurations_are_taken(where: str, tmp_path: Path) -> None:
    config = tmp_path / "collector.toml"
    config.write_text(CONFIGURATIONS[where], encoding="utf-8")
    settings = resolve({}, config=config, environ={})
    assert settings.required_broker().tls


def test_the_example_file_shows_every_setting() -> None:
    document = tomllib.loads(CONFIGURATIONS["with every comment taken up"])
    assert document.keys() == {setting.name for setting in SETTINGS}


def commands_shown() -> Iterator[tuple[str, list[str]]]:
    for page in PAGES:
        for block in blocks(read(page), "console"):
            for line in block.splitlines():
                if line.startswith("$ ") and "allomfree-collector " in line:
                    yield name_of(page), shlex.split(line[2:])


def test_commands_shown_can_be_typed() -> None:
    tried = set()
    for where, words in commands_shown():
        programs = [i for i, word in enumerate(words) if word == "allomfree-collector"]
        arguments = words[programs[-1] + 1 :] if programs else []
        if arguments and arguments[0] in main.commands:
            main.commands[arguments[0]].make_context(where, arguments[1:])
            tried.add(arguments[0])
    assert tried == set(COMMANDS), "every command is shown at work"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_examples_compile(page: Path) -> None:
    for block in blocks(read(page), "python"):
        compile(block, name_of(page), "exec")


def test_the_log_example_is_a_line_of_json() -> None:
    (block,) = blocks(section(REFERENCE, "## Log"), "json")
    assert json.loads(block).keys() == {"at", "level", "message"}


# --- links ----------------------------------------------------------------------------------------


def without_code(page: Path) -> str:
    return re.sub(r"(?ms)^```.*?^```", "", read(page))


def anchors(page: Path) -> set[str]:
    """The names GitHub gives to a page's headings."""
    titles = re.findall(r"(?m)^#+ (.+)$", without_code(page))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        assert other.exists(), f"{name_of(page)} links to {target}"
        assert not anchor or anchor in anchors(other), f"{name_of(page)} links to {target}"


def test_the_decisions_are_there() -> None:
    numbers = [int(page.name[:4]) for page in DECISIONS]
    assert numbers == list(range(6, 6 + len(numbers)))
    assert numbers[-1] >= 11
    for page in DECISIONS:
        assert {"context", "decision", "consequences"} <= anchors(page)


# --- the unit -------------------------------------------------------------------------------------


def unit() -> dict[str, list[str]]:
    keys: dict[str, list[str]] = defaultdict(list)
    for line in read(UNIT).splitlines():
        if line and line[0] not in "#[":
            key, _, value = line.partition("=")
            keys[key].append(value)
    return dict(keys)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("Type", "notify"),
        ("Restart", "on-failure"),
        ("User", "allomfree-collector"),
        ("StateDirectory", "allomfree-collector"),
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
        ("WantedBy", "multi-user.target"),
    ],
)
def test_the_unit_keeps_what_matters(key: str, value: str) -> None:
    assert unit()[key] == [value]


def test_the_unit_runs_the_collector() -> None:
    (start,) = unit()["ExecStart"]
    program, command, *options = start.split()
    assert Path(program).name == "allomfree-collector"
    main.commands[command].make_context("unit", options)


def test_the_watchdog_is_slower_than_a_broker_that_hangs() -> None:
    assert int(unit()["WatchdogSec"][0]) > 2 * (2 * 3 * CONNECT_SECONDS)


def test_no_restart_where_only_the_operator_can_help() -> None:
    assert unit()["RestartPreventExitStatus"] == [str(SettingsError.exit_code)]


def test_service_and_commands_agree_on_the_data(tmp_path: Path) -> None:
    directory = f"/var/lib/{unit()['StateDirectory'][0]}"
    config = tmp_path / "collector.toml"
    config.write_text("", encoding="utf-8")
    service = resolve({}, config=config, environ={"STATE_DIRECTORY": directory})
    assert resolve({}, config=EXAMPLE, environ={}).data_dir == service.data_dir


@pytest.mark.parametrize(
    "check", [["verify"], ["security", "--offline=true", "--threshold=15", "--no-pager"]]
)
def test_systemd_takes_the_unit(check: list[str], tmp_path: Path) -> None:
    """The threshold is of the exposure level, in tenths: lower is better."""
    analyze = path_of("systemd-analyze")
    copy = tmp_path / UNIT.name
    text = re.sub(r"(?m)^ExecStart=.*$", "ExecStart=/bin/true", read(UNIT))
    copy.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [analyze, *check, str(copy)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not [line for line in done.stderr.splitlines() if UNIT.name in line]
