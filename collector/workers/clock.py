"""The database's time: asked for with every beat, and counted on steadily in between (W3)."""

from __future__ import annotations

from collector.timing import Clock


class DatabaseTime:
    """A clock whose time of day is the database's; this machine's own until that is known."""

    def __init__(self, own: Clock) -> None:
        self._own = own
        self._ahead = own.now() - own.steady()

    def heard(self, now: float) -> None:
        """The database has just said that it is this late."""
        self._ahead = now - self._own.steady()

    def now(self) -> float:
        """Never later than the database's own, by as much as its answer took."""
        return self._own.steady() + self._ahead

    def agrees(self, within_seconds: float) -> bool:
        """Whether this machine's clock says the same."""
        return abs(self.now() - self._own.now()) <= within_seconds

    def clock(self) -> Clock:
        """For rooms that ask for one."""
        return Clock(self.now, self._own.monotonic, self._own.sleep, self._own.steady)
