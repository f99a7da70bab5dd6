"""R06: the whole agent, audited from outside: its reports prove no more than was agreed.

Devices of two histories are run by the real agent, each with a state directory of its own, and what
leaves them is counted. If reports could distinguish the histories by more than epsilon, some event
would have a likelihood ratio above e^epsilon even at the favourable ends of both Clopper-Pearson
bounds: of the first report alone, and of everything that ever left.

The paper's mechanism is audited over many events with the operating system's randomness, far
stricter than 99 %: calculated exactly, a correct agent fails less than once in 10^6 runs, and one
report with an epsilon of 1.15 instead of 0.5, or forty with 4.5 instead of 2, are noticed in half
of them. Every mechanism is audited with a seed at 99 %. Agents that are wrong on purpose are caught
by the same checks.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

import pytest

from edge_client.agent import MakeRandomiser, own_randomiser
from edge_client.records import Queued
from protocol_spec import Entropy, Manifest, Mechanism, Randomiser, Reporting
from tests.support.edge import DAY, FakeClock, agree, daily, joined_agent, only, report_of
from tests.support.harness import QUICK_DISK
from tests.support.protocol.statistics import lower_bound, upper_bound

pytestmark = pytest.mark.slow

TWO = '[[attributes]]\nname = "x"\nquestion = "?"\nvalues = ["a", "b"]\n'
Sent = dict[int, bytes]  # a device's answers by round
Event = Callable[[Sent], bool]


@pytest.fixture
def directory() -> Iterator[Path]:
    """In memory where possible: nothing here is about the disk."""
    with tempfile.TemporaryDirectory(dir=QUICK_DISK) as name:
        yield Path(name)


# --- running devices and counting what they send --------------------------------------------------


@cache
def name_in(asked: Manifest) -> str:
    """With hashing, a device whose hash separates the two values, a's into cell 0."""
    if asked.reporting != "hashed":
        return "device"
    cell = {n: asked.mechanisms[0].randomiser(n).key for n in (f"device-{i}" for i in range(100))}
    return next(name for name, key in cell.items() if (key(0), key(1)) == (0, 1))


def shared(make: MakeRandomiser) -> MakeRandomiser:
    """The same randomiser for devices of one name: thresholds are calculated once."""
    known: dict[str, Randomiser] = {}

    def find(mechanism: Mechanism, device: str, entropy: Entropy) -> Randomiser:
        if device not in known:
            known[device] = make(mechanism, device, entropy)
        return known[device]

    return find


def nothing_drawn(size: int) -> bytes:
    assert size == 0, "what is drawn, each device draws for itself"
    return b""


def run_device(state: Path, asked: Manifest, history: str, **options: object) -> Sent:
    """All that leaves a new device whose value in round t is the t-th of the history."""
    clock, sent = FakeClock(), {}
    agent = joined_agent(state, clock, **options)  # type: ignore[arg-type]
    if not agent.store.memberships():
        agree(agent, asked, device=name_in(asked))
    for value in history:
        drawn = agent.draw(only(agent), lambda _: value)  # noqa: B023
        if isinstance(drawn, Queued):
            sent[drawn.round] = report_of(drawn).body
        clock.pass_time(DAY)
    agent.store.close()
    shutil.rmtree(state)
    return sent


def run_both(
    directory: Path,
    asked: Manifest,
    histories: tuple[str, str],
    devices: int,
    entropy: Entropy,
    make: MakeRandomiser = own_randomiser,
) -> list[list[Sent]]:
    """Joining draws nothing here, unless rounds are drawn, so it is done once and copied."""
    template, state = directory / "joined", directory / "device"
    campaign = None if asked.reporting == "once" else asked
    name, clock = name_in(asked), FakeClock()
    joined_agent(template, clock, campaign, entropy=nothing_drawn, device=name).store.close()
    options = {"entropy": entropy, "randomiser": shared(make)}

    def device(history: str) -> Sent:
        shutil.copytree(template, state)
        return run_device(state, asked, history, **options)

    return [[device(history) for _ in range(devices)] for history in histories]


@cache
def log_ratio(more: int, less: int, devices: int, risk: float) -> float:
    """How far apart the probabilities are, at the favourable ends of both intervals."""
    low, high = lower_bound(more, devices, risk), upper_bound(less, devices, risk)
    return math.log(low / high) if low > 0 else -math.inf


def proven(sides: list[list[Sent]], events: Iterable[Event], risk: float) -> float:
    """The largest log-ratio that the counts of an event prove, in either direction."""
    best = -math.inf
    for event in events:
        a, b = (sum(map(event, side)) for side in sides)
        best = max(best, log_ratio(max(a, b), min(a, b), len(sides[0]), risk))
    return best


# --- agents that are wrong on purpose -------------------------------------------------------------


class Wrong(Randomiser):
    """The draws of a mechanism, to be done wrongly in one thing."""

    def __init__(self, mechanism: Mechanism, device: str, entropy: Entropy) -> None:
        self.right = mechanism.randomiser(device, entropy)
        self.levels = len(mechanism.channels)

    def rounds(self, first: int) -> tuple[int, ...] | None:
        return self.right.rounds(first)

    def key(self, index: int) -> int:
        return self.right.key(index)

    def memoize(self, key: int) -> bytes:
        return self.right.memoize(key)

    def report(self, memo: bytes, sent: int = 0) -> bytes:
        return self.right.report(memo, sent)


class SendsTheMemo(Wrong):
    def report(self, memo: bytes, sent: int = 0) -> bytes:  # noqa: ARG002
        return memo


class DrawsAMemoForEveryReport(Wrong):
    value = 0

    def memoize(self, key: int) -> bytes:
        self.value = key
        return super().memoize(key)

    def report(self, memo: bytes, sent: int = 0) -> bytes:  # noqa: ARG002
        return super().report(super().memoize(self.value), sent)


class WithoutNoise(Wrong):
    """Sends the value itself, in the right shape."""

    def memoize(self, key: int) -> bytes:
        return bytes([key]) * self.levels

    def report(self, memo: bytes, sent: int = 0) -> bytes:
        return super().report(memo, sent) if self.levels > 1 else memo


# --- the paper's mechanism, over many events, without a seed --------------------------------------


REPORTS = 40
RISK = 1e-6  # of either bound of an event; that both fail together is far rarer
PROTOCOLS = pytest.mark.parametrize("protocol", ["L-GRR", "L-OSUE"])


def paper(protocol: str, eps_1: float) -> Manifest:
    table = f'{TWO}protocol = "{protocol}"'
    return daily(attributes=table, eps_inf=2.0, eps_1=eps_1)


def starts_with(answer: bytes) -> Event:
    return lambda sent: sent[0] == answer


def proven_by_one(sides: list[list[Sent]]) -> float:
    """Every answer is an event."""
    return proven(sides, map(starts_with, {sent[0] for side in sides for sent in side}), RISK)


def proven_by_all(asked: Manifest, sides: list[list[Sent]]) -> float:
    """The events are by how many reports value a leads value b."""
    supported = cache(asked.body_formats[0].supported)

    def leads(sent: Sent, limit: int) -> bool:
        answers = [supported(body) for body in sent.values()]
        return sum((0 in answer) - (1 in answer) for answer in answers) >= limit

    limits = range(-REPORTS, REPORTS + 1, 4)
    ahead = [lambda sent, limit=limit: leads(sent, limit) for limit in limits]
    behind = [lambda sent, limit=limit: not leads(sent, limit) for limit in limits]
    return proven(sides, [*ahead, *behind], RISK)


@PROTOCOLS
def test_one_report(protocol: str, directory: Path) -> None:
    asked = paper(protocol, eps_1=0.5)
    sides = run_both(directory, asked, ("a", "b"), 280, os.urandom)
    assert proven_by_one(sides) <= asked.eps_1


@PROTOCOLS
def test_reports_without_noise_of_their_own_are_noticed(protocol: str, directory: Path) -> None:
    asked = paper(protocol, eps_1=0.5)
    sides = run_both(directory, asked, ("a", "b"), 280, Random(1).randbytes, SendsTheMemo)
    assert proven_by_one(sides) > asked.eps_1


@PROTOCOLS
def test_forty_reports(protocol: str, directory: Path) -> None:
    asked = paper(protocol, eps_1=1.0)
    sides = run_both(directory, asked, ("a" * REPORTS, "b" * REPORTS), 140, os.urandom)
    assert proven_by_one(sides) <= asked.eps_1
    assert proven_by_all(asked, sides) <= asked.eps_inf


def test_a_memo_drawn_every_round_is_noticed(directory: Path) -> None:
    asked, histories = paper("L-GRR", eps_1=1.0), ("a" * REPORTS, "b" * REPORTS)
    entropy = Random(2).randbytes
    sides = run_both(directory, asked, histories, 140, entropy, DrawsAMemoForEveryReport)
    assert proven_by_one(sides) <= asked.eps_1, "each report by itself is correct"
    assert proven_by_all(asked, sides) > asked.eps_inf


# --- every mechanism, of the event that distinguishes the histories best, with a seed -------------


@dataclass(frozen=True)
class Audit:
    """Two histories that must not be distinguished by more than `epsilon`, and how they would."""

    asked: Manifest
    histories: tuple[str, str]
    first: Event
    everything: Event
    epsilon: float


def says(answer: bytes, value: int) -> bool:
    """With two values, the last byte is the index in all mechanisms."""
    return answer[-1] == value


def mostly(value: int) -> Event:
    """More than half of the reports say so."""
    return lambda sent: 2 * sum(says(answer, value) for answer in sent.values()) > len(sent)


def audit_of(reporting: Reporting) -> Audit:
    eps_inf = 1.0 if reporting == "hashed" else 2.0  # for life: 2
    asked = daily(reporting=reporting, attributes=TWO, count=5, each=2, eps_inf=eps_inf, eps_1=0.8)
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


EVERY_MECHANISM = pytest.mark.parametrize("reporting", ["memoized", "once", "hashed", "nested"])
EACH_RISK = 0.005  # of each of the two bounds


@EVERY_MECHANISM
def test_the_reports_prove_no_more_than_was_agreed(reporting: Reporting, directory: Path) -> None:
    audit, entropy = audit_of(reporting), Random(f"audit {reporting}").randbytes
    sides = run_both(directory, audit.asked, audit.histories, 250, entropy)
    one = proven(sides, [audit.first], EACH_RISK)
    every = proven(sides, [audit.everything], EACH_RISK)
    assert 0.2 * audit.asked.eps_1 < one <= audit.asked.eps_1, "the event reveals something"
    assert 0.3 * audit.epsilon < every <= audit.epsilon, "the event reveals something"
    if reporting == "once":
        assert {len(sent) for side in sides for sent in side} == {2}


@EVERY_MECHANISM
def test_reports_without_noise_are_noticed(reporting: Reporting, directory: Path) -> None:
    audit, entropy = audit_of(reporting), Random("control").randbytes
    sides = run_both(directory, audit.asked, audit.histories, 80, entropy, WithoutNoise)
    assert proven(sides, [audit.first], EACH_RISK) > audit.asked.eps_1
    assert proven(sides, [audit.everything], EACH_RISK) > audit.epsilon
