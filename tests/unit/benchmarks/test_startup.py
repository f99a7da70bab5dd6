"""`scripts/benchmark.py startup`: real starts of every short command, beside one of Python."""

from __future__ import annotations

import pytest

from benchmarks import startup


@pytest.mark.slow
def test_every_short_command_is_started_and_the_cheap_ones_have_a_limit() -> None:
    rows = {row.what: row for row in startup.measure(repeat=1)}
    limited = {what for what, row in rows.items() if row.limit is not None}
    words = ("--help", "--version", "health", "status")
    told = {f"allomfree-collector {word}" for word in words}
    told |= {f"allomfree-edge {word}" for word in ("--help", "--version", "status")}
    assert rows.keys() == {*told, "python -c pass"}
    assert limited == {what for what in told if not what.endswith("status")}
    assert all((row.value or 0) > 1 for row in rows.values())
