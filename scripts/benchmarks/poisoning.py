"""`benchmark.py poisoning`: how far devices that lie together lift a value that nobody holds.

Honest devices and liars report through the collector's own path: admission, store, sealing, the
published result. Liars answer what lifts the value most: with `once` in every round, with `nested`
at the last level at once, and again at the level that they may. *Without refusals* also takes
reports beyond `rounds.each`, and levels that cannot have been reached, weighed by their precision.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.report import Measurement, median_of, progress
from benchmarks.workload import manifest
from protocol_spec import DEFAULT_NAMESPACE, Reporting
from protocol_spec.estimation.intervals import device_noise
from simulation.campaigns import Simulated, as_reports, into
from simulation.devices import Fleet, Sent
from simulation.population import Behaviour

ROUNDS: Final[dict[Reporting, int]] = {"memoized": 1, "hashed": 1, "once": 15, "nested": 1}
HELD: Final = np.array([0.35, 0.25, 0.2, 0.12, 0.08, 0.0])
LIE: Final = HELD.size - 1  # the value that nobody holds
SHARES: Final = (0.01, 0.05)


class Claiming(Fleet):
    """Where there are levels, liars claim the last one before they report at that they may."""

    def messages(
        self, number: int, *, late: bool, namespace: str = DEFAULT_NAMESPACE
    ) -> Iterator[Sent]:
        last, at = len(self.manifest.mechanisms[0].channels), -self.manifest.body_bytes
        devices = int(self.truth[0].sum())
        liars, _ = self.behaviour.liars(0, devices)
        sent = super().messages(number, late=late, namespace=namespace)
        for device, (topic, payload) in enumerate(sent):
            if last > 1 and device * liars % devices < liars:
                yield topic, payload[:at] + bytes([last]) + payload[at:][1:]
            yield topic, payload


def measure(devices: int, runs: int) -> list[Measurement]:
    rows = []
    for reporting, rounds in ROUNDS.items():
        progress(f"poisoning, {reporting}")
        for share in SHARES:
            gains = [gain(reporting, rounds, devices, share, seed) for seed in range(runs)]
            of = f"{reporting}, {'a round' if rounds == 1 else f'{rounds} rounds'}"
            for what, column in zip(("without refusals", "as counted"), zip(*gains)):
                rows.append(
                    median_of(f"gain of {share:.0%} liars, {what}", column, "points", of=of)
                )
    return rows


def gain(
    reporting: Reporting, rounds: int, devices: int, share: float, seed: int
) -> tuple[float, float]:
    """Points by which the estimate of the lie rises: without refusals, and as it is counted."""
    eps_1 = None if reporting == "once" else 0.6
    asked = manifest(HELD.size, rounds=rounds, reporting=reporting, min_reports=1, eps_1=eps_1)
    truth = np.round(HELD * devices).astype(np.int64)
    liars = round(share * devices)
    honest = Claiming(asked, (truth,), Behaviour(), seed, rounds)
    lying = replace(honest, behaviour=Behaviour(dishonest=((0, liars, LIE),)))
    before, alike = as_reports(honest), as_reports(lying)
    with tempfile.TemporaryDirectory() as data:
        counted = into(Path(data) / "data", lying)
    all_taken = _by_precision(alike, liars) if reporting == "nested" else _estimate(alike)
    usual = 100 * _estimate(before)
    return 100 * all_taken - usual, 100 * _estimate(counted) - usual


def _by_precision(made: Simulated, liars: int) -> float:
    """The lie's estimate of one round in which the liars' level was taken as claimed, and every
    level weighed by its precision."""
    one, channels = made.attributes[0], made.manifest.mechanisms[0].channels
    n, lie = one.n_by_channel[0].copy(), one.counts_by_channel[0, :, LIE].copy()
    for column in (n, lie):
        column[0] -= liars
        column[-1] += liars
    noise = [device_noise(channel) for channel in channels]
    gap, qs = (np.array([getattr(each, name) for each in noise]) for name in ("gap", "qs"))
    weight = gap**2 / (qs * (1 - qs))
    return float((weight * (lie - n * qs) / gap).sum() / (weight * n).sum())


def _estimate(made: Simulated) -> float:
    """The raw estimate of the lie, published about all rounds."""
    results = made.stored or (made.results_of(0).pooled(Counter()),)
    pooled = [result for result in results if result is not None and result.round is None]
    return pooled[-1].raw[LIE]
