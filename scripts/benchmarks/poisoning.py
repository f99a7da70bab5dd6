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
from protocol_spec import DEFAULT_NAMESPACE, Manifest, Reporting
from protocol_spec.estimation.intervals import device_noise
from simulation.campaigns import Simulated, as_reports, into
from simulation.devices import Fleet, Sent
from simulation.population import Behaviour

ROUNDS: Final[dict[Reporting, int]] = {"memoized": 1, "hashed": 1, "once": 15, "nested": 1}
HELD: Final = np.array([0.35, 0.25, 0.2, 0.12, 0.08, 0.0])
LIE: Final = HELD.size - 1  # the value that nobody holds
SHARES: Final = (0.01, 0.05)
FIRST: Final = 1_798_761_600  # 2027; hashed codes follow from the manifest


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
    asked = manifest(
        HELD.size, rounds=rounds, first=FIRST, reporting=reporting, min_reports=1, eps_1=eps_1
    )
    truth = np.round(HELD * devices).astype(np.int64)
    lies = ((0, round(share * devices), LIE),)
    honest = Claiming(asked, (truth,), Behaviour(), seed, rounds)
    lying = replace(honest, behaviour=Behaviour(dishonest=lies))
    usual = _estimate(as_reports(honest))
    with tempfile.TemporaryDirectory() as data:
        counted = _estimate(into(Path(data) / "data", lying))
    if reporting == "nested":
        alike = _if_claimed(asked, usual, share)
    else:
        alike = _estimate(as_reports(lying))
    return 100 * (alike - usual), 100 * (counted - usual)


def _if_claimed(asked: Manifest, usual: float, share: float) -> float:
    """In round 0, if the last level were taken as claimed, and weighed by its precision."""
    noise = [device_noise(asked.mechanisms[0].channels[level]) for level in (0, -1)]
    weights = [n * c.gap**2 / (c.qs * (1 - c.qs)) for n, c in zip((1 - share, share), noise)]
    return float(np.average([usual, (1 - noise[1].qs) / noise[1].gap], weights=weights))


def _estimate(made: Simulated) -> float:
    """The raw estimate of the lie, published about all rounds."""
    results = made.stored or (made.results_of(0).pooled(Counter()),)
    pooled = [result for result in results if result is not None and result.round is None]
    return pooled[-1].raw[LIE]
