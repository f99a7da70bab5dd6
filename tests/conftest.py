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
    """With `-n`, give each worker first one of the longest tests, then files of what waits (real
    processes), then of what computes, so that no core idles. `--dist worksteal` cuts the list into
    equal parts, and a worker without tests takes some from the end of another's part."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0"))
    if workers:
        places = {item: _place(item.nodeid, workers) for item in items}
        items.sort(key=places.__getitem__)


def _place(test: str, workers: int) -> tuple[int, int]:
    """The worker that begins with a test, and when."""
    file = test.partition("::")[0]
    if file == "tests/system/test_real_time.py":
        return crc32(test.encode()) % workers, 0
    return crc32(file.encode()) % workers, 1 if file.startswith("tests/system/") else 2


def pytest_collection_finish() -> None:
    """What was collected stays to the end: no later garbage collection looks at it again."""
    gc.freeze()
    gc.set_threshold(7_000)
    gc.enable()
