"""Who runs which tests, so that no core waits while there is something to calculate.

Tests of real processes wait most of their time; all others calculate. As many workers as there are
cores begin with what calculates, the others with what waits, and each goes on with the other kind
when its own is used up. A portion is what one worker runs in one go: a file, or several that share
a broker or a browser. The longest come first, so that none is left when all else is done.
"""

from __future__ import annotations

import gc
import os
from collections import deque
from collections.abc import Sequence
from typing import Final

WAITING: Final = "tests/system/"
LONG: Final = (  # by how long they take; a line is one portion
    ("browser/",),
    ("real_time/test_demo.py", "real_time/test_live_depths.py"),
    ("brokers/test_doctor.py",),
    ("real_time/test_chaos.py",),
    ("collector/test_workers.py",),
    ("collector/test_operators_path.py",),
    ("collector/test_everything_killed.py",),
    ("collector/test_embedded_comes_back.py",),
    ("analyst/test_tutorial.py",),
    ("brokers/test_cluster.py",),
)
LAWS: Final = "tests/statistical/"
HOUSE: Final = "tests/unit/house/"  # one portion: each of its files reads the whole source


class Portions:
    """All tests, by their places in what was collected. Each is handed out once."""

    def __init__(self, nodeids: Sequence[str], workers: int, cores: int | None = None) -> None:
        portions: dict[str, list[int]] = {}
        for place, nodeid in enumerate(nodeids):
            portions.setdefault(_portion(nodeid), []).append(place)
        names = sorted(portions, key=_rank)
        self._waiting = deque(portions[name] for name in names if name.startswith(WAITING))
        self._others = deque(portions[name] for name in names if not name.startswith(WAITING))
        self._calculators = min(cores or len(os.sched_getaffinity(0)), (workers + 1) // 2)

    def take(self, worker: int) -> list[int]:
        """The next portion of a worker; empty if there is none."""
        queues = (self._waiting, self._others)
        first, second = reversed(queues) if worker < self._calculators else queues
        queue = first or second
        return queue.popleft() if queue else []

    def give_back(self, places: list[int]) -> None:
        """What a worker could not run any more; somebody gets it soon."""
        if places:
            self._waiting.appendleft(places)


def _portion(nodeid: str) -> str:
    """The first file or directory of the portion that a test belongs to."""
    file = nodeid.partition("::")[0]
    if file.startswith(HOUSE):
        return HOUSE
    rank = _rank(file)
    return WAITING + LONG[rank][0] if rank < len(LONG) and file.startswith(WAITING) else file


def _rank(name: str) -> int:
    """Its line among the long ones; laws come before all else that calculates."""
    starts = (tuple(WAITING + start for start in together) for together in LONG)
    ranks = (rank for rank, together in enumerate(starts) if name.startswith(together))
    return next(ranks, len(LONG) - name.startswith(LAWS))


def pytest_collection() -> None:
    """Collecting makes no garbage worth looking for: a sixth of its time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """What was collected stays to the end: no later search for garbage looks at it again, and no
    worker writes to it, so that all share its memory. What tests leave is little: it is looked for
    a tenth as often."""
    gc.freeze()
    gc.set_threshold(7_000)
    gc.enable()
