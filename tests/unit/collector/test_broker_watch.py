"""A broker that is connected and answers nothing is noticed, and restarted if it is ours (F4)."""

from __future__ import annotations

import pytest

from collector.links import BrokerWatch
from collector.timing import Timing
from protocol_spec.programs.memory_broker import MemoryBroker, MemoryLink
from tests.support.collector import ManualTime

TIMING = Timing()


class World:
    """A link that is stepped, and so hears answers, only while the broker is well."""

    def __init__(self) -> None:
        self.time, self.restarts = ManualTime(), list[float]()
        self.well = True
        self.link: MemoryLink = MemoryBroker().connect("collector")
        self.watch = BrokerWatch("allomfree", self.time.clock(), TIMING, self._restart)
        self.watch.connected()

    def _restart(self) -> None:
        self.restarts.append(self.time.now)

    def pass_seconds(self, seconds: int) -> str:
        told = ""
        for _ in range(seconds):
            self.time.pass_time(1.0)
            if self.well:
                self.link.step(0.0)
            told = self.watch.tick(self.link)
        return told


@pytest.fixture
def world() -> World:
    return World()


def test_a_broker_that_answers_is_left_alone(world: World) -> None:
    assert world.pass_seconds(1000) == ""
    assert world.restarts == []


def test_a_broker_that_answers_nothing_is_restarted_and_said_to_be_stuck(world: World) -> None:
    world.well = False
    told = world.pass_seconds(int(TIMING.probe_every_seconds + TIMING.stuck_seconds) + 1)
    assert "has not answered for" in told
    assert len(world.restarts) == 1
    world.well = True
    assert world.pass_seconds(2) == ""


def test_restarts_become_rarer(world: World) -> None:
    world.well = False
    world.pass_seconds(600)
    pauses = [b - a for a, b in zip(world.restarts, world.restarts[1:])]
    assert max(pauses) <= TIMING.stuck_longest_seconds + 1
    assert pauses[0] < pauses[-1]


def test_what_was_not_answered_is_asked_again_on_a_new_connection(world: World) -> None:
    """NATS closes a connection whose messages it cannot store: the seconds before that count."""
    world.well = False
    for _ in range(10):
        world.pass_seconds(5)
        world.link = MemoryBroker().connect("collector")
        world.watch.connected()
    assert world.restarts


def test_a_standstill_of_the_collector_is_not_the_brokers(world: World) -> None:
    world.pass_seconds(int(TIMING.probe_every_seconds))
    world.time.pass_time(3600.0)
    assert world.watch.tick(world.link) == ""
    assert world.restarts == []
