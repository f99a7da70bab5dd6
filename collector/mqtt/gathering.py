"""Gathering: reports that come one by one are worth waiting for, a moment long.

A commit, with its sync of the disk, costs the same for one report as for a hundred. So when few
messages are there, the link waits a little for more before it hands them over. Receipts go out
every few seconds, so no device notices.

It is given up where it brings nothing: when hardly anybody sends, and when a broker lets so few
messages be unacknowledged that it is the one who waits, for us. Now and then it is tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import Final

ENOUGH: Final = 200  # messages that are committed at once: the cost of each hardly falls further
PAUSE_SECONDS: Final = 0.01
PAUSES: Final = 2
LONGEST_REST: Final = 255  # batches in a row that nothing is gathered for


class Gathering:
    """Reads on for a moment, as long as that brings something."""

    def __init__(self, sleep: Callable[[float], None]) -> None:
        self._sleep = sleep
        self._rest = 0  # batches to go until it is tried again
        self._last_rest = 0

    def gather(self, arrived: Sized, read: Callable[[], object]) -> None:
        """Have more read into a batch that is not empty, and not large enough."""
        if not 0 < len(arrived) < ENOUGH:
            return
        if self._rest:
            self._rest -= 1
            return
        for _ in range(PAUSES):
            before = len(arrived)
            self._sleep(PAUSE_SECONDS)
            read()
            if len(arrived) == before:
                self._rest = self._last_rest = min(2 * self._last_rest + 1, LONGEST_REST)
                return
            if len(arrived) >= ENOUGH:
                break
        self._last_rest = 0
