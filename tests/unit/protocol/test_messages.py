"""Bodies: k bits or one index, the same length for every value, one form for every answer."""

from __future__ import annotations

import dataclasses
import re
import struct
import tracemalloc
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from protocol_spec import (
    OUTCOME_HELP,
    RESULT_SERIES,
    BodyFormat,
    Outcome,
    ReceiptPage,
    Rejected,
    Report,
    Result,
    decode_report,
    decode_result,
    digest8,
    report_fault,
)
from protocol_spec.limits import (
    MAX_CONTROL_BYTES,
    MAX_RECEIPT_BYTES,
    MAX_REPORT_BYTES,
    MAX_SIGNATURE_BYTES,
    MAX_THRESHOLDS_BYTES,
    PAGE_TAGS,
)
from tests.support.harness import every
from tests.support.protocol import message_cases, reference_wire, vectors
from tests.support.protocol.helpers import DECODERS, MANIFESTS
from tests.support.protocol.reference_wire import OUTCOMES

FORMATS = st.builds(BodyFormat, st.booleans(), st.integers(2, 4096))


@pytest.mark.parametrize(
    ("k", "length"), [(2, 1), (256, 1), (257, 2), (4096, 2), (65_536, 2), (65_537, 3)]
)
def test_an_index_takes_as_many_bytes_as_the_largest(k: int, length: int) -> None:
    assert BodyFormat(unary=False, k=k).length == length


@pytest.mark.parametrize(("k", "length"), [(2, 1), (8, 1), (9, 2), (16, 2), (17, 3), (4096, 512)])
def test_bits_take_an_eighth_of_a_byte_each(k: int, length: int) -> None:
    assert BodyFormat(unary=True, k=k).length == length


def test_value_0_is_the_highest_bit_of_the_first_byte() -> None:
    bits = BodyFormat(unary=True, k=10)
    assert bits.encode(0) == bytes([0b10000000, 0])
    assert bits.encode(7) == bytes([0b00000001, 0])
    assert bits.encode(8) == bytes([0, 0b10000000])
    assert bits.encode(9) == bytes([0, 0b01000000])


@given(FORMATS, st.data())
def test_an_answer_supports_what_it_was_made_for(form: BodyFormat, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, form.k - 1))
    body = form.encode(index)
    assert len(body) == form.length
    assert form.fault(body) is None
    assert form.supported(body) == [index]


@given(FORMATS, st.data())
def test_numbers_and_bodies_are_inverse(form: BodyFormat, data: st.DataObject) -> None:
    bound = 1 << form.k if form.unary else form.k
    number = data.draw(st.integers(0, bound - 1))
    assert form.to_number(form.from_number(number)) == number
    assert form.fault(form.from_number(number)) is None


@given(FORMATS, st.data())
def test_any_bytes_are_a_body_or_have_one_fault(form: BodyFormat, data: st.DataObject) -> None:
    body = data.draw(st.binary(max_size=8) | st.binary(min_size=form.length, max_size=form.length))
    if len(body) != form.length:
        assert form.fault(body) is Outcome.BAD_LENGTH
    elif form.fault(body) is None:
        assert form.from_number(form.to_number(body)) == body
        assert all(0 <= index < form.k for index in form.supported(body))
    else:
        expected = Outcome.BAD_PADDING if form.unary else Outcome.BAD_VALUE
        assert form.fault(body) is expected


@given(FORMATS, st.integers())
def test_an_index_outside_the_domain_has_no_body(form: BodyFormat, index: int) -> None:
    if not 0 <= index < form.k:
        with pytest.raises(IndexError):
            form.encode(index)


# --- R19, R20: any bytes are a message or a named reason, and every message has one form.


KINDS = sorted(DECODERS)
kinds = pytest.mark.parametrize("kind", KINDS)
EXAMPLES = tuple(message_cases.good())
GOOD = {kind: [payload for k, _, payload in EXAMPLES if k == kind] for kind in KINDS}


def check(kind: str, payload: bytes) -> None:
    """Decoded to something that encodes to the same bytes, or rejected; never an exception."""
    decoded = DECODERS[kind](payload)
    if isinstance(decoded, Rejected):
        assert decoded.outcome in (Outcome.MALFORMED, Outcome.OVERSIZE), kind
        assert decoded.detail, kind
    else:
        assert decoded.encode() == payload, kind


@settings(max_examples=200)
@given(st.binary(max_size=600))
@example(b"")
def test_any_bytes(payload: bytes) -> None:
    """Of each kind: making up the bytes takes more time than reading them eight times."""
    for kind in KINDS:
        check(kind, payload)


@kinds
def test_every_cut_and_every_extension_of_a_good_message(kind: str) -> None:
    for payload in GOOD[kind]:
        step = 1 + len(payload) // 300
        for length in range(0, len(payload), step):
            assert isinstance(DECODERS[kind](payload[:length]), Rejected)
        for tail in (b"\x00", b"\xc0", payload):
            assert isinstance(DECODERS[kind](payload + tail), Rejected)


@kinds
def test_every_single_byte_changed(kind: str) -> None:
    payload = min(GOOD[kind], key=len)
    for place in range(min(len(payload), 50)):
        for byte in range(256):
            check(kind, payload[:place] + bytes([byte]) + payload[place + 1 :])


LIMITS = {
    "report": MAX_REPORT_BYTES,
    "signature": MAX_SIGNATURE_BYTES,
    "thresholds": MAX_THRESHOLDS_BYTES,
    "state": MAX_CONTROL_BYTES,
    "receipts": MAX_RECEIPT_BYTES,
    "request": MAX_CONTROL_BYTES,
    "response": MAX_CONTROL_BYTES,
    "result": 1 << 20,
}


@kinds
def test_length_is_looked_at_before_anything_else(kind: str) -> None:
    for filling in (b"\x00", b"\xc1", b"\x91"):
        at_limit = DECODERS[kind](filling * LIMITS[kind])
        above = DECODERS[kind](filling * (LIMITS[kind] + 1))
        assert (at_limit.outcome, above.outcome) == (Outcome.MALFORMED, Outcome.OVERSIZE)


def test_the_largest_report_and_page_fit() -> None:
    report = Report(b"\xff" * 8, 65_535, 127, b"\xff" * 513)
    assert len(report.encode()) <= MAX_REPORT_BYTES
    assert DECODERS["report"](report.encode()) == report
    tags = frozenset(i.to_bytes(4) for i in range(PAGE_TAGS))
    page = ReceiptPage(b"\xff" * 8, 65_535, 65_535, tags)
    assert len(page.encode()) == MAX_RECEIPT_BYTES
    assert DECODERS["receipts"](page.encode()) == page


def hostile() -> Iterator[bytes]:
    """Small payloads that claim, or nest, as much as msgpack allows."""
    for header in message_cases.FOUR_GB.values():
        yield header
        yield b"\x95\x01" + header
        yield b"\x95\x01\xc4\x08" + bytes(8) + header
        yield header * 100
    for nest in (b"\x91", b"\x81\xa0", b"\xdc\x00\x01", b"\xdd\x00\x00\x00\x01"):
        yield (nest * 600)[:MAX_REPORT_BYTES]
    yield b"\xdc\x02\x00" + b"\x90" * 512


@kinds
def test_hostile_headers_cost_no_memory(kind: str) -> None:
    """R19: less than 1 MB beyond what was there."""
    payloads = list(hostile())
    assert all(isinstance(DECODERS[kind](payload), Rejected) for payload in payloads)
    tracemalloc.start()
    try:
        for payload in payloads:
            DECODERS[kind](payload)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


def test_a_page_lists_its_tags_in_order() -> None:
    tags = frozenset({b"\xff\xff\xff\xff", b"\x00\x00\x00\x01", b"\x80\x00\x00\x00"})
    payload = ReceiptPage(bytes(8), 0, 0, tags).encode()
    assert payload.endswith(b"\x00\x00\x00\x01\x80\x00\x00\x00\xff\xff\xff\xff")


def test_a_report_is_no_larger_than_it_must_be() -> None:
    """L-GRR at most 20 bytes, L-UE at most 20 and a bit for each value."""
    assert len(Report(bytes(8), 65_535, 127, bytes(2)).encode()) <= 20
    assert len(Report(bytes(8), 65_535, 127, bytes(512)).encode()) <= 20 + 512


# --- Every published message decodes to its fields, or is rejected with its published outcome.


VECTORS = vectors.load("messages.json")
DIGEST8 = bytes.fromhex(VECTORS["digest8"])


def plain(value: Any) -> Any:
    """A decoded part of a message as JSON writes it."""
    if isinstance(value, bytes):
        return value.hex()
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if dataclasses.is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value


@pytest.mark.parametrize("entry", VECTORS["good"], ids=lambda e: e["kind"])
def test_good_messages(entry: dict[str, Any]) -> None:
    kind, wanted, payload = entry["kind"], dict(entry["fields"]), bytes.fromhex(entry["hex"])
    decoded = DECODERS[kind](payload)
    assert decoded.encode() == payload
    if kind != "result":
        name = wanted.pop("manifest", None)
        digest = DIGEST8 if name is None else digest8(MANIFESTS[name])
        assert decoded.digest8 == digest
        assert [tag.hex() for tag in getattr(decoded, "tags", ())] == wanted.pop("tags", [])
    else:
        wanted["outcomes"] = dict.fromkeys(Outcome, 0) | wanted["outcomes"]
        numbers = wanted["numbers"] or {"quantiles": []}
        names = ("tau", "value", "low", "high")
        numbers["quantiles"] = [dict(zip(names, row)) for row in numbers["quantiles"]]
    assert {name: plain(getattr(decoded, name)) for name in wanted} == wanted


@every("entry", VECTORS["bad"], ids=lambda e: f"{e['kind']}-{e['why']}")
def test_bad_messages(entry: dict[str, Any]) -> None:
    decoded = DECODERS[entry["kind"]](bytes.fromhex(entry["hex"]))
    assert isinstance(decoded, Rejected)
    assert decoded.outcome == entry["outcome"]
    assert decoded.detail


@every("entry", VECTORS["unfit"], ids=lambda e: f"{e['manifest']}-{e['why']}")
def test_reports_that_do_not_fit_the_campaign(entry: dict[str, Any]) -> None:
    report = decode_report(bytes.fromhex(entry["hex"]))
    assert isinstance(report, Report)
    fault = report_fault(report, MANIFESTS[entry["manifest"]])
    assert fault is not None
    assert fault.outcome == entry["outcome"]


def test_no_detail_shows_a_body() -> None:
    """R23: what a report says is nobody's business, least of all a log's."""
    body = b"\xde\xad\xbe\xef"
    for manifest in MANIFESTS.values():
        for attribute in range(9):
            report = Report(digest8(manifest), 0, attribute, body)
            fault = report_fault(report, manifest)
            assert fault is not None
            assert not any(t in fault.detail.lower() for t in ("dead", "\\xde", "3735928559"))


# --- R20, R27: a histogram's message keeps every field, and is withheld rather than thin.


@pytest.mark.parametrize(("n_eff", "withheld"), [(199.99999999999997, True), (200.0, False)])
def test_it_is_the_effective_number_of_devices_that_decides(n_eff: float, withheld: bool) -> None:
    fields = {**message_cases.RESULTS["pooled"], "n_eff": n_eff}
    shown = decode_result(reference_wire.result(fields))
    empty: dict[str, Any] = {name: [] for name in ("counts", *RESULT_SERIES)}
    hidden = {**fields, **empty, "device_bound": 0.0, "difference": None, "numbers": None}
    kept_back = decode_result(reference_wire.result(hidden))
    assert isinstance(shown, Rejected) == withheld
    assert isinstance(kept_back, Rejected) != withheld


def named() -> Result:
    found = decode_result(reference_wire.result(message_cases.RESULTS["named values"]))
    assert isinstance(found, Result)
    return found


def test_every_outcome_is_written_even_when_not_counted() -> None:
    decoded = decode_result(replace(named(), outcomes={Outcome.ACCEPTED: 5}).encode())
    assert isinstance(decoded, Result)
    assert decoded.outcomes == {**dict.fromkeys(Outcome, 0), Outcome.ACCEPTED: 5}


PAYLOAD = reference_wire.result(message_cases.ROUND)
OTHER_BYTES = {
    "an integer in more bytes": (b"\xa1v\x01", b"\xa1v\xcc\x01"),
    "text with a longer header": (b"\xa6rounds", b"\xd9\x06rounds"),
    "bytes with a longer header": (b"digest\xc4\x20", b"digest\xc5\x00\x20"),
    "a list with a longer header": (b"counts\x93", b"counts\xdc\x00\x03"),
    "a float32": (b"\xcb" + struct.pack(">d", 0.5), b"\xca" + struct.pack(">f", 0.5)),
}


@pytest.mark.parametrize("why", OTHER_BYTES)
def test_only_the_canonical_encoding_is_read(why: str) -> None:
    """Else two messages with different bytes would be the same result."""
    payload = PAYLOAD.replace(*OTHER_BYTES[why], 1)
    assert payload != PAYLOAD
    refused = Rejected(Outcome.MALFORMED, "not the canonical encoding")
    assert decode_result(payload) == refused


@pytest.mark.parametrize("k", [4096, 4097])
def test_as_many_values_as_a_manifest_may_have(k: int) -> None:
    series: dict[str, Any] = dict.fromkeys(RESULT_SERIES, (0.1,) * k)
    result = replace(named(), counts=((1 << 63) - 1,) * k, **series)
    decoded = decode_result(result.encode())
    assert decoded == result if k <= 4096 else isinstance(decoded, Rejected)


# --- Outcomes: a closed list of stable names, each explained, each a name for a counter.


def test_the_list_is_closed_and_in_its_order() -> None:
    """The order is on the wire: results carry the counters in it."""
    assert tuple(map(str, Outcome)) == OUTCOMES


def test_each_is_explained() -> None:
    assert list(OUTCOME_HELP) == list(Outcome)
    for text in OUTCOME_HELP.values():
        assert text.isprintable()
        assert text == text.strip()
        assert not text.endswith(".")
        assert len(text) <= 80
    assert len(set(OUTCOME_HELP.values())) == len(OUTCOME_HELP)


def test_names_serve_as_metric_labels_and_json_keys() -> None:
    for outcome in Outcome:
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", outcome)
        assert f"{outcome}" == outcome.value
        assert outcome.name == outcome.value.upper()
