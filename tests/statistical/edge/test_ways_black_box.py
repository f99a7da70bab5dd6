"""Every way of reporting, audited from outside: what devices send proves no more than was agreed.

Devices of two histories are run by the real agent, each with a state directory of its own, and what
leaves them is counted. Of the event that tells the histories apart best, the log-ratio at the
favourable ends of both Clopper-Pearson bounds (99 % together) must not exceed the nominal epsilon:
of the first report alone, and of everything that ever left. With a seed, so that 99 % does not mean
a failure in a hundred runs. Agents without noise are caught by the same check.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

import pytest

from edge_client.agent import MakeRandomiser, own_randomiser
from edge_client.records import Queued
from protocol_spec import (
    Entropy,
    Manifest,
    Mechanism,
    Randomiser,
    Rejected,
    Reporting,
    decode_report,
)
from tests.support.confidence import lower_bound, upper_bound
from tests.support.edge import (
    DAY,
    FakeClock,
    Files,
    agree,
    files_of,
    in_memory,
    joined_agent,
    lay_out,
    only,
    way_manifest,
)

DEVICES = 250
RISK = 0.005  # of each of the two bounds
TWO = '[[attributes]]\nname = "x"\nquestion = "?"\nvalues = ["a", "b"]\notherwise = "b"\n'

Sent = dict[int, bytes]  # a device's answers by round
Event = Callable[[Sent], bool]


@dataclass(frozen=True)
class Audit:
    """Two histories that a way must not tell apart by more than `epsilon`, and how it would."""

    asked: Manifest
    histories: tuple[str, str]
    first: Event
    everything: Event
    epsilon: float


def says(answer: bytes, value: int) -> bool:
    """The last byte is the index, in all ways, with two values."""
    return answer[-1] == value


def mostly(value: int) -> Event:
    """More than half of the reports say so."""
    return lambda sent: 2 * sum(says(answer, value) for answer in sent.values()) > len(sent)


@cache
def separating_name(asked: Manifest) -> str:
    """A device whose code puts the two values into different cells, a's into cell 0."""
    way = asked.mechanisms[0]
    names = (f"device-{i}" for i in range(100))
    return next(n for n in names if [way.randomiser(n).key(v) for v in (0, 1)] == [0, 1])


def audit_of(reporting: Reporting) -> Audit:
    budget = {"eps_inf": 1.0 if reporting == "hashed" else 2.0, "eps_1": 0.8}  # for life: 2
    asked = way_manifest(reporting, attributes=TWO, count=5, each=2, **budget)
    first_a: Event = lambda sent: says(sent[min(sent)], 0)  # noqa: E731
    if reporting == "once":  # the histories differ in every round, and the value changes in both
        right: Event = lambda sent: all(says(a, n % 2) for n, a in sent.items())  # noqa: E731
        first: Event = lambda sent: says(sent[min(sent)], min(sent) % 2)  # noqa: E731
        return Audit(asked, ("ababa", "babab"), first, right, asked.eps_inf)
    if reporting == "hashed":  # changing at the same moment: both cells are visited
        both: Event = lambda sent: (  # noqa: E731
            mostly(0)({n: a for n, a in sent.items() if n < 2})
            and mostly(1)({n: a for n, a in sent.items() if n >= 2})
        )
        return Audit(asked, ("aabbb", "bbaaa"), first_a, both, asked.lifetime_epsilon)
    last_a: Event = lambda sent: says(sent[max(sent)], 0)  # noqa: E731
    everything = last_a if reporting == "nested" else mostly(0)
    return Audit(asked, ("aaaaa", "bbbbb"), first_a, everything, asked.eps_inf)


class WithoutNoise(Randomiser):
    """Sends what it was asked, in the right shape."""

    def __init__(self, way: Mechanism, device: str, entropy: Entropy) -> None:
        self._right = way.randomiser(device, entropy)
        self._levels = len(way.channels)

    def rounds(self, first: int) -> tuple[int, ...] | None:
        return self._right.rounds(first)

    def key(self, index: int) -> int:
        return self._right.key(index)

    def memoize(self, key: int) -> bytes:
        return bytes([key]) * self._levels

    def report(self, memo: bytes, sent: int = 0) -> bytes:
        return self._right.report(memo, sent) if self._levels > 1 else memo


def shared(make: MakeRandomiser) -> MakeRandomiser:
    """The same draws for devices of one name: thresholds are calculated once."""
    known: dict[str, Randomiser] = {}

    def find(way: Mechanism, device: str, entropy: Entropy) -> Randomiser:
        if device not in known:
            known[device] = make(way, device, entropy)
        return known[device]

    return find


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=in_memory()) as name:
        yield Path(name)


def name_in(asked: Manifest) -> str:
    return separating_name(asked) if asked.reporting == "hashed" else "device"


def nothing_drawn(size: int) -> bytes:
    assert size == 0, "what is drawn, each device draws for itself"
    return b""


def beginning(directory: Path, asked: Manifest) -> Files:
    """What all devices have in common: they have joined, unless something is drawn for it."""
    nothing = asked if asked.reporting != "once" else None
    agent = joined_agent(
        directory, FakeClock(), nothing, entropy=nothing_drawn, device=name_in(asked)
    )
    agent.store.close()
    return files_of(directory)


def run_device(
    state: Path, audit: Audit, history: str, entropy: Entropy, randomiser: MakeRandomiser
) -> Sent:
    """All that leaves a new device whose value in round t is the t-th of the history."""
    clock, sent = FakeClock(), {}
    agent = joined_agent(state, clock, entropy=entropy, randomiser=randomiser)
    if not agent.store.memberships():
        agree(agent, audit.asked, device=name_in(audit.asked))
    for value in history:
        drawn = agent.draw(only(agent), lambda _: value)  # noqa: B023
        if isinstance(drawn, Queued):
            report = decode_report(drawn.payload)
            assert not isinstance(report, Rejected)
            sent[drawn.round] = report.body
        clock.pass_time(DAY)
    agent.store.close()
    shutil.rmtree(state)
    return sent


def run_both(
    directory: Path, audit: Audit, devices: int, seed: str, make: MakeRandomiser = own_randomiser
) -> list[list[Sent]]:
    entropy, randomiser = Random(seed).randbytes, shared(make)
    files, state = beginning(directory / "joined", audit.asked), directory / "device"
    return [
        [
            run_device(lay_out(files, state), audit, history, entropy, randomiser)
            for _ in range(devices)
        ]
        for history in audit.histories
    ]


def proven(sides: list[list[Sent]], event: Event) -> float:
    """The log-ratio that the counts prove, in the direction in which the event tells more."""
    devices = len(sides[0])
    a, b = (sum(event(sent) for sent in side) for side in sides)
    low, high = lower_bound(a, devices, RISK), upper_bound(b, devices, RISK)
    return math.log(low / high) if low > 0 else -math.inf


MECHANISMS = pytest.mark.parametrize("reporting", ["memoized", "once", "hashed", "nested"])


@pytest.mark.slow
@MECHANISMS
def test_the_reports_prove_no_more_than_was_agreed(reporting: Reporting, directory: Path) -> None:
    audit = audit_of(reporting)
    sides = run_both(directory, audit, DEVICES, f"audit {reporting}")
    one, every = proven(sides, audit.first), proven(sides, audit.everything)
    assert 0.2 * audit.asked.eps_1 < one <= audit.asked.eps_1, "the event tells something"
    assert 0.3 * audit.epsilon < every <= audit.epsilon, "the event tells something"
    if reporting == "once":
        assert {len(sent) for side in sides for sent in side} == {2}


@pytest.mark.slow
@MECHANISMS
def test_reports_without_noise_are_noticed(reporting: Reporting, directory: Path) -> None:
    audit = audit_of(reporting)
    sides = run_both(directory, audit, 80, "control", WithoutNoise)
    assert proven(sides, audit.first) > audit.asked.eps_1
    assert proven(sides, audit.everything) > audit.epsilon
