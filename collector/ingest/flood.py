"""Devices that send far more than anybody needs are suspended for a while (A8).

What counts are messages that change nothing: refused ones, repetitions, repeated requests. An
honest device sends a few of them a minute, when receipts are late; and when the collector was away
for days, the broker hands over at once what was repeated meanwhile, many times for each report. A
device that sends more than `flood_messages` in `flood_seconds`, and as many more for each of its
reports that was counted, is suspended: what it sends is dropped before it is decoded, and counted
as such. A few different messages of it are examined in every turn all the same, so that a device
that repeats one report for ever is still counted in the next round, and whoever floods in another's
name does not silence them. A suspension ends after as long a time without a flood.

Memory is the same for any fleet: counts are kept in two rows of cells, by two parts of a hash that
nobody outside this process can predict, and the smaller of a name's two cells is never below its
true count; the same holds for its counted reports, in as many cells. The collector cannot read so
many messages a minute that the cells of honest devices fill up; one shares both cells with a given
flooder once in four billion times.
"""

from __future__ import annotations

import logging
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence, Set
from typing import Final

import numpy as np

from collector.links import Message
from collector.timing import Clock, Timing
from protocol_spec.topics import is_device

log = logging.getLogger("allomfree.collector")

CELLS: Final = 1 << 16
LOOKED_AT: Final = 8  # different messages of a suspended device in a turn, in each campaign
MOST_SUSPENDED: Final = 1000


def sender(topic: str | None) -> str:
    """The device's name as the topic has it, on which the broker's access list insists. Where
    there is none, it may be any text; only a device's name is ever kept."""
    levels = (topic or "").split("/")
    return levels[4] if len(levels) == 6 else ""


class FloodGuard:
    """Counts what each device wastes, and says who is suspended."""

    def __init__(self, clock: Clock, timing: Timing) -> None:
        self._clock = clock
        self._timing = timing
        self._wasted = _Cells()
        self._counted = _Cells()
        self._window_ends = 0.0
        self._until: dict[str, float] = {}
        self._looked_at: dict[str | None, set[bytes]] = defaultdict(set)

    @property
    def suspended(self) -> Set[str]:
        return self._until.keys()

    def begin_turn(self) -> None:
        """Start a new window and end suspensions, if it is time."""
        now = self._clock.monotonic()
        self._looked_at.clear()
        if now >= self._window_ends:
            self._wasted, self._counted = _Cells(), _Cells()
            self._window_ends = now + self._timing.flood_seconds
        over = [name for name, until in self._until.items() if now >= until]
        for name in over:
            del self._until[name]
        if over:
            log.info("%d devices are no longer suspended: they stopped flooding", len(over))

    def looks_at(self, message: Message) -> bool:
        """Whether a message of a suspended device is one of the few that are examined."""
        seen = self._looked_at[message.topic]
        if len(seen) >= LOOKED_AT or message.payload in seen:
            return False
        seen.add(message.payload)
        return True

    def credit(self, names: Sequence[str]) -> None:
        """A report of each was counted: whoever sent it may have sent it many times."""
        self._counted.add_each(names)

    def waste(self, messages: Iterable[Message]) -> None:
        """These changed nothing. Whoever sent too many of them is suspended, or stays so."""
        for topic, n in Counter(message.topic for message in messages).items():
            name = sender(topic)
            wasted = self._wasted.add(name, n)
            if wasted > self._timing.flood_messages * (1 + self._counted.of(name)):
                self._suspend(name)

    def _suspend(self, name: str) -> None:
        new = name not in self._until
        if not is_device(name) or (new and len(self._until) >= MOST_SUSPENDED):
            return
        self._until[name] = self._clock.monotonic() + self._timing.flood_seconds
        if new:
            log.warning(
                "a device sent more than %d useless messages in %.0f s and is suspended until it "
                "stops; other devices are counted. Next: allomfree-collector status names it, "
                "and allomfree-collector revoke NAME shuts it out",
                self._timing.flood_messages,
                self._timing.flood_seconds,
            )


class _Cells:
    """Counts by name, none of them too small."""

    def __init__(self) -> None:
        self._first, self._second = (array("Q", bytes(8 * CELLS)) for _ in range(2))

    def add_each(self, names: Sequence[str]) -> None:
        """Count one for each, all at once."""
        codes = np.fromiter(map(hash, names), np.int64, len(names))
        for cells, places in ((self._first, codes), (self._second, codes >> 16)):
            np.add.at(np.frombuffer(cells, np.uint64), places % CELLS, 1)

    def add(self, name: str, n: int) -> int:
        """Count `n` more; returns at least how many there are."""
        i, j = _places(name)
        self._first[i] += n
        self._second[j] += n
        return min(self._first[i], self._second[j])

    def of(self, name: str) -> int:
        """At least how many there are."""
        i, j = _places(name)
        return min(self._first[i], self._second[j])


def _places(name: str) -> tuple[int, int]:
    code = hash(name)  # keyed: Python draws the key for each process
    return code % CELLS, (code >> 16) % CELLS
