"""Named points on the way of a report, told as they are passed.

Tests kill an agent at a point to see what survives; in production nobody listens.
"""

from __future__ import annotations

from collections.abc import Callable

Trace = Callable[[str], None]


def no_trace(_point: str) -> None:
    """The default: passing a point has no effect."""
