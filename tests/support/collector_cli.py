"""Fixtures for tests of the collector's command line, run in this process."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from collector.commands import main
from collector.data_dir import open_store
from collector.records import Campaign
from protocol_spec import Manifest
from tests.support.campaigns import manifest_text
from tests.support.collector_fakes import ATTRIBUTES, HOUR, candidate, seal
from tests.support.command_line import Cli, empty_home, invoker


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own."""
    return empty_home(tmp_path, monkeypatch)


@pytest.fixture
def cli(home: Path) -> Iterator[Cli]:
    """The command line in this process. An exception that reaches the top fails the test."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield invoker(main)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    logger = logging.getLogger("allomfree")
    logger.handlers, logger.propagate = [], True


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
