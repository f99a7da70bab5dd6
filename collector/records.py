"""What the rooms of the collector hand to each other: campaigns, reports, refusals, counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from protocol_spec import Manifest, Outcome

Counts = npt.NDArray[np.int64]
NO_ROUND: Final = -1
NO_CAMPAIGN: Final = 0
POOLED: Final = -1  # the round number under which a pooled result is stored


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


class Candidate(NamedTuple):
    """A report that passed every check that needs no history.

    A tuple, because one is made for every report and its fields are a row of the store, in order.
    """

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


@dataclass(frozen=True, slots=True)
class UnpublishedResult:
    """A stored result that no broker has taken yet; `round` is `POOLED` for the pooled one."""

    campaign: int
    attribute: int
    round: int
    message: bytes
