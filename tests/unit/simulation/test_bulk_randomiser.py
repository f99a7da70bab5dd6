"""The bulk randomiser is the device's randomiser: same thresholds, same bytes, same law."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from collector.store.shared import count_bodies
from protocol_spec import BodyFormat, Randomiser, calibrate
from simulation.model.bulk_randomiser import (
    STEPS,
    BulkRandomiser,
    count,
    decode,
    encode,
    respond_packed,
)
from tests.support.protocol.entropy import seeded
from tests.support.protocol.statistics import LIMIT, binomial_z
from tests.support.simulation.laws import same_z

SEED = 20263
FORMS = [BodyFormat(unary, k) for unary in (True, False) for k in (2, 8, 9, 41, 256, 300)]


class Digits(np.random.SFC64):
    """Random words that make the comparisons of one word see exactly these 64-bit draws: the
    highest digits of all, then the rest of those that are still open."""

    def __init__(self, draws: list[int], limits: list[int]) -> None:
        super().__init__(0)
        high = range(63, 63 - STEPS, -1)
        self._words = [sum((~d >> place & 1) << i for i, d in enumerate(draws)) for place in high]
        rest = 64 - STEPS
        self._words += [d for d, limit in zip(draws, limits) if d >> rest == limit >> rest]

    def random_raw(self, size: int) -> np.ndarray:  # type: ignore[override]
        assert size == 1
        return np.array([self._words.pop(0)], dtype=np.uint64)


THRESHOLDS = [
    (1 << 63, 0x1E6F_0000_1234_5678),
    ((1 << 64) - 1, 1),
    (0xC4C4_4A87_90E6_D5A1, 0x3B3B_B578_6F19_2A5F),  # of the symmetric protocols: 2^64 together
    (0xC4C4_4A87_90E6_D5A1, 0x3B3B_B578_6F19_2A5E),
    (1 << 63, 1 << 63),
]


@pytest.mark.parametrize("keep_and_add", THRESHOLDS)
def test_a_bit_is_one_exactly_when_64_random_bits_are_below_its_threshold(
    keep_and_add: tuple[int, int],
) -> None:
    """Or, for a held bit where the thresholds are 2^64 together, when they are not below the other:
    as many draws."""
    keep, add = keep_and_add
    near = [t + step for t in keep_and_add for step in (-2, -1, 0, 1)]
    random = np.random.default_rng(SEED).integers(0, 1 << 63, 56).tolist()
    draws = [d % (1 << 64) for d in (*near, *(2 * r for r in random))]
    held = 0xAAAA_AAAA_AAAA_AAAA
    turned = keep + add == 1 << 64 and keep != add
    limits = [keep if held >> i & 1 and not turned else add for i in range(64)]
    wanted = [(d < limits[i]) ^ (turned and bool(held >> i & 1)) for i, d in enumerate(draws)]
    source = Digits(draws, limits)
    answer = int(respond_packed(source, np.array([held], dtype=np.uint64), keep, add)[0])
    assert [bool(answer >> i & 1) for i in range(64)] == wanted
    assert not source._words


def test_words_with_several_open_bits_and_others_without_are_told_apart() -> None:
    """Many words at once, and a threshold whose 1 is behind the first steps: every 1 comes late."""
    held = np.zeros(200_000, dtype=np.uint64)
    chance = 2.0 ** -(STEPS + 1)
    answer = respond_packed(np.random.SFC64(SEED), held, 1, 1 << 63 - STEPS)
    for place in range(0, 64, 9):
        ones = int((answer >> np.uint64(place) & np.uint64(1)).sum())
        assert abs(binomial_z(ones, held.size, chance)) < LIMIT, f"bit {place}, seed {SEED}"


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_bodies_are_those_of_the_contract(form: BodyFormat) -> None:
    indices = np.arange(form.k)
    bodies = encode(form, indices)
    assert [b.tobytes() for b in bodies] == [form.encode(i) for i in range(form.k)]
    if not form.unary:
        assert (decode(bodies) == indices).all()


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_counting_is_the_collector_s(form: BodyFormat) -> None:
    rng = np.random.default_rng(SEED)
    protocol = "L-OSUE" if form.unary else "L-GRR"
    bulk = BulkRandomiser(calibrate(protocol, k=form.k, eps_inf=2.0, eps_1=0.6))
    bodies = bulk.report(rng, bulk.memoize(rng, rng.integers(0, form.k, 999)))
    rows = [b.tobytes() for b in bodies]
    assert all(form.fault(row) is None for row in rows)
    assert (count(form, bodies) == count_bodies(rows, form)).all()


@pytest.mark.parametrize(("protocol", "k"), [("L-GRR", 5), ("L-OSUE", 5), ("L-OUE", 3)])
def test_memo_and_report_have_the_joint_law_of_the_agent_s_randomiser(
    protocol: str, k: int
) -> None:
    calibration = calibrate(protocol, k=k, eps_inf=2.0, eps_1=0.9)
    one = Randomiser(calibration, seeded(f"simulation {SEED}"))
    memos = [one.memoize(1) for _ in range(20_000)]
    theirs = Counter((memo, one.report(memo)) for memo in memos)
    rng = np.random.Generator(np.random.SFC64(SEED))
    bulk = BulkRandomiser(calibration)
    held = bulk.memoize(rng, np.full(60_000, 1))
    pairs = zip(held, bulk.report(rng, held))
    ours = Counter((memo.tobytes(), report.tobytes()) for memo, report in pairs)
    assert abs(same_z(ours, theirs)) < LIMIT, f"seed {SEED}"


def test_nobody_is_nobody() -> None:
    bulk = BulkRandomiser(calibrate("L-OSUE", k=9, eps_inf=2.0, eps_1=0.6))
    rng = np.random.default_rng(SEED)
    assert bulk.report(rng, bulk.memoize(rng, np.zeros(0, dtype=np.int64))).shape == (0, 2)
