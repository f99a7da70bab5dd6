"""For every test: what is missing is skipped and reported, or with CI=true fails the run; workers
share the tests (`pytest -n`) in a good order; Ctrl-C reaches the programs that tests start."""

from __future__ import annotations

import gc
import os
import re
import signal
from collections import Counter
from collections.abc import Generator
from zlib import crc32

import pytest

from tests.support.harness import need

MISSING = re.compile(r"(is|are) not installed|could not import")


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        need(*mark.args)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With CI=true no test may be skipped for want of a program, however it was skipped."""
    report = yield
    reason = why_skipped(report)
    if os.environ.get("CI") == "true" and MISSING.search(reason):
        report.outcome = "failed"
        report.longrepr = f"{reason}, and with CI=true every test must run: install it"
    return report


def why_skipped(report: pytest.TestReport) -> str:
    """The reason of a skipped test, or empty."""
    if not report.skipped or not isinstance(report.longrepr, tuple):
        return ""
    return report.longrepr[2].removeprefix("Skipped: ")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line at the end: how many tests were skipped, and why."""
    reasons = Counter(map(why_skipped, terminalreporter.stats.get("skipped", [])))
    if reasons:
        listed = "; ".join(f"{count} because {why}" for why, count in reasons.most_common())
        terminalreporter.write_line(f"Skipped: {listed}")


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
