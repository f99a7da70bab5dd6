"""`scripts/benchmark.py ingest` runs to its end and prints what it says it prints."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.support.edge_processes.processes import environment
from tests.support.places import ROOT

ENCRYPTED = (
    "ingest over TLS / in plain text",
    *(f"reports a second, {way}" for way in ("TLS", "plain text")),
    *(f"CPU time of a report, {way}" for way in ("TLS", "plain text")),
)
STORED = (
    "reports a second",
    "CPU time of a report",
    "CPU time of the broker",
    "sealing the round",
)


@pytest.mark.slow
@pytest.mark.needs("mosquitto", "postgres")
def test_one_object_with_every_measurement() -> None:
    """Whether the limits are kept, a machine that does other things too cannot say."""
    flags = ["--reports", "2000", "--runs", "1", "--large", "0", "--json"]
    command = [sys.executable, str(ROOT / "scripts" / "benchmark.py"), "ingest", *flags]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["benchmark"] == "ingest"
    assert told["ok"] == (done.returncode == 0)
    measured = {row["what"]: row for row in told["measurements"]}
    assert measured.keys() == {
        "durable ingest / bare paho subscriber",
        "reports committed and acknowledged",
        "CPU time of a report",
        "largest batch",
        "memory of the collector",
        "sealing the round",
        "ingest into PostgreSQL / into SQLite",
        *(f"{name}: {what}" for name in ("NATS", "mosquitto") for what in ENCRYPTED),
        *(f"{name}: {what}" for name in ("PostgreSQL", "SQLite") for what in STORED),
        "PostgreSQL: CPU time of the server",
    }
    assert all(row["value"] > 0 for row in measured.values())
    assert measured["largest batch"]["value"] <= measured["largest batch"]["limit"]
