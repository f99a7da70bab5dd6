"""Counts that cannot be are refused by name; none is quietly turned into a histogram."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from protocol_spec import ParameterError, calibrate
from protocol_spec.estimation import critical_value, estimate, estimate_pooled

C = calibrate("L-OSUE", k=3, eps_inf=2.0, eps_1=0.6)


@pytest.mark.parametrize(
    ("counts", "n", "fleet", "field"),
    [
        ([1, 2], 5, None, "counts"),
        ([1, 2, 3, 4], 5, None, "counts"),
        (3, 5, None, "counts"),
        ([1, 2, -1], 5, None, "counts"),
        ([1.0, 2.0, 3.0], 5, None, "counts"),
        ([1, 2, math.nan], 5, None, "counts"),
        (["1", "2", "3"], 5, None, "counts"),
        ([True, False, True], 5, None, "counts"),
        ([1, 2, 6], 5, None, "counts"),
        ([0, 0, 0], 0, None, "n"),
        ([0, 0, 0], -1, None, "n"),
        ([1, 2, 3], 5, 4, "fleet"),
    ],
)
def test_one_round(counts: Any, n: int, fleet: int | None, field: str) -> None:
    with pytest.raises(ParameterError) as caught:
        estimate(counts, n, C, fleet=fleet)
    assert caught.value.field == field
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"reports": [0, 2]}, "reports"),
        ({"reports": [1]}, "reports"),
        ({"reports": [[1, 2]], "devices": [[1, 2]]}, "reports"),
        ({"devices": [-1, 2]}, "reports"),
        ({"devices": [0, 0]}, "reports"),
        ({"counts": [[1, 2, 3]]}, "counts"),
        ({"counts": [[1, 2], [3, 4]]}, "counts"),
        ({"counts": [[1, 2, 3], [1, 2, -3]]}, "counts"),
        ({"weights": "best"}, "weights"),
        ({"fleet": 14}, "fleet"),
    ],
)
def test_pooled(change: dict[str, Any], field: str) -> None:
    good: dict[str, Any] = {
        "counts": [[1, 2, 3], [4, 5, 6]],
        "reports": [1, 2],
        "devices": [5, 10],
    }
    estimate_pooled(**good, calibration=C)
    with pytest.raises(ParameterError) as caught:
        estimate_pooled(**{**good, **change}, calibration=C)
    assert caught.value.field == field


@pytest.mark.parametrize("confidence", [0.0, 1.0, -0.5, 95, math.nan])
def test_confidence(confidence: float) -> None:
    with pytest.raises(ParameterError, match="confidence"):
        critical_value(confidence)
    with pytest.raises(ParameterError, match="confidence"):
        estimate([1, 2, 3], 5, C).interval(confidence)


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.int32, np.uint32, np.int64])
def test_counts_of_any_integer_type(kind: type[np.signedinteger[Any]]) -> None:
    wide = estimate([100, 120, 90], 200, C)
    narrow = estimate(np.array([100, 120, 90], dtype=kind), 200, C)
    np.testing.assert_array_equal(wide.raw, narrow.raw)
