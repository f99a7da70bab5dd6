"""Every device and every report, a batch of devices at a time.

A batch's state (values, memos, who left) follows from the seed, the batch and the round alone, so
it can be dropped and made again: memory is bounded by one batch, whatever the size of the fleet.
Devices of an attribute are in the order of their values; a device's name is its place, and the
number of devices that were at that place before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from protocol_spec import DEFAULT_NAMESPACE, Manifest, Topics, make_report
from simulation.bulk import Bodies, Indices, bulk
from simulation.counts import Counts
from simulation.population import Behaviour, Weights, drifting

BATCH: Final = 65_536
Flags = npt.NDArray[np.bool_]
Sent = tuple[str, bytes]  # topic and payload

_STATE, _REPORT = 3, 4  # streams of random numbers; 0 to 2 are the population's and the statistics'


def device_names(attribute: int, places: Indices, generations: Indices) -> list[str]:
    pairs = zip(places.tolist(), generations.tolist())
    return [f"sim-{attribute}-{place}-{before}" for place, before in pairs]


@dataclass(frozen=True, slots=True, eq=False)
class Reports:
    """What one batch sends in one round: a row per report."""

    attribute: int
    round: int
    places: Indices
    generations: Indices
    bodies: Bodies
    codes: Bodies
    late: Flags
    twice: Flags

    def names(self) -> list[str]:
        """The devices' names in topics."""
        return device_names(self.attribute, self.places, self.generations)

    def messages(
        self, manifest: Manifest, *, late: bool, namespace: str = DEFAULT_NAMESPACE
    ) -> Iterator[Sent]:
        """Of the reports that are on time, or of the others, as real devices would send them, byte
        for byte; some of them twice."""
        before, after = Topics(manifest.campaign, namespace).report("x").rsplit("x", 1)
        blank = make_report(manifest, self.round, self.attribute, b"").encode()
        head = blank[: -manifest.body_bytes]
        answer_bytes = manifest.mechanisms[self.attribute].answer_bytes
        zeros = bytes(manifest.body_bytes - answer_bytes)
        marks = zip(self.names(), self.bodies, self.late.tolist(), self.twice.tolist())
        for name, body, is_late, twice in marks:
            if is_late is late:
                message = (before + name + after, head + body.tobytes() + zeros)
                yield message
                if twice:
                    yield message


@dataclass(frozen=True, slots=True, eq=False)
class Fleet:
    """A whole fleet; `truth[a][v]` devices drew attribute a and hold its value v at first.

    Values that change are drawn from the shares at first, or between those and `drift[a]`: there
    and back over the campaign.
    """

    manifest: Manifest
    truth: tuple[Counts, ...]
    behaviour: Behaviour
    seed: int
    rounds: int
    batch: int = BATCH
    drift: tuple[Weights, ...] = ()

    def batches(self) -> Iterator[Batch]:
        """Every batch at its beginning; a batch holds devices of one attribute."""
        for attribute, held in enumerate(self.truth):
            for first in range(0, int(held.sum()), self.batch):
                yield Batch(self, attribute, first)

    def messages(
        self, number: int, *, late: bool, namespace: str = DEFAULT_NAMESPACE
    ) -> Iterator[Sent]:
        """All messages of one round; each batch is made again and advanced to the round."""
        for batch in self.batches():
            for _ in range(number):
                batch.reports(only_state=True)
            yield from batch.reports().messages(self.manifest, late=late, namespace=namespace)

    def held(self) -> list[Counts]:
        """Who holds what in each round, by attribute."""
        if not self.behaviour.changes:
            return [np.tile(row, (self.rounds, 1)) for row in self.truth]
        found = [np.zeros((self.rounds, row.size), dtype=np.int64) for row in self.truth]
        for batch in self.batches():
            for t in range(self.rounds):
                batch.reports(only_state=True)
                found[batch.attribute][t] += batch.held()
        return found


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
        self._shares = held / total
        ends = np.clip(np.cumsum(held), first, first + size)
        self.values = np.repeat(np.arange(self._k), np.diff(ends, prepend=first))
        liars, self._lie = self._do.liars(attribute, total)
        self._liar: Flags = np.zeros(size, dtype=np.bool_)
        if liars:
            self._liar = np.arange(first, first + size) * liars % total < liars
        self._missing = self._do.missing(attribute, self._k)
        mechanism = fleet.manifest.mechanisms[attribute]
        self._bulk = bulk(mechanism)
        # One key is one memo, and there are no more than the mechanism allows.
        self._most = min(mechanism.memos, fleet.rounds if self._do.changes else 1)
        self._generation = np.zeros(size, dtype=np.int64)
        self._codes = self._codes_of(np.ones(size, dtype=np.bool_))
        self._left = np.full(size, fleet.manifest.rounds.each)  # answers still to give, if `once`
        self._known = np.full((size, self._most), -1, dtype=np.int64)  # whose memo it is
        self._memos = np.zeros((size, self._most, self._bulk.memo_bytes), dtype=np.uint8)
        self._used = np.zeros(size, dtype=np.int64)  # which memo the last report came from
        self._sent = np.zeros(size, dtype=np.int64)
        self._counted = np.zeros(size, dtype=np.int64)
        self._gone = np.zeros(fleet.rounds + 1, dtype=np.int64)
        self._round = 0

    def reports(self, *, only_state: bool = False) -> Reports:
        """The next round's reports; `only_state` leaves the bodies out, to pass a round over."""
        number, self._round = self._round, self._round + 1
        rng = self._random(_STATE, number)
        if number:
            self._turn_over(rng, number)
        who = self._reporting(rng, number)
        at = self._at(who)
        late = self._some(rng, self._do.late, who)
        twice = self._some(rng, self._do.duplicates, who)
        self._counted[at] += ~late
        places = self._choose_memos(rng, who)
        codes, sent = self._codes[at], self._sent[at]
        bodies = np.zeros((0, 0), dtype=np.uint8)
        if not only_state:
            drawing = self._random(_REPORT, number)
            bodies = self._bulk.report(drawing, self._memos_of(drawing, who, places), sent)
            lying = self._liar[at]
            if lying.any():
                bodies[lying] = self._bulk.lie(self._lie, codes[lying], sent[lying])
        generations = self._generation[at]
        self._sent[at] += 1
        places = who + self._first
        return Reports(self.attribute, number, places, generations, bodies, codes, late, twice)

    def participation(self) -> Counts:
        """`[m]` devices of this batch were counted in m rounds so far."""
        return self._gone + np.bincount(self._counted, minlength=self._gone.size)

    def held(self) -> Counts:
        """Devices that hold each value now."""
        return np.bincount(self.values, minlength=self._k).astype(np.int64)

    # --- from round to round ---------------------------------------------------------------------

    def _turn_over(self, rng: np.random.Generator, number: int) -> None:
        """Between rounds: devices are replaced, values change. The dishonest stay."""
        if self._do.churn:
            self._replace((rng.random(self.values.size) < self._do.churn) & ~self._liar, number)
        if self._do.changes:
            changing = np.flatnonzero(rng.random(self.values.size) < self._do.changes)
            shares = self._shares
            if self._fleet.drift:
                target = self._fleet.drift[self.attribute]
                shares = drifting(shares, target, number, self._fleet.manifest.rounds.count)
            self.values[changing] = rng.choice(self._k, size=changing.size, p=shares)

    def _replace(self, leaving: Flags, number: int) -> None:
        """New devices with names, memos and rounds of their own."""
        schedule = self._fleet.manifest.rounds
        self._gone += np.bincount(self._counted[leaving], minlength=self._gone.size)
        self._generation = self._generation + leaving  # reports made before keep theirs
        self._known[leaving] = -1
        self._counted[leaving] = self._sent[leaving] = 0
        self._left[leaving] = min(schedule.each, schedule.count - number)
        self._codes = self._codes.copy()
        self._codes[leaving] = self._codes_of(leaving)

    def _codes_of(self, some: Flags) -> Bodies:
        """Names are made only for the mechanisms that need them."""
        places = np.flatnonzero(some) + self._first
        generations = self._generation[some]
        names = lambda: device_names(self.attribute, places, generations)  # noqa: E731
        return self._bulk.codes(places.size, names)

    def _reporting(self, rng: np.random.Generator, number: int) -> Indices:
        schedule, size = self._fleet.manifest.rounds, self.values.size
        if not schedule.each and not self._missing.any():
            return np.arange(size)
        present = np.ones(size, dtype=np.bool_)
        if schedule.each:  # taken with this probability, every set of rounds is equally likely
            present = rng.integers(0, schedule.count - number, size) < self._left
            self._left -= present
        if self._missing.any():
            present &= rng.random(size) >= self._missing[self.values]
        return np.flatnonzero(present | self._liar)

    def _some(self, rng: np.random.Generator, rate: float, who: Indices) -> Flags:
        if not rate:
            return np.zeros(who.size, dtype=np.bool_)
        return (rng.random(who.size) < rate) & ~self._liar[who]

    def _choose_memos(self, rng: np.random.Generator, who: Indices) -> Indices:
        """As an agent does: this value's memo, else a new one, else the one used last."""
        if self._most == 0:
            return self._used[self._at(who)]
        if self._most == 1:
            new = self._known[self._at(who), 0] < 0
            self._make_memos(rng, who if new.all() else who[new], 0)
            return self._used[self._at(who)]
        known = self._known[who]
        same = known == self._keys(who)[:, np.newaxis]
        found = same.any(axis=1)
        filled = (known >= 0).sum(axis=1)
        new = ~found & (filled < self._most)
        self._make_memos(rng, who[new], filled[new])
        old = np.where(found, same.argmax(axis=1), self._used[who])
        self._used[who] = np.where(new, filled, old)
        return self._used[who]

    def _make_memos(self, rng: np.random.Generator, who: Indices, places: Indices | int) -> None:
        if who.size:
            at = self._at(who) if isinstance(places, int) else who
            keys = self._keys(at)
            self._known[at, places] = keys
            self._memos[at, places] = self._bulk.memoize(rng, keys)

    def _memos_of(self, rng: np.random.Generator, who: Indices, places: Indices) -> Bodies:
        at = self._at(who)
        if self._most == 0:
            return self._bulk.memoize(rng, self._keys(at))
        return self._memos[at, 0] if self._most == 1 else self._memos[who, places]

    def _keys(self, at: Indices | slice) -> Indices:
        return self._bulk.keys(self.values[at], self._codes[at])

    def _at(self, who: Indices) -> Indices | slice:
        """The same devices as an index; where they are all, one that spares a copy."""
        return slice(None) if who.size == self.values.size else who

    def _random(self, stream: int, number: int) -> np.random.Generator:
        place = (stream, self.attribute, self._first, number)
        seeds = np.random.SeedSequence(self._fleet.seed, spawn_key=place)
        return np.random.Generator(np.random.SFC64(seeds))
