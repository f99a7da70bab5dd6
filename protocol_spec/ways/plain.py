"""Answers that are counted as they are: an index, or k bits, with nothing before or behind it."""

from __future__ import annotations

from functools import cached_property

from protocol_spec.body import BodyFormat
from protocol_spec.calibration import Calibration
from protocol_spec.outcomes import Outcome
from protocol_spec.randomiser import as_drawn
from protocol_spec.reporting import Hashed
from protocol_spec.ways.interface import Support

__all__ = ["PlainAnswers"]


class PlainAnswers:
    """What the memo per value and one round for life have in common."""

    calibration: Calibration

    @property
    def protocol(self) -> str:
        """The one that runs, never `auto`."""
        return self.calibration.protocol

    @property
    def k(self) -> int:
        """Number of values."""
        return self.calibration.k

    @cached_property
    def counted(self) -> BodyFormat:
        """An index, or k bits."""
        return BodyFormat(self.calibration.unary, self.k)

    @property
    def answer_bytes(self) -> int:
        """Of an index, or of k bits."""
        return self.counted.length

    @cached_property
    def channels(self) -> tuple[Calibration | Hashed, ...]:
        """One."""
        return (as_drawn(self.calibration),)

    def fault(self, answer: bytes) -> Outcome | None:
        """An index beyond the values, or bits behind them."""
        return self.counted.fault(answer)

    def supported(self, body: bytes, device: str) -> Support:  # noqa: ARG002 - same for all devices
        """The answer itself."""
        return Support(0, body[: self.answer_bytes])
