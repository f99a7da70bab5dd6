"""A clock that is wrong is noticed and said (F8)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from collector.health import Status
from collector.timing import FILE, Clock, ClockMemory, ClockWatch, Timing
from protocol_spec.programs.system import this_boot


@dataclass
class TwoClocks:
    """The time of day, and one that nobody can set."""

    now: float = 1_000_000.0
    steady: float = 50.0

    def clock(self) -> Clock:
        return Clock(now=lambda: self.now, steady=lambda: self.steady)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.steady += seconds


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


def test_a_clock_that_was_set_back_is_believed_again(clocks: TwoClocks) -> None:
    watch, before = watching(clocks), clocks.now
    clocks.now += 7200.0
    watch.tick()
    clocks.now -= 7200.0
    watch.tick()
    assert not watch.doubts(before + 1.0)
    assert watch.hint(Status()) == ""


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


def test_a_boot_has_a_name() -> None:
    assert this_boot() == this_boot()


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
    told = watching(clocks).hint(status)
    assert hint in told
    assert bool(told) == bool(hint)


def test_the_latest_time_is_not_set_back(clocks: TwoClocks) -> None:
    watch, right = watching(clocks), clocks.now
    clocks.now -= 3600.0
    watch.tick()
    clocks.pass_time(10.0)
    assert watch.latest() == right + 10.0
    clocks.now += 3700.0
    assert watch.latest() == clocks.now, "nor held back"
