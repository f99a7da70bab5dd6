"""Commands are loaded when typed, print commands that can be pasted, and read addresses."""

from __future__ import annotations

import os
import pwd
import shlex
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from collector.commands import COMMANDS as COLLECTOR
from edge_client.cli import COMMANDS as EDGE
from protocol_spec.programs.cli import (
    Program,
    Verbs,
    command_of,
    completed,
    fail,
    install_command,
    typed,
)
from protocol_spec.programs.settings import Setting, SettingsError, flag, parse_invitation, path
from tests.support.protocol import vectors

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
def test_help_lists_the_first_line_of_each_docstring(table: Verbs, name: str) -> None:
    assert (table[name].name, table[name].short_help) == (name, table.lines[name])


def test_a_command_is_loaded_when_it_is_typed(package: str) -> None:
    verbs = Verbs(package, "", ("one", "good", "The first."), ("two", "bad", "The second."))
    program = Program("program", commands=verbs)
    shown = CliRunner().invoke(program, ["--help"])
    assert "  one  The first.\n  two  The second.\n" in shown.output
    assert f"{package}.good" not in sys.modules
    assert CliRunner().invoke(program, ["one"]).output == "done\n"
    assert f"{package}.good" in sys.modules
    unknown = CliRunner().invoke(program, ["three"])
    assert (unknown.exit_code, "No such command 'three'" in unknown.output) == (2, True)
    with pytest.raises(ModuleNotFoundError):
        verbs["two"]  # every install has all that this program needs: it is a fault


def test_a_missing_library_is_named_with_the_command_that_installs_it(package: str) -> None:
    verbs = Verbs(package, "more", ("two", "bad", "The second."))
    shown = CliRunner().invoke(Program("program", commands=verbs), ["two"])
    assert shown.exit_code == 2
    assert shown.stderr.count("\n") == 1
    assert "two needs no_such_library, which is not installed" in shown.stderr
    assert shown.stderr.endswith("nothing was done. Run: " + install_command("more") + "\n")


# --- A command that is printed works where it is printed.


SETTINGS = (
    Setting("state_dir", path, None, "directory"),
    Setting("allow_plaintext", flag, False, "plain text"),
    Setting("log_level", str, "info", "what to log"),
)


class Resolved:
    log_level = "info"


command = command_of(SETTINGS, lambda _flags, **_: Resolved(), "edge")


@command
@click.option("--own", is_flag=True)
def join(_settings: Any, own: bool) -> None:
    """Print the next command."""
    click.echo(typed("allomfree-edge", "run"))
    click.echo(typed("allomfree-edge", "run", "x", without=("state_dir",)))


@command
def doctor(_settings: Any) -> None:
    """Fail."""
    fail("see allomfree-edge doctor, `allomfree-edge join --again` or allomfree-collector open", 1)


program = Program("allomfree-edge", commands=[join, doctor])


def run(*words: str, **environ: str) -> list[str]:
    done = CliRunner(env=environ).invoke(program, words)
    return (done.stdout or done.stderr).splitlines()


def test_a_printed_command_repeats_the_flags_but_neither_defaults_nor_variables() -> None:
    lines = run("join", "--state-dir", "my device", "--own", "--allow-plaintext")
    words = ["allomfree-edge", "run", "--state-dir", "my device", "--allow-plaintext"]
    assert shlex.split(lines[0]) == words
    assert lines[1] == "allomfree-edge run x --allow-plaintext"
    assert run("join", ALLOMFREE_STATE_DIR="/elsewhere")[0] == "allomfree-edge run"


def test_commands_that_an_error_names_are_completed() -> None:
    assert "\n".join(run("doctor", "--state-dir", "/s")) == (
        "error: see allomfree-edge doctor --state-dir /s, `allomfree-edge join --state-dir /s "
        "--again` or allomfree-collector open"
    )
    assert completed("see allomfree-edge doctor") == "see allomfree-edge doctor"  # no command runs


def test_a_program_that_is_not_on_the_path_is_named_by_its_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", [f"{tmp_path}/a b/allomfree-edge"])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert typed("allomfree-edge", "run") == f"'{tmp_path}/a b/allomfree-edge' run"
    (tmp_path / "allomfree-edge").touch(0o755)
    assert typed("allomfree-edge", "run") == "allomfree-edge run"


def test_a_program_started_by_sudo_prints_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    user = os.geteuid()
    monkeypatch.setenv("SUDO_UID", str(user))
    assert typed("allomfree-edge", "run") == "allomfree-edge run"
    monkeypatch.setenv("SUDO_UID", str(user + 1))
    by = "sudo " if user == 0 else f"sudo -u {pwd.getpwuid(user).pw_name} "
    assert typed("allomfree-edge", "run") == f"{by}allomfree-edge run"
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000_000)
    assert typed("allomfree-edge", "run") == "sudo -u '#4000000000' allomfree-edge run"


# --- Addresses, as the specification's vectors have them.


@pytest.mark.parametrize(
    "entry", vectors.load("topics.json")["addresses"], ids=lambda entry: entry["address"]
)
def test_an_address_names_a_broker_and_a_campaign(entry: dict[str, Any]) -> None:
    """R18: plain text to another machine is refused."""
    found = None
    try:
        broker, namespace, campaign, digest = parse_invitation(entry["address"])
        broker.check_plaintext(allowed=False)
        found = {"tls": broker.tls, "host": broker.host, "port": broker.port}
        found |= {"namespace": namespace, "campaign": campaign}
        found |= {"digest": digest.hex() if digest else None}
    except SettingsError:
        pass
    assert found == entry["names"]
