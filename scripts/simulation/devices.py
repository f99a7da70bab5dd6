"""Many devices at once: their randomisers, what they remember, and every report they send.

Claim: a report has exactly the distribution of one device's. Every bit is 1 with probability
threshold / 2^64 exactly, where the thresholds are those of `protocol_spec.randomiser`, and a set
is drawn uniformly; only the random source is a seeded generator and not the
operating system's.

A unary answer stays packed. One random bit per bit and step is compared with the threshold's bits,
the highest first; after eight steps a comparison is still open for one bit in 256, and only those
bits draw the rest of their 64. So a bit costs about eight random bits and not 64.

A batch's state (values, memos, who left) follows from the seed, the batch and the round alone, so
it can be dropped and made again: memory is bounded by one batch, whatever the size of the fleet.
Devices of an attribute are in the order of their values; a device's name is its place, and the
number of devices that were at that place before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from protocol_spec import (
    DEFAULT_NAMESPACE,
    BodyFormat,
    Calibration,
    Manifest,
    Mechanism,
    Topics,
    make_report,
    thresholds,
)
from protocol_spec.limits import MAX_DEVICE_LENGTH
from protocol_spec.mechanisms import Hashed, Memoized, Nested, Once, nested_thresholds
from simulation.counts import Counts
from simulation.population import Behaviour, Weights, drifting

Bodies = npt.NDArray[np.uint8]  # [device, byte]
Words = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Sent = tuple[str, bytes]  # topic and payload

STEPS: Final = 8
_REST: Final = 1 << 64 - STEPS  # what a comparison that is still open has left to see
BLOCK: Final = 1 << 14  # words at a time: what is worked on stays in the processor's cache


class BulkRandomiser:
    """`protocol_spec.Randomiser` of one attribute for many devices: a row each."""

    def __init__(self, calibration: Calibration) -> None:
        self.memo_format, self.format = calibration.formats
        self.thresholds = thresholds(calibration)

    def memoize(self, rng: np.random.Generator, indices: Indices) -> Bodies:
        """RR1: a memo for the value of each index."""
        held = encode(self.memo_format, indices)
        return respond(rng, self.memo_format, held, self.thresholds[0])

    def report(self, rng: np.random.Generator, memos: Bodies) -> Bodies:
        """RR2: a report from each memo."""
        return respond(rng, self.format, memos, self.thresholds[1])


def respond(
    rng: np.random.Generator, form: BodyFormat, held: Bodies, step: tuple[int, int]
) -> Bodies:
    """One step of randomised response from the body that each device holds."""
    if form.size:
        kept = rng.bit_generator.random_raw(len(held)) < np.uint64(step[0])
        if not form.unary:
            anyone = rng.integers(0, form.k, size=len(held))
            return encode(form, np.where(kept, decode(held), anyone))
        rows = range(0, len(held), max(BLOCK * 64 // form.k, 1))
        blocks = [slice(i, i + rows.step) for i in rows]
        drawn = [_sets(rng, form, held[block], kept[block]) for block in blocks]
        return np.concatenate(drawn) if drawn else held
    keep, add = step
    flat = held.reshape(-1)
    words: Words = np.pad(flat, (0, -flat.size % 8)).view(np.uint64)
    answer = np.empty_like(words)
    for i in range(0, words.size, BLOCK):
        block = slice(i, i + BLOCK)
        answer[block] = respond_packed(rng.bit_generator, words[block], keep, add)
    bodies: Bodies = answer.view(np.uint8)[: held.size].reshape(held.shape)
    bodies[:, -1] &= last_byte(form)
    return bodies


def _sets(rng: np.random.Generator, form: BodyFormat, held: Bodies, kept: Flags) -> Bodies:
    """Sets that have all that is held where it is kept, and values at random besides."""
    chosen = np.unpackbits(held, axis=1, count=form.k).astype(np.bool_) & kept[:, np.newaxis]
    free = ~chosen
    left, wanted = free.sum(axis=1), form.size - chosen.sum(axis=1)
    for v in range(form.k):  # of those left, each is as likely to be wanted
        taken = free[:, v] & (rng.integers(0, np.maximum(left, 1)) < wanted)
        chosen[:, v] |= taken
        wanted -= taken
        left -= free[:, v]
    return np.packbits(chosen, axis=1)


def last_byte(form: BodyFormat) -> int:
    """The bits of a unary body's last byte that belong to values; the others are 0."""
    return 0xFF << (-form.k % 8) & 0xFF


def encode(form: BodyFormat, indices: Indices) -> Bodies:
    """Bodies that support exactly one value each, as `BodyFormat.encode`."""
    bodies = np.zeros((indices.size, form.length), dtype=np.uint8)
    if form.unary:
        starts = np.arange(0, bodies.size, form.length)
        bodies.reshape(-1)[starts + (indices >> 3)] = _ONE[indices & 7]
    else:
        for column in range(form.length):
            bodies[:, column] = indices >> 8 * (form.length - 1 - column) & 0xFF
    return bodies


def decode(bodies: Bodies) -> Indices:
    """The values of bodies that are an index."""
    indices = np.zeros(len(bodies), dtype=np.int64)
    for column in bodies.T:
        indices = indices << 8 | column
    return indices


def count(form: BodyFormat, bodies: Bodies) -> Indices:
    """How many bodies support each value."""
    if not form.unary:
        return np.bincount(decode(bodies), minlength=form.k).astype(np.int64)
    ones = [np.bincount(column, minlength=256) @ _BITS for column in bodies.T]
    return np.concatenate(ones)[: form.k].astype(np.int64)


_ONE: Final = 0x80 >> np.arange(8, dtype=np.uint8)
# For every byte, its bits as numbers.
_BITS: Final = np.unpackbits(np.arange(256, dtype=np.uint8)[:, np.newaxis], axis=1).astype(np.int64)


def respond_packed(bits: np.random.BitGenerator, held: Words, keep: int, add: int) -> Words:
    """Ones where 64 random bits are below `keep` (held bits) or `add` (others)."""
    if keep != add and keep + add == 1 << 64:  # held bits turn over as often as the others
        return held ^ respond_packed(bits, np.zeros_like(held), add, add)
    yes, still_open = np.zeros_like(held), np.full_like(held, 0xFFFF_FFFF_FFFF_FFFF)
    for place in range(63, 63 - STEPS, -1):
        row = bits.random_raw(held.size)
        _compare(yes, still_open, row, held, keep >> place & 1, add >> place & 1)
    where = np.flatnonzero(still_open)
    while where.size:
        rest = still_open[where]
        bit = rest & -rest  # the lowest
        rests = np.where(held[where] & bit, np.uint64(keep % _REST), np.uint64(add % _REST))
        yes[where] |= bit * (bits.random_raw(where.size) % _REST < rests)
        still_open[where] = rest ^ bit
        where = where[rest != bit]
    return yes


def _compare(yes: Words, still_open: Words, row: Words, held: Words, keep: int, add: int) -> None:
    """One binary digit of every comparison. A random 1 stands for the digit 0, so that an open
    comparison with the digit 1 becomes "below", and one with the digit 0 stays open."""
    if keep and add:
        row &= still_open
        yes |= row
        still_open ^= row
    elif not keep and not add:
        still_open &= row
    else:
        digit = held if keep else ~held
        yes |= row & still_open & digit
        row ^= digit
        still_open &= row


# --- the mechanisms ------------------------------------------------------------------------------


class Tallied(NamedTuple):
    """`n[channel]` reports, of which `counts[channel, v]` support v."""

    n: Counts
    counts: Counts


class BulkMechanism:
    """One attribute's mechanism for many devices, a row each: a memo for each value, and fresh
    noise over it in every round. What a device keeps (memos, the number of reports drawn from them,
    which rounds are left to answer) is the caller's to keep, as on a device."""

    def __init__(self, mechanism: Mechanism) -> None:
        self._format = mechanism.counted
        self._response = BulkRandomiser(mechanism.calibration)
        self.memo_bytes = self._response.format.length

    def codes(self, devices: int, names: Callable[[], list[str]]) -> Bodies:  # noqa: ARG002
        """What follows from the devices' names: nothing, except for hashed values."""
        return np.zeros((devices, 0), dtype=np.uint8)

    def keys(self, values: Indices, codes: Bodies) -> Indices:  # noqa: ARG002
        """What memos belong to."""
        return values

    def memoize(self, rng: np.random.Generator, keys: Indices) -> Bodies:
        """A memo for each key."""
        return self._response.memoize(rng, keys)

    def report(self, rng: np.random.Generator, memos: Bodies, sent: Indices) -> Bodies:  # noqa: ARG002
        """An answer from each memo, from which `sent` were drawn before."""
        return self._response.report(rng, memos)

    def lie(self, value: int, codes: Bodies, sent: Indices) -> Bodies:  # noqa: ARG002
        """Answers that support one value, and others where a set needs them."""
        return np.tile(_naming(self._format, value), (len(sent), 1))

    def tally(self, answers: Bodies, codes: Bodies) -> Tallied:  # noqa: ARG002
        """Answers, counted as a collector counts them."""
        return Tallied(np.array([len(answers)]), count(self._format, answers)[np.newaxis])


def _naming(form: BodyFormat, value: int) -> Bodies:
    body = form.encode(*((value + i) % form.k for i in range(max(form.size, 1))))
    return np.frombuffer(body, dtype=np.uint8)


class BulkOnce(BulkMechanism):
    """An answer is drawn from the value and sent as it is."""

    def report(self, rng: np.random.Generator, memos: Bodies, sent: Indices) -> Bodies:  # noqa: ARG002
        return memos


class BulkHashed(BulkMechanism):
    """The value's cell, by a code that follows from the campaign and the device's name."""

    def __init__(self, mechanism: Hashed) -> None:
        super().__init__(mechanism)
        self._code = mechanism.code

    def codes(self, devices: int, names: Callable[[], list[str]]) -> Bodies:
        drawn = b"".join(map(self._code, names()))
        return np.frombuffer(drawn, dtype=np.uint8).reshape(devices, self._format.length)

    def keys(self, values: Indices, codes: Bodies) -> Indices:
        held = codes[np.arange(len(values)), values >> 3]
        cells: Indices = (held >> (7 - (values & 7)).astype(np.uint8) & 1).astype(np.int64)
        return cells

    def lie(self, value: int, codes: Bodies, sent: Indices) -> Bodies:
        return self.keys(np.full(len(sent), value), codes).astype(np.uint8)[:, np.newaxis]

    def tally(self, answers: Bodies, codes: Bodies) -> Tallied:
        supported = np.where(answers == 1, codes, ~codes)
        supported[:, -1] &= last_byte(self._format)
        return super().tally(supported, codes)


class BulkNested(BulkMechanism):
    """All levels of one value at once; a memo is their bodies, level 1 first."""

    def __init__(self, mechanism: Nested) -> None:
        super().__init__(mechanism)
        self._steps = nested_thresholds(mechanism)
        self._formats = [level.formats[1] for level in mechanism.levels]
        self.memo_bytes = self._format.length * len(self._steps)

    def memoize(self, rng: np.random.Generator, keys: Indices) -> Bodies:
        bodies = [encode(self._format, keys)]
        for form, step in reversed(list(zip(self._formats, self._steps))):
            bodies.insert(0, respond(rng, form, bodies[0], step))
        return np.concatenate(bodies[:-1], axis=1)

    def report(self, rng: np.random.Generator, memos: Bodies, sent: Indices) -> Bodies:  # noqa: ARG002
        levels = memos.reshape(len(memos), len(self._steps), self._format.length)
        return self._with_level(sent, levels[np.arange(len(memos)), self._channels(sent)])

    def lie(self, value: int, codes: Bodies, sent: Indices) -> Bodies:  # noqa: ARG002
        bodies = np.stack([_naming(form, value) for form in self._formats])
        return self._with_level(sent, bodies[self._channels(sent)])

    def tally(self, answers: Bodies, codes: Bodies) -> Tallied:  # noqa: ARG002
        channel, levels = answers[:, 0], range(1, len(self._steps) + 1)
        counted = [count(self._format, answers[channel == level, 1:]) for level in levels]
        n = np.bincount(channel, minlength=len(self._steps) + 1)[1:]
        return Tallied(n.astype(np.int64), np.stack(counted))

    def _channels(self, sent: Indices) -> Indices:
        return np.minimum(sent, len(self._steps) - 1)

    def _with_level(self, sent: Indices, bodies: Bodies) -> Bodies:
        levels = (self._channels(sent) + 1).astype(np.uint8)
        return np.concatenate([levels[:, np.newaxis], bodies], axis=1)


class OneByOne(BulkMechanism):
    """Any mechanism, with the randomiser of each device: right, but slow."""

    def __init__(self, mechanism: Mechanism) -> None:
        self._mechanism = mechanism
        self.memo_bytes = len(mechanism.randomiser("d").memoize(0))

    def codes(self, devices: int, names: Callable[[], list[str]]) -> Bodies:
        """The names themselves."""
        table = np.array([name.encode() for name in names()], dtype=f"S{MAX_DEVICE_LENGTH}")
        return table.view(np.uint8).reshape(devices, MAX_DEVICE_LENGTH)

    def keys(self, values: Indices, codes: Bodies) -> Indices:
        pairs = zip(_names(codes), values.tolist())
        keys = [self._mechanism.randomiser(name).key(value) for name, value in pairs]
        return np.array(keys, dtype=np.int64)

    def memoize(self, rng: np.random.Generator, keys: Indices) -> Bodies:
        one = self._mechanism.randomiser("d", rng.bytes)  # a name matters to keys alone
        return _rows([one.memoize(key) for key in keys.tolist()], self.memo_bytes)

    def report(self, rng: np.random.Generator, memos: Bodies, sent: Indices) -> Bodies:
        one = self._mechanism.randomiser("d", rng.bytes)
        made = [one.report(memo.tobytes(), before) for memo, before in zip(memos, sent.tolist())]
        return _rows(made, self._mechanism.answer_bytes)

    def lie(self, value: int, codes: Bodies, sent: Indices) -> Bodies:
        """Drawn for the value until one supports it."""
        mechanism, entropy, made = self._mechanism, np.random.default_rng(value).bytes, []
        for name, before in zip(_names(codes), sent.tolist()):
            one, supported = mechanism.randomiser(name, entropy), list[int]()
            while value not in supported:
                answer = one.report(one.memoize(one.key(value)), before)
                supported = mechanism.counted.supported(mechanism.supported(answer, name).body)
            made.append(answer)
        return _rows(made, mechanism.answer_bytes)

    def tally(self, answers: Bodies, codes: Bodies) -> Tallied:
        mechanism, channels = self._mechanism, len(self._mechanism.channels)
        n = np.zeros(channels, dtype=np.int64)
        counts = np.zeros((channels, mechanism.k), dtype=np.int64)
        for answer, name in zip(answers, _names(codes)):
            channel, body = mechanism.supported(answer.tobytes(), name)
            n[channel] += 1
            counts[channel, mechanism.counted.supported(body)] += 1
        return Tallied(n, counts)


def _names(codes: Bodies) -> list[str]:
    return [row.tobytes().rstrip(b"\0").decode() for row in codes]


def _rows(bodies: list[bytes], length: int) -> Bodies:
    return np.frombuffer(bytearray(b"".join(bodies)), np.uint8).reshape(len(bodies), length)


_FAST: Final[dict[type[Mechanism], Callable[[Any], BulkMechanism]]] = {
    Memoized: BulkMechanism,
    Once: BulkOnce,
    Hashed: BulkHashed,
    Nested: BulkNested,
}


def bulk(mechanism: Mechanism) -> BulkMechanism:
    """The same mechanism for many devices."""
    return _FAST.get(type(mechanism), OneByOne)(mechanism)


# --- fleets --------------------------------------------------------------------------------------

BATCH: Final = 65_536
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
        self._latest: Bodies | None = None  # where a result is made of the latest reports
        if mechanism.analysis.combined == "latest":
            self._latest = np.zeros((size, mechanism.answer_bytes), dtype=np.uint8)
        self._left_behind = np.zeros((0, mechanism.answer_bytes), dtype=np.uint8)
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
            if self._latest is not None:
                self._latest[who[~late]] = bodies[~late]
        generations = self._generation[at]
        self._sent[at] += 1
        places = who + self._first
        return Reports(self.attribute, number, places, generations, bodies, codes, late, twice)

    def latest(self) -> tuple[Bodies, Bodies] | None:
        """The latest report of every device heard so far, also of those that left, and their
        codes, where a result is made of these."""
        if self._latest is None:
            return None
        known = np.concatenate([self._latest[self._counted > 0], self._left_behind])
        return known, np.zeros((len(known), 0), dtype=np.uint8)

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
        if self._latest is not None:
            heard = self._latest[leaving & (self._counted > 0)]
            self._left_behind = np.concatenate([self._left_behind, heard])
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
