"""Faults follow from the seed, and those of one target do not happen at once."""

from __future__ import annotations

import pytest

from faults.brokers import BROKERS
from faults.kinds import faults_for
from faults.plan import plan


@pytest.mark.parametrize("kind", BROKERS)
def test_the_same_seed_gives_the_same_faults(kind: str) -> None:
    faults = faults_for(kind)
    assert list(plan(5, faults, 300, [20, 40])) == list(plan(5, faults, 300, [20, 40]))
    assert list(plan(5, faults, 300)) != list(plan(6, faults, 300))


@pytest.mark.parametrize("kind", BROKERS)
def test_every_fault_happens(kind: str) -> None:
    happened = {event.fault.name for event in plan(1, faults_for(kind), 5_000)}
    assert happened == {fault.name for fault in faults_for(kind)}


def test_faults_of_one_target_do_not_overlap() -> None:
    free: dict[str, float] = {}
    for event in plan(2, faults_for("nats"), 2_000, range(0, 2_000, 12)):
        assert free.get(event.fault.target, 0.0) <= event.at
        free[event.fault.target] = event.at + event.lasts


def test_many_begin_just_before_a_deadline() -> None:
    deadlines = range(20, 2_000, 20)
    events = list(plan(3, faults_for("nats"), 2_000, deadlines))
    before = sum(any(0 < deadline - event.at <= 3 for deadline in deadlines) for event in events)
    assert before > len(events) / 4  # 0.14 by chance
