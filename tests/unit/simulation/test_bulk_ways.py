"""Many devices at once are many devices: same bytes, same law, same counting, for every way."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from collector.store.shared import count_bodies
from protocol_spec import Rejected, decode_report, report_fault
from protocol_spec.ways import Reporting
from simulation.depths.reports import as_reports
from simulation.model.bulk_ways import bulk
from simulation.model.fleet import Fleet
from simulation.model.messages import of_round
from tests.support.protocol.entropy import seeded
from tests.support.protocol.statistics import LIMIT, binomial_z, uniform_z
from tests.support.simulation.campaigns import fleet
from tests.support.simulation.laws import same_z
from tests.support.simulation.ways import campaign, questions

SEED = 20264
WAYS: list[Reporting] = ["memoized", "once", "hashed", "nested"]
PROTOCOLS = [
    ("memoized", "L-GRR"), ("memoized", "L-OSUE"), ("once", "GRR"), ("once", "OUE"),
    ("hashed", "auto"), ("nested", "GRR"), ("nested", "OUE"),
]  # fmt: skip


@pytest.mark.parametrize(("reporting", "protocol"), PROTOCOLS)
def test_memo_and_reports_have_the_joint_law_of_one_device_s_randomiser(
    reporting: Reporting, protocol: str
) -> None:
    """The first and the third report of one memo, or of one code, jointly."""
    way = campaign(reporting, attributes=questions(4, protocol), eps_inf=1.5).ways[0]
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
    way = campaign(reporting, attributes=questions(11, protocol)).ways[0]
    many, names = bulk(way), [f"device-{i}" for i in range(700)]
    rng, codes = np.random.default_rng(SEED), bulk(way).codes([f"device-{i}" for i in range(700)])
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


@pytest.mark.parametrize("reporting", WAYS)
def test_messages_are_reports_that_the_campaign_admits(reporting: Reporting) -> None:
    made = fleet(campaign(reporting), 60, rounds=3, dropout=0.2, dishonest=((0, 5, 1),))
    for t in range(3):
        for _, payload in of_round(made, t, late=False):
            report = decode_report(payload)
            assert not isinstance(report, Rejected)
            assert report_fault(report, made.manifest) is None


# --- what devices keep -------------------------------------------------------------------------


def test_a_device_answers_in_so_many_rounds_and_every_set_is_as_likely() -> None:
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


@pytest.mark.parametrize("reporting", WAYS)
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
