"""The work that the peers do, done by this project: as the simulator, and as devices and collector.

CPU seconds of this process, as the driver takes them of its own. Both ways draw a memo and then a
report from it for every user, as the peers do; of a one-time protocol the memo is the report.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from collector.store.shared import count_bodies
from protocol_spec import ONE_TIME, Calibration, Randomiser, as_drawn, calibrate
from protocol_spec.estimation import Array, estimate
from simulation.model.bulk_randomiser import BulkRandomiser, count

Values = npt.NDArray[np.int64]


class Timed(NamedTuple):
    """CPU seconds of both halves, and the estimates that came out, one array an attribute."""

    randomise: float
    aggregate: float
    estimates: Sequence[Array]

    @property
    def both(self) -> float:
        return self.randomise + self.aggregate


def simulated_round(calibration: Calibration, values: Values, seed: int) -> Timed:
    """Individual reports of all users at once, from a seeded generator."""
    rng = np.random.Generator(np.random.SFC64(seed))  # the simulator's own choice
    begin = time.process_time()
    bulk = BulkRandomiser(calibration)
    memos = bulk.memoize(rng, values)
    reports = memos if calibration.protocol in ONE_TIME else bulk.report(rng, memos)
    between = time.process_time()
    counts = count(bulk.format, reports)
    raw = estimate(counts, len(reports), as_drawn(calibration)).raw
    return Timed(between - begin, time.process_time() - between, [raw])


def device_round(
    calibration: Calibration,
    values: Values,
    _seed: int,
    entropy: Callable[[int], bytes] = os.urandom,
) -> Timed:
    """Each user's device with the system's random bytes, and the collector's counting."""
    indices = values.tolist()
    begin = time.process_time()
    device = Randomiser(calibration, entropy)
    memos = [device.memoize(index) for index in indices]
    reports = memos if calibration.protocol in ONE_TIME else [device.report(m) for m in memos]
    between = time.process_time()
    counts = count_bodies(reports, device.format)
    raw = estimate(counts, len(reports), as_drawn(calibration)).raw
    return Timed(between - begin, time.process_time() - between, [raw])


Round = Callable[[Calibration, Values, int], Timed]


def campaign(
    a_round: Round, users: Values, sizes: Sequence[int], budget: tuple[float, float], seed: int
) -> Timed:
    """ALLOMFREE over several attributes: every user draws one of them and reports its value."""
    begin = time.process_time()
    drawn = np.random.default_rng(seed).integers(0, len(sizes), len(users))
    groups = [users[drawn == a, a] for a in range(len(sizes))]
    choices = [calibrate("ALLOMFREE", k=k, eps_inf=budget[0], eps_1=budget[1]) for k in sizes]
    sampling = time.process_time() - begin
    parts = [a_round(c, held, seed + 1 + a) for a, (c, held) in enumerate(zip(choices, groups))]
    return Timed(
        sampling + sum(part.randomise for part in parts),
        sum(part.aggregate for part in parts),
        [part.estimates[0] for part in parts],
    )
