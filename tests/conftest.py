"""For every test: what is missing is skipped and told, or fails the run (see `needs`), workers
begin with what takes longest (see `schedule`), and Ctrl-C is heard (see `interrupts`)."""

from __future__ import annotations

from tests.support.interrupts import pytest_configure
from tests.support.needs import (
    pytest_runtest_makereport,
    pytest_runtest_setup,
    pytest_terminal_summary,
)
from tests.support.schedule import (
    pytest_collection,
    pytest_collection_finish,
    pytest_collection_modifyitems,
)

__all__ = [
    "pytest_collection",
    "pytest_collection_finish",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_runtest_makereport",
    "pytest_runtest_setup",
    "pytest_terminal_summary",
]
