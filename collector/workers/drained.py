"""Have all workers committed what the broker took before a round was due?

Each worker says with its beat up to which moment of the database's time it is drained. With shared
subscriptions that is its own queue, so that all workers have to be that far; with a stream it is
the whole stream, so that one is enough. Workers that were fenced or retired are not waited for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from collector.rounds.sealing import Round
from collector.store import Worker
from collector.timing import Clock, Timing


class _Expected(NamedTuple):
    """When a round was seen to be due: by the database's clock, and in time spent leading."""

    moment: float
    at: float


class SharedDrain:
    """What workers said, and what it proves. Its time is the time spent leading and connected."""

    def __init__(self, clock: Clock, timing: Timing, *, whole: bool) -> None:
        self._clock = clock
        self._timing = timing
        self._whole = whole  # whether each worker speaks for all
        self._drained = 0.0
        self._behind = ""
        self._expected: dict[Round, _Expected] = {}
        self._now = self._last_tick = self._begun_at = 0.0

    def begin(self) -> None:
        """We lead from now on; what is due is waited for anew."""
        self._expected.clear()
        self._begun_at, self._last_tick = self._now, self._clock.monotonic()

    def heard(self, workers: Iterable[Worker]) -> None:
        """What all workers said of themselves."""
        live = [worker for worker in workers if not worker.fenced]
        drained = [worker.drained for worker in live]
        self._drained = (max if self._whole else min)(drained, default=0.0)
        self._behind = ", ".join(str(w.number) for w in live if w.drained <= self._drained)

    def tick(self, *, reading: bool) -> None:
        """Time passes; it counts while this worker leads and is connected."""
        now = self._clock.monotonic()
        if reading:
            self._now += min(max(0.0, now - self._last_tick), self._timing.longest_tick_seconds)
        self._last_tick = now

    def expect(self, due: Round) -> None:
        """A round is due: it is drained when all workers are, up to this moment."""
        if due not in self._expected:
            self._expected[due] = _Expected(self._clock.now(), self._now)

    def is_drained(self, due: Round) -> bool:
        """Whether all that the broker took before the round was due is committed."""
        return self._drained >= self._expected[due].moment

    def rest(self, due: Round, longest: float) -> float:
        """Seconds until the round is not waited for any more. No device can change it."""
        return max(0.0, max(self._expected[due].at, self._begun_at) + longest - self._now)

    def done(self, due: Round) -> None:
        """The round is sealed."""
        self._expected.pop(due, None)

    @property
    def why(self) -> str:
        """What is waited for."""
        if self._whole:
            return "the stream may hold reports that were sent in time"
        return f"the broker may hold reports that were sent in time, for worker {self._behind}"
