"""The whole agent as a black box: no event of its reports tells values apart by more than epsilon.

Devices of two values are run and what leaves them is counted. If one report could tell them apart
by more than eps_1, or forty of one device by more than eps_inf, some event would show a likelihood
ratio above e^epsilon even at the favourable ends of both Clopper-Pearson intervals. Far stricter
than 99 %: the randomness is the operating system's and has no seed. Calculated exactly, from the
distributions of the answers: a right agent fails less than once in 10^6 runs, one report of an
epsilon of 1.15 instead of 0.5, or forty of 4.5 instead of 2, are noticed in half of them. Broken
agents (seeded) are caught with the same numbers of devices.
"""

from __future__ import annotations

import math
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

from edge_client import EdgeClient, Policy
from edge_client.agent import Agent, MakeRandomiser, own_randomiser
from edge_client.records import Queued
from protocol_spec import Entropy, Manifest, Mechanism, Randomiser, Rejected, decode_report
from tests.support.campaigns import manifest
from tests.support.confidence import lower_bound, upper_bound
from tests.support.edge import files_of, in_memory, lay_out
from tests.support.edge_processes import RoundClock

EPS_INF = 2.0
REPORTS = 40
ONCE, DEVICES = 280, 140  # devices of either value that report once, and all REPORTS
RISK = 1e-6  # of either bound of an event; that both fail together is far rarer

Answers = list[frozenset[int]]  # the values that each report of one device supports
PROTOCOLS = pytest.mark.parametrize("protocol", ["L-GRR", "L-OSUE"])


def campaign(protocol: str, eps_1: float) -> Manifest:
    table = f'name = "x"\nquestion = "?"\nvalues = ["a", "b"]\nprotocol = "{protocol}"'
    return manifest(attributes=f"[[attributes]]\n{table}", eps_inf=EPS_INF, eps_1=eps_1)


@pytest.fixture
def directory() -> Iterator[Path]:
    """In memory where there is such a place: nothing here is about the disk."""
    with tempfile.TemporaryDirectory(dir=in_memory()) as name:
        yield Path(name)


class Broken(Randomiser):
    """The draws of the paper's way, to be done wrongly in one thing."""

    def __init__(self, way: Mechanism, _device: str, entropy: Entropy) -> None:
        self._right = Randomiser(way.calibration, entropy)

    def rounds(self, first: int) -> None:  # noqa: ARG002
        return None

    def key(self, index: int) -> int:
        return index

    def memoize(self, key: int) -> bytes:
        return self._right.memoize(key)

    def report(self, memo: bytes, sent: int = 0) -> bytes:  # noqa: ARG002
        return self._right.report(memo)


class WithoutNoise(Broken):
    """Sends the memo itself."""

    def report(self, memo: bytes, sent: int = 0) -> bytes:  # noqa: ARG002
        return memo


class Forgetful(Broken):
    """Draws a new memo for every report, of the value that the first one was drawn for."""

    _value: int

    def memoize(self, key: int) -> bytes:
        self._value = key
        return super().memoize(key)

    def report(self, memo: bytes, sent: int = 0) -> bytes:  # noqa: ARG002
        return super().report(self.memoize(self._value), sent)


def run_both(
    directory: Path,
    asked: Manifest,
    devices: int,
    reports: int,
    entropy: Entropy = os.urandom,
    randomiser: MakeRandomiser = own_randomiser,
) -> list[list[Answers]]:
    """What so many devices of either value say, each with a state directory of its own. Nobody
    knows its value while it joins, so that is done once."""
    joined = directory / "joined"
    with EdgeClient(joined, clock=RoundClock(asked), entropy=entropy) as client:
        client.join(
            client.invitation(manifest=asked, broker="mqtt://localhost"),
        )
    files, state = files_of(joined), directory / "device"
    return [
        [
            run_device(lay_out(files, state), asked, value, reports, entropy, randomiser)
            for _ in range(devices)
        ]
        for value in "ab"
    ]


def run_device(
    state: Path,
    asked: Manifest,
    value: str,
    reports: int,
    entropy: Entropy,
    randomiser: MakeRandomiser,
) -> Answers:
    clock = RoundClock(asked)
    with EdgeClient(state, clock=clock, entropy=entropy) as client:
        agent = Agent(client.store, Policy(), clock=clock, entropy=entropy, randomiser=randomiser)
        for clock.round in range(reports):
            assert isinstance(agent.draw(client.find(), lambda _: value), Queued)
        rows = client.store.reports(asked.campaign)
    shutil.rmtree(state)
    return [supported(asked, row.payload) for row in rows]


def supported(asked: Manifest, payload: bytes) -> frozenset[int]:
    report = decode_report(payload)
    assert not isinstance(report, Rejected)
    return frozenset(asked.body_formats[0].supported(report.body))


def lead(answers: Answers) -> int:
    """By how many reports value a is ahead of value b."""
    return sum((0 in said) - (1 in said) for said in answers)


def proven_by_one(sides: list[list[Answers]]) -> float:
    """The largest log-ratio that single reports prove: every answer is an event."""
    firsts = [[answers[0] for answers in side] for side in sides]
    events = [
        [said == wanted for said in firsts[i]] for wanted in set(chain(*firsts)) for i in (0, 1)
    ]
    return largest_proven(events)


def proven_by_all(sides: list[list[Answers]]) -> float:
    """The same of a device's reports together: how far one value leads, either way."""
    leads = [[lead(answers) for answers in side] for side in sides]
    limits = range(-REPORTS, REPORTS + 1, 4)
    events = [[ahead >= limit for ahead in leads[i]] for limit in limits for i in (0, 1)]
    return largest_proven(events + [[not happened for happened in event] for event in events])


def largest_proven(events: list[list[bool]]) -> float:
    """Pairs of an event's happening on one side and on the other, for all events."""
    return max(proven(sum(a), sum(b), len(a)) for a, b in zip(events[::2], events[1::2]))


@cache
def proven(one: int, other: int, devices: int) -> float:
    """How far apart the chances of an event are, at the favourable ends of both intervals."""
    more, less = max(one, other), min(one, other)
    low, high = lower_bound(more, devices, RISK), upper_bound(less, devices, RISK)
    return math.log(low / high) if low > 0 else -math.inf


@pytest.mark.slow
@PROTOCOLS
def test_one_report(protocol: str, directory: Path) -> None:
    asked = campaign(protocol, eps_1=0.5)
    assert proven_by_one(run_both(directory, asked, ONCE, 1)) <= asked.eps_1


@pytest.mark.slow
@PROTOCOLS
def test_reports_without_noise_of_their_own_are_noticed(protocol: str, directory: Path) -> None:
    asked, entropy = campaign(protocol, eps_1=0.5), random.Random(1).randbytes
    sides = run_both(directory, asked, ONCE, 1, entropy, WithoutNoise)
    assert proven_by_one(sides) > asked.eps_1


@pytest.mark.slow
@PROTOCOLS
def test_forty_reports(protocol: str, directory: Path) -> None:
    asked = campaign(protocol, eps_1=1.0)
    sides = run_both(directory, asked, DEVICES, REPORTS)
    assert proven_by_one(sides) <= asked.eps_1
    assert proven_by_all(sides) <= asked.eps_inf


@pytest.mark.slow
def test_a_memo_drawn_every_round_is_noticed(directory: Path) -> None:
    asked, entropy = campaign("L-GRR", eps_1=1.0), random.Random(2).randbytes
    sides = run_both(directory, asked, DEVICES, REPORTS, entropy, Forgetful)
    assert proven_by_one(sides) <= asked.eps_1, "each report by itself is as it should be"
    assert proven_by_all(sides) > asked.eps_inf
