"""A10: foreign text is shown escaped and short."""

from __future__ import annotations

import sys
import unicodedata
from datetime import UTC, datetime

import pytest

from protocol_spec import (
    Manifest,
    ManifestError,
    ParameterError,
    Problem,
    ReceiptPage,
    calibrate,
    calibrate_once,
    decode_receipts,
    spending,
)
from protocol_spec.errors import escaped, quoted, shown
from tests.support.hostile import HOSTILE, hidden_in


def test_nothing_that_unicode_calls_a_control_or_format_is_left() -> None:
    """Every code point, but those of scripts that cannot be read without them."""
    # Signs before Arabic numbers, and hieroglyphs, musical and shorthand controls of this Python's
    # database that Unicode does not call ignorable: they are seen.
    seen = {"ARABIC", "SYRIAC", "KAITHI", "EGYPTIAN", "INTERLINEAR"}
    left = {
        c
        for c in map(chr, range(sys.maxunicode + 1))
        if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and escaped(c) == c
    }
    assert {unicodedata.name(c).split()[0] for c in left} <= seen


def test_letters_of_all_scripts_stay() -> None:
    text = "Wärmepumpe, теплова помпа, 热泵, مضخة حرارية, हीट पंप, π ≈ 3 °C"
    assert shown(text) == text


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text(text: str) -> None:
    told = shown(text)
    assert not hidden_in(told)
    assert "\n" not in told
    assert len(told) <= 220
    assert told.startswith((text[:1], "\\u{"))


def test_what_is_left_out_is_counted() -> None:
    assert shown("x" * 250) == "x" * 200 + "… (50 more)"
    assert shown("\x1b" * 4, 12) == "\\u{1b}\\u{1b}… (2 more)"
    assert shown("\x1b\n") == "\\u{1b}\\u{a}"
    assert shown("") == ""


def test_other_things_than_text() -> None:
    nested: object = "\x1b"
    for _ in range(5000):
        nested = [nested]
    assert len(quoted(nested)) < 100
    assert quoted(["\x1b"]) == "['\\x1b']"
    assert quoted(1 << 100_000) == "a number of very many digits"
    assert quoted(datetime(2027, 1, 1, tzinfo=UTC)) == "2027-01-01 00:00:00+00:00"


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_errors_quote_it_so(text: str) -> None:
    many = ManifestError([Problem(text, text, text)] * 1000)
    for told in map(str, (ParameterError("k", text, "no"), many)):
        assert not hidden_in(told)
        assert len(told) < 10_000
    assert len(many.problems) == 1000
    assert str(many).endswith("and 988 more problems")


# --- Values that no honest party sends: each gets its named refusal, never another exception.


def test_nesting_beyond_all_reason_in_a_retained_manifest() -> None:
    with pytest.raises(ManifestError):
        Manifest.from_bytes(b"\x81\xa4slug" + b"\x91" * 1000 + b"\x01")


@pytest.mark.parametrize("text", ["x = " + "9" * 5000, "x = " + "[" * 5000])
def test_toml_beyond_all_reason(text: str) -> None:
    with pytest.raises(ManifestError, match="is not TOML"):
        Manifest.from_toml(text)


def test_no_report_spends_nothing_whatever_the_protocol() -> None:
    at_the_limit = calibrate("L-SOUE", k=3, eps_inf=20.0, eps_1=10.69307908452972)
    for calibration in (at_the_limit, calibrate_once("GRR", k=3, epsilon=1.0)):
        assert calibration.epsilon_after(0) == 0.0
    assert spending(at_the_limit, [0]).exact == 0.0


def test_a_page_of_receipts_is_a_set_and_stays_as_small_as_its_bytes() -> None:
    tags = [i.to_bytes(4) for i in range(0, 1_200, 3)]
    page = decode_receipts(ReceiptPage(bytes(8), 0, 0, frozenset(tags)).encode())
    assert isinstance(page, ReceiptPage)
    assert len(page.tags) == len(tags)
    assert list(page.tags) == tags
    assert (3).to_bytes(4) in page.tags
    assert (4).to_bytes(4) not in page.tags
    assert page.tags == frozenset(tags)
    assert page.tags & {tags[7], b"none"} == {tags[7]}
