"""When rounds begin and end. They follow from the manifest and a clock alone.

There is no message that starts a round, so no collector can hurry a device into reporting more
often than its owner agreed to. All instants are whole seconds of Unix time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

DEFAULT_DRAIN_SECONDS: Final = 600


@dataclass(frozen=True, slots=True)
class Schedule:
    """`count` rounds of `period` seconds from `first`; reports are taken until `grace` after.

    `each` is the number of rounds that a device answers, 0 for every round. `drain` is how long
    after a deadline the collector may wait for what the broker still holds, in seconds.
    """

    first: int
    period: int
    count: int
    grace: int
    each: int = 0
    drain: int = DEFAULT_DRAIN_SECONDS

    def round_at(self, now: float) -> int | None:
        """The round open at that moment, or None before the first and after the last."""
        if not self.first <= now < self.opens(self.count):
            return None
        return int((now - self.first) // self.period)

    def opens(self, number: int) -> int:
        return self.first + number * self.period

    def closes(self, number: int) -> int:
        """First instant after a round."""
        return self.opens(number + 1)

    def deadline(self, number: int) -> int:
        """First instant at which a report for the round is too late."""
        return self.closes(number) + self.grace

    @property
    def end(self) -> int:
        """The deadline of the last round."""
        return self.deadline(self.count - 1)
