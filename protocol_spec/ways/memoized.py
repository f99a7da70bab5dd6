"""The paper's way: a memo of each value for life, and fresh noise over it in every round."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from protocol_spec.accounting import Spending, spending
from protocol_spec.calibration import Calibration
from protocol_spec.randomiser import Entropy, Randomiser
from protocol_spec.ways.interface import Reporting, WayRandomiser
from protocol_spec.ways.plain import PlainAnswers

__all__ = ["MemoizedWay"]


@dataclass(frozen=True)
class MemoizedWay(PlainAnswers):
    """A memo for each value, and fresh noise over it in every round."""

    calibration: Calibration
    memos: int
    reporting: ClassVar[Reporting] = "memoized"

    @property
    def lifetime_epsilon(self) -> float:
        """eps_inf for each memo."""
        return self.memos * self.calibration.eps_inf

    def randomiser(self, device: str, entropy: Entropy = os.urandom) -> WayRandomiser:  # noqa: ARG002
        """The same for all devices."""
        return _Memoizing(Randomiser(self.calibration, entropy))

    def epsilon_after(self, reports: int) -> float:
        """Of one memo."""
        return self.calibration.epsilon_after(reports)

    def spending(self, reports_per_memo: Iterable[int]) -> Spending:
        """eps_inf is charged for each memo."""
        return spending(self.calibration, reports_per_memo)


class _Memoizing:
    def __init__(self, randomiser: Randomiser) -> None:
        self._randomiser = randomiser

    def rounds(self, first: int) -> None:  # noqa: ARG002
        return None

    def key(self, index: int) -> int:
        return index

    def memoize(self, key: int) -> bytes:
        return self._randomiser.memoize(key)

    def report(self, memo: bytes, sent: int) -> bytes:  # noqa: ARG002
        return self._randomiser.report(memo)
