"""sqlite-utils without pandas.

It loads pandas wherever that is installed, to take tables of it, which nobody gives it here: 0.4
seconds at every start, and 66 MB of memory, on a machine where an analyst works too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _without(module: str) -> Iterator[None]:
    """As if it were not installed, unless it is loaded already."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment] # which is how Python says "not there"
    try:
        yield
    finally:
        del sys.modules[module]


with _without("pandas"):
    from sqlite_utils import Database, Migrations

__all__ = ["Database", "Migrations"]
