"""Which fault, when and for how long: everything follows from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Final, Generic, NamedTuple

from faults.kinds import LASTS_SECONDS, Fault, S

GAP_SECONDS: Final = (0.5, 5.0)
BEFORE_DEADLINE_SECONDS: Final = (0.2, 3.0)
ACROSS: Final = 0.6  # the chance that the next fault begins just before a deadline


class Event(NamedTuple, Generic[S]):
    """A fault that begins, so many seconds after the start of the run, and how long it lasts."""

    at: float
    fault: Fault[S]
    lasts: float


def plan(
    seed: int, faults: Sequence[Fault[S]], seconds: float, deadlines: Sequence[float] = ()
) -> Iterator[Event[S]]:
    """Faults one after another, overlapping where their targets differ. Many begin just before a
    deadline, where they hurt most."""
    draw = random.Random(seed)  # noqa: S311 - the same faults for the same seed
    free: dict[str, float] = {}
    now = draw.uniform(*GAP_SECONDS)
    while now < seconds:
        fault = draw.choices(faults, [fault.weight for fault in faults])[0]
        lasts = draw.uniform(*fault.lasts) if fault.end is not None else 0.0
        if free.get(fault.target, 0.0) <= now:
            free[fault.target] = now + lasts
            yield Event(now, fault, lasts)
        now += draw.uniform(*GAP_SECONDS)
        critical = [d - draw.uniform(*BEFORE_DEADLINE_SECONDS) for d in deadlines]
        ahead = [moment for moment in critical if now <= moment < now + LASTS_SECONDS[1]]
        if ahead and draw.random() < ACROSS:
            now = ahead[0]
