"""Two cells: what reports tell, of values and of changes, by enumeration; codes and support."""

from __future__ import annotations

import hashlib
import math
from fractions import Fraction
from itertools import product

import pytest

from protocol_spec import BodyFormat, Calibration, ParameterError, calibrate, thresholds
from protocol_spec.mechanisms import Hashed, HashedRandomiser, change_log_ratio, code, support
from tests.support.protocol import exact
from tests.support.protocol.entropy import Tape, words

Law = dict[object, Fraction]
BUDGETS = ((0.5, 0.15), (2.0, 0.6), (4.0, 2.0))
budgets = pytest.mark.parametrize(("eps_inf", "eps_1"), BUDGETS)
DIGEST = bytes(range(32))


def law(cell: Calibration, cells: tuple[int, ...]) -> Law:
    """Chance of every sequence of reports, for the cells a device was in: one memo for each."""
    step = thresholds(cell)
    found: Law = dict.fromkeys(product(range(cell.k), repeat=len(cells)), Fraction(0))
    for memos in product(range(cell.k), repeat=cell.k):
        chance = math.prod(
            (exact.response(False, cell.k, step[:2], c)[memo] for c, memo in enumerate(memos)),
            start=Fraction(1),
        )
        for reports in found:
            assert isinstance(reports, tuple)
            found[reports] += math.prod(
                (
                    exact.response(False, cell.k, step[2:], memos[c])[y]
                    for c, y in zip(cells, reports)
                ),
                start=chance,
            )
    return found


def hashed(eps_inf: float, eps_1: float) -> Hashed:
    return Hashed.calibrate(k=5, eps_inf=eps_inf, eps_1=eps_1)


@pytest.mark.parametrize("t", [1, 2, 3, 4])
@budgets
def test_histories_that_change_cells_at_the_same_moments(
    eps_inf: float, eps_1: float, t: int
) -> None:
    """Of two cells there is one other history of the same pattern: all cells swapped."""
    h = hashed(eps_inf, eps_1)
    for cells in product(range(2), repeat=t):
        swapped = tuple(1 - c for c in cells)
        told = exact.largest_loss([law(h.cell, cells), law(h.cell, swapped)])
        spent = h.spending([cells.count(c) for c in range(2) if c in cells])
        assert told <= spent.exact + 1e-15
        assert told > spent.exact - 1e-13, "attained: the ledger's exact number is exact"
        assert spent.exact <= spent.charged <= h.lifetime_epsilon == 2 * eps_inf


@budgets
def test_one_report_tells_eps_1(eps_inf: float, eps_1: float) -> None:
    h = hashed(eps_inf, eps_1)
    told = exact.largest_loss(law(h.cell, (c,)) for c in range(2))
    assert eps_1 - 1e-14 < told <= eps_1


@pytest.mark.parametrize("t", [2, 3, 4, 5, 8])
@budgets
def test_what_tells_a_change_half_way_from_none(eps_inf: float, eps_1: float, t: int) -> None:
    cell = hashed(eps_inf, eps_1).cell
    never = [law(cell, (c,) * t) for c in range(2)]
    changes = [law(cell, (c,) * (t // 2) + (1 - c,) * (t - t // 2)) for c in range(2)]
    worst = max(exact.largest_loss([a, b]) for a in never for b in changes)
    assert change_log_ratio(cell, t) == pytest.approx(float(worst), rel=1e-12)


def test_it_grows_without_limit_and_beyond_the_ledger() -> None:
    cell = calibrate("L-GRR", k=2, eps_inf=2.0, eps_1=0.6)
    ratios = [change_log_ratio(cell, t) for t in (8, 16, 64, 365)]
    assert ratios == sorted(ratios)
    assert ratios[0] == pytest.approx(2.98, abs=0.01)
    assert ratios[-1] > 100 > 2 * 2.0


@pytest.mark.parametrize(
    ("cell", "reports", "field"),
    [
        (calibrate("L-GRR", k=3, eps_inf=2.0, eps_1=0.6), 8, "k"),
        (calibrate("L-OSUE", k=2, eps_inf=2.0, eps_1=0.6), 8, "k"),
        (calibrate("L-GRR", k=2, eps_inf=2.0, eps_1=0.6), 1, "reports"),
    ],
)
def test_a_ratio_that_is_not_defined(cell: Calibration, reports: int, field: str) -> None:
    with pytest.raises(ParameterError) as caught:
        change_log_ratio(cell, reports)
    assert caught.value.field == field


@pytest.mark.parametrize("cells", [2, 3, 5])
def test_the_chance_that_a_change_is_ever_seen(cells: int) -> None:
    """Memos of two different cells are equal in cells ways; values differ in cell 1 - 1/cells."""
    h = Hashed.calibrate(k=9, eps_inf=2.0, eps_1=0.6, cells=cells)
    p, q = h.cell.p1, h.cell.q1
    laws = [[p if y == c else q for y in range(cells)] for c in (0, 1)]
    same = math.fsum(a * b for a, b in zip(*laws))
    assert h.change_seen_if_cells_differ == pytest.approx(1 - same)
    assert h.change_seen == pytest.approx((1 - 1 / cells) * (1 - same))


def test_only_the_cells_there_are_can_be_visited() -> None:
    h = hashed(2.0, 0.6)
    assert h.spending([]).charged == 0.0
    with pytest.raises(ParameterError, match="cells"):
        h.spending([1, 2, 3])


@pytest.mark.parametrize(("change", "field"), [({"k": 1}, "k"), ({"eps_1": 3.0}, "eps_1")])
def test_refused(change: dict[str, float], field: str) -> None:
    with pytest.raises(ParameterError) as caught:
        Hashed.calibrate(**{"k": 5, "eps_inf": 2.0, "eps_1": 0.6, **change})  # type: ignore[arg-type]
    assert caught.value.field == field


# --- the channel the collector debiases ----------------------------------------------------------


@pytest.mark.parametrize("k", [2, 3, 5])
def test_over_all_codes_supports_are_independent_bits(k: int) -> None:
    """Every code, every memo, every report: the law of the support vector of a device."""
    drawn = hashed(2.0, 0.6).as_drawn()
    channel = Hashed(k, drawn.cell)
    p1, _, p2, q2 = map(float, channel.exact)
    ps, qs = p1 * p2 + (1 - p1) * q2, 0.5
    chances = dict.fromkeys(range(1 << k), 0.0)
    for bits in range(1 << k):
        cell = bits >> (k - 1) & 1  # the device holds value 0
        for report in (0, 1):
            supported = bits if report else bits ^ ((1 << k) - 1)
            same = drawn.cell.ps if report == cell else 1 - drawn.cell.ps
            chances[supported] += same / (1 << k)
    for supported, chance in chances.items():
        own = ps if supported >> (k - 1) & 1 else 1 - ps
        assert chance == pytest.approx(own * qs ** (k - 1))


# --- codes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [2, 7, 8, 9, 100])
def test_a_code_is_the_first_k_bits_of_shake_128(k: int) -> None:
    bits = int.from_bytes(hashlib.shake_128(DIGEST + b"k7f3-0b2q").digest(32)) >> (256 - k)
    assert code(DIGEST, "k7f3-0b2q", k) == (bits << (-k % 8)).to_bytes((k + 7) // 8)
    assert BodyFormat(True, k).fault(code(DIGEST, "k7f3-0b2q", k)) is None


def test_a_code_as_other_implementations_must_find_it() -> None:
    assert code(DIGEST, "k7f3-0b2q", 20).hex() == "6dac90"


def test_codes_of_devices_and_campaigns_differ() -> None:
    codes = {code(d, name, 64) for d in (DIGEST, DIGEST[::-1]) for name in ("a", "b", "ab")}
    assert len(codes) == 6


@pytest.mark.parametrize("k", [2, 7, 8, 9])
def test_a_report_supports_the_code_or_its_complement(k: int) -> None:
    own, values = code(DIGEST, "a", k), BodyFormat(True, k)
    ones, zeros = (set(values.supported(support(own, bytes([y]), k))) for y in (1, 0))
    assert support(own, b"\x01", k) == own
    assert ones | zeros == set(range(k))
    assert ones & zeros == set()
    assert values.fault(support(own, b"\x00", k)) is None


def test_the_randomiser_reports_the_cell() -> None:
    h = hashed(2.0, 0.6)
    p1, _, p2, _ = thresholds(h.cell)
    own = bytes([0b01101000])
    tape = Tape(words(p1 - 1) + words(p2 - 1) + words(p2) + b"\x00")
    randomiser = HashedRandomiser(h, own, tape)
    assert [randomiser.key(i) for i in range(5)] == [0, 1, 1, 0, 1]
    memo = randomiser.memoize(randomiser.key(4))
    assert memo == b"\x01"
    assert randomiser.report(memo) == b"\x01"
    assert randomiser.report(memo) == b"\x00"
    with pytest.raises(IndexError):
        randomiser.key(5)


@pytest.mark.parametrize("wrong", [b"", b"\x00\x00", bytes([0b00000100])])
def test_a_code_that_does_not_fit(wrong: bytes) -> None:
    with pytest.raises(ParameterError, match="code"):
        HashedRandomiser(hashed(2.0, 0.6), wrong)


def test_devices_use_two_cells() -> None:
    three = Hashed.calibrate(k=5, eps_inf=2.0, eps_1=0.6, cells=3)
    with pytest.raises(ParameterError, match="cells"):
        HashedRandomiser(three, bytes([0]))
