"""Every device and every report, a batch of devices at a time.

A batch's state (values, memos, who left) follows from the seed, the batch and the round alone, so
it can be dropped and made again: memory is bounded by one batch, whatever the size of the fleet.
Devices of an attribute stand in the order of their values; a device's name is its place, and how
many devices were at that place before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from protocol_spec import Manifest
from simulation.model.behaviour import Behaviour
from simulation.model.bulk_randomiser import Bodies, BulkRandomiser, Indices, encode
from simulation.model.counts import Counts

BATCH: Final = 65_536
Flags = npt.NDArray[np.bool_]

_STATE, _REPORT = 3, 4  # streams of random numbers; 0 to 2 are the population's and the statistics'


@dataclass(frozen=True, slots=True, eq=False)
class Reports:
    """What one batch sends in one round: a row per report."""

    attribute: int
    round: int
    places: Indices
    generations: Indices
    bodies: Bodies
    late: Flags
    twice: Flags

    def names(self) -> list[str]:
        """The devices' names in topics."""
        pairs = zip(self.places.tolist(), self.generations.tolist())
        return [f"sim-{self.attribute}-{place}-{before}" for place, before in pairs]


@dataclass(frozen=True, slots=True, eq=False)
class Fleet:
    """A whole fleet; `truth[a][v]` devices drew attribute a and hold its value v at first."""

    manifest: Manifest
    truth: tuple[Counts, ...]
    behaviour: Behaviour
    seed: int
    rounds: int
    batch: int = BATCH

    def batches(self) -> Iterator[Batch]:
        """Every batch at its beginning; a batch holds devices of one attribute."""
        for attribute, held in enumerate(self.truth):
            for first in range(0, int(held.sum()), self.batch):
                yield Batch(self, attribute, first)

    @property
    def memos(self) -> int:
        """Memos a device may need: one value is one memo, and no more than the manifest allows."""
        return min(self.manifest.max_values, self.rounds) if self.behaviour.changes else 1


class Batch:
    """Some devices of one attribute: call `reports` for each round in order."""

    def __init__(self, fleet: Fleet, attribute: int, first: int) -> None:
        self.attribute = attribute
        self._fleet = fleet
        self._first = first
        self._do = fleet.behaviour
        held = fleet.truth[attribute]
        total = int(held.sum())
        size = min(fleet.batch, total - first)
        self._k = held.size
        self._law = held / total
        ends = np.clip(np.cumsum(held), first, first + size)
        self.values = np.repeat(np.arange(self._k), np.diff(ends, prepend=first))
        liars, self._lie = self._do.liars(attribute, total)
        self._liar: Flags = np.zeros(size, dtype=np.bool_)
        if liars:
            self._liar = np.arange(first, first + size) * liars % total < liars
        self._missing = self._do.missing(attribute, self._k)
        self._randomiser = BulkRandomiser(fleet.manifest.calibrations[attribute])
        length = self._randomiser.format.length
        self._generation = np.zeros(size, dtype=np.int64)
        self._known = np.full((size, fleet.memos), -1, dtype=np.int64)  # whose memo it is
        self._memos = np.zeros((size, fleet.memos, length), dtype=np.uint8)
        self._used = np.zeros(size, dtype=np.int64)  # which memo the last report came from
        self._counted = np.zeros(size, dtype=np.int64)
        self._gone = np.zeros(fleet.rounds + 1, dtype=np.int64)
        self._round = 0

    def reports(self, *, only_state: bool = False) -> Reports:
        """The next round's reports; `only_state` leaves the bodies out, to pass a round over."""
        number, self._round = self._round, self._round + 1
        rng = self._random(_STATE, number)
        if number:
            self._turn_over(rng)
        who = self._reporting(rng)
        late = self._chance(rng, self._do.late, who)
        twice = self._chance(rng, self._do.duplicates, who)
        self._counted[self._at(who)] += ~late
        places = self._choose_memos(rng, who)
        bodies = np.zeros((0, 0), dtype=np.uint8)
        if not only_state:
            bodies = self._draw(self._random(_REPORT, number), who, places)
        names = (who + self._first, self._generation[self._at(who)])
        return Reports(self.attribute, number, *names, bodies, late, twice)

    def participation(self) -> Counts:
        """`[m]` devices of this batch were counted in m rounds so far."""
        return self._gone + np.bincount(self._counted, minlength=self._gone.size)

    def held(self) -> Counts:
        """Devices that hold each value now."""
        return np.bincount(self.values, minlength=self._k).astype(np.int64)

    # --- how it goes on ------------------------------------------------------------------------

    def _turn_over(self, rng: np.random.Generator) -> None:
        """Between rounds: devices are replaced, values change. The dishonest stay."""
        if self._do.churn:
            leaving = (rng.random(self.values.size) < self._do.churn) & ~self._liar
            self._gone += np.bincount(self._counted[leaving], minlength=self._gone.size)
            self._generation = self._generation + leaving  # reports made before keep theirs
            self._known[leaving] = -1
            self._counted[leaving] = 0
        if self._do.changes:
            changing = np.flatnonzero(rng.random(self.values.size) < self._do.changes)
            self.values[changing] = rng.choice(self._k, size=changing.size, p=self._law)

    def _reporting(self, rng: np.random.Generator) -> Indices:
        if not self._missing.any():
            return np.arange(self.values.size)
        present = rng.random(self.values.size) >= self._missing[self.values]
        return np.flatnonzero(present | self._liar)

    def _chance(self, rng: np.random.Generator, rate: float, who: Indices) -> Flags:
        if not rate:
            return np.zeros(who.size, dtype=np.bool_)
        return (rng.random(who.size) < rate) & ~self._liar[who]

    def _choose_memos(self, rng: np.random.Generator, who: Indices) -> Indices:
        """As an agent does: this value's memo, else a new one, else the one used last."""
        if self._fleet.memos == 1:
            new = self._known[self._at(who), 0] < 0
            self._make_memos(rng, who if new.all() else who[new], 0)
            return self._used[self._at(who)]
        known = self._known[who]
        same = known == self.values[who, np.newaxis]
        found = same.any(axis=1)
        filled = (known >= 0).sum(axis=1)
        new = ~found & (filled < self._fleet.memos)
        self._make_memos(rng, who[new], filled[new])
        old = np.where(found, same.argmax(axis=1), self._used[who])
        self._used[who] = np.where(new, filled, old)
        return self._used[who]

    def _make_memos(self, rng: np.random.Generator, who: Indices, places: Indices | int) -> None:
        if who.size:
            at = self._at(who) if isinstance(places, int) else who
            self._known[at, places] = self.values[at]
            self._memos[at, places] = self._randomiser.memoize(rng, self.values[at])

    def _draw(self, rng: np.random.Generator, who: Indices, places: Indices) -> Bodies:
        at = self._at(who)
        memos = self._memos[at, 0] if self._fleet.memos == 1 else self._memos[who, places]
        bodies = self._randomiser.report(rng, memos)
        lying = self._liar[at]
        if lying.any():
            lies = np.full(int(lying.sum()), self._lie)
            bodies[lying] = encode(self._randomiser.format, lies)
        return bodies

    def _at(self, who: Indices) -> Indices | slice:
        """The same devices as an index; where they are all, one that spares a copy."""
        return slice(None) if who.size == self.values.size else who

    def _random(self, stream: int, number: int) -> np.random.Generator:
        place = (stream, self.attribute, self._first, number)
        seeds = np.random.SeedSequence(self._fleet.seed, spawn_key=place)
        return np.random.Generator(np.random.SFC64(seeds))
