"""`join` tells which sources cannot be read, with the lines to add; never what they say (P1)."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_client.sources import build_all, example, unreadable
from protocol_spec import Manifest
from tests.support.command_line import Cli, facts_of
from tests.support.edge import FUELS, NOBODY, ROOM, way_text

SECRET = "marmalade"  # noqa: S105
JOIN = ("join", "--broker", NOBODY, "--yes")


@pytest.fixture
def asked(tmp_path: Path) -> Path:
    path = tmp_path / "asked.toml"
    text = way_text("memoized", attributes=FUELS + ROOM, first=None)
    path.write_text(text, encoding="utf-8")
    return path


def attributes(asked: Path) -> tuple[str, ...]:
    return tuple(a.name for a in Manifest.from_file(asked).attributes)


@pytest.fixture
def joining(cli: Cli, asked: Path, tmp_path: Path) -> Callable[..., str]:
    """Joins with a configuration; what it prints before the joining, on both streams."""

    def join(config: str, *words: str) -> str:
        file = tmp_path / "edge.toml"
        state = tmp_path / f"state-{len(list(tmp_path.iterdir()))}"
        file.write_text(config, encoding="utf-8")
        done = cli(*JOIN, "--manifest", asked, "--config", file, "--state-dir", state, *words)
        assert done.exit_code == 0, done.stderr
        return str(done.stdout + done.stderr)

    return join


def test_a_source_that_is_missing_is_told_with_the_lines_to_add(
    joining: Callable[..., str], asked: Path, tmp_path: Path
) -> None:
    said = joining("")
    assert "Not ready: 2 of these questions have no source" in said
    assert f"Add to {tmp_path / 'edge.toml'}, and write your own:" in said
    lines = said.split("write your own:\n\n")[1].split("\n\nAdd it before")[0]
    tables = tomllib.loads(lines)["sources"]
    assert tuple(tables) == attributes(asked)
    assert build_all(tables).keys() == tables.keys(), "they can be pasted as they are"
    assert "that answer may be kept for life" in " ".join(said.split())
    assert "Not ready" not in joining(lines.replace('["cat", "/path"]', '["cat", "/dev/null"]'))


def test_left_as_it_is_an_example_is_none_of_the_answers(asked: Path) -> None:
    fuel, _room = Manifest.from_file(asked).attributes
    value = tomllib.loads(example(fuel))["sources"]["fuel"]["value"]
    assert fuel.index_of(value) == fuel.otherwise


def test_a_fact_of_the_machine_is_offered_by_its_name() -> None:
    table = FUELS.replace('"fuel"', '"architecture"')
    text = way_text("memoized", attributes=table, first=None)
    (lines,) = [each.lines for each in unreadable(Manifest.from_toml(text).attributes, {})]
    assert tomllib.loads(lines)["sources"]["architecture"] == {
        "kind": "machine",
        "fact": "architecture",
    }


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ('kind = "command"\ncommand = ["no-such-program"]', "the program 'no-such-program' is not"),
        ('kind = "command"\ncommand = ["/etc/passwd"]', "or must not be run"),
        ('kind = "json"\nfile = "/no/file"\nfield = "x"', "the file /no/file is not there"),
        ('kind = "machine"\nfact = "nothing"', "choose one of"),
        ('kind = "plugin"\nname = "no-such"', "no such plugin is installed"),
        ('kind = "magic"', "choose one of command, json"),
        ("colour = 3", "choose a kind of command, json"),
    ],
)
def test_a_source_that_cannot_be_read_at_all_is_told(
    joining: Callable[..., str], table: str, told: str
) -> None:
    said = joining(f'[sources.fuel]\n{table}\n[sources.room]\nvalue = "1"\n')
    assert "Not ready: one of these questions has no source" in said
    assert told in said
    assert "Add to" not in said, "there is a table already"


def test_sources_that_are_no_tables(joining: Callable[..., str]) -> None:
    assert "[sources.fuel] must be a table" in joining("[sources]\nfuel = 3\nroom = 4\n")


def test_programs_are_told_too(cli: Cli, asked: Path, state: Path) -> None:
    done = cli(*JOIN, "--manifest", asked, "--state-dir", state, "--preview", "--json")
    sources = facts_of(done)["sources"]
    assert [each["attribute"] for each in sources] == list(attributes(asked))
    joined = cli(*JOIN, "--manifest", asked, "--state-dir", state, "--json")
    assert json.loads(joined.stdout)["campaign"]
    assert "Not ready" in joined.stderr, "also where nobody is asked"


READINGS = {
    "an answer": "printf wood",
    "another": "printf gas",
    "none of them": f"printf {SECRET}",
    "a number": "printf 21.5",
    "nothing": "true",
    "a failure": "exit 1",
    "noise": "echo oops >&2; exit 3",
}


def test_neither_words_nor_exit_depend_on_the_value(cli: Cli, asked: Path, tmp_path: Path) -> None:
    """P1: whether a source that is there works is as private as what it says."""
    script, field = tmp_path / "read", tmp_path / "value.json"
    config = tmp_path / "edge.toml"
    config.write_text(
        f'[sources.fuel]\nkind = "command"\ncommand = ["{script}"]\n'
        f'[sources.room]\nkind = "json"\nfile = "{field}"\nfield = "celsius"\n'
    )
    mark = tmp_path / "was-run"
    words = (*JOIN, "--manifest", asked, "--config", config, "--preview")
    found = {}
    for name, does in READINGS.items():
        script.write_text(f"#!/bin/sh\ntouch {mark}\n{does}\n")
        script.chmod(0o700)
        field.write_text({"nothing": "", "a failure": "{}"}.get(name, '{"celsius": 21.5}'))
        done = cli(*words, "--state-dir", tmp_path / "state")
        found[name] = (done.exit_code, done.stdout, done.stderr)
    assert found["an answer"][0] == 0
    assert "Not ready" not in found["an answer"][1]
    for name, told in found.items():
        assert told == found["an answer"], name
    assert not mark.exists(), "and no value was read before its owner agreed"
