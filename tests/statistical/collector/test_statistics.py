"""R29: two hundred campaigns from wire bytes to histograms, against the truth they were drawn from.

Devices keep one memo for all rounds and miss some of them. Everything between their bytes and the
published numbers is the collector's own: admission, counting, sealing, pooling.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from collector import ingest
from collector.data_dir import DeviceKey
from collector.links import Message
from collector.records import Campaign, Tally
from collector.rounds.results import pooled_result, round_result
from collector.rounds.sealing import seal
from collector.store import Store
from collector.store.sqlite import SqliteStore
from protocol_spec import Manifest, Report, Result, Topics, digest8, thresholds
from protocol_spec.mechanisms import MECHANISMS
from tests.support.collector import (
    FIRST,
    HOUR,
    Device,
    asked,
    open_campaigns,
    three_questions,
)
from tests.support.harness import QUICK_DISK
from tests.support.protocol.simulation import (
    Counts,
    Frequencies,
    dominant,
    respond,
    steep,
    unequal_rounds,
    uniform,
)
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


def skewed(k: int) -> tuple[float, ...]:
    """Halving from value to value; the last ones are all but absent."""
    weights = 0.5 ** np.arange(k)
    return tuple(weights / weights.sum())


CASES = {
    "L-GRR uniform": Case("L-GRR", (1 / 5,) * 5, 11),
    "L-GRR skewed": Case("L-GRR", skewed(5), 12),
    "L-OSUE uniform": Case("L-OSUE", (1 / 9,) * 9, 13),
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


# --- Published intervals hold as often as they say: counts through `round_result`, `pooled_result`.


LOWEST = -3.0
RUNS = 150

Groups = tuple[tuple[int, int], ...]  # (reports each, devices)


@cache
def campaign(k: int, eps_inf: float, eps_1: float, min_reports: int = 1) -> Campaign:
    values = ", ".join(f'"v{i}"' for i in range(k))
    question = f'[[attributes]]\nname = "a"\nquestion = "?"\nvalues = [{values}]\n'
    budget = {"eps_inf": eps_inf, "eps_1": eps_1}
    manifest = three_questions(attributes=question, min_reports=min_reports, **budget)
    return Campaign(1, manifest, FIRST, None)


def published(
    seed: int, found: Campaign, groups: Groups, f: Frequencies, runs: int
) -> Iterator[Result]:
    """Results of so many campaigns."""
    rng = np.random.default_rng(seed)
    (channel,) = found.manifest.mechanisms[0].channels
    _, counts = unequal_rounds(rng, channel, groups, f, runs)  # type: ignore[arg-type]
    reports, devices = [list(column) for column in zip(*groups)]
    n = sum(m * size for m, size in groups)
    for row in counts:
        if reports == [1]:
            yield round_result(found, 0, 0, Tally(n, row), {})
        else:
            yield pooled_result(found, 0, max(reports), Tally(n, row), (reports, devices), {})


def holds_all(result: Result, f: Frequencies) -> bool:
    return bool(((np.array(result.low_all) <= f) & (f <= np.array(result.high_all))).all())


def equal(n: int) -> Groups:
    return ((1, n),)


def very_unequal(n: int) -> Groups:
    """One device in fifty reported daily for a year, a quarter weekly, the rest once."""
    few, some = max(n // 50, 1), n // 4
    return ((365, few), (52, some), (1, n - few - some))


class Coverage(NamedTuple):
    k: int
    n: int
    participation: Callable[[int], Groups]

    def __str__(self) -> str:
        return f"{self.k}-{self.n}-{self.participation.__name__}"


COVERAGE_CASES = [
    Coverage(*parts)
    for parts in product((5, 24, 100), (50, 200, 1000, 5000), (equal, very_unequal))
]


@pytest.mark.parametrize(("seed", "case"), list(enumerate(COVERAGE_CASES, start=500)), ids=str)
def test_all_values_at_once(seed: int, case: Coverage) -> None:
    f = steep(case.k)
    made = published(seed, campaign(case.k, 4.0, 2.0), case.participation(case.n), f, RUNS)
    z = binomial_z(sum(holds_all(result, f) for result in made), RUNS, 0.95)
    assert z > LOWEST, f"z = {z:.2f} with seed {seed}"


@pytest.mark.parametrize(("k", "n"), [(24, 200), (100, 200), (24, 50)])
def test_rare_values_of_a_small_fleet(k: int, n: int) -> None:
    """Where intervals that took errors to be normal held .92, .93 and .85."""
    f, runs = steep(k), 600
    made = published(k + n, campaign(k, 4.0, 2.0), equal(n), f, runs)
    z = binomial_z(sum(holds_all(result, f) for result in made), runs, 0.95)
    assert z > LOWEST, f"z = {z:.2f} with seed {k + n}"


FEW = ((365, 4), (1, 196))


def test_four_devices_that_outweigh_two_hundred_are_five() -> None:
    """The result says so and is withheld; were it not, its intervals would hold."""
    (result,) = published(1, campaign(24, 4.0, 2.0, 200), FEW, dominant(24), 1)
    assert result.withheld
    assert (result.devices, result.n) == (200, 1656)
    assert result.n_eff == pytest.approx(5.14, abs=0.01)
    made = published(1, campaign(24, 4.0, 2.0, 5), FEW, dominant(24), RUNS)
    z = binomial_z(sum(holds_all(shown, dominant(24)) for shown in made), RUNS, 0.95)
    assert z > LOWEST, f"z = {z:.2f} with seed 1"


def test_the_share_of_a_value_by_unequal_weights() -> None:
    """Half reported once, half twenty times."""
    groups, f = ((1, 500), (20, 500)), np.array([0.3, 0.25, 0.2, 0.15, 0.1])
    made = list(published(2, campaign(5, 4.0, 2.0), groups, f, 500))
    z = binomial_z(sum(r.low[0] <= 0.3 <= r.high[0] for r in made), 500, 0.95)
    assert abs(z) < LIMIT, f"z = {z:.2f} with seed 2"


def test_two_equal_bars() -> None:
    """Their difference exceeds its published half-width in one of twenty results, not in three."""
    made = list(published(3, campaign(2, 2.0, 0.6), equal(5000), uniform(2), 500))
    for half in ("pair", "tallest"):
        inside = [abs(r.raw[0] - r.raw[1]) <= getattr(r.difference, half) for r in made]
        z = binomial_z(sum(inside), 500, 0.95)
        assert abs(z) < LIMIT, f"z = {z:.2f} with seed 3"


# --- the other ways ------------------------------------------------------------------------------


@cache
def other(reporting: str) -> Campaign:
    values = ", ".join(f'"v{i}"' for i in range(6))
    question = f'[[attributes]]\nname = "a"\nquestion = "?"\nvalues = [{values}]\n'
    return Campaign(1, asked(reporting, attributes=question), FIRST, None)


def level_counts(rng: np.random.Generator, found: Campaign, sizes: list[int]) -> Iterator[Counts]:
    """Flattened rows of nested reports, so many devices at each level."""
    way, rows = found.manifest.mechanisms[0], []
    for channel, size in zip(way.channels, sizes):
        p, q, _, _ = (float(x) for x in channel.exact)
        held = rng.multinomial(size, steep(way.k), size=RUNS)
        n = np.full((RUNS, 1), size)
        rows.append(np.hstack([n, respond(rng, channel.unary, held, p, q, n)]))
    yield from np.hstack(rows)


def test_nested_reports_of_several_levels() -> None:
    found, rng = other("nested"), np.random.default_rng(4)
    way = found.manifest.mechanisms[0]
    sizes = [400, 300, 300, *([0] * (len(way.channels) - 3))]
    f = steep(way.k)
    made = [
        round_result(found, 0, 0, Tally(1000, row), {}) for row in level_counts(rng, found, sizes)
    ]
    z = binomial_z(sum(holds_all(result, f) for result in made), RUNS, 0.95)
    assert z > LOWEST, f"z = {z:.2f} with seed 4"
    raw = np.array([result.raw for result in made])
    error = np.hypot(made[0].privacy_error, made[0].sampling_error)
    assert (np.abs(raw.mean(axis=0) - f) < 4 * error / np.sqrt(RUNS)).all()
    assert all(result.n_eff < 1000 for result in made)


# --- Campaigns in every way of reporting, from wire bytes to histograms, against the truth.


MECHANISM_CAMPAIGNS, MECHANISM_DEVICES, MECHANISM_ROUNDS = 50, 120, 2
SHARES = [0.5, 0.3, 0.2, 0.0]
QUESTION = '[[attributes]]\nname = "a"\nquestion = "?"\nvalues = ["x", "y", "z"]\n'


def results(reporting: str, key: DeviceKey) -> list[Result]:
    """The pooled result of each campaign; devices are drawn from a large fleet."""
    chance = random.Random(list[str](MECHANISMS).index(reporting))
    return [one_campaign(reporting, key, chance) for _ in range(MECHANISM_CAMPAIGNS)]


def one_campaign(reporting: str, key: DeviceKey, chance: random.Random) -> Result:
    manifest = asked(reporting, count=MECHANISM_ROUNDS, attributes=QUESTION)
    fleet = list(devices(manifest, chance))
    with ExitStack() as stack:
        directory = stack.enter_context(TemporaryDirectory(dir=QUICK_DISK))
        store = stack.enter_context(closing(SqliteStore(Path(directory) / "collector.db")))
        campaign = store.open_campaign(manifest, FIRST)
        known = open_campaigns(campaign, key)
        for number in range(MECHANISM_ROUNDS):
            answering = fleet[number::MECHANISM_ROUNDS] if reporting == "once" else fleet
            messages = [device.message(number, value) for device, value in answering]
            ingest.count(messages, store, known, FIRST + number * HOUR)
            seal(store, campaign, number, manifest.rounds.deadline(number))
        (pooled,) = store.results(campaign.id, 0, range(-1, 0))
        return pooled


def devices(manifest: Manifest, chance: random.Random) -> Iterator[tuple[Device, int]]:
    """Devices and their values. Only codes are a device's own; all other draws are alike."""
    way = manifest.mechanisms[0]
    shared = way.randomiser("any", chance.randbytes)
    for _ in range(MECHANISM_DEVICES):
        name = f"d-{chance.getrandbits(40)}"
        mine = way.randomiser(name, chance.randbytes) if way.reporting == "hashed" else shared
        yield Device(manifest, name, 0, drawn=mine), chance.choices(range(4), SHARES)[0]


@pytest.mark.parametrize("reporting", MECHANISMS)
def test_estimates_are_right_and_intervals_hold(reporting: str, tmp_path: Path) -> None:
    made = results(reporting, DeviceKey(tmp_path / "device.key"))
    check_errors(made)
    check_intervals(made)


def check_errors(made: list[Result]) -> None:
    """Right on average, and spread as they say."""
    raw = np.array([result.raw for result in made])
    error = np.mean([np.hypot(r.privacy_error, r.sampling_error) for r in made], axis=0)
    z = (raw.mean(axis=0) - SHARES) / (error / np.sqrt(MECHANISM_CAMPAIGNS))
    assert (np.abs(z) < LIMIT).all(), z
    spread = raw.std(axis=0, ddof=1) / error
    assert (np.abs(spread - 1) < LIMIT / np.sqrt(2 * MECHANISM_CAMPAIGNS)).all(), spread


def check_intervals(made: list[Result]) -> None:
    """One value at a time, and all at once."""
    rows = [zip(SHARES, r.low, r.high, strict=True) for r in made]
    inside = [low <= f <= high for row in rows for f, low, high in row]
    wide = [zip(SHARES, r.low_all, r.high_all, strict=True) for r in made]
    every = [all(low <= f <= high for f, low, high in row) for row in wide]
    assert binomial_z(sum(inside), len(inside), 0.95) > -LIMIT
    assert binomial_z(sum(every), len(every), 0.95) > -LIMIT
