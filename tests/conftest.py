"""For every test: what is missing is skipped and reported, or fails the run (see `needs`); workers
share the tests (`pytest -n`) in a good order; Ctrl-C reaches the programs that tests start."""

from __future__ import annotations

import gc
import os
import signal
from zlib import crc32

import pytest

from tests.support.harness import (
    pytest_runtest_makereport,
    pytest_runtest_setup,
    pytest_terminal_summary,
)

__all__ = ["pytest_runtest_makereport", "pytest_runtest_setup", "pytest_terminal_summary"]


def pytest_configure() -> None:
    """A shell lets what it starts with `&` ignore SIGINT, and every child inherits that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()  # collecting leaves no garbage, and looking for it is a sixth of its time


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With `-n`, give each worker its share of what waits (tests of real processes), then of what
    computes, so that no core idles. `--dist worksteal` cuts the list into equal stretches."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0"))
    if workers:
        items.sort(key=lambda item: _place(item.nodeid.partition("::")[0], workers))


def _place(file: str, workers: int) -> tuple[int, bool]:
    return crc32(file.encode()) % workers, not file.startswith("tests/system/")


def pytest_collection_finish() -> None:
    """What was collected stays to the end: no later garbage collection looks at it again."""
    gc.freeze()
    gc.set_threshold(7_000)
    gc.enable()
