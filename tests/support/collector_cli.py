"""Fixtures for tests of the collector's command line, run in this process."""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from collector.commands import main
from collector.data_dir import open_store
from collector.records import Campaign
from protocol_spec import Manifest
from tests.support.campaigns import manifest_text
from tests.support.collector_fakes import ATTRIBUTES, HOUR, candidate, seal
from tests.support.command_line import Cli, empty_home, invoker

NOBODY: Final = "mqtt://127.0.0.1:1"  # no broker listens there


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own."""
    return empty_home(tmp_path, monkeypatch)


@pytest.fixture
def cli(home: Path) -> Iterator[Cli]:
    """The command line in this process. An exception that reaches the top fails the test."""
    with undisturbed():
        yield invoker(main)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Take back what a command changes in its process: signal handlers and the log."""
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
    """What a command says with --json."""
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
    shown = cli(*words)
    assert (shown.exit_code, shown.stdout) == (code, ""), shown.stderr
    assert shown.stderr.startswith("error: ")
    assert shown.stderr.count("error: ") == 1
    assert "Traceback" not in shown.stderr
    return shown.stderr
