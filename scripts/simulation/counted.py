"""What a collector has counted after a simulated campaign, and the truth that only it knows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulation.model.counts import Counts


@dataclass(frozen=True, slots=True, eq=False)
class Collected:
    """One attribute: counts of each round, who reported how often, and who held what.

    `n_by_channel[round, channel]`, `counts_by_channel[round, channel, v]` (`Way.channels`);
    `truth[round, v]` over all devices of the attribute, heard or not;
    `participation[m]` devices were counted in m rounds; [0] is 0, for nobody heard of them.
    """

    n_by_channel: Counts
    counts_by_channel: Counts
    truth: Counts
    participation: Counts

    @classmethod
    def empty(cls, rounds: int, k: int, channels: int = 1) -> Collected:
        """All zero, for a number of rounds and values."""
        return cls(
            np.zeros((rounds, channels), dtype=np.int64),
            np.zeros((rounds, channels, k), dtype=np.int64),
            np.zeros((rounds, k), dtype=np.int64),
            np.zeros(rounds + 1, dtype=np.int64),
        )

    @property
    def n(self) -> Counts:
        """Reports of each round."""
        total: Counts = self.n_by_channel.sum(axis=1)
        return total

    @property
    def counts(self) -> Counts:
        """Of each round and value, all channels together."""
        total: Counts = self.counts_by_channel.sum(axis=1)
        return total

    @property
    def fleet(self) -> int:
        """Devices of the attribute, heard or not; with churn, all that were heard."""
        return max(int(self.truth[0].sum()), int(self.participation.sum()))

    def participants(self) -> tuple[list[int], list[int]]:
        """Numbers of reports, and how many devices sent so many."""
        heard = [(m, number) for m, number in enumerate(self.participation.tolist()) if number]
        return [m for m, _ in heard], [number for _, number in heard]
