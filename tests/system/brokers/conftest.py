from __future__ import annotations

from tests.support.collector_cli import cli, data, home

__all__ = ["cli", "data", "home"]
