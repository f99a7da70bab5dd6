from __future__ import annotations

from tests.collector.conftest import cli, home

__all__ = ["cli", "home"]
