"""What fails in a cluster: everything, in turns, and longer than a worker may be silent."""

from __future__ import annotations

from collections import Counter

from collector.timing import USUAL
from faults.many import faults_of_many
from faults.plan import plan


def test_the_same_seed_gives_the_same_faults() -> None:
    first, again = plan(5, faults_of_many(), 300), plan(5, faults_of_many(), 300)
    assert [(e.at, e.fault.name, e.lasts) for e in first] == [
        (e.at, e.fault.name, e.lasts) for e in again
    ]


def test_everything_is_killed_and_most_of_the_faults_kill() -> None:
    happened = Counter(event.fault.name for event in plan(1, faults_of_many(), 3_000))
    assert happened.keys() == {fault.name for fault in faults_of_many()}
    killed = sum(times for name, times in happened.items() if name.endswith("killed"))
    assert killed > happened.total() / 2


def test_who_is_paused_is_fenced_before_it_goes_on() -> None:
    for event in plan(2, faults_of_many(), 3_000):
        if event.fault.name in ("worker: paused", "leader: paused"):
            assert event.lasts > USUAL.fence_seconds


def test_at_most_one_node_is_struck_at_once() -> None:
    free = 0.0
    for event in plan(3, faults_of_many(), 3_000):
        if event.fault.target == "node":
            assert free <= event.at
            free = event.at + event.lasts
