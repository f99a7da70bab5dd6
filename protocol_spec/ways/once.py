"""One round for life: the device draws its rounds at joining, and answers in no other."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from protocol_spec.accounting import Spending
from protocol_spec.calibration import Calibration
from protocol_spec.randomiser import Entropy
from protocol_spec.reporting import Once, OnceRandomiser
from protocol_spec.ways.interface import Reporting, WayRandomiser
from protocol_spec.ways.plain import PlainAnswers

__all__ = ["OnceWay"]


@dataclass(frozen=True)
class OnceWay(PlainAnswers):
    """Fresh answers in rounds drawn at joining, and none in others."""

    once: Once
    calibration: Calibration
    lifetime_epsilon: float
    reporting: ClassVar[Reporting] = "once"
    memos: ClassVar[int] = 0

    def randomiser(self, device: str, entropy: Entropy = os.urandom) -> WayRandomiser:  # noqa: ARG002
        """The same for all devices."""
        return _Once(OnceRandomiser(self.once, entropy))

    def epsilon_after(self, reports: int) -> float:
        """Of so many answers."""
        return min(reports * self.once.epsilon, self.lifetime_epsilon)

    def spending(self, reports_per_memo: Iterable[int]) -> Spending:
        """All answers are charged from joining on, because their rounds are drawn then."""
        answers = sum(reports_per_memo)
        return Spending(0, answers, self.epsilon_after(answers), self.lifetime_epsilon)


class _Once:
    def __init__(self, randomiser: OnceRandomiser) -> None:
        self._randomiser = randomiser

    def rounds(self, first: int) -> tuple[int, ...]:
        return self._randomiser.rounds(first)

    def key(self, index: int) -> int:
        return index

    def memoize(self, key: int) -> bytes:
        return self._randomiser.answer(key)

    def report(self, memo: bytes, sent: int) -> bytes:  # noqa: ARG002
        return memo
