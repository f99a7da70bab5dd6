"""Which tests a worker begins with, so that no core waits while there is something to calculate.

Tests of real processes wait most of their time; all others calculate. `--dist worksteal` deals the
tests out in order, to each worker as many. So every second worker's part begins with a share of the
tests of real processes, the longest first, and those that calculate fill the cores beside them.
Neighbours stay together: they share a broker. All tests of the browser are at the head of one part,
where nobody steals them: it starts once, not once for each worker.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, Protocol, TypeVar

import pytest

WAITING: Final = "tests/system/"
LONG: Final = (  # half a minute and more, nearly all of it waiting; a line shares its set-up
    ("browser/",),
    ("real_time/test_demo.py", "real_time/test_live_depths.py"),
    ("real_time/test_chaos.py",),
    ("collector/test_operators_path.py",),
    ("analyst/test_tutorial.py",),
    ("collector/test_workers.py",),
    ("brokers/test_cluster.py",),
)


class Item(Protocol):
    """What is to be known of a test."""

    @property
    def nodeid(self) -> str: ...


Test = TypeVar("Test", bound=Item)


def in_parts(items: Sequence[Test], workers: int) -> list[Test]:
    """The same tests in such an order that the workers' equal parts begin as is said above."""
    shares = _shares([item for item in items if _waits(item)], (workers + 1) // 2)
    sizes = [len(items) // workers] * workers
    for late in range(1, len(items) % workers + 1):  # as worksteal does: the last get one more
        sizes[-late] += 1
    heads = [shares[i // 2][: sizes[i]] if i % 2 == 0 else [] for i in range(workers)]
    placed = {item.nodeid for head in heads for item in head}
    rest = deque(item for item in items if item.nodeid not in placed)
    parts: dict[int, list[Test]] = {}
    for i in (*range(1, workers, 2), *range(0, workers, 2)):
        parts[i] = [*heads[i], *(rest.popleft() for _ in range(sizes[i] - len(heads[i])))]
    return [item for i in range(workers) for item in parts[i]]


def _shares(waiting: Iterable[Test], count: int) -> list[list[Test]]:
    """About as many files in each; the long ones at the heads, one by one in turn."""
    files: dict[str, list[Test]] = {}
    for item in waiting:
        files.setdefault(_file(item), []).append(item)
    first = [_taken(files, together) for together in LONG]
    heads = [[tests for taken in first[i::count] for tests in taken] for i in range(count)]
    others = list(files.values())
    cuts = [len(others) * i // count for i in range(count + 1)]
    return [
        [item for tests in (*heads[i], *others[cuts[i] : cuts[i + 1]]) for item in tests]
        for i in range(count)
    ]


def _taken(files: dict[str, list[Test]], together: Iterable[str]) -> list[list[Test]]:
    """The tests of these files and directories, file by file: nobody else gets them."""
    names = [name for start in together for name in files if name.startswith(start)]
    return [files.pop(name) for name in names]


def _waits(item: Item) -> bool:
    return item.nodeid.startswith(WAITING)


def _file(item: Item) -> str:
    return item.nodeid.removeprefix(WAITING).partition("::")[0]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    if workers > 1:
        items[:] = in_parts(items, workers)


def pytest_collection() -> None:
    """Collecting makes no garbage worth looking for: a sixth of its time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """What was collected stays to the end: no later search for garbage looks at it again."""
    gc.freeze()
    gc.enable()
