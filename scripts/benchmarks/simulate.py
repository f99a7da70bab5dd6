"""What the simulator costs at each depth, and how much less than going from user to user.

Every number is of a process of its own, so that its peak memory is its own too, and is CPU time.
The named peer that is always there is a loop over users with numpy, as a first version would be
written; with `--peer` multi-freq-ldpy is another.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from benchmarks.campaign import manifest
from benchmarks.measurements import Measurement, in_turns, median_of, ratio_of
from benchmarks.our_side import Values
from benchmarks.peer_environment import Peers
from benchmarks.peers import BUDGET, SPEED_UP, K, values_of
from protocol_spec import Calibration, calibrate
from simulation.depths import reports as report_depth
from simulation.depths import statistics as statistics_depth
from simulation.model.behaviour import Behaviour
from simulation.model.datasets import load
from simulation.model.fleet import Fleet
from testbed.processes import peak_memory_mib

PROTOCOLS: Final = ("L-OSUE", "L-GRR")
LOOPED: Final = 20  # the loop is run for one user in so many


class Cost(NamedTuple):
    """CPU seconds, and MiB at the peak beyond what the imports take."""

    cpu_seconds: float
    peak_mib: float


def measure(statistics: int, reports: int, repeats: int, peers: Peers | None) -> list[Measurement]:
    """One round at every depth with both protocols, and reports beside the named peers."""
    rows = []
    for depth, work, devices in (
        ("statistics", as_statistics, statistics),
        ("reports", as_reports, reports),
    ):
        for protocol in PROTOCOLS:
            print(f"{depth}, {protocol}, {devices:,} devices", file=sys.stderr)
            costs = [alone(partial(work, protocol, devices, seed)) for seed in range(repeats)]
            rows += _depth(f"{depth}, {protocol}", devices, costs)
    rows += [_beside_loop(protocol, reports, repeats) for protocol in PROTOCOLS]
    if peers is not None:
        rows += [_beside_peer(peers, protocol, reports, repeats) for protocol in PROTOCOLS]
    return rows


def alone(work: Callable[[], float]) -> Cost:
    """The cost of some work in a fresh process."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(_measured, work).result()


def _measured(work: Callable[[], float]) -> Cost:
    before = peak_memory_mib()
    return Cost(work(), peak_memory_mib() - before)


def _depth(title: str, devices: int, costs: Sequence[Cost]) -> list[Measurement]:
    seconds = [cost.cpu_seconds for cost in costs]
    each_ns = float(np.median(seconds)) / devices * 1e9
    note = f"{devices:,} devices, k = {K}; {each_ns:.3g} ns each"
    return [
        median_of(f"{title}: one round", [s * 1000 for s in seconds], "ms", note=note),
        median_of(f"{title}: memory at the peak", [cost.peak_mib for cost in costs], "MiB"),
    ]


# --- the work ------------------------------------------------------------------------------------


def as_statistics(protocol: str, devices: int, seed: int) -> float:
    """A round as counts alone."""
    asked, held = manifest(K, protocol=protocol), _held(devices)
    begin = time.process_time()
    statistics_depth.as_statistics(asked, (held,), Behaviour(), rounds=1, seed=seed)
    return time.process_time() - begin


def as_reports(protocol: str, devices: int, seed: int) -> float:
    """A round as individual reports, drawn and counted."""
    asked, held = manifest(K, protocol=protocol), _held(devices)
    begin = time.process_time()
    report_depth.as_reports(Fleet(asked, (held,), Behaviour(), seed, rounds=1))
    return time.process_time() - begin


def _held(devices: int) -> Values:
    """How many of the devices hold each value."""
    counts = np.asarray(next(a.counts for a in load("adult").attributes if a.k == K))
    return np.random.default_rng(K).multinomial(devices, counts / counts.sum())


def as_loop(protocol: str, devices: int, seed: int) -> float:
    """The same from user to user: both steps with numpy's generator, one row of bits at a time."""
    calibration, values = _calibration(protocol), values_of(devices)
    rng = np.random.default_rng(seed)
    begin = time.process_time()
    counts = np.zeros(calibration.k, dtype=np.int64)
    for value in values:
        counts += loop_report(rng, calibration, value)
    return time.process_time() - begin


def loop_report(rng: np.random.Generator, c: Calibration, value: int) -> Values:
    """The values that one user's report supports."""
    return _unary(rng, c, value) if c.unary else _generalised(rng, c, value)


def _unary(rng: np.random.Generator, c: Calibration, value: int) -> Values:
    chances = np.full(c.k, c.q1)
    chances[value] = c.p1
    memo = rng.random(c.k) < chances
    return (rng.random(c.k) < np.where(memo, c.p2, c.q2)).astype(np.int64)


def _generalised(rng: np.random.Generator, c: Calibration, value: int) -> Values:
    answer = value
    for keep in (c.p1, c.p2):
        if rng.random() >= keep:
            other = int(rng.integers(c.k - 1))
            answer = other + (other >= answer)
    support = np.zeros(c.k, dtype=np.int64)
    support[answer] = 1
    return support


def _calibration(protocol: str) -> Calibration:
    return calibrate(protocol, k=K, **BUDGET._asdict())


# --- the named peers -----------------------------------------------------------------------------


def _beside_loop(protocol: str, devices: int, repeats: int) -> Measurement:
    few = max(1, devices // LOOPED)
    print(f"loop over users, {protocol}, {few:,} users", file=sys.stderr)
    ours, loop = in_turns(
        repeats,
        lambda seed: as_reports(protocol, devices, seed) / devices,
        lambda seed: as_loop(protocol, few, seed) / few,
    )
    note = f"for each user: {few:,} of them in the loop, {devices:,} at once"
    return ratio_of(f"reports, {protocol}: a loop over users / ours", loop, ours, note=note)


def _beside_peer(peers: Peers, protocol: str, devices: int, repeats: int) -> Measurement:
    print(f"multi-freq-ldpy, {protocol}, {devices:,} users", file=sys.stderr)
    task = {"oracle": "multi-freq-ldpy", "protocol": protocol, "k": K, **BUDGET._asdict()}
    with tempfile.TemporaryDirectory(prefix="allomfree-inputs-") as scratch:
        values = str(Path(scratch) / "values.npy")
        np.save(values, values_of(devices))
        ours, theirs = in_turns(
            repeats,
            lambda seed: as_reports(protocol, devices, seed),
            lambda seed: peers.seconds(values=values, seed=seed, **task),
        )
    what = f"reports, {protocol}: multi-freq-ldpy / ours"
    return ratio_of(what, theirs, ours, at_least=SPEED_UP, note=f"{devices:,} users")
