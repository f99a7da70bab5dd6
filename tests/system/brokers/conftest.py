from __future__ import annotations

from tests.support.command_line import cli, data, home

__all__ = ["cli", "data", "home"]
