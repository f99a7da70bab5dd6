"""The verbs of `allomfree-collector`."""

from __future__ import annotations

from collector.commands.campaigns import main

__all__ = ["main"]
