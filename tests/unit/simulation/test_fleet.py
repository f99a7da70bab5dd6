"""Many devices at once are many devices: same thresholds, bytes, distribution, counting and memory
of what they did before."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from collector.store.common import count_bodies
from protocol_spec import (
    BodyFormat,
    Mechanism,
    Rejected,
    as_drawn,
    calibrate,
    decode_report,
    make_report,
    parse_from_device,
    report_fault,
)
from simulation.campaigns import as_reports, as_statistics
from simulation.devices import (
    STEPS,
    BulkMechanism,
    BulkRandomiser,
    OneByOne,
    bulk,
    count,
    decode,
    encode,
    respond_packed,
)
from simulation.population import SimulationError, by_value, dishonest
from tests.support.protocol.entropy import seeded
from tests.support.protocol.statistics import LIMIT, binomial_z, uniform_z
from tests.support.simulation import FUEL, HOURS, both, campaign, fleet, question, same_z

SEED, SEEDS = 20263, 600
FORMS = [BodyFormat(unary, k) for unary in (True, False) for k in (2, 8, 9, 41, 256, 300)]
Make = Callable[[Mechanism], BulkMechanism]
MECHANISMS = ["memoized", "once", "hashed", "nested"]
PROTOCOLS = [
    ("memoized", "L-GRR"), ("memoized", "L-OSUE"), ("once", "GRR"), ("once", "OUE"),
    ("hashed", "auto"), ("nested", "GRR"), ("nested", "OUE"), ("memoized", "L-SS"),
    ("once", "SS"), ("nested", "SS"),
]  # fmt: skip


class Digits(np.random.SFC64):
    """Random words that make the comparisons of one word see exactly these 64-bit draws: the
    highest digits of all, then the rest of those that are still open."""

    def __init__(self, draws: list[int], limits: list[int]) -> None:
        super().__init__(0)
        high = range(63, 63 - STEPS, -1)
        self.left = [sum((~d >> place & 1) << i for i, d in enumerate(draws)) for place in high]
        rest = 64 - STEPS
        self.left += [d for d, limit in zip(draws, limits) if d >> rest == limit >> rest]

    def random_raw(self, size: int) -> np.ndarray:  # type: ignore[override]
        assert size == 1
        return np.array([self.left.pop(0)], dtype=np.uint64)


@pytest.mark.parametrize(
    ("keep", "add"),
    [
        (1 << 63, 0x1E6F_0000_1234_5678),
        ((1 << 64) - 1, 1),
        (0xC4C4_4A87_90E6_D5A1, 0x3B3B_B578_6F19_2A5F),  # symmetric protocols: 2^64 together
        (0xC4C4_4A87_90E6_D5A1, 0x3B3B_B578_6F19_2A5E),
        (1 << 63, 1 << 63),
    ],
)
def test_a_bit_is_one_exactly_when_64_random_bits_are_below_its_threshold(
    keep: int, add: int
) -> None:
    """Or, for a held bit where the thresholds are 2^64 together, when they are not below the other:
    as many draws."""
    near = [t + step for t in (keep, add) for step in (-2, -1, 0, 1)]
    random = np.random.default_rng(SEED).integers(0, 1 << 63, 56).tolist()
    draws = [d % (1 << 64) for d in (*near, *(2 * r for r in random))]
    held = 0xAAAA_AAAA_AAAA_AAAA
    turned = keep + add == 1 << 64 and keep != add
    limits = [keep if held >> i & 1 and not turned else add for i in range(64)]
    wanted = [(d < limits[i]) ^ (turned and bool(held >> i & 1)) for i, d in enumerate(draws)]
    source = Digits(draws, limits)
    answer = int(respond_packed(source, np.array([held], dtype=np.uint64), keep, add)[0])
    assert [bool(answer >> i & 1) for i in range(64)] == wanted
    assert not source.left


def test_comparisons_that_stay_open_past_the_first_steps_are_decided_bit_by_bit() -> None:
    """Many words at once, and a threshold whose 1 is behind the first steps: every 1 comes late."""
    held = np.zeros(200_000, dtype=np.uint64)
    answer = respond_packed(np.random.SFC64(SEED), held, 1, 1 << 63 - STEPS)
    for place in range(0, 64, 9):
        ones = int((answer >> np.uint64(place) & np.uint64(1)).sum())
        z = binomial_z(ones, held.size, 2.0 ** -(STEPS + 1))
        assert abs(z) < LIMIT, f"bit {place}, seed {SEED}"


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_bodies_and_counting_are_those_of_contract_and_collector(form: BodyFormat) -> None:
    rng, indices = np.random.default_rng(SEED), np.arange(form.k)
    bodies = encode(form, indices)
    assert [b.tobytes() for b in bodies] == [form.encode(i) for i in range(form.k)]
    if not form.unary:
        assert (decode(bodies) == indices).all()
    for protocol, devices in product(("L-OSUE", "L-SS") if form.unary else ("L-GRR",), (999, 0)):
        many = BulkRandomiser(calibrate(protocol, k=form.k, eps_inf=2.0, eps_1=0.6))
        drawn = many.report(rng, many.memoize(rng, rng.integers(0, form.k, devices)))
        rows = [b.tobytes() for b in drawn]
        assert all(many.format.fault(row) is None for row in rows)
        assert (count(form, drawn) == count_bodies(rows, form)).all()


@pytest.mark.parametrize(("make", "devices"), [(bulk, 60_000), (OneByOne, 15_000)])
@pytest.mark.parametrize(("reporting", "protocol"), PROTOCOLS)
def test_memo_and_reports_have_the_joint_distribution_of_one_device(
    reporting: str, protocol: str, make: Make, devices: int
) -> None:
    """The first and the third report of one memo, or of one code, jointly."""
    asked = campaign(reporting, question(4, protocol=protocol), eps_inf=1.5)
    mechanism = asked.mechanisms[0]
    many, one = make(mechanism), mechanism.randomiser("d", seeded(f"devices {SEED}"))
    theirs: Counter[tuple[bytes, bytes]] = Counter()
    for _ in range(15_000):
        memo = one.memoize(one.key(1))
        theirs[one.report(memo, 0), one.report(memo, 2)] += 1
    rng = np.random.Generator(np.random.SFC64(SEED))
    codes = many.codes(devices, lambda: ["d"] * devices)
    memos = many.memoize(rng, many.keys(np.full(devices, 1), codes))
    sent = np.zeros(devices, dtype=np.int64)
    pairs = zip(many.report(rng, memos, sent), many.report(rng, memos, sent + 2))
    ours = Counter((first.tobytes(), third.tobytes()) for first, third in pairs)
    assert abs(same_z(ours, theirs)) < LIMIT, f"seed {SEED}"


@pytest.mark.parametrize("make", [bulk, OneByOne])
@pytest.mark.parametrize(("reporting", "protocol"), PROTOCOLS)
def test_answers_and_lies_are_counted_as_the_contract_says(
    reporting: str, protocol: str, make: Make
) -> None:
    mechanism = campaign(reporting, question(11, protocol=protocol)).mechanisms[0]
    many, names = make(mechanism), [f"device-{i}" for i in range(700)]
    rng, codes = np.random.default_rng(SEED), many.codes(700, lambda: names)
    values, sent = rng.integers(0, 11, 700), rng.integers(0, 40, 700)
    keys = [mechanism.randomiser(n).key(v) for n, v in zip(names[:50], values.tolist())]
    assert keys == many.keys(values, codes).tolist()[:50]
    answers = many.report(rng, many.memoize(rng, many.keys(values, codes)), sent)
    lies = many.lie(3, codes, sent)
    for bodies in (answers, lies):
        rows = [body.tobytes() for body in bodies]
        assert {len(row) for row in rows} == {mechanism.answer_bytes}
        assert {mechanism.fault(row) for row in rows} == {None}
        supported = [mechanism.supported(row, name) for row, name in zip(rows, names)]
        n, counts = many.tally(bodies, codes)
        for channel in range(len(mechanism.channels)):
            mine = [body for place, body in supported if place == channel]
            assert n[channel] == len(mine)
            assert (counts[channel] == count_bodies(mine, mechanism.counted)).all()
    assert many.tally(lies, codes).counts[:, 3].sum() == 700


@pytest.mark.parametrize("reporting", MECHANISMS)
def test_messages_are_those_of_the_real_encoder_and_the_campaign_admits_them(
    reporting: str,
) -> None:
    rates: dict[str, Any] = {"dropout": 0.2, "churn": 0.1, "late": 0.2, "duplicates": 0.2}
    made = fleet(campaign(reporting), 60, rounds=2, dishonest=((0, 5, 1),), **rates)
    asked = made.manifest
    for batch in made.batches():
        batch.reports(only_state=True)
        sent = batch.reports()
        messages = [m for late in (False, True) for m in sent.messages(asked, late=late)]
        assert len(messages) == len(sent.bodies) + sent.twice.sum()
        wanted = {
            (name, make_report(asked, 1, batch.attribute, body.tobytes()).encode())
            for name, body in zip(sent.names(), sent.bodies)
        }
        origins = [(parse_from_device(topic), payload) for topic, payload in messages]
        assert {(o.device, payload) for o, payload in origins if o is not None} == wanted
        for _, payload in messages:
            report = decode_report(payload)
            assert not isinstance(report, Rejected)
            assert report_fault(report, asked) is None


# --- the same distribution at both depths, and bounded memory ------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("unruly", [False, True], ids=["all report", "unruly"])
@pytest.mark.parametrize(("attribute", "value"), [(FUEL, "wood"), (HOURS, "h0")])
def test_reports_and_statistics_have_one_distribution(
    attribute: str, value: str, unruly: bool
) -> None:
    """The first value's count in two rounds and who took part in both, coarsened, jointly. With
    eps_1 near a small eps_inf nearly all noise is the memo's, and ties the rounds together."""
    asked = campaign(attributes=attribute, eps_inf=1.0, eps_1=0.9)
    made = fleet(asked, 120)
    if unruly:
        rates = by_value(asked, [f"{value}=0.6"])
        lies = ((0, 5, 1 if value == "wood" else 0),)
        made = fleet(asked, 120, dropout=0.2, dropout_by_value=rates, churn=0.3, dishonest=lies)
    ours, theirs = Counter[tuple[int, ...]](), Counter[tuple[int, ...]]()
    for seed in range(SEEDS):
        reports = as_reports(replace(made, seed=seed))
        counts = as_statistics(asked, made.truth, made.behaviour, rounds=2, seed=seed)
        for found, simulated in ((ours, reports), (theirs, counts)):
            tally = simulated.attributes[0]
            found[*(tally.counts[:, 0] // 6).tolist(), int(tally.participation[2] // 12)] += 1
    assert sum(n >= 20 for n in (ours + theirs).values()) > 7  # enough cells to tell them apart
    assert abs(same_z(ours, theirs)) < LIMIT, f"seeds 0 to {SEEDS}"


def test_the_seed_decides_the_reports_and_the_truth_is_what_devices_hold() -> None:
    made = fleet(both(), rounds=1)
    first, again, other = (as_reports(replace(made, seed=seed)) for seed in (1, 1, 2))
    for a, b, c, truth in zip(first.attributes, again.attributes, other.attributes, made.truth):
        assert (a.counts == b.counts).all()
        assert (a.counts != c.counts).any()
        assert (a.truth[0] == truth).all()
        assert a.n[0] == truth.sum()


def test_memory_is_bounded_by_the_batch() -> None:
    def peak(devices: int) -> int:
        made = fleet(both(), devices, batch=2_000)
        tracemalloc.start()
        as_reports(made)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(4_000)
    assert peak(80_000) < 1.1 * peak(4_000)


# --- behaviour -----------------------------------------------------------------------------------


def test_a_dishonest_device_shifts_a_bin_by_no_more_than_the_bound() -> None:
    asked, liars = both(), 30
    honest = as_reports(fleet(asked, 4_000, rounds=1))
    lies = dishonest(asked, [f"{liars}:pump", f"{liars}:h19"])
    lying = as_reports(fleet(asked, 4_000, rounds=1, dishonest=lies))
    for index, calibration in enumerate(map(as_drawn, asked.calibrations)):
        before, after = honest.attributes[index], lying.attributes[index]
        n, moved = int(before.n[0]), after.counts[0] - before.counts[0]
        assert after.n[0] == n
        shift = np.abs(moved / n / calibration.gap).max()
        assert shift <= liars / (n * calibration.gap) + 1e-12
        assert moved[-1] > liars / 4  # and they do shift it


@pytest.mark.parametrize("liars", [0, 1, 7, 150, 200])
def test_both_depths_have_the_same_number_of_dishonest_devices(liars: int) -> None:
    made = fleet(campaign(), 200, rounds=1, dropout=1.0, dishonest=((0, liars, 2),))
    counted = as_statistics(made.manifest, made.truth, made.behaviour, rounds=1, seed=1)
    for tally in (as_reports(made).attributes[0], counted.attributes[0]):
        assert (tally.n[0], tally.counts[0, 2]) == (liars, liars)  # they never miss a round
        assert tally.participation.tolist() == [0, liars]


def test_drop_out_that_depends_on_the_value_biases_the_estimate_and_shows() -> None:
    rates = by_value(campaign(), ["fuel:wood=0.8"])
    made = as_reports(fleet(campaign(), 40_000, rounds=1, dropout_by_value=rates))
    tally = made.attributes[0]
    missing = 40_000 - int(tally.n[0])
    assert abs(binomial_z(missing, int(tally.truth[0, 0]), 0.8)) < LIMIT
    row = next(row for row in made.rows() if row["value"] == "wood")
    assert row["z"] < -LIMIT
    assert row["high"] < row["truth"]


def test_a_replaced_device_has_a_new_name_and_a_new_memo() -> None:
    batch = next(fleet(campaign(), rounds=2, churn=1.0).batches())
    before = batch.reports()
    memos = batch._memos.copy()
    after = batch.reports()
    assert not set(before.names()) & set(after.names())
    assert (memos != batch._memos).any()
    assert batch.participation().tolist() == [0, 2 * len(before.names()), 0]


@pytest.mark.parametrize("cap", [1, 2, 3])
def test_a_device_answers_for_as_many_values_as_allowed_and_then_freezes(cap: int) -> None:
    batch = next(fleet(campaign(max_values=cap), 150, rounds=8, changes=0.7).batches())
    everyone = np.arange(batch.values.size)
    known: list[list[int]] = [[] for _ in everyone]
    last = np.full(batch.values.size, -1)
    for _ in range(8):
        batch.reports()
        for device, value in enumerate(batch.values.tolist()):
            if value not in known[device] and len(known[device]) < cap:
                known[device].append(value)
            last[device] = value if value in known[device] else last[device]
        # As the agent: the value's own memo, or the one used last.
        assert (batch._known[everyone, batch._used] == last).all()


def test_a_device_has_a_memo_for_each_cell_and_keeps_it() -> None:
    batch = next(fleet(campaign("hashed"), 150, rounds=9, changes=0.9).batches())
    seen: dict[tuple[int, int], bytes] = {}
    for _ in range(9):
        batch.reports()
        cells = batch._bulk.keys(batch.values, batch._codes).tolist()
        for device, row in enumerate(batch._known):
            assert row[batch._used[device]] == cells[device]  # never frozen: each cell has a memo
            for place, key in enumerate(row.tolist()):
                memo = batch._memos[device, place].tobytes()
                assert key < 0 or seen.setdefault((device, key), memo) == memo


def test_a_device_answers_in_some_rounds_and_every_set_is_as_likely() -> None:
    made = fleet(campaign("once", count=4, each=2), 12_000, rounds=4, batch=5_000)
    rounds: dict[str, list[int]] = {}
    for batch in made.batches():
        for t in range(4):
            for name in batch.reports().names():
                rounds.setdefault(name, []).append(t)
    sets = Counter(map(tuple, rounds.values()))
    assert (len(rounds), len(sets)) == (12_000, 6)
    assert abs(uniform_z(list(sets.values()))) < LIMIT
    late = as_reports(fleet(campaign("once", count=3), 3_000, rounds=3, churn=1.0))
    for probability, n in zip((1 / 3, 1 / 2), late.attributes[0].n.tolist()):
        assert abs(binomial_z(n, 3_000, probability)) < LIMIT
    assert late.attributes[0].n[2] == 3_000  # who joins late answers in what is left


def test_levels_rise_with_the_reports_that_a_device_sent() -> None:
    for batch in fleet(campaign("nested"), 200, rounds=6, dropout=0.4, late=0.2).batches():
        sent: Counter[str] = Counter()
        for _ in range(6):
            reports = batch.reports()
            for name, body in zip(reports.names(), reports.bodies):
                sent[name] += 1
                assert body[0] == min(sent[name], len(batch._fleet.manifest.mechanisms[0].channels))


@pytest.mark.parametrize("reporting", MECHANISMS)
def test_a_round_passed_over_leaves_the_same_state(reporting: str) -> None:
    rates: dict[str, Any] = {"dropout": 0.2, "churn": 0.2, "changes": 0.4, "late": 0.1}
    made = fleet(campaign(reporting), rounds=3, **rates)
    for drawn, passed in zip(made.batches(), made.batches()):
        for _ in range(2):
            drawn.reports()
            passed.reports(only_state=True)
        ours, theirs = drawn.reports(), passed.reports()
        assert ours.names() == theirs.names()
        assert (ours.bodies == theirs.bodies).all()
        assert (ours.codes == theirs.codes).all()


def test_values_drift_there_and_back() -> None:
    plain = fleet(campaign("once", count=21), 20_000, rounds=21, batch=20_000, changes=1.0)
    made = replace(plain, drift=(np.array([0.0, 0.0, 0.0, 1.0]),))
    held = as_reports(made).attributes[0].truth[:, -1] / 20_000
    assert held[0] == plain.truth[0][-1] / 20_000
    assert held.argmax() in (10, 11)
    assert held.max() > 0.98
    assert abs(held[20] - held[1]) < 0.02


@pytest.mark.parametrize("name", ["changes", "late", "duplicates"])
def test_statistics_refuse_what_needs_single_devices(name: str) -> None:
    rates: dict[str, Any] = {name: 0.1}
    made = fleet(both(), **rates)
    with pytest.raises(SimulationError, match=f"--{name} needs single devices"):
        as_statistics(made.manifest, made.truth, made.behaviour, rounds=1, seed=1)
    if name == "changes":  # but devices without memos are as good as single ones
        once = fleet(campaign("once"), 150, changes=0.1)
        found = as_statistics(once.manifest, once.truth, once.behaviour, rounds=9, seed=1)
        truth = found.attributes[0].truth
        assert (truth.sum(axis=1) == 150).all()
        assert (truth[0] != truth[8]).any()
