"""Workers begin with what waits, the long ones first, and every test is run once."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.support.places import ROOT
from tests.support.schedule import LONG, WAITING, in_parts

ROOMS = ("brokers", "browser", "edge")
SYSTEM = [f"{WAITING}{room}/test_{i}.py" for room in ROOMS for i in range(6)]
NAMED = [WAITING + name for together in LONG for name in together]
LONGEST = [name for name in NAMED if name.endswith(".py")]


@dataclass(frozen=True)
class Named:
    nodeid: str


def collected(units: int = 200) -> list[Named]:
    files = [*SYSTEM, *LONGEST]
    waiting = [Named(f"{file}::test_{i}") for file in files for i in range(3)]
    return [*waiting, *(Named(f"tests/unit/test_{i}.py::test") for i in range(units))]


def parts(items: list[Named], workers: int) -> list[list[str]]:
    """What worksteal gives to each worker."""
    left = [item.nodeid for item in in_parts(items, workers)]
    given = []
    for remaining in range(workers, 0, -1):
        size = len(left) // remaining
        given.append(left[:size])
        left = left[size:]
    return given


@pytest.mark.parametrize("workers", [2, 3, 4, 6, 7])
def test_every_second_worker_begins_with_a_share_of_what_waits(workers: int) -> None:
    for i, given in enumerate(parts(collected(), workers)):
        waits = [name.startswith(WAITING) for name in given]
        assert waits == sorted(waits, reverse=True)
        assert any(waits) is (i % 2 == 0)


def test_the_longest_are_first_and_share_their_set_up() -> None:
    given = parts(collected(), 6)
    demo, live, chaos, *_ = LONGEST
    assert [name.partition("::")[0] for name in given[2][:6]] == [demo] * 3 + [live] * 3
    assert given[4][0] == f"{chaos}::test_0"


@pytest.mark.parametrize("workers", [2, 3, 6, 8])
def test_one_worker_begins_with_all_that_the_browser_is_for(workers: int) -> None:
    first, *others = [
        [name.startswith(f"{WAITING}browser/") for name in given]
        for given in parts(collected(), workers)
    ]
    assert first[:18] == [True] * 18
    assert not any(any(given) for given in others)


@pytest.mark.parametrize("workers", [1, 2, 5, 6, 40])
@pytest.mark.parametrize("units", [0, 1, 200])
def test_every_test_is_run_once(workers: int, units: int) -> None:
    items = collected(units)
    ordered = in_parts(items, workers)
    assert len(ordered) == len(items)
    assert set(ordered) == set(items)


def test_the_long_ones_are_there() -> None:
    assert [name for name in NAMED if not (ROOT / name).exists()] == []
