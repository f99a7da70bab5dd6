"""Every command and option of the previous release is still there; messages are, by the vectors."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from tests.support.deploy_files import PROGRAMS
from tests.support.previous import Previous


@pytest.mark.parametrize("program", ["collector", "edge"])
def test_no_command_and_no_option_has_vanished(program: str, tmp_path: Path) -> None:
    before: dict[str, list[str]] = Previous.unpacked(tmp_path).facts["options"][program]
    commands = PROGRAMS[f"allomfree-{program}"].commands
    assert len(before) >= 10, "the list must not be empty"
    assert set(before) <= set(commands)
    for name, known in before.items():
        assert len(known) > 5
        assert set(known) - {"--help"} <= names(commands[name]), name


def names(command: click.Command) -> set[str]:
    return {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
