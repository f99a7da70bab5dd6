"""Values that pass between the modules: campaigns, reports, refusals, counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from protocol_spec import Manifest, Mechanism, Outcome

Counts = npt.NDArray[np.int64]
NO_ROUND: Final = -1
NO_CAMPAIGN: Final = 0
NO_COUNTS: Final[Counts] = np.zeros(0, dtype=np.int64)
POOLED: Final = -1  # the round number under which a pooled result is stored
FORGOTTEN: Final = -1  # in place of the attribute of a device that asked to be forgotten


@dataclass(frozen=True)
class Campaign:
    """A campaign as the collector holds it.

    Reports are counted in **cells**. Where the manifest names groups, each attribute has a cell for
    each group, numbered from the number of attributes on; else the attribute is its only cell. What
    is said of an attribute, by its own number, is about the devices of all groups.
    """

    id: int
    manifest: Manifest
    opened: int
    closed: int | None

    @property
    def name(self) -> str:
        return self.manifest.campaign

    def cells(self, attribute: int) -> list[int]:
        """Where reports about an attribute are counted, in the order of the groups' names; a cell
        is its own."""
        groups, asked = self.manifest.groups, len(self.manifest.attributes)
        if groups is None or attribute >= asked:
            return [attribute]
        return [attribute + asked * (1 + place) for place in range(len(groups.names))]

    def attribute_of(self, cell: int) -> int:
        return cell % len(self.manifest.attributes)

    def mechanism(self, cell: int) -> Mechanism:
        return self.manifest.mechanisms[self.attribute_of(cell)]


class Candidate(NamedTuple):
    """A report that passed every check that needs no history.

    A tuple, because one is made for every report and its fields are a row of the store, in order.
    """

    campaign: int
    round: int
    device: int
    attribute: int  # the cell, see `Campaign`
    page: int
    tag: int
    body: bytes  # what is counted, see `store.common.count_reports`


@dataclass(frozen=True, slots=True)
class Refusal:
    """A message that was not taken, and the key of the counter that rises for it."""

    campaign: int
    round: int
    outcome: Outcome


class RequestOutcome(StrEnum):
    """Outcomes of requests to be forgotten; each one received has exactly one."""

    DONE = "done"
    REPEATED = "repeated"  # the device is forgotten already, or asked once more at the same time
    INVALID = "invalid"


class Withdrawal(NamedTuple):
    """A device that asked to be forgotten, and its reports, which are gone from open rounds."""

    campaign: int
    device: int
    reports: tuple[Candidate, ...]
    repeated: bool  # it was forgotten before: nothing was changed


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of one attribute in one round, or in several.

    One number for each value; of reports with levels, the number of reports and then one number
    for each value, level after level. Of a sealed round whose counts were not released by
    themselves only n is left, and `counts` is empty.
    """

    n: int
    counts: Counts

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.n + other.n, self.counts + other.counts)

    def __sub__(self, other: Tally) -> Tally:
        return Tally(self.n - other.n, self.counts - other.counts)


@dataclass(frozen=True, slots=True)
class RoundSum:
    """Counts of several rounds of one attribute, added up; `rounds` of them had reports."""

    first: int
    last: int
    rounds: int
    tally: Tally


Participation = tuple[Sequence[int], Sequence[int]]  # numbers of reports, devices with each


@dataclass(frozen=True, slots=True)
class UnpublishedResult:
    """A stored result that no broker has taken yet; `round` is `POOLED` for the pooled one."""

    campaign: int
    attribute: int
    round: int
    message: bytes
