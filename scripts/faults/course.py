"""From the first fault until everything has recovered, whatever the faults happen to."""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import count
from typing import Final, Generic, Protocol, TypeVar

from faults.kinds import Fault
from faults.plan import Event
from testbed.processes import TestbedError

PAUSE_SECONDS: Final = 0.2
LINE_SECONDS: Final = 10.0
RECOVERING_SECONDS: Final = 1.0  # between two looks

Say = Callable[[str], None]


class Checked(Protocol):
    """What faults happen to."""

    def check(self) -> None:
        """Nothing may have ended by itself."""


C = TypeVar("C", bound=Checked)


class Course(Generic[C]):
    """Lets faults happen to a site, one after another, and says so."""

    def __init__(self, site: C, say: Say, progress: Callable[[], str]) -> None:
        self.happened: Counter[str] = Counter()
        self._site = site
        self._say = say
        self._progress = progress
        self._order = count()
        self._ends: list[tuple[float, int, Fault[C]]] = []
        self._next_line = 0.0

    def fail(self, events: Iterable[Event[C]]) -> None:
        """Every event at its time from now; then everything ends that lasts."""
        begin = time.time()
        for event in events:
            while time.time() < begin + event.at:
                self._wait()
            if any(fault.target == event.fault.target for _, _, fault in self._ends):
                continue  # its end is late
            self._begin(event)
        self._end_due(everything=True)

    def recover(self, is_done: Callable[[], bool], seconds: float) -> None:
        """Wait for the end; a `StageError` if it takes longer than this."""
        limit = time.monotonic() + seconds
        while not is_done():
            self._site.check()
            if time.monotonic() > limit:
                raise TestbedError(f"not recovered after {seconds:.0f} s: {self._progress()}")
            self._say_progress()
            time.sleep(RECOVERING_SECONDS)
        self._say(f"recovered: {self._progress()}")

    def _wait(self) -> None:
        self._end_due()
        self._site.check()
        self._say_progress()
        time.sleep(PAUSE_SECONDS)

    def _say_progress(self) -> None:
        if time.monotonic() > self._next_line:
            self._next_line = time.monotonic() + LINE_SECONDS
            self._say(self._progress())

    def _begin(self, event: Event[C]) -> None:
        fault = event.fault
        try:
            fault.begin(self._site)
        except TestbedError as error:
            self._say(f"{fault.name}: could not: {error}")
            return
        self.happened[fault.name] += 1
        self._say(fault.name + (f" for {event.lasts:.1f} s" if fault.end is not None else ""))
        heapq.heappush(self._ends, (time.time() + event.lasts, next(self._order), fault))

    def _end_due(self, *, everything: bool = False) -> None:
        while self._ends and (everything or self._ends[0][0] <= time.time()):
            fault = heapq.heappop(self._ends)[2]
            if fault.end is not None:
                fault.end(self._site)
