"""Which devices an open round has reports of, in memory: the unique key of the table of reports.

Device numbers are random, so a unique index in the file would touch another page for nearly every
report, and write all of it: kilobytes for a report of some thirty bytes. Reports are appended
instead, and this says which are new. It is read from the file when a round is first needed, and
again after any failure and whenever another connection has written, inside the transaction; so it
is never other than the file (I8). Sixteen bytes a report, until the round is sealed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]

ATTRIBUTE_BITS: Final = 7  # enough for `MAX_ATTRIBUTES`
ABSENT: Final = -1
LONGEST_RUN: Final = 1 << 18  # so that putting runs together needs little memory
_ROW: Final = np.dtype([("device", np.int64), ("entry", np.int64)])


class Present:
    """From device to entry, which is its place in the round and its attribute, as one number.

    Sorted runs, each at least twice as long as the next: looking up is a search in each.
    """

    def __init__(self, rows: Iterable[tuple[int, int]] = ()) -> None:
        """Of (device, entry) as they are stored."""
        read = np.fromiter(rows, _ROW)
        self._runs: list[tuple[Numbers, Numbers]] = []
        self.next_place = int(read["entry"].max() >> ATTRIBUTE_BITS) + 1 if len(read) else 0
        for start in range(0, len(read), LONGEST_RUN):
            part = read[start : start + LONGEST_RUN]
            self._add_run(part["device"], part["entry"])

    def find(self, devices: Numbers) -> Numbers:
        """The entry of each device, or `ABSENT`."""
        found = np.full(len(devices), ABSENT)
        for keys, entries in self._runs:
            at = np.minimum(np.searchsorted(keys, devices), len(keys) - 1)
            np.maximum(found, np.where(keys[at] == devices, entries[at], ABSENT), out=found)
        return found

    def add(self, devices: Numbers, attributes: Numbers) -> range:
        """Add devices that are absent; the places that they get."""
        first = self.next_place
        self.next_place += len(devices)
        places = range(first, self.next_place)
        if places:
            self._add_run(devices, np.arange(first, places.stop) << ATTRIBUTE_BITS | attributes)
        return places

    def remove(self, device: int) -> None:
        """A device is absent from now on."""
        for keys, entries in self._runs:
            at = int(np.searchsorted(keys, device))
            if at < len(keys) and keys[at] == device:
                entries[at] = ABSENT

    def _add_run(self, keys: Numbers, entries: Numbers) -> None:
        of = [(keys, entries)]
        length = len(keys)
        while self._runs and len(self._runs[-1][0]) < min(2 * length, LONGEST_RUN):
            of.insert(0, self._runs.pop())
            length += len(of[0][0])
        self._runs.append(_sorted(of))


def _sorted(runs: list[tuple[Numbers, Numbers]]) -> tuple[Numbers, Numbers]:
    """One run of several, with as little memory at once as can be."""
    keys = np.concatenate([part for part, _ in runs])
    entries = np.concatenate([part for _, part in runs])
    runs.clear()
    order = np.argsort(keys, kind="stable")  # which is fast where parts are sorted already
    keys = keys[order]
    return keys, entries[order]


def place_of(entry: int) -> int:
    """The place in its round."""
    return entry >> ATTRIBUTE_BITS


def attributes_of(entries: Numbers) -> Numbers:
    """Attributes of entries; of absent ones without meaning."""
    attributes: Numbers = entries & ((1 << ATTRIBUTE_BITS) - 1)
    return attributes
