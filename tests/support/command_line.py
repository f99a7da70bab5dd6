"""A program's command line in this process, away from this machine's configuration."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

Cli = Callable[..., Result]


def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own: no configuration, variable, memory or data of this machine is seen."""
    for name in os.environ:
        if name.startswith(("ALLOMFREE_", "XDG_", "STATE_DIRECTORY", "NOTIFY_SOCKET")):
            monkeypatch.delenv(name)
    directory = tmp_path / "home"
    directory.mkdir()
    monkeypatch.setenv("HOME", str(directory))
    return directory


def invoker(main: click.Group, environ: Mapping[str, str | None] | None = None) -> Cli:
    """Runs one command; an exception that nobody foresaw fails the test."""

    def invoke(*words: object, answer: str | None = None) -> Result:
        done = CliRunner(env=environ).invoke(
            main, [str(w) for w in words], input=answer, catch_exceptions=False
        )
        assert "a fault of this program" not in done.stderr, done.stderr
        return done

    return invoke


def facts_of(result: Result) -> Any:
    """What a command that succeeded said with --json."""
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)
