"""For every test: what is missing is skipped and told, or fails the run (see `needs`), several
processes share the tests (see `forked`), and Ctrl-C is heard (see `interrupts`)."""

from __future__ import annotations

from tests.support.forked import pytest_addoption, pytest_runtestloop
from tests.support.interrupts import pytest_configure
from tests.support.needs import (
    pytest_runtest_makereport,
    pytest_runtest_setup,
    pytest_terminal_summary,
)
from tests.support.schedule import pytest_collection, pytest_collection_finish

__all__ = [
    "pytest_addoption",
    "pytest_collection",
    "pytest_collection_finish",
    "pytest_configure",
    "pytest_runtest_makereport",
    "pytest_runtest_setup",
    "pytest_runtestloop",
    "pytest_terminal_summary",
]
