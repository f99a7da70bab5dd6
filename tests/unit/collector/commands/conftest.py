from __future__ import annotations

from tests.support.collector_cli import data, file, used

__all__ = ["data", "file", "used"]
