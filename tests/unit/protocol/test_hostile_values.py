"""Values that no honest party sends: each gets its named refusal, never another exception."""

from __future__ import annotations

import pytest

from protocol_spec import (
    Attribute,
    Manifest,
    ManifestError,
    ParameterError,
    ReceiptPage,
    Schedule,
    UnknownValue,
    calibrate,
    calibrate_once,
    decode_receipts,
    largest_shift,
    spending,
)
from protocol_spec.estimation import critical_value, estimate, estimate_pooled
from tests.support.protocol.manifest_cases import PLAIN_TOML


def test_nesting_beyond_all_reason_in_a_retained_manifest() -> None:
    with pytest.raises(ManifestError):
        Manifest.from_bytes(b"\x81\xa4slug" + b"\x91" * 1000 + b"\x01")


@pytest.mark.parametrize("text", ["x = " + "9" * 5000, "x = " + "[" * 5000])
def test_toml_beyond_all_reason(text: str) -> None:
    with pytest.raises(ManifestError, match="is not TOML"):
        Manifest.from_toml(text)


def test_a_budget_that_is_wrong_for_every_protocol_is_named_as_the_budget() -> None:
    text = PLAIN_TOML.replace("values =", 'protocol = "L-OUE"\nvalues =')
    with pytest.raises(ManifestError) as refused:
        Manifest.from_toml(text.replace("eps_1 = ", "eps_1 = 19.0 #"))
    assert [problem.field for problem in refused.value.problems] == ["eps_1"]


@pytest.mark.parametrize("value", [10**400, True, "1e999x", None])
def test_a_number_that_is_none_is_an_unknown_value(value: object) -> None:
    attribute = Attribute("warm", "How warm?", ("cold", "hot"), (0.0, 20.0, 40.0))
    with pytest.raises(UnknownValue):
        attribute.index_of(value)


def test_an_epsilon_larger_than_any_float() -> None:
    with pytest.raises(ParameterError, match="eps_inf"):
        calibrate("L-GRR", k=3, eps_inf=10**400, eps_1=1.0)


def test_no_report_spends_nothing_whatever_the_protocol() -> None:
    at_the_limit = calibrate("L-SOUE", k=3, eps_inf=20.0, eps_1=10.69307908452972)
    for calibration in (at_the_limit, calibrate_once("GRR", k=3, epsilon=1.0)):
        assert calibration.epsilon_after(0) == 0.0
    assert spending(at_the_limit, [0]).exact == 0.0


def test_a_shift_beyond_words() -> None:
    assert largest_shift(1000.0) == "without a useful bound"
    assert largest_shift(9.5) == "by at most 13,360"


def test_the_end_of_time_is_in_no_round() -> None:
    assert Schedule(0, 1, 10, 0).round_at(float("inf")) is None


def test_nonsense_for_an_estimate() -> None:
    calibration = calibrate("L-GRR", k=2, eps_inf=2.0, eps_1=1.0)
    with pytest.raises(ParameterError, match="counts = 11"):
        estimate([11, 0], 10, calibration)
    with pytest.raises(ParameterError, match="comparisons"):
        critical_value(0.95, 0)
    with pytest.raises(ParameterError, match="reports"):
        estimate_pooled([[1, 1]], [float("nan")], [2], calibration)


def test_a_page_of_receipts_is_a_set_and_stays_as_small_as_its_bytes() -> None:
    tags = [i.to_bytes(4) for i in range(0, 90_000, 3)]
    page = decode_receipts(ReceiptPage(bytes(8), 0, 0, frozenset(tags)).encode())
    assert isinstance(page, ReceiptPage)
    assert len(page.tags) == len(tags)
    assert list(page.tags) == tags
    assert (3).to_bytes(4) in page.tags
    assert (4).to_bytes(4) not in page.tags
    assert page.tags == frozenset(tags)
    assert page.tags & {tags[7], b"none"} == {tags[7]}
