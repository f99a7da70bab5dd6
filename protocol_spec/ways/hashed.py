"""The value's cell instead of the value: at most two memos, whatever changes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from protocol_spec.accounting import Spending
from protocol_spec.body import BodyFormat
from protocol_spec.calibration import Calibration
from protocol_spec.outcomes import Outcome
from protocol_spec.randomiser import Entropy
from protocol_spec.reporting import LOLOHA, Hashed, HashedRandomiser, code, support
from protocol_spec.ways.interface import Reporting, Support, WayRandomiser

__all__ = ["HashedWay"]


@dataclass(frozen=True)
class HashedWay:
    """The value's cell, by a code that follows from the campaign and the device's name."""

    hashed: Hashed
    digest: bytes
    reporting: ClassVar[Reporting] = "hashed"
    protocol: ClassVar[str] = LOLOHA
    answer_bytes: ClassVar[int] = 1

    @property
    def calibration(self) -> Calibration:
        """Of the cell."""
        return self.hashed.cell

    @property
    def k(self) -> int:
        """Number of values, not of cells."""
        return self.hashed.k

    @cached_property
    def counted(self) -> BodyFormat:
        """Bits of the values in the reported cell."""
        return BodyFormat(unary=True, k=self.k)

    @cached_property
    def channels(self) -> tuple[Calibration | Hashed, ...]:
        """One, from values to values in the reported cell."""
        return (self.hashed.as_drawn(),)

    @property
    def memos(self) -> int:
        """One for each cell."""
        return self.hashed.cell.k

    @property
    def lifetime_epsilon(self) -> float:
        """eps_inf for each cell."""
        return self.hashed.lifetime_epsilon

    def fault(self, answer: bytes) -> Outcome | None:
        """A cell that does not exist."""
        return BodyFormat(unary=False, k=self.hashed.cell.k).fault(answer)

    def supported(self, body: bytes, device: str) -> Support:
        """The values that the device's code puts in the reported cell."""
        return Support(0, support(self.code(device), body[: self.answer_bytes], self.k))

    def randomiser(self, device: str, entropy: Entropy = os.urandom) -> WayRandomiser:
        """With the code of that device."""
        return _Hashing(HashedRandomiser(self.hashed, self.code(device), entropy))

    def code(self, device: str) -> bytes:
        """The cell of every value, as k bits."""
        return code(self.digest, device, self.k)

    def epsilon_after(self, reports: int) -> float:
        """Of one cell's memo."""
        return self.hashed.cell.epsilon_after(reports)

    def spending(self, reports_per_memo: Iterable[int]) -> Spending:
        """eps_inf is charged for each visited cell."""
        return self.hashed.spending(reports_per_memo)


class _Hashing:
    def __init__(self, randomiser: HashedRandomiser) -> None:
        self._randomiser = randomiser

    def rounds(self, first: int) -> None:  # noqa: ARG002
        return None

    def key(self, index: int) -> int:
        return self._randomiser.cell_of(index)

    def memoize(self, key: int) -> bytes:
        return self._randomiser.memoize(key)

    def report(self, memo: bytes, sent: int) -> bytes:  # noqa: ARG002
        return self._randomiser.report(memo)
