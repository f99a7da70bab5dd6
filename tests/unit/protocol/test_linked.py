"""Linked tables: unbiased for every frequency, and best where they were designed to be."""

from __future__ import annotations

import math

import pytest

from protocol_spec import Calibration, ParameterError, as_drawn, calibrate, calibrate_once
from protocol_spec.estimation import LinkedTable, linked_table

UNARY = ("L-OUE", "L-SUE", "L-OSUE", "L-SOUE")


def chances(c: Calibration, holds: bool, m: int) -> list[float]:
    kept = c.p1 if holds else c.q1
    return [
        math.comb(m, s)
        * (kept * c.p2**s * (1 - c.p2) ** (m - s) + (1 - kept) * c.q2**s * (1 - c.q2) ** (m - s))
        for s in range(m + 1)
    ]


def moments(table: LinkedTable, law: list[float]) -> tuple[float, float]:
    """Mean and variance of one device's contribution."""
    parts = [(g - table.memo_absent) / table.memo_gap for g in table.table]
    mean = math.fsum(p * z for p, z in zip(law, parts))
    return mean, math.fsum(p * (z - mean) ** 2 for p, z in zip(law, parts))


@pytest.mark.parametrize("designed_at", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("m", [1, 2, 7])
@pytest.mark.parametrize("protocol", UNARY)
def test_unbiased_with_the_variance_stated(protocol: str, m: int, designed_at: float) -> None:
    c = as_drawn(calibrate(protocol, k=4, eps_inf=2.0, eps_1=0.6))
    table = linked_table(c, m, designed_at)
    for holds in (False, True):
        mean, variance = moments(table, chances(c, holds, m))
        assert mean == pytest.approx(float(holds), abs=1e-10)
        assert variance == pytest.approx(table.variance[holds], rel=1e-9)


@pytest.mark.parametrize("m", [2, 5, 20])
def test_no_worse_than_counting_reports_where_it_was_designed(m: int) -> None:
    c = calibrate("L-OSUE", k=4, eps_inf=2.0, eps_1=0.6)
    assert linked_table(c, m).variance[0] < c.device_variance(False, m)
    f = 0.4
    at, zero = (linked_table(c, m, designed).variance for designed in (f, 0.0))
    assert (1 - f) * at[0] + f * at[1] < (1 - f) * zero[0] + f * zero[1]


def test_one_report_leaves_nothing_to_choose() -> None:
    c = calibrate("L-OSUE", k=4, eps_inf=2.0, eps_1=0.6)
    assert linked_table(c, 1).variance[0] == pytest.approx(c.device_variance(False))


def test_many_reports_tell_the_memo() -> None:
    c = calibrate("L-OSUE", k=4, eps_inf=2.0, eps_1=0.6)
    between, _ = c.device_noise(False)
    assert linked_table(c, 400).variance[0] == pytest.approx(between, rel=1e-3)


def test_a_memo_reported_as_it_is() -> None:
    table = linked_table(calibrate_once("OUE", k=4, epsilon=1.0), 2)
    assert (table.table[0], table.table[2]) == pytest.approx((0.0, 1.0))


def test_the_frequency_of_devices() -> None:
    c = calibrate("L-OSUE", k=4, eps_inf=2.0, eps_1=0.6)
    table, m = linked_table(c, 3), 10**9
    held, absent = (chances(c, holds, 3) for holds in (True, False))
    devices = [round(m * (0.3 * h + 0.7 * a)) for h, a in zip(held, absent)]
    assert table.frequency(devices) == pytest.approx(0.3, abs=1e-7)


@pytest.mark.parametrize(
    ("protocol", "reports", "designed_at", "field"),
    [
        ("L-GRR", 3, 0.0, "protocol"),
        ("L-OSUE", 0, 0.0, "reports"),
        ("L-OSUE", 3, 1.5, "designed_at"),
    ],
)
def test_refused(protocol: str, reports: int, designed_at: float, field: str) -> None:
    c = calibrate(protocol, k=4, eps_inf=2.0, eps_1=0.6)
    with pytest.raises(ParameterError) as caught:
        linked_table(c, reports, designed_at)
    assert caught.value.field == field
