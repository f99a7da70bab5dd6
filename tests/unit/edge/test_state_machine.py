"""A device's life: kills, clock jumps, pauses and changing values in any order (I2, I3, I14, I16).

Whatever happens: a memo is never drawn again, a round has one byte string, rounds only go forward,
draws keep their distance in real time, and the ledger is never below what was really revealed.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from edge_client.agent import Agent, Wait
from edge_client.records import Queued
from tests.support.edge import (
    DAY,
    FIRST,
    FakeClock,
    agree,
    as_killed,
    daily,
    joined_agent,
    many_values,
    only,
)
from tests.support.harness import QUICK_DISK
from tests.support.protocol.entropy import seeded

ANSWERS = -1  # the key under which answers without a memo are counted
YEARS = 3650 * DAY
POINTS = (
    "memo drawn",
    "memo found",
    "answer drawn",
    "report drawn",
    "transaction begun",
    "committing",
    "before the mark",
    "mark written",
    "report committed",
)


class Killed(BaseException):
    """kill -9 arrives here."""


class DeviceLife(RuleBasedStateMachine):
    """A device, its clocks, and all that anybody ever saw of it."""

    reporting = "memoized"

    def __init__(self, seed: str = "machine") -> None:
        super().__init__()
        self.campaign = daily(
            reporting=self.reporting, attributes=many_values(), max_values=3, count=4000, each=1500
        )
        self.root = Path(tempfile.mkdtemp(prefix="allomfree-", dir=QUICK_DISK))
        self.lives, self.kill_at, self.value = 0, "", 0
        self.clock = FakeClock()
        self.true_time = self.clock.now
        self.entropy = seeded(seed)  # never repeats: whatever is drawn again comes out different
        self.memos: dict[int, bytes] = {}
        self.payloads: dict[int, bytes] = {}
        self.queued: set[int] = set()
        self.reports: dict[int, int] = {}
        self.draws: list[tuple[int, float]] = []
        self.last_round = -1
        self.agent = self._open()
        agree(self.agent, self.campaign)
        self.drawn_for_life = self._drawn_for_life()

    def teardown(self) -> None:
        self.agent.store.close()
        shutil.rmtree(self.root)

    def _drawn_for_life(self) -> tuple[object, ...]:
        member = only(self.agent)
        return member.device, member.attribute_index, member.drawn_rounds

    def _open(self) -> Agent:
        directory = self.root / str(self.lives)
        return joined_agent(directory, self.clock, entropy=self.entropy, trace=self._trace)

    def _trace(self, point: str) -> None:
        if point == self.kill_at:
            self._copy_files()
            raise Killed

    def _copy_files(self) -> None:
        """Keep the files as they are at this very moment, also inside a transaction."""
        self.lives += 1
        as_killed(self.agent.store.directory, self.root / str(self.lives))

    @rule(hours=st.sampled_from([1, 7, 24, 25, 100]))
    def time_passes(self, hours: int) -> None:
        self.clock.pass_time(hours * 3600)
        self.true_time += hours * 3600

    @rule(value=st.integers(0, 5))
    def value_changes(self, value: int) -> None:
        self.value = value

    @rule()
    def report(self) -> None:
        self._draw()

    def _draw(self) -> Queued | Wait:
        value = None if self.value == 5 else f"v{self.value:02}"  # the domain is total
        return self.agent.draw(only(self.agent), lambda _: value)

    @rule(point=st.sampled_from(POINTS))
    def report_and_die(self, point: str) -> None:
        """Try to report, and die at that point if the draw comes by."""
        try:
            self.kill_at = point
            self.report()
        except Killed:
            self.restart()
        finally:
            self.kill_at = ""

    @rule(jump=st.sampled_from([-YEARS, -DAY, -3600, 3600, DAY, 2 * DAY - 1, 30 * DAY]))
    def clock_is_set(self, jump: float) -> None:
        self.clock.set_forward(jump)
        self.report()

    @rule(pushes=st.integers(1, 3))
    def clock_is_pushed_to_the_end_of_new_rounds(self, pushes: int) -> None:
        """As often as somebody would who wants more reports than agreed."""
        for _ in range(pushes):
            self.time_passes(1)
            self.clock.now = FIRST + (self.last_round + 2) * DAY - 1.0
            self.report()
            self.check()

    @rule()
    def clock_is_corrected(self) -> None:
        self.clock.now = self.true_time

    @rule()
    def kill(self) -> None:
        self._copy_files()
        self.restart()

    @rule()
    def restart(self) -> None:
        self.agent.store.close()
        self.agent = self._open()

    @rule(lost=st.booleans())
    def reboot(self, lost: bool) -> None:
        self.clock.reboot()
        if lost:
            self.clock.now = 0.0
        self.kill()

    @rule()
    def owner_pauses(self) -> None:
        self.agent.store.set_status(self.campaign.campaign, "paused", 0)
        assert self._draw() is Wait.PAUSED
        self.agent.store.set_status(self.campaign.campaign, "joined", 0)

    @rule()
    def oldest_report_is_counted(self) -> None:
        if self.queued:
            oldest = min(self.queued)
            self.agent.store.finish(self.campaign.campaign, {oldest: "counted"})
            self.queued.remove(oldest)

    @invariant()
    def check(self) -> None:
        store, member, name = self.agent.store, only(self.agent), self.campaign.campaign
        assert self._drawn_for_life() == self.drawn_for_life
        assert member.last_round >= self.last_round
        self.last_round = member.last_round
        memos = store.memos(name)
        for value, memo in memos.items():
            assert self.memos.setdefault(value, memo.body) == memo.body
        for row in store.reports(name):
            if row.round not in self.payloads:
                self._see_new_report(row, member.last_value)
            assert self.payloads[row.round] == row.payload
        assert {row.round for row in store.reports(name, queued_only=True)} == self.queued
        self._check_ledger({value: memo.reports for value, memo in memos.items()})
        # Every second draw of a boot lies at least a period after the one before the last.
        for (boot, first), (last_boot, last) in zip(self.draws, self.draws[2:]):
            assert boot != last_boot or last - first >= DAY - 1e-3
        assert all(earlier <= later for earlier, later in pairwise(self.draws))

    def _see_new_report(self, row: Queued, value: int | None) -> None:
        drawn = only(self.agent).drawn_rounds
        assert drawn is None or row.round in drawn
        assert row.round > max(self.payloads, default=-1)
        self.payloads[row.round] = row.payload
        self.queued.add(row.round)
        key = ANSWERS if value is None else value
        self.reports[key] = self.reports.get(key, 0) + 1
        self.draws.append((self.clock.boots, self.clock.uptime))

    def _check_ledger(self, counts: dict[int, int]) -> None:
        mechanism, each = self.campaign.mechanisms[0], self.campaign.eps_inf
        if mechanism.memos == 0:
            counts = {ANSWERS: only(self.agent).answers}
            each = self.campaign.eps_1 * counts[ANSWERS]
            self.reports.setdefault(ANSWERS, 0)
        else:
            assert counts.keys() == self.memos.keys()
            assert len(counts) <= mechanism.memos
        assert counts == self.reports
        charged = self.agent.store.charged("colour")
        assert charged == pytest.approx(len(counts) * each)
        assert mechanism.spending(counts.values()).exact <= charged + 1e-9
        assert charged <= mechanism.lifetime_epsilon + 1e-9


class Once(DeviceLife):
    reporting = "once"


class Hashed(DeviceLife):
    reporting = "hashed"


class Nested(DeviceLife):
    reporting = "nested"


class Longer(DeviceLife):
    pass


QUICK = settings(
    derandomize=True, database=None, deadline=None, max_examples=8, stateful_step_count=25
)
TestDeviceLife = pytest.mark.timeout(120)(DeviceLife.TestCase)
TestDeviceLife.settings = QUICK
TestOnce, TestHashed, TestNested = Once.TestCase, Hashed.TestCase, Nested.TestCase
TestOnce.settings = TestHashed.settings = TestNested.settings = settings(QUICK, max_examples=5)
TestLongDeviceLife = pytest.mark.slow(Longer.TestCase)
TestLongDeviceLife.settings = settings(QUICK, max_examples=30, stateful_step_count=60)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_a_year_of_mishaps(seed: int) -> None:
    """Two every day, the clock corrected at night; most rounds are still reported."""
    device, rng = DeviceLife(f"year {seed}"), Random(seed)
    mishaps: list[Callable[[], object]] = [
        device.kill,
        device.restart,
        device.oldest_report_is_counted,
        device.clock.reboot,
        lambda: device.report_and_die(rng.choice(POINTS)),
        lambda: device.clock.set_forward(rng.choice([-YEARS, -3600, 3600, DAY])),
        lambda: device.value_changes(rng.randrange(6)),
    ]
    for day in range(365):
        for mishap in rng.sample(mishaps, 2):
            mishap()
            device.check()
        device.clock.now = device.true_time = FIRST + day * DAY + 3600.0 * rng.randrange(20)
        device.report()
        device.check()
        device.clock.uptime += DAY
    assert len(device.payloads) > 250, f"seed {seed}"
    assert len(device.memos) == device.campaign.max_values
    device.teardown()
