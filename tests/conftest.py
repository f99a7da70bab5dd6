"""For every test: what is missing is skipped and told, or fails the run (see `needs`)."""

from __future__ import annotations

from tests.support.needs import (
    pytest_runtest_makereport,
    pytest_runtest_setup,
    pytest_terminal_summary,
)

__all__ = ["pytest_runtest_makereport", "pytest_runtest_setup", "pytest_terminal_summary"]
