"""Where the collector keeps what it knows: a small port, and one file per engine.

Claims that every engine must keep:
  I6   `commit` returns only when everything in the batch is durable
  I8   a (campaign, round, device) is counted at most once, by a unique key inside the transaction
  I10  once a round is sealed, nothing of it changes
  I12  every message of a batch adds one to exactly one outcome counter
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from protocol_spec import Manifest, Outcome, Result

Counts = npt.NDArray[np.int64]
NO_ROUND = -1
NO_CAMPAIGN = 0
POOLED = -1


@dataclass(frozen=True)
class Campaign:
    """A campaign as the collector holds it."""

    id: int
    manifest: Manifest
    opened: int
    closed: int | None

    @property
    def name(self) -> str:
        """The campaign's name in topics."""
        return self.manifest.campaign


@dataclass(frozen=True, slots=True)
class Candidate:
    """A report that passed every check that needs no history."""

    campaign: int
    round: int
    device: int
    attribute: int
    page: int
    tag: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Refusal:
    """A message that was not taken, and the place its counter stands."""

    campaign: int
    round: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of one attribute in one round."""

    n: int
    counts: Counts


class Store(Protocol):
    """What the service asks of its storage."""

    def commit(
        self, candidates: Sequence[Candidate], refusals: Sequence[Refusal]
    ) -> Sequence[Outcome]:
        """Count a batch durably; the outcome of each candidate, in order."""

    def seal(
        self,
        campaign: Campaign,
        number: int,
        at: int,
        results: Callable[[Mapping[int, Tally], Mapping[Outcome, int]], list[Result]],
        pooled: Callable[[], list[Result]],
    ) -> list[Result]:
        """Close a round for ever, atomically; empty when it was sealed before."""

    def campaigns(self) -> list[Campaign]:
        """Every campaign, open and closed."""

    def last_sealed(self, campaign: int) -> int | None:
        """The latest sealed round; rounds are sealed in order."""

    def tallies(self, campaign: int, number: int) -> dict[int, Tally]:
        """Counts by attribute of one round, open or sealed."""

    def close(self) -> None:
        """Release everything."""
