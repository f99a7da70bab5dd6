"""Gradual release: all reports of the value are drawn at once, and each tells a little more."""

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
from protocol_spec.reporting import Hashed, Nested, NestedRandomiser
from protocol_spec.ways.interface import Reporting, Support, WayRandomiser

__all__ = ["NestedWay"]


@dataclass(frozen=True)
class NestedWay:
    """All levels of one value at once; a report says which level it is of."""

    nested: Nested
    reporting: ClassVar[Reporting] = "nested"
    memos: ClassVar[int] = 1

    @property
    def calibration(self) -> Calibration:
        """Of the last level: all that any number of reports tell."""
        return self.nested.levels[-1]

    @property
    def protocol(self) -> str:
        """GRR or OUE."""
        return self.nested.protocol

    @property
    def k(self) -> int:
        """Number of values."""
        return self.nested.k

    @cached_property
    def counted(self) -> BodyFormat:
        """What stands behind the level."""
        return BodyFormat(self.calibration.unary, self.k)

    @property
    def answer_bytes(self) -> int:
        """One more than what is counted."""
        return 1 + self.counted.length

    @cached_property
    def channels(self) -> tuple[Calibration | Hashed, ...]:
        """One for each level, level 1 first."""
        return self.nested.as_drawn().levels

    @property
    def lifetime_epsilon(self) -> float:
        """eps_inf, for the one value."""
        return self.nested.eps_inf

    def fault(self, answer: bytes) -> Outcome | None:
        """A level that does not exist, or a fault behind it."""
        if not 1 <= answer[0] <= len(self.nested.levels):
            return Outcome.BAD_VALUE
        return self.counted.fault(answer[1:])

    def supported(self, body: bytes, device: str) -> Support:  # noqa: ARG002 - same for all devices
        """What stands behind the level; level 1 is channel 0."""
        return Support(body[0] - 1, body[1 : self.answer_bytes])

    def randomiser(self, device: str, entropy: Entropy = os.urandom) -> WayRandomiser:  # noqa: ARG002
        """The same for all devices."""
        return _Nesting(self.nested, NestedRandomiser(self.nested, entropy))

    def epsilon_after(self, reports: int) -> float:
        """Of the first so many reports together."""
        return self.nested.epsilon_after(reports)

    def spending(self, reports_per_memo: Iterable[int]) -> Spending:
        """eps_inf is charged with the memo, because all levels are drawn at once."""
        counts = list(reports_per_memo)
        return self.nested.spending(sum(counts)) if counts else Spending(0, 0, 0.0, 0.0)


class _Nesting:
    """A memo is the answers' bodies of all levels, level 1 first, joined."""

    def __init__(self, nested: Nested, randomiser: NestedRandomiser) -> None:
        self._nested = nested
        self._randomiser = randomiser

    def rounds(self, first: int) -> None:  # noqa: ARG002
        return None

    def key(self, index: int) -> int:
        return index

    def memoize(self, key: int) -> bytes:
        return b"".join(self._randomiser.draw(key))

    def report(self, memo: bytes, sent: int) -> bytes:
        size, level = self._randomiser.format.length, self._nested.level_of(sent + 1)
        if len(memo) != size * len(self._nested.levels):
            raise ValueError("the memo does not fit this attribute")
        return bytes([level]) + memo[size * (level - 1) : size * level]
