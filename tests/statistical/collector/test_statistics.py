"""R29: two hundred campaigns from wire bytes to histograms, against the truth they were drawn from.

Devices keep one memo for all rounds and miss some of them. Everything between their bytes and the
published numbers is the collector's own: admission, counting, sealing, pooling.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
import pytest

from collector import ingest
from collector.device_key import DeviceKey
from collector.links import Message
from collector.records import Campaign
from collector.rounds.sealing import seal
from collector.store import Store
from collector.store.sqlite import SqliteStore
from protocol_spec import Report, Result, Topics, digest8, thresholds
from tests.support.collector_fakes import FIRST, open_campaigns, three_questions
from tests.support.places import QUICK_DISK
from tests.support.protocol.statistics import LIMIT, binomial_z

pytestmark = pytest.mark.slow

CAMPAIGNS, ROUNDS, DEVICES, TAKES_PART = 200, 4, 100, 0.8
JUDGED = 10  # of a round, each by itself; later batches are recognised by what these began with
EPS_INF, EPS_1 = 2.0, 1.2  # so close that the memo's share of the noise shows in four rounds

Floats = npt.NDArray[np.float64]
Bits = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Case:
    """A protocol and the true frequencies of the fleet."""

    protocol: str
    frequencies: tuple[float, ...]
    seed: int

    @property
    def attributes(self) -> str:
        values = ", ".join(f'"c{i}"' for i in range(len(self.frequencies)))
        head = f'[[attributes]]\nname = "a"\nquestion = "?"\nprotocol = "{self.protocol}"'
        return f"{head}\nvalues = [{values}]\n"


def uniform(k: int) -> tuple[float, ...]:
    return (1 / k,) * k


def skewed(k: int) -> tuple[float, ...]:
    """Halving from value to value; the last ones are all but absent."""
    weights = 0.5 ** np.arange(k)
    return tuple(weights / weights.sum())


CASES = {
    "L-GRR uniform": Case("L-GRR", uniform(5), 11),
    "L-GRR skewed": Case("L-GRR", skewed(5), 12),
    "L-OSUE uniform": Case("L-OSUE", uniform(9), 13),
    "L-OSUE skewed": Case("L-OSUE", skewed(9), 14),
}


class Fleet:
    """Devices of one campaign, all at once; numpy draws what `os.urandom` draws on a device."""

    def __init__(self, campaign: Campaign, frequencies: Floats, draw: np.random.Generator) -> None:
        calibration = campaign.manifest.calibrations[0]
        topics = Topics(campaign.name)
        self.topics = [topics.report(f"device-{device}") for device in range(DEVICES)]
        self._draw = draw
        self._k = len(frequencies)
        self._unary = calibration.unary
        self._thresholds = thresholds(calibration)
        values = draw.choice(self._k, DEVICES, p=frequencies)
        truth: Bits = np.eye(self._k, dtype=np.uint8)[values]
        self._memos = self._respond(truth, self._thresholds.p1, self._thresholds.q1)

    def bodies(self) -> list[bytes]:
        """RR2 of every memo, as it stands in a report."""
        drawn = self._respond(self._memos, self._thresholds.p2, self._thresholds.q2)
        if self._unary:
            return [row.tobytes() for row in np.packbits(drawn, axis=1)]
        return [bytes([value]) for value in drawn.argmax(axis=1)]

    def _respond(self, bits: Bits, keep: int, add: int) -> Bits:
        if self._unary:
            return (self._words(bits.shape) < np.where(bits, np.uint64(keep), np.uint64(add))) * (
                np.uint8(1)
            )
        held = bits.argmax(axis=1)
        other = self._draw.integers(0, self._k - 1, DEVICES)
        other += other >= held
        answer: Bits = np.eye(self._k, dtype=np.uint8)[
            np.where(self._words((DEVICES,)) < np.uint64(keep), held, other)
        ]
        return answer

    def _words(self, shape: tuple[int, ...]) -> npt.NDArray[np.uint64]:
        return self._draw.integers(0, 1 << 64, shape, dtype=np.uint64)


@dataclass(frozen=True)
class Outcome:
    """What the campaigns of a case published; the first axis is the campaign."""

    case: Case
    single: list[Result]
    pooled: list[Result]

    def table(self, name: str, *, pooled: bool) -> Floats:
        results = self.pooled if pooled else self.single
        return np.array([getattr(result, name) for result in results])

    def covered(self, low: str, high: str, *, pooled: bool) -> npt.NDArray[np.bool_]:
        truth = np.array(self.case.frequencies)
        below = self.table(low, pooled=pooled) <= truth
        return below & (truth <= self.table(high, pooled=pooled))


def messages(
    campaign: Campaign, fleet: Fleet, number: int, draw: np.random.Generator
) -> Iterator[Message]:
    """A round's reports of those who take part."""
    digest = digest8(campaign.manifest)
    present = draw.random(DEVICES) < TAKES_PART
    for topic, body, is_present in zip(fleet.topics, fleet.bodies(), present.tolist()):
        if is_present:
            yield Message(topic, Report(digest, number, 0, body).encode())


def run(store: Store, key: DeviceKey, case: Case, index: int) -> tuple[list[Result], Result]:
    """One campaign; its rounds' histograms and the last pooled one."""
    draw = np.random.default_rng([case.seed, index])
    manifest = three_questions(
        slug=f"c{index}",
        count=ROUNDS,
        eps_inf=EPS_INF,
        eps_1=EPS_1,
        attributes=case.attributes,
    )
    campaign = store.open_campaign(manifest, FIRST)
    known = open_campaigns(campaign, key)
    fleet = Fleet(campaign, np.array(case.frequencies), draw)
    made: list[Result] = []
    for number in range(ROUNDS):
        now = float(manifest.rounds.opens(number))
        sent = list(messages(campaign, fleet, number, draw))
        for batch in (sent[:JUDGED], sent[JUDGED:]):
            counted = ingest.count(batch, store, known, now)
            assert counted.accepted == counted.received
        made += seal(store, campaign, number, manifest.rounds.deadline(number))
    return [r for r in made if r.round is not None], made[-1]


@cache
def simulated(name: str) -> Outcome:
    with TemporaryDirectory(dir=QUICK_DISK) as directory:
        key = DeviceKey(Path(directory) / "device.key")
        with closing(SqliteStore(Path(directory) / "collector.db")) as store:
            all_made = [run(store, key, CASES[name], index) for index in range(CAMPAIGNS)]
    return Outcome(
        CASES[name], [r for single, _ in all_made for r in single], [p for _, p in all_made]
    )


@pytest.fixture(params=CASES, scope="module")
def outcome(request: pytest.FixtureRequest) -> Outcome:
    return simulated(request.param)


@pytest.mark.parametrize("pooled", [False, True])
def test_the_mean_error_is_zero(outcome: Outcome, pooled: bool) -> None:
    """Rounds of a campaign share their memos, so a campaign is one observation."""
    errors = outcome.table("raw", pooled=pooled) - np.array(outcome.case.frequencies)
    by_campaign = errors.reshape(CAMPAIGNS, -1, errors.shape[-1]).mean(axis=1)
    z = by_campaign.mean(axis=0) / (by_campaign.std(axis=0, ddof=1) / CAMPAIGNS**0.5)
    assert (np.abs(z) < LIMIT).all(), f"seed {outcome.case.seed}: z = {z}"


@pytest.mark.parametrize("pooled", [False, True])
def test_intervals_cover_the_truth_as_often_as_they_say(outcome: Outcome, pooled: bool) -> None:
    share = float(outcome.covered("low", "high", pooled=pooled).mean())
    assert 0.935 <= share <= 0.985, f"seed {outcome.case.seed}: {share:.4f}"


@pytest.mark.parametrize("pooled", [False, True])
def test_simultaneous_intervals_cover_all_values_at_once(outcome: Outcome, pooled: bool) -> None:
    every = np.array([c.all() for c in outcome.covered("low_all", "high_all", pooled=pooled)])
    z = binomial_z(int(every.sum()), every.size, 0.95)
    assert z > -LIMIT, f"seed {outcome.case.seed}: {every.mean():.4f}, z = {z:.2f}"
    one_by_one = outcome.covered("low", "high", pooled=pooled).all(axis=1)
    assert one_by_one.mean() < 0.93, "intervals for one value would not do for all"


@pytest.mark.parametrize("pooled", [False, True])
def test_the_stated_error_is_the_error(outcome: Outcome, pooled: bool) -> None:
    """The mean square of (estimate - truth) / stated error is one, if the variance is right."""
    errors = outcome.table("raw", pooled=pooled) - np.array(outcome.case.frequencies)
    stated = np.hypot(
        outcome.table("privacy_error", pooled=pooled),
        outcome.table("sampling_error", pooled=pooled),
    )
    squares = ((errors / stated) ** 2).reshape(CAMPAIGNS, -1).mean(axis=1)
    z = (squares.mean() - 1.0) / (squares.std(ddof=1) / CAMPAIGNS**0.5)
    assert abs(z) < LIMIT, f"seed {outcome.case.seed}: {squares.mean():.3f}, z = {z:.2f}"


def test_every_device_was_counted_and_none_twice(outcome: Outcome) -> None:
    for index, pooled in enumerate(outcome.pooled):
        single = outcome.single[ROUNDS * index : ROUNDS * (index + 1)]
        assert pooled.n == sum(result.n for result in single)
        assert pooled.devices <= DEVICES
        assert pooled.counts == tuple(np.sum([result.counts for result in single], axis=0))
