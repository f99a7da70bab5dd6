from __future__ import annotations

from tests.unit.collector.conftest import cli, home

__all__ = ["cli", "home"]
