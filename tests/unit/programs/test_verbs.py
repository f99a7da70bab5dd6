"""The tables of verbs: each line is its command's own, and modules are loaded when asked for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from collector.commands import COMMANDS as COLLECTOR
from edge_client.cli import COMMANDS as EDGE
from protocol_spec.programs.cli import Program, Verbs, install_command
from protocol_spec.programs.settings import SettingsError

ROWS = [(table, name) for table in (COLLECTOR, EDGE) for name in table]
MODULE = """
import click

@click.command()
def one():
    '''The first.'''
    click.echo("done")
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package of commands: `good` can be loaded, `bad` needs what is not installed."""
    name = f"verbs_of_{tmp_path.name.replace('-', '_')}"
    place = tmp_path / name
    place.mkdir()
    (place / "__init__.py").touch()
    (place / "good.py").write_text(MODULE)
    (place / "bad.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(tmp_path)
    return name


@pytest.mark.parametrize(("table", "name"), ROWS, ids=[name for _, name in ROWS])
def test_a_line_of_the_table_is_the_first_of_the_commands_docstring(
    table: Verbs, name: str
) -> None:
    assert table[name].name == name
    assert table[name].short_help == table.lines[name]


def test_a_command_is_loaded_when_it_is_typed(package: str) -> None:
    verbs = Verbs(package, "", ("one", "good", "The first."), ("two", "bad", "The second."))
    program = Program("program", commands=verbs)
    shown = CliRunner().invoke(program, ["--help"])
    assert "  one  The first.\n  two  The second.\n" in shown.output
    assert f"{package}.good" not in sys.modules
    assert CliRunner().invoke(program, ["one"]).output == "done\n"
    assert f"{package}.good" in sys.modules
    assert verbs["one"] is verbs["one"]
    assert list(verbs) == ["one", "two"]


def test_a_verb_that_nobody_knows_is_clicks_own_error(package: str) -> None:
    program = Program("program", commands=Verbs(package, "", ("one", "good", "The first.")))
    shown = CliRunner().invoke(program, ["three"])
    assert shown.exit_code == 2
    assert "No such command 'three'" in shown.output


def test_a_missing_library_says_what_to_install(package: str) -> None:
    verbs = Verbs(package, "more", ("two", "bad", "The second."))
    with pytest.raises(SettingsError, match="two needs no_such_library, which is not installed"):
        verbs["two"]
    shown = CliRunner().invoke(Program("program", commands=verbs), ["two"])
    assert shown.exit_code == 2
    assert shown.stderr.count("\n") == 1
    assert shown.stderr.endswith("nothing was done. Run: " + install_command("more") + "\n")


def test_where_everything_comes_with_every_install_a_missing_library_is_a_fault(
    package: str,
) -> None:
    with pytest.raises(ModuleNotFoundError):
        Verbs(package, "", ("two", "bad", "The second."))["two"]
