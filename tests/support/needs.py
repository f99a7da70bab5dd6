"""What tests need beyond Python packages: programs of this machine, and packages of Node.

A test says so with `need("mosquitto")` in its body or a fixture, or with the mark
`@pytest.mark.needs("mosquitto")`. Where the program is missing the test is skipped. With CI=true
that skip is a failure: such a run promises that every test ran. The hooks below, which
`tests/conftest.py` takes over, hold that promise also for a skip that did not come through `need`.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Generator
from typing import Final

import pytest

from testbed.collector import find_postgres
from testbed.processes import find_program
from tests.support.places import ROOT

AXE: Final = ROOT / ".venv/node/node_modules/axe-core/axe.min.js"
JAVASCRIPT: Final = ROOT / ".venv/javascript-device/node_modules"
OF_NODE: Final = {"axe-core": AXE, "javascript-device": JAVASCRIPT / "mqtt/package.json"}
MISSING: Final = re.compile(r"(is|are) not installed|could not import")


def is_there(name: str) -> bool:
    """Whether a program, or what is installed with npm, is there."""
    if name == "postgres":  # the system keeps it off the path
        return find_postgres() is not None
    return OF_NODE[name].exists() if name in OF_NODE else find_program(name) is not None


def need(*names: str) -> None:
    """Skip the test unless all of these are installed; with CI=true it fails instead."""
    for name in names:
        if not is_there(name):
            pytest.skip(f"{name} is not installed")


def path_of(name: str) -> str:
    """The path of a program that the test needs."""
    need(name)
    found = find_program(name)
    assert found is not None
    return found


def everything_must_run() -> bool:
    """Whether this run promises that no test was skipped for want of a program."""
    return os.environ.get("CI") == "true"


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        need(*mark.args)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    reason = why_skipped(report)
    if everything_must_run() and MISSING.search(reason):
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
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(why_skipped(report) for report in skipped)
    if reasons:
        told = "; ".join(f"{count} because {why}" for why, count in reasons.most_common())
        terminalreporter.write_line(f"Skipped: {told}")
