"""Many devices at once are many devices: same thresholds, bytes, distribution and counting."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from collector.store.common import count_bodies
from protocol_spec import BodyFormat, Rejected, calibrate, decode_report, report_fault
from protocol_spec.mechanisms import Reporting
from simulation.bulk import STEPS, BulkRandomiser, bulk, count, decode, encode, respond_packed
from simulation.depths import as_reports
from simulation.fleet import Fleet, of_round
from tests.support.protocol.entropy import seeded
from tests.support.protocol.statistics import LIMIT, binomial_z, uniform_z
from tests.support.simulation import campaign, fleet, questions, same_z

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
    probability = 2.0 ** -(STEPS + 1)
    answer = respond_packed(np.random.SFC64(SEED), held, 1, 1 << 63 - STEPS)
    for place in range(0, 64, 9):
        ones = int((answer >> np.uint64(place) & np.uint64(1)).sum())
        assert abs(binomial_z(ones, held.size, probability)) < LIMIT, f"bit {place}, seed {SEED}"


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


def test_nobody_is_nobody() -> None:
    bulk = BulkRandomiser(calibrate("L-OSUE", k=9, eps_inf=2.0, eps_1=0.6))
    rng = np.random.default_rng(SEED)
    assert bulk.report(rng, bulk.memoize(rng, np.zeros(0, dtype=np.int64))).shape == (0, 2)


MECHANISMS: list[Reporting] = ["memoized", "once", "hashed", "nested"]
PROTOCOLS = [
    ("memoized", "L-GRR"), ("memoized", "L-OSUE"), ("once", "GRR"), ("once", "OUE"),
    ("hashed", "auto"), ("nested", "GRR"), ("nested", "OUE"),
]  # fmt: skip


@pytest.mark.parametrize(("reporting", "protocol"), PROTOCOLS)
def test_memo_and_reports_have_the_joint_distribution_of_one_device(
    reporting: Reporting, protocol: str
) -> None:
    """The first and the third report of one memo, or of one code, jointly."""
    way = campaign(reporting, attributes=questions(4, protocol), eps_inf=1.5).mechanisms[0]
    many, names = bulk(way), [f"d{i}" for i in range(60_000)]
    one = way.randomiser(names[0], seeded(f"ways {SEED}"))
    theirs: Counter[tuple[bytes, bytes]] = Counter()
    for _ in range(15_000):
        memo = one.memoize(one.key(1))
        theirs[one.report(memo, 0), one.report(memo, 2)] += 1
    rng = np.random.Generator(np.random.SFC64(SEED))
    codes = many.codes(names[:1] * len(names))
    memos = many.memoize(rng, many.keys(np.full(len(names), 1), codes))
    sent = np.zeros(len(names), dtype=np.int64)
    pairs = zip(many.report(rng, memos, sent), many.report(rng, memos, sent + 2))
    ours = Counter((first.tobytes(), third.tobytes()) for first, third in pairs)
    assert abs(same_z(ours, theirs)) < LIMIT, f"seed {SEED}"


@pytest.mark.parametrize(("reporting", "protocol"), PROTOCOLS)
def test_counting_is_the_contract_s(reporting: Reporting, protocol: str) -> None:
    way = campaign(reporting, attributes=questions(11, protocol)).mechanisms[0]
    many, names = bulk(way), [f"device-{i}" for i in range(700)]
    rng, codes = np.random.default_rng(SEED), many.codes(names)
    values, sent = rng.integers(0, 11, 700), rng.integers(0, 40, 700)
    keys = [way.randomiser(n).key(v) for n, v in zip(names[:50], values.tolist())]
    assert keys == many.keys(values, codes).tolist()[:50]
    answers = many.report(rng, many.memoize(rng, many.keys(values, codes)), sent)
    lies = many.lie(3, codes, sent)
    for bodies in (answers, lies):
        rows = [body.tobytes() for body in bodies]
        assert all(len(row) == way.answer_bytes and way.fault(row) is None for row in rows)
        supported = [way.supported(row, name) for row, name in zip(rows, names)]
        n, counts = many.tally(bodies, codes)
        for channel in range(len(way.channels)):
            mine = [body for place, body in supported if place == channel]
            assert n[channel] == len(mine)
            assert (counts[channel] == count_bodies(mine, way.counted)).all()
    assert many.tally(lies, codes).counts[:, 3].sum() == 700


@pytest.mark.parametrize("reporting", MECHANISMS)
def test_messages_are_reports_that_the_campaign_admits(reporting: Reporting) -> None:
    made = fleet(campaign(reporting), 60, rounds=3, dropout=0.2, dishonest=((0, 5, 1),))
    for t in range(3):
        for _, payload in of_round(made, t, late=False):
            report = decode_report(payload)
            assert not isinstance(report, Rejected)
            assert report_fault(report, made.manifest) is None


# --- what devices keep -------------------------------------------------------------------------


def test_a_device_answers_in_some_rounds_and_every_set_is_as_likely() -> None:
    made = fleet(campaign("once", count=4, each=2), 12_000, rounds=4, batch=5_000)
    rounds: dict[str, list[int]] = {}
    for batch in made.batches():
        for t in range(4):
            for name in batch.reports().names():
                rounds.setdefault(name, []).append(t)
    sets = Counter(map(tuple, rounds.values()))
    assert len(rounds) == 12_000
    assert len(sets) == 6
    assert abs(uniform_z(list(sets.values()))) < LIMIT


def test_a_device_that_joins_late_answers_in_what_is_left() -> None:
    made = fleet(campaign("once", count=3), 3_000, rounds=3, churn=1.0)
    found = as_reports(made).attributes[0]
    for t, (chance, n) in enumerate(zip((1 / 3, 1 / 2, 1.0), found.n.tolist())):
        at_all = n == 3_000 if chance == 1.0 else abs(binomial_z(n, 3_000, chance)) < LIMIT
        assert at_all, f"round {t}"


def test_a_device_has_a_memo_for_each_cell_and_keeps_it() -> None:
    made = fleet(campaign("hashed"), 150, rounds=9, changes=0.9)
    batch = next(made.batches())
    seen: dict[tuple[int, int], bytes] = {}
    for _ in range(9):
        batch.reports()
        for device, row in enumerate(batch._known):
            cell = int(batch._way.keys(batch.values, batch._codes)[device])
            assert row[batch._used[device]] == cell  # never frozen: every cell has its own memo
            for place, key in enumerate(row.tolist()):
                memo = batch._memos[device, place].tobytes()
                assert key < 0 or seen.setdefault((device, key), memo) == memo


def test_levels_rise_with_the_reports_that_a_device_sent() -> None:
    made = fleet(campaign("nested"), 200, rounds=6, dropout=0.4, late=0.2)
    for batch in made.batches():
        sent: Counter[str] = Counter()
        for _ in range(6):
            reports = batch.reports()
            for name, body in zip(reports.names(), reports.bodies):
                sent[name] += 1
                assert body[0] == sent[name]


@pytest.mark.parametrize("reporting", MECHANISMS)
def test_a_round_passed_over_leaves_the_same_state(reporting: Reporting) -> None:
    made = fleet(campaign(reporting), rounds=3, dropout=0.2, churn=0.2, changes=0.4, late=0.1)
    for drawn, passed in zip(made.batches(), made.batches()):
        for _ in range(2):
            drawn.reports()
            passed.reports(only_state=True)
        ours, theirs = drawn.reports(), passed.reports()
        assert ours.names() == theirs.names()
        assert (ours.bodies == theirs.bodies).all()
        assert (ours.codes == theirs.codes).all()


def test_values_drift_there_and_back() -> None:
    plain = fleet(campaign("once", count=21), 20_000, rounds=21, changes=1.0)
    target = np.array([0.0, 0.0, 0.0, 0.0, 1.0])
    made = Fleet(
        plain.manifest, plain.truth, plain.behaviour, 1, plain.rounds, 20_000, (target,)
    )  # fmt: skip
    held = as_reports(made).attributes[0].truth[:, -1] / 20_000
    start = plain.truth[0][-1] / 20_000
    assert held[0] == start
    assert held.argmax() in (10, 11)
    assert held.max() > 0.98
    assert abs(held[20] - held[1]) < 0.02
