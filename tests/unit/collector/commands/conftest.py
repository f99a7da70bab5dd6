from __future__ import annotations

from tests.support.command_line import data, file, used

__all__ = ["data", "file", "used"]
