"""A clock that is wrong is noticed and reported (F8); a broker that is connected and answers
nothing is noticed, and restarted if it is ours (F4)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from collector.health import Status
from collector.links import BrokerWatch
from collector.timing import FILE, Clock, ClockMemory, ClockWatch, Timing
from protocol_spec.programs.memory_broker import MemoryBroker, MemoryLink
from tests.support.collector import ManualTime


@dataclass
class TwoClocks:
    """The time of day, and one that nobody can set."""

    now: float = 1_000_000.0
    boottime: float = 50.0

    def clock(self) -> Clock:
        return Clock(now=lambda: self.now, boottime=lambda: self.boottime)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.boottime += seconds


@pytest.fixture
def clocks() -> TwoClocks:
    return TwoClocks()


def watching(clocks: TwoClocks, confirmed: bool | None = False) -> ClockWatch:
    made = ClockWatch(replace(clocks.clock(), confirmed=lambda: confirmed), Timing())
    made.tick()
    return made


def test_time_that_passes_is_no_jump(clocks: TwoClocks) -> None:
    """Also that of a machine that slept, and small corrections."""
    watch = watching(clocks)
    for seconds in (0.5, 10.0, 86_400.0):
        clocks.pass_time(seconds)
        clocks.now += 5.0
        watch.tick()
    assert not watch.doubts(clocks.now - 1.0)
    assert watch.hint(Status()) == ""


def test_moments_that_were_jumped_over_are_doubted(
    clocks: TwoClocks, caplog: pytest.LogCaptureFixture
) -> None:
    watch, before = watching(clocks), clocks.now
    clocks.now += 7200.0
    watch.tick()
    assert "set ahead by 7200 s" in caplog.text
    assert "set ahead by 7200 s" in watch.hint(Status())
    assert watch.doubts(before + 1.0)
    assert watch.doubts(clocks.now)
    assert not watch.doubts(before), "that was past before"
    clocks.pass_time(60.0)
    watch.tick()
    assert not watch.doubts(clocks.now - 1.0), "nor what passed since"
    clocks.now -= 7200.0
    watch.tick()
    assert not watch.doubts(before + 1.0), "set back, it is believed again"
    assert watch.hint(Status()) == ""


def test_the_latest_time_is_not_set_back(clocks: TwoClocks) -> None:
    watch, right = watching(clocks), clocks.now
    clocks.now -= 3600.0
    watch.tick()
    clocks.pass_time(10.0)
    assert watch.latest() == right + 10.0
    clocks.now += 3700.0
    assert watch.latest() == clocks.now, "nor held back"


def test_a_clock_that_is_right_again_is_believed(
    clocks: TwoClocks, caplog: pytest.LogCaptureFixture
) -> None:
    """Set back by an hour for a while: what it returns to is not ahead of anything."""
    watch, before = watching(clocks), clocks.now
    for _ in range(2):
        clocks.now -= 3600.0
        watch.tick()
        clocks.pass_time(30.0)
        clocks.now += 3600.0
        watch.tick()
        assert not watch.doubts(before + 1.0)
        assert not watch.doubts(clocks.now)
    assert watch.hint(Status()) == ""
    assert "set ahead" not in caplog.text
    clocks.now -= 3600.0
    watch.tick()
    right = clocks.now + 3600.0
    clocks.now += 3700.0
    watch.tick()
    assert not watch.doubts(right)
    assert watch.doubts(right + 50.0), "only what is farther than it ever was"
    assert "set ahead by 100 s" in watch.hint(Status())


@pytest.mark.parametrize(("boot", "doubted"), [("first", False), ("second", True), ("", True)])
def test_a_restart_while_the_clock_was_set_back(
    clocks: TwoClocks, tmp_path: Path, boot: str, doubted: bool
) -> None:
    """What was known holds until the machine is started anew."""

    def begin(boot: str) -> ClockWatch:
        memory = ClockMemory(tmp_path, lambda: boot)
        return ClockWatch(replace(clocks.clock(), confirmed=lambda: False), Timing(), memory)

    begin("first").tick()
    clocks.now -= 3600.0
    watch = begin(boot)
    before = clocks.now
    watch.tick()
    clocks.now += 3600.0
    watch.tick()
    assert watch.doubts(before + 1.0) == doubted
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"boot": "b", "offset": 1' + b"0" * 400 + b"}", b"[" * 9999]
)
def test_a_file_that_says_nothing_is_no_trouble(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    assert ClockMemory(tmp_path, lambda: "b").read() is None
    ClockMemory(tmp_path / "gone", lambda: "b").write(1.0)


@pytest.mark.parametrize(("confirmed", "doubted"), [(True, False), (False, True), (None, True)])
def test_a_jump_that_the_system_confirms_is_believed(
    clocks: TwoClocks, confirmed: bool | None, doubted: bool
) -> None:
    """A machine without a battery starts in the past, until NTP sets its clock."""
    watch, before = watching(clocks, confirmed), clocks.now
    clocks.now += 7200.0
    watch.tick()
    assert watch.doubts(before + 1.0) == doubted
    assert bool(watch.hint(Status())) == doubted


@pytest.mark.parametrize(
    ("status", "hint"),
    [
        (Status(received=100, early=2, late=2), ""),
        (Status(received=1000, early=49, late=49), ""),
        (Status(received=100, early=5), "may be behind"),
        (Status(received=4, late=3), "may be ahead"),
    ],
)
def test_reports_at_odd_times_are_a_hint(clocks: TwoClocks, status: Status, hint: str) -> None:
    shown = watching(clocks).hint(status)
    assert hint in shown
    assert bool(shown) == bool(hint)


# --- the broker -----------------------------------------------------------------------------------


USUAL = Timing()


class World:
    """A link that is stepped, and so hears answers, only while the broker is well."""

    def __init__(self) -> None:
        self.time, self.restarts = ManualTime(), list[float]()
        self.well = True
        self.link: MemoryLink = MemoryBroker().connect("collector")
        self.watch = BrokerWatch("allomfree", self.time.clock(), USUAL, self._restart)
        self.watch.connected()

    def _restart(self) -> None:
        self.restarts.append(self.time.now)

    def pass_seconds(self, seconds: int) -> str:
        shown = ""
        for _ in range(seconds):
            self.time.pass_time(1.0)
            if self.well:
                self.link.step(0.0)
            shown = self.watch.tick(self.link)
        return shown


@pytest.fixture
def world() -> World:
    return World()


def test_a_broker_that_answers_is_left_alone(world: World) -> None:
    assert world.pass_seconds(1000) == ""
    assert world.restarts == []


def test_a_broker_that_answers_nothing_is_restarted_and_said_to_be_stuck(world: World) -> None:
    world.well = False
    shown = world.pass_seconds(int(USUAL.probe_every_seconds + USUAL.stuck_seconds) + 1)
    assert "has not answered for" in shown
    assert len(world.restarts) == 1
    world.well = True
    assert world.pass_seconds(2) == ""


def test_restarts_become_rarer(world: World) -> None:
    world.well = False
    world.pass_seconds(600)
    pauses = [b - a for a, b in zip(world.restarts, world.restarts[1:])]
    assert max(pauses) <= USUAL.stuck_longest_seconds + 1
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
    world.pass_seconds(int(USUAL.probe_every_seconds))
    world.time.pass_time(3600.0)
    assert world.watch.tick(world.link) == ""
    assert world.restarts == []
