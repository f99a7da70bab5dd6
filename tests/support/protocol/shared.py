"""Values worked out by others, for whoever has them beside the checkout."""

from __future__ import annotations

import json
from typing import Any

import pytest

from protocol_spec import Calibration
from tests.support import harness
from tests.support.protocol.budgets import Budget

SHARED = harness.SHARED / "vectors" / "calibration.json"


def shared(section: str) -> list[dict[str, Any]]:
    """One section of the shared vectors; skips the test where there are none."""
    if not SHARED.exists():
        pytest.skip("the shared vectors are not beside this checkout")
    entries: list[dict[str, Any]] = json.loads(SHARED.read_text(encoding="utf-8"))[section]
    return entries


def from_shared(entry: dict[str, Any]) -> Calibration:
    """The calibration that an entry is about."""
    method = "paper" if entry["protocol"].endswith("-paper") else "exact"
    protocol = entry["protocol"].removesuffix("-paper")
    return Budget(protocol, method, entry.get("k", 8), entry["einf"], entry["e1"]).calibrate()
