"""What a command tells to type next can be pasted: it names the same data directory."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
from pathlib import Path

import click
import pytest

from collector.commands import main
from collector.commands.options import command
from collector.commands.reading import watched
from collector.settings import Settings
from tests.support.brokers import Files
from tests.support.command_line import NOBODY, Cli
from tests.support.harness import ROOT

COMMAND = re.compile(r"allomfree-collector [^\n]*")


def told(cli: Cli, *words: object) -> list[list[str]]:
    """The commands that a command prints, as a shell would split them."""
    done = cli(*words)
    found = COMMAND.findall(re.sub(r" {8}\(.*\)|[.;]$|\. Nothing.*", "", done.stdout + done.stderr))
    assert found, done.stdout + done.stderr
    return [shlex.split(line) for line in found]


@pytest.fixture
def flags(data: Path) -> list[str]:
    """With what a shell would take apart."""
    return ["--data-dir", f"{data} of mine"]


def test_after_open(cli: Cli, file: Path, flags: list[str]) -> None:
    broker = ["--broker", NOBODY]
    key, run, invite = told(cli, "open", file, *flags, *broker)
    assert invite[:6] == ["allomfree-collector", "invite", *flags, *broker]
    assert cli(*invite[1:]).exit_code == 0
    assert run == ["allomfree-collector", "run", *flags, *broker]
    assert key == ["allomfree-collector", "operator-key", *flags, *broker, "create"]
    assert cli(*key[1:]).exit_code == 0
    (again,) = told(cli, "close", "--yes", *flags)
    assert again == ["allomfree-collector", "run", *flags]


def test_after_backup_and_restore(
    cli: Cli, home: Path, data: Path, file: Path, flags: list[str]
) -> None:
    cli("open", file, *flags, "--broker", NOBODY)
    places = [home / "b 2", "--secrets", home / "s 2"]
    (restore,) = told(cli, "backup", *places, *flags)
    assert restore == ["allomfree-collector", "restore", *flags, *map(str, places)]
    shutil.rmtree(f"{data} of mine")
    doctor, run = told(cli, *restore[1:])
    assert doctor == ["allomfree-collector", "doctor", *flags]
    assert run == ["allomfree-collector", "run", *flags]


def test_while_watching(data: Path, flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    def seen_enough(_seconds: float) -> None:
        raise KeyboardInterrupt

    @command
    def status(_settings: Settings) -> None:
        """Watch."""
        watched(lambda: "kitchen", False, "See: allomfree-collector revoke {}".format, seen_enough)

    root = click.Group("allomfree-collector", {"status": status, "revoke": main.commands["revoke"]})
    root.main(["status", *flags], standalone_mode=False)
    assert f"revoke --data-dir '{data} of mine' kitchen" in capsys.readouterr().out


def test_every_command_prints_with_settings() -> None:
    """`show` of both programs' commands does not complete what it prints; ours does."""
    for file in sorted((ROOT / "collector/commands").glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "protocol_spec.programs.cli":
                assert "show" not in {each.name for each in node.names}, file.name


def test_after_configuring_a_broker(cli: Cli, flags: list[str]) -> None:
    run, enrol, doctor = told(cli, "broker-config", "nats", "--host", "localhost", *flags)
    assert run == ["allomfree-collector", "run", *flags]
    assert doctor == ["allomfree-collector", "doctor", *flags]
    assert cli(*enrol[1:]).exit_code == 0


def test_errors(cli: Cli, flags: list[str]) -> None:
    (configure,) = told(cli, "enrol", "kitchen", *flags)
    configure[-1] = "localhost"  # where it says HOST
    assert configure[:4] == ["allomfree-collector", "broker-config", *flags]
    assert cli(*configure[1:]).exit_code == 0


def test_a_broker_with_an_authority_of_its_own(
    cli: Cli, file: Path, home: Path, flags: list[str]
) -> None:
    """A device that shall join needs it, too."""
    Files.made(home)
    ours = (home / "ca.pem").rename(home / "our ca.pem")
    shown = cli("open", file, *flags, "--broker", "mqtts://127.0.0.1:1", "--ca-file", ours)
    (join,) = re.findall(r"allomfree-edge join .*", shown.stdout)
    assert shlex.split(join)[-2:] == ["--ca-file", str(ours)]
