"""A year of daily rounds in any order of kills, clock jumps, pauses and changing values.

Whatever happens: a memo is never drawn again, a round has one byte string, rounds only go forward,
draws keep their distance in real time, and the ledger is never below what was really told.
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
from edge_client.records import Membership, Queued, Status
from edge_client.store import Store
from protocol_spec import Manifest, Reporting
from tests.support.edge import (
    DAY,
    FIRST,
    FakeClock,
    agree,
    as_killed,
    colours,
    daily,
    in_memory,
    joined_agent,
    only,
    way_manifest,
)
from tests.support.protocol.entropy import seeded

CAMPAIGN = daily(attributes=colours(64), max_values=3, count=4000)
COLOURS = colours(64).replace('protocol = "L-OSUE"\n', 'otherwise = "c63"\n')
OTHERS: dict[Reporting, Manifest] = {
    way: way_manifest(way, attributes=COLOURS, max_values=3, count=4000, each=1500)
    for way in ("once", "hashed", "nested")
}
ANSWERS = -1  # what counts answers without a memo
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


class World:
    """A device, its clocks, and all that anybody ever saw of it."""

    def __init__(self, seed: str, campaign: Manifest = CAMPAIGN) -> None:
        self.campaign = campaign
        self.root = Path(tempfile.mkdtemp(prefix="allomfree-", dir=in_memory()))
        self.lives = 0
        self.clock = FakeClock()
        self.true_time = self.clock.now
        self.value = 0
        self.entropy = seeded(seed)  # never repeats: whatever is drawn again comes out different
        self.kill_at = ""
        self.memos: dict[int, bytes] = {}
        self.payloads: dict[int, bytes] = {}
        self.queued: set[int] = set()
        self.reports: dict[int, int] = {}
        self.draws: list[tuple[int, float]] = []
        self.last_round = -1
        self.agent = self._open(self._directory())
        agree(self.agent, campaign)
        self.life = self._for_life(only(self.agent))

    @staticmethod
    def _for_life(membership: Membership) -> tuple[object, ...]:
        return membership.device, membership.attribute_index, membership.drawn_rounds

    def _directory(self) -> Path:
        return self.root / str(self.lives)

    def _open(self, directory: Path) -> Agent:
        return joined_agent(directory, self.clock, entropy=self.entropy, trace=self._trace)

    def _trace(self, point: str) -> None:
        if point == self.kill_at:
            self._die()

    def _die(self, *_: object) -> None:
        """Keep the files as they are at this very moment, also inside a transaction."""
        self.lives += 1
        as_killed(self.agent.store.directory, self._directory())
        raise Killed

    def end(self) -> None:
        self.agent.store.close()
        shutil.rmtree(self.root)

    def wait(self, seconds: float) -> None:
        self.clock.pass_time(seconds)
        self.true_time += seconds

    def restart(self) -> None:
        self.agent.store.close()
        self.agent = self._open(self._directory())

    def kill(self) -> None:
        try:
            self._die()
        except Killed:
            self._come_back()

    def _come_back(self) -> None:
        self.agent.store.close()
        self.agent = self._open(self._directory())

    def report(self) -> Queued | Wait:
        unknown = self.value == 5  # the domain is total
        return self.agent.draw(only(self.agent), lambda _: None if unknown else f"c{self.value}")

    def report_killed(self, point: str) -> None:
        """Try to report, and die at that point if the draw comes by."""
        try:
            self.kill_at = point
            self.report()
        except Killed:
            self._come_back()
        finally:
            self.kill_at = ""

    def pause_for_a_while(self) -> None:
        statuses: tuple[Status, Status] = ("paused", "joined")
        for status in statuses:
            self.agent.store.set_status(self.campaign.campaign, status, 0)
            assert status == "joined" or self.report() is Wait.PAUSED

    def settle(self) -> None:
        """The oldest queued report is counted."""
        if self.queued:
            oldest = min(self.queued)
            self.agent.store.finish(self.campaign.campaign, {oldest: "counted"})
            self.queued.remove(oldest)

    def check(self) -> None:
        store, membership = self.agent.store, only(self.agent)
        assert self._for_life(membership) == self.life
        assert membership.last_round >= self.last_round
        self.last_round = membership.last_round
        memos = store.memos(self.campaign.campaign)
        for value, memo in memos.items():
            assert self.memos.setdefault(value, memo.body) == memo.body
        for row in store.reports(self.campaign.campaign):
            if row.round not in self.payloads:
                self._saw(row, membership.last_value)
            assert self.payloads[row.round] == row.payload
        queued = store.reports(self.campaign.campaign, queued_only=True)
        assert {row.round for row in queued} == self.queued
        self._check_ledger(store, {value: memo.reports for value, memo in memos.items()})
        self._check_distance()

    def _saw(self, row: Queued, value: int | None) -> None:
        drawn = only(self.agent).drawn_rounds
        assert drawn is None or row.round in drawn
        value = ANSWERS if value is None else value
        assert row.round > max(self.payloads, default=-1)
        self.payloads[row.round] = row.payload
        self.queued.add(row.round)
        self.reports[value] = self.reports.get(value, 0) + 1
        self.draws.append((self.clock.boots, self.clock.uptime))

    def _check_ledger(self, store: Store, counts: dict[int, int]) -> None:
        way = self.campaign.mechanisms[0]
        charged, each = store.charged("colour"), self.campaign.eps_inf
        if way.memos == 0:
            counts = {ANSWERS: only(self.agent).answers}
            each = self.campaign.eps_1 * counts[ANSWERS]
            self.reports.setdefault(ANSWERS, 0)
        else:
            assert counts.keys() == self.memos.keys()
            assert len(counts) <= way.memos
        assert counts == self.reports
        exact = way.spending(counts.values()).exact
        assert charged == pytest.approx(len(counts) * each)
        assert exact <= charged + 1e-9 <= way.lifetime_epsilon + 2e-9

    def _check_distance(self) -> None:
        """Every second draw of a boot lies at least a period after the one before the last."""
        for (boot, first), (last_boot, last) in zip(self.draws, self.draws[2:]):
            assert boot != last_boot or last - first >= DAY - 1e-3
        assert all(earlier <= later for earlier, later in pairwise(self.draws))


class DeviceLife(RuleBasedStateMachine):
    """The rules that hypothesis plays with."""

    campaign = CAMPAIGN

    def __init__(self) -> None:
        super().__init__()
        self.world = World("machine", self.campaign)

    def teardown(self) -> None:
        self.world.end()

    @rule(hours=st.sampled_from([1, 7, 24, 25, 100]))
    def time_passes(self, hours: int) -> None:
        self.world.wait(hours * 3600)

    @rule(value=st.integers(0, 5))
    def value_changes(self, value: int) -> None:
        self.world.value = value

    @rule()
    def report(self) -> None:
        self.world.report()

    @rule(point=st.sampled_from(POINTS))
    def report_and_die(self, point: str) -> None:
        self.world.report_killed(point)

    @rule(jump=st.sampled_from([-YEARS, -DAY, -3600, 3600, DAY, 2 * DAY - 1, 30 * DAY]))
    def clock_is_set(self, jump: float) -> None:
        self.world.clock.set_forward(jump)
        self.world.report()

    @rule(pushes=st.integers(1, 3))
    def clock_is_pushed_to_the_end_of_new_rounds(self, pushes: int) -> None:
        """As often as somebody would who wants more reports than agreed."""
        for _ in range(pushes):
            self.world.wait(3600)
            self.world.clock.now = FIRST + (self.world.last_round + 2) * DAY - 1.0
            self.world.report()
            self.world.check()

    @rule()
    def clock_is_corrected(self) -> None:
        self.world.clock.now = self.world.true_time

    @rule()
    def kill(self) -> None:
        self.world.kill()

    @rule()
    def restart(self) -> None:
        self.world.restart()

    @rule(lost=st.booleans())
    def reboot(self, lost: bool) -> None:
        self.world.clock.reboot()
        if lost:
            self.world.clock.now = 0.0
        self.world.kill()

    @rule()
    def owner_pauses(self) -> None:
        self.world.pause_for_a_while()

    @rule()
    def report_is_counted(self) -> None:
        self.world.settle()

    @invariant()
    def nothing_was_told_twice(self) -> None:
        self.world.check()


QUICK = settings(
    derandomize=True, database=None, deadline=None, max_examples=8, stateful_step_count=25
)
TestDeviceLife = pytest.mark.timeout(120)(DeviceLife.TestCase)
TestDeviceLife.settings = QUICK


class _Once(DeviceLife):
    campaign = OTHERS["once"]


class _Hashed(DeviceLife):
    campaign = OTHERS["hashed"]


class _Nested(DeviceLife):
    campaign = OTHERS["nested"]


TestOnce, TestHashed, TestNested = _Once.TestCase, _Hashed.TestCase, _Nested.TestCase
TestOnce.settings = TestHashed.settings = TestNested.settings = settings(QUICK, max_examples=5)


class _Longer(DeviceLife):
    pass


TestLongDeviceLife = pytest.mark.slow(_Longer.TestCase)
TestLongDeviceLife.settings = settings(QUICK, max_examples=30, stateful_step_count=60)


def mishaps(world: World, chance: Random) -> list[Callable[[], object]]:
    """What may happen on a day, besides nothing."""
    return [
        world.kill,
        world.restart,
        world.settle,
        world.clock.reboot,
        lambda: world.report_killed(chance.choice(POINTS)),
        lambda: world.clock.set_forward(chance.choice([-YEARS, -3600, 3600, DAY])),
        lambda: setattr(world, "value", chance.randrange(6)),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_a_year_of_mishaps(seed: int) -> None:
    """Every day two of them, the clock corrected at night; most rounds are still reported."""
    world, chance = World(f"year {seed}"), Random(seed)
    for day in range(365):
        for mishap in chance.sample(mishaps(world, chance), 2):
            mishap()
            world.check()
        world.clock.now = world.true_time = FIRST + day * DAY + 3600.0 * chance.randrange(20)
        world.report()
        world.check()
        world.clock.uptime += DAY
    assert len(world.payloads) > 250, f"seed {seed}"
    assert len(world.memos) == CAMPAIGN.max_values
    world.end()
