"""Both command lines in this process, away from this machine's configuration."""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
import pytest
import zxingcpp
from click.testing import CliRunner, Result

from collector.commands import main
from collector.data_dir import open_store
from collector.records import Campaign
from protocol_spec import Manifest
from tests.support.campaigns import manifest_text
from tests.support.collector import ATTRIBUTES, HOUR, candidate, seal

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
    """Runs one command; an unexpected exception fails the test."""

    def invoke(*words: object, answer: str | None = None) -> Result:
        done = CliRunner(env=environ).invoke(
            main, [str(w) for w in words], input=answer, catch_exceptions=False
        )
        assert "a fault of this program" not in done.stderr, done.stderr
        return done

    return invoke


def facts_of(result: Result) -> Any:
    """What a command that succeeded printed with --json."""
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


# --- the collector's ------------------------------------------------------------------------------

NOBODY: Final = "mqtt://127.0.0.1:1"  # no broker listens there


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return empty_home(tmp_path, monkeypatch)


@pytest.fixture
def cli(home: Path) -> Iterator[Cli]:
    with undisturbed():
        yield invoker(main)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Undo what a command changes in its process: signal handlers and the log."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        logger = logging.getLogger("allomfree")
        logger.handlers, logger.propagate = [], True


def printed(*words: object) -> str:
    """What a command prints, run in this process on data that the words name."""
    unset = {name: None for name in os.environ if name.startswith("ALLOMFREE_")}
    with undisturbed():
        done = invoker(main, unset)(*words, "--config", os.devnull)
    assert done.stdout, done.stderr
    return done.stdout


def facts(*words: object) -> Any:
    return json.loads(printed(*words, "--json"))


@pytest.fixture
def data(home: Path) -> Path:
    return home / "data"


@pytest.fixture
def file(home: Path) -> Path:
    """A manifest whose third round is open; the first one is past its deadline."""
    path = home / "heat.toml"
    first = int(time.time()) - 2 * HOUR - 60
    path.write_text(manifest_text(first=first, slug="heat", attributes=ATTRIBUTES))
    return path


@pytest.fixture
def used(data: Path, file: Path) -> Campaign:
    """Two rounds with reports, the first one sealed."""
    with closing(open_store(data)) as store:
        campaign = store.open_campaign(Manifest.from_file(file), int(time.time()))
        for number in range(2):
            store.commit([candidate(campaign, d, number, d % 3, d) for d in range(90)], [])
        seal(store, campaign, 0)
        return campaign


def mistaken(cli: Cli, code: int, *words: object) -> str:
    """Run what must fail; the one message it fails with."""
    done = cli(*words)
    assert (done.exit_code, done.stdout) == (code, ""), done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("error: ") == 1
    assert "Traceback" not in done.stderr
    return done.stderr


class Operator:
    """Types commands of `allomfree-collector` with the same flags."""

    def __init__(self, *flags: object) -> None:
        self._flags = flags
        self._invoke = invoker(main)

    def runs(self, *words: object) -> Result:
        done = self.tries(*words)
        assert done.exit_code == 0, done.output
        return done

    def tries(self, *words: object) -> Result:
        return self._invoke(*words, *self._flags)

    def asks(self, *words: object) -> Any:
        return json.loads(self.tries(*words, "--json").stdout)


@contextmanager
def operator(*flags: object) -> Iterator[Operator]:
    with undisturbed():
        yield Operator(*flags)


# --- QR codes, read by a decoder that shares no code with the encoder -----------------------------


def read_code(squares: list[list[int]]) -> str:
    """Decode them as a camera sees them; 1 is dark."""
    picture = np.kron(255 * (1 - np.array(squares, dtype=np.uint8)), np.ones((4, 4), np.uint8))
    (found,) = zxingcpp.read_barcodes(picture)
    assert found.format is zxingcpp.BarcodeFormat.QRCode
    return str(found.text)


def squares_of(lines: list[str]) -> list[list[int]]:
    """Two rows of squares from each line of half blocks."""
    halves = {" ": (0, 0), "▀": (1, 0), "▄": (0, 1), "█": (1, 1)}
    return [[halves[c][half] for c in line] for line in lines for half in (0, 1)]
