"""What would be a file: the tables, and transactions over them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from collector.records import Campaign, Candidate, RequestOutcome, RoundSum, Tally
from collector.store.shared import Place, TallyKey
from protocol_spec import Outcome

Round = tuple[int, int]  # campaign, number
Device = tuple[int, int]  # campaign, device
ResultKey = tuple[int, int, int]  # campaign, round, attribute
SumKey = tuple[int, int, bool]  # campaign, attribute, released
TotalKey = tuple[int, int]  # campaign, attribute


class KnownDevice(NamedTuple):
    """A device that reported in a sealed round, and in how many; or one that was forgotten."""

    attribute: int
    released: int = 0
    unreleased: int = 0


@dataclass(slots=True)
class Tables:
    """One dictionary for each table of a database."""

    campaigns: dict[int, Campaign] = field(default_factory=dict)
    signatures: dict[int, bytes] = field(default_factory=dict)
    revoked: dict[str, int] = field(default_factory=dict)
    reports: dict[Round, dict[int, Candidate]] = field(default_factory=dict)
    tallies: dict[TallyKey, Tally] = field(default_factory=dict)
    outcomes: Counter[Place] = field(default_factory=Counter)
    outcome_totals: Counter[tuple[int, Outcome]] = field(default_factory=Counter)
    requests: Counter[RequestOutcome] = field(default_factory=Counter)
    sealed: dict[Round, int] = field(default_factory=dict)
    last_sealed: dict[int, int] = field(default_factory=dict)
    cleared: set[Round] = field(default_factory=set)
    devices: dict[Device, KnownDevice] = field(default_factory=dict)
    sums: dict[SumKey, RoundSum] = field(default_factory=dict)
    released_totals: dict[TotalKey, RoundSum] = field(default_factory=dict)
    results: dict[ResultKey, bytes] = field(default_factory=dict)
    published: set[ResultKey] = field(default_factory=set)


class MemoryDatabase:
    """What would be the file: shared by every store that is opened on it.

    Writers take turns. A reader in another thread may see a part of a batch, unlike with a file.
    """

    def __init__(self) -> None:
        self.tables = Tables()
        self.writes = 0
        self.lock = threading.RLock()

    @contextmanager
    def transaction(self) -> Iterator[Tables]:
        """What the block put into a table or took out is undone if it does not end well."""
        with self.lock:
            before = {f.name: copy(getattr(self.tables, f.name)) for f in fields(Tables)}
            try:
                yield self.tables
            except BaseException:
                for name, table in before.items():
                    setattr(self.tables, name, table)
                raise
