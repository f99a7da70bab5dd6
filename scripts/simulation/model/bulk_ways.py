"""The four ways of reporting for many devices at once: what a `WayRandomiser` does, a row each.

Thresholds, codes and bodies are those of `protocol_spec`; only the random source is a seeded
generator. What a device keeps (memos, how many reports were drawn from them, which rounds are left
to answer) is the caller's to keep, as on a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from protocol_spec import Way
from protocol_spec.reporting import nested_thresholds
from protocol_spec.ways import HashedWay, MemoizedWay, NestedWay, OnceWay
from simulation.model.bulk_randomiser import (
    Bodies,
    BulkRandomiser,
    Indices,
    count,
    encode,
    last_byte,
    respond,
)
from simulation.model.counts import Counts


class Tallied(NamedTuple):
    """`n[channel]` reports, of which `counts[channel, v]` support v."""

    n: Counts
    counts: Counts


class BulkWay(Protocol):
    """One attribute's way of reporting. `codes` has a row for each device, empty but for cells."""

    @property
    def memo_bytes(self) -> int:
        """Length of a memo."""

    def codes(self, names: Sequence[str]) -> Bodies:
        """What follows from the devices' names."""

    def keys(self, values: Indices, codes: Bodies) -> Indices:
        """What memos belong to."""

    def memoize(self, rng: np.random.Generator, keys: Indices) -> Bodies:
        """A memo for each key."""

    def report(self, rng: np.random.Generator, memos: Bodies, sent: Indices) -> Bodies:
        """An answer from each memo, from which so many were drawn before."""

    def lie(self, value: int, codes: Bodies, sent: Indices) -> Bodies:
        """Answers that support one value as well as an answer can."""

    def tally(self, answers: Bodies, codes: Bodies) -> Tallied:
        """Answers, counted as a collector counts them."""


def bulk(way: Way) -> BulkWay:
    """The same way for many devices."""
    if isinstance(way, HashedWay):
        return BulkHashed(way)
    if isinstance(way, NestedWay):
        return BulkNested(way)
    if isinstance(way, OnceWay):
        return BulkOnce(way)
    if isinstance(way, MemoizedWay):
        return BulkMemoized(way)
    raise TypeError(f"there is no bulk randomiser for reporting = {way.reporting!r}")


class BulkMemoized:
    """A memo for each value, and fresh noise over it in every round."""

    def __init__(self, way: MemoizedWay | OnceWay) -> None:
        self._response = BulkRandomiser(way.calibration)
        self._format = way.counted
        self.memo_bytes = way.counted.length

    def codes(self, names: Sequence[str]) -> Bodies:
        return np.zeros((len(names), 0), dtype=np.uint8)

    def keys(self, values: Indices, codes: Bodies) -> Indices:  # noqa: ARG002
        return values

    def memoize(self, rng: np.random.Generator, keys: Indices) -> Bodies:
        return self._response.memoize(rng, keys)

    def report(self, rng: np.random.Generator, memos: Bodies, sent: Indices) -> Bodies:  # noqa: ARG002
        return self._response.report(rng, memos)

    def lie(self, value: int, codes: Bodies, sent: Indices) -> Bodies:  # noqa: ARG002
        return encode(self._format, np.full(len(sent), value))

    def tally(self, answers: Bodies, codes: Bodies) -> Tallied:  # noqa: ARG002
        return Tallied(np.array([len(answers)]), count(self._format, answers)[np.newaxis])


class BulkOnce(BulkMemoized):
    """An answer is drawn from the value and sent as it is."""

    def report(self, rng: np.random.Generator, memos: Bodies, sent: Indices) -> Bodies:  # noqa: ARG002
        return memos


class BulkHashed:
    """The value's cell, by a code that follows from the campaign and the device's name."""

    memo_bytes = 1

    def __init__(self, way: HashedWay) -> None:
        self._way = way
        self._format = way.counted
        self._response = BulkRandomiser(way.hashed.cell)

    def codes(self, names: Sequence[str]) -> Bodies:
        drawn = b"".join(self._way.code(name) for name in names)
        return np.frombuffer(drawn, dtype=np.uint8).reshape(len(names), self._format.length)

    def keys(self, values: Indices, codes: Bodies) -> Indices:
        held = codes[np.arange(len(values)), values >> 3]
        cells: Indices = (held >> (7 - (values & 7)).astype(np.uint8) & 1).astype(np.int64)
        return cells

    def memoize(self, rng: np.random.Generator, keys: Indices) -> Bodies:
        return self._response.memoize(rng, keys)

    def report(self, rng: np.random.Generator, memos: Bodies, sent: Indices) -> Bodies:  # noqa: ARG002
        return self._response.report(rng, memos)

    def lie(self, value: int, codes: Bodies, sent: Indices) -> Bodies:
        return self.keys(np.full(len(sent), value), codes).astype(np.uint8)[:, np.newaxis]

    def tally(self, answers: Bodies, codes: Bodies) -> Tallied:
        supported = np.where(answers == 1, codes, ~codes)
        supported[:, -1] &= last_byte(self._format)
        return Tallied(np.array([len(answers)]), count(self._format, supported)[np.newaxis])


class BulkNested:
    """All levels of one value at once; a memo is their bodies, level 1 first."""

    def __init__(self, way: NestedWay) -> None:
        self._format = way.counted
        self._steps = nested_thresholds(way.nested)
        self.memo_bytes = self._format.length * len(self._steps)

    def codes(self, names: Sequence[str]) -> Bodies:
        return np.zeros((len(names), 0), dtype=np.uint8)

    def keys(self, values: Indices, codes: Bodies) -> Indices:  # noqa: ARG002
        return values

    def memoize(self, rng: np.random.Generator, keys: Indices) -> Bodies:
        body, bodies = encode(self._format, keys), []
        for keep, add in reversed(self._steps):
            body = respond(rng, self._format, body, keep, add)
            bodies.append(body)
        return np.concatenate(bodies[::-1], axis=1)

    def report(self, rng: np.random.Generator, memos: Bodies, sent: Indices) -> Bodies:  # noqa: ARG002
        levels = memos.reshape(len(memos), len(self._steps), self._format.length)
        return self._with_level(sent, levels[np.arange(len(memos)), self._channels(sent)])

    def lie(self, value: int, codes: Bodies, sent: Indices) -> Bodies:  # noqa: ARG002
        return self._with_level(sent, encode(self._format, np.full(len(sent), value)))

    def tally(self, answers: Bodies, codes: Bodies) -> Tallied:  # noqa: ARG002
        channel, every = answers[:, 0], range(1, len(self._steps) + 1)
        counted = [count(self._format, answers[channel == level, 1:]) for level in every]
        n = np.bincount(channel, minlength=len(self._steps) + 1)[1:]
        return Tallied(n.astype(np.int64), np.stack(counted))

    def _channels(self, sent: Indices) -> Indices:
        return np.minimum(sent, len(self._steps) - 1)

    def _with_level(self, sent: Indices, bodies: Bodies) -> Bodies:
        levels = (self._channels(sent) + 1).astype(np.uint8)
        return np.concatenate([levels[:, np.newaxis], bodies], axis=1)
