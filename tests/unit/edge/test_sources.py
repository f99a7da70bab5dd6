"""Sources of values: what each kind gives, and what it says, without the value, when it cannot."""

from __future__ import annotations

import json
import platform
import stat
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge_client import sources
from edge_client.errors import SettingsError, SourceFailure
from edge_client.sources import FACTS, build, build_all, read_fact, reader

SECRET = "marmalade"  # noqa: S105 - the value nobody else may see


def failure(table: dict[str, Any]) -> str:
    """What reading a source fails with; neither it nor anything behind it holds the value."""
    with pytest.raises(SourceFailure, match="nothing was drawn or sent") as failed:
        build("fuel", table).read()
    error: BaseException | None = failed.value
    while error is not None:
        assert SECRET not in f"{error!r} {vars(error)}"
        error = error.__context__
    assert SECRET not in "".join(traceback.format_exception(failed.value))
    return str(failed.value)


def wrong(table: Any) -> str:
    with pytest.raises(SettingsError, match=r"sources\.fuel") as refused:
        build_all({"fuel": table})
    assert SECRET not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("value", ["wood", 3, 2.5, True])
def test_static(value: object) -> None:
    assert build("fuel", {"value": value}).read() == value
    assert build("fuel", {"kind": "static", "value": value}).read() == value


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_command() -> None:
    source = build("fuel", {"kind": "command", "command": python("print('  wood \\n')")})
    assert source.read() == "wood"


def test_a_command_is_not_given_to_a_shell() -> None:
    assert build("fuel", {"kind": "command", "command": ["echo", "$HOME;", "`x`"]}).read() == (
        "$HOME; `x`"
    )


def unreadable_program(directory: Path) -> str:
    program = directory / "program"
    program.write_text(f"#!/no/such/interpreter {SECRET}")
    program.chmod(stat.S_IRWXU)
    return str(program)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (f"print('{SECRET}'); raise SystemExit(3)", "ended with code 3"),
        (f"raise ValueError('{SECRET}')", "ended with code 1"),
        (f"print('{SECRET}', flush=True); import time; time.sleep(60)", "took longer than 0.3 s"),
        ("pass", "printed nothing"),
        ("import sys; sys.stdout.buffer.write(bytes([255, 254]))", "could not be run"),
        ("print(input())", "ended with code 1"),
    ],
)
def test_a_failing_command(code: str, expected: str) -> None:
    seconds = 0.3 if "sleep" in code else 30.0
    table = {"kind": "command", "command": python(code), "timeout": seconds}
    assert expected in failure(table)


def test_a_missing_command(tmp_path: Path) -> None:
    for command in ("/no/such/program", unreadable_program(tmp_path), str(tmp_path), "a\0b"):
        assert "could not be run" in failure({"kind": "command", "command": [command]})


def json_source(path: Path, content: object, field: str) -> dict[str, Any]:
    text = content if isinstance(content, str) else json.dumps(content)
    path.write_text(text, encoding="utf-8")
    return {"kind": "json", "file": str(path), "field": field}


@pytest.mark.parametrize(
    ("content", "field", "value"),
    [
        ({"fuel": "wood"}, "fuel", "wood"),
        ({"status": {"fuel": "wood"}}, "status.fuel", "wood"),
        ({"rooms": [{"t": 1}, {"t": 21.5}]}, "rooms.1.t", 21.5),
        ([False, True], "1", True),
    ],
)
def test_json(tmp_path: Path, content: object, field: str, value: object) -> None:
    assert build("fuel", json_source(tmp_path / "f", content, field)).read() == value


@pytest.mark.parametrize(
    ("content", "field", "expected"),
    [
        ({"fuel": SECRET}, "other", "has no field 'other'"),
        ({"fuel": SECRET}, "fuel.deeper", "has no field"),
        ([SECRET], "1", "has no field"),
        ([SECRET], "x", "has no field"),
        ({"fuel": [SECRET]}, "fuel", "holds neither text nor a number"),
        ({"fuel": None, "x": SECRET}, "fuel", "holds neither text nor a number"),
        (f'{{"fuel": "{SECRET}"', "fuel", "is not JSON"),
        ("[" * 100_000, "fuel", "is not JSON"),
        ("", "fuel", "is not JSON"),
    ],
)
def test_failing_json(tmp_path: Path, content: object, field: str, expected: str) -> None:
    table = json_source(tmp_path / "f", content, field)
    message = failure(table)
    assert expected in message
    assert str(tmp_path / "f") in message


def test_missing_and_binary_json(tmp_path: Path) -> None:
    table = {"kind": "json", "file": str(tmp_path / "f"), "field": "x"}
    assert "cannot be read: No such file" in failure(table)
    (tmp_path / "f").write_bytes(b"\xff\xfe")
    assert "is not UTF-8 text" in failure(table)
    assert "cannot be read: Is a directory" in failure({**table, "file": str(tmp_path)})


@pytest.mark.parametrize("fact", FACTS)
def test_machine_facts_are_told_or_refused(fact: str) -> None:
    source = build("fact", {"kind": "machine", "fact": fact})
    try:
        told: object = source.read()
    except SourceFailure as failed:
        told = str(failed)
    assert isinstance(told, str | int | float)


def test_known_machine_facts() -> None:
    def read(fact: str) -> Any:
        return build("fact", {"kind": "machine", "fact": fact}).read()

    assert read("architecture") == platform.machine()
    assert str(read("cpu_count")).isdigit()  # so that it can be one of the values "1", "2", "4"
    assert read("memory_gib") > 0.01
    assert read("uptime_days") > 0


def test_a_machine_that_does_not_tell() -> None:
    def unknown() -> str:
        raise OSError("no such sensor")

    with pytest.raises(SourceFailure, match="does not report its model; nothing was drawn or sent"):
        read_fact("model", {"model": (unknown, "")})


def returns(unit: str) -> str:
    return f"wood in {unit}"


def fails() -> str:
    raise RuntimeError(SECRET)


@pytest.fixture
def _plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with three plugins, installed."""
    package = tmp_path / "plugins-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: plugins\nVersion: 1.0\n")
    targets = {"good": "returns", "bad": "fails", "gone": "no_such_function"}
    lines = [f"{name} = {__name__}:{target}" for name, target in targets.items()]
    (package / "entry_points.txt").write_text("\n".join([f"[{sources.PLUGINS}]", *lines]))
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("_plugins")
def test_plugin() -> None:
    source = build("fuel", {"kind": "plugin", "name": "good", "unit": "kg"})
    assert source.read() == "wood in kg"


@pytest.mark.usefixtures("_plugins")
def test_a_failing_plugin() -> None:
    message = failure({"kind": "plugin", "name": "bad"})
    assert message.startswith("the plugin 'bad' failed with RuntimeError")
    assert "failed with TypeError" in failure({"kind": "plugin", "name": "good", "wrong": SECRET})


@pytest.mark.usefixtures("_plugins")
def test_a_missing_plugin_shows_at_the_start() -> None:
    expected = "no such plugin is installed (installed: bad, gone, good)"
    assert expected in wrong({"kind": "plugin", "name": "other"})
    assert "cannot be loaded (AttributeError)" in wrong({"kind": "plugin", "name": "gone"})
    assert "missing" in wrong({"kind": "plugin"})


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({}, "choose a kind of command, json, machine, plugin, static"),
        ({"kind": "magic"}, "choose one of"),
        ({"kind": ["static"]}, "choose one of"),
        ({"kind": "static"}, "missing"),
        ({"value": SECRET, "other": SECRET}, "unexpected keyword argument 'other'"),
        ({"kind": "command"}, "missing"),
        ({"kind": "command", "command": "cat x"}, "must be a list of words"),
        ({"kind": "command", "command": []}, "must be a list of words"),
        ({"kind": "command", "command": ["x", 1]}, "must be a list of words"),
        ({"kind": "command", "command": ["x"], "timeout": "1"}, "timeout must be a number"),
        ({"kind": "command", "command": ["x"], "timeout": 0}, "timeout must be a number"),
        ({"kind": "json", "file": "x"}, "missing"),
        ({"kind": "json", "file": "x", "field": 3}, "must be text"),
        ({"kind": "machine", "fact": "age"}, "fact = 'age': choose one of architecture"),
        (SECRET, "must be a table"),
        ([SECRET], "must be a table"),
    ],
)
def test_a_source_that_cannot_be_built_says_what_is_wrong(table: Any, expected: str) -> None:
    message = wrong(table)
    assert expected in message
    assert "__init__" not in message


def test_an_attribute_without_a_source_says_what_to_add() -> None:
    with pytest.raises(SourceFailure, match=r"Add \[sources\.fuel\] to the configuration file"):
        reader({})("fuel")


def test_only_the_source_that_is_asked_is_read() -> None:
    sources = build_all({"fuel": {"value": "wood"}, "x": {"kind": "command", "command": ["/no"]}})
    read: Callable[[str], object] = reader(sources)
    assert read("fuel") == "wood"
    with pytest.raises(SourceFailure):
        read("x")
