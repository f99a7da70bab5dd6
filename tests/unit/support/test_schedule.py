"""Some workers begin with what waits, the others with what calculates; every test is run once."""

from __future__ import annotations

from itertools import count

import pytest

from tests.support.places import ROOT
from tests.support.schedule import HOUSE, LAWS, LONG, WAITING, Portions

ROOMS = ("brokers", "browser", "edge")
SYSTEM = [f"{WAITING}{room}/test_{i}.py" for room in ROOMS for i in range(6)]
NAMED = [WAITING + name for together in LONG for name in together]
LONGEST = [name for name in NAMED if name.endswith(".py")]


def collected(units: int = 20) -> list[str]:
    laws = [f"{LAWS}test_{i}.py" for i in range(3)]
    files = [*SYSTEM, *LONGEST, *(f"tests/unit/test_{i}.py" for i in range(units)), *laws]
    return [f"{file}::test_{i}" for file in files for i in range(3)]


def portions(nodeids: list[str], workers: int, worker: int) -> list[list[str]]:
    """All portions, if only this one of the workers takes them."""
    to_take = Portions(nodeids, workers, cores=2)
    taken = (to_take.take(worker) for _ in count())
    return [[nodeids[i] for i in places] for places in iter(taken.__next__, [])]


def kinds(workers: int, worker: int) -> list[bool]:
    return [given[0].startswith(WAITING) for given in portions(collected(), workers, worker)]


@pytest.mark.parametrize(("workers", "calculators"), [(1, 1), (2, 1), (3, 2), (6, 2), (8, 2)])
def test_one_worker_a_core_begins_with_what_calculates(workers: int, calculators: int) -> None:
    for worker in range(workers):
        waits = kinds(workers, worker)
        assert waits == sorted(waits, reverse=worker >= calculators)
        assert True in waits
        assert False in waits, "then it goes on with the other kind"


def test_the_longest_are_first_and_share_their_set_up() -> None:
    demo, live, *_ = LONGEST
    first, second, *_ = portions(collected(), 6, 5)
    assert first == [name for name in collected() if name.startswith(f"{WAITING}browser/")]
    assert second == [f"{file}::test_{i}" for file in (demo, live) for i in range(3)]


def test_a_file_is_a_portion_and_laws_are_first() -> None:
    given = portions(collected(), 6, 0)
    assert given[0] == [f"{LAWS}test_0.py::test_{i}" for i in range(3)]
    assert all(len(portion) == 3 for portion in given[:23])


def test_the_house_is_read_by_one_worker() -> None:
    rules = [f"{HOUSE}test_{i}.py::test" for i in range(4)]
    assert portions([*rules[:2], "tests/unit/test_a.py::test", *rules[2:]], 2, 0)[0] == rules


@pytest.mark.parametrize("units", [0, 1, 200])
@pytest.mark.parametrize("worker", [0, 5])
def test_every_test_is_handed_out_once(worker: int, units: int) -> None:
    given = portions(collected(units), 6, worker)
    assert sorted(name for portion in given for name in portion) == sorted(collected(units))


def test_what_is_given_back_is_handed_out_again() -> None:
    to_take = Portions(["tests/unit/test_a.py::test", "tests/unit/test_b.py::test"], 1)
    first = to_take.take(0)
    to_take.give_back(first)
    to_take.give_back([])
    assert [to_take.take(0), to_take.take(0), to_take.take(0)] == [[1], first, []]


def test_the_long_ones_are_there() -> None:
    assert [name for name in [*NAMED, HOUSE] if not (ROOT / name).exists()] == []
