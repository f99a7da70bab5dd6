"""Every published message decodes to its fields, or is rejected with its published outcome."""

from __future__ import annotations

from typing import Any

import pytest

from protocol_spec import (
    RESULT_SERIES,
    Outcome,
    Presence,
    ReceiptPage,
    Rejected,
    Report,
    Request,
    RequestKind,
    Response,
    ResponseStatus,
    Result,
    State,
    decode_report,
    digest8,
    report_fault,
)
from tests.support.protocol import vectors
from tests.support.protocol.decoders import DECODERS, fleet

VECTORS = vectors.load("messages.json")
DIGEST8 = bytes.fromhex(VECTORS["digest8"])


def message(kind: str, fields: dict[str, Any]) -> Any:
    """The message that the fields of a vector describe."""
    if kind == "report":
        return Report(DIGEST8, fields["round"], fields["attribute"], bytes.fromhex(fields["body"]))
    if kind == "state":
        return State(DIGEST8, Presence(fields["presence"]), fields["last_sealed"])
    if kind == "receipts":
        tags = frozenset(map(bytes.fromhex, fields["tags"]))
        return ReceiptPage(DIGEST8, fields["round"], fields["page"], tags)
    if kind == "result":
        return result(fields)
    head = (DIGEST8, RequestKind(fields["kind"]), bytes.fromhex(fields["nonce"]))
    if kind == "request":
        return Request(*head)
    return Response(*head, ResponseStatus(fields["status"]), fields["rounds"])


def result(fields: dict[str, Any]) -> Result:
    series = {name: tuple(fields[name]) for name in ("counts", *RESULT_SERIES)}
    counters = {outcome: fields["outcomes"].get(outcome, 0) for outcome in Outcome}
    digest = bytes.fromhex(fields["digest"])
    return Result(**{**fields, **series, "digest": digest, "outcomes": counters})


@pytest.mark.parametrize("entry", VECTORS["good"], ids=lambda e: e["kind"])
def test_good_messages(entry: dict[str, Any]) -> None:
    expected, payload = message(entry["kind"], entry["fields"]), bytes.fromhex(entry["hex"])
    assert DECODERS[entry["kind"]](payload) == expected
    assert expected.encode() == payload


@pytest.mark.parametrize("entry", VECTORS["bad"], ids=lambda e: f"{e['kind']}-{e['why']}")
def test_bad_messages(entry: dict[str, Any]) -> None:
    decoded = DECODERS[entry["kind"]](bytes.fromhex(entry["hex"]))
    assert isinstance(decoded, Rejected)
    assert decoded.outcome == entry["outcome"]
    assert decoded.detail


@pytest.mark.parametrize("entry", VECTORS["unfit"], ids=lambda e: e["why"])
def test_reports_that_do_not_fit_the_campaign(entry: dict[str, Any]) -> None:
    report = decode_report(bytes.fromhex(entry["hex"]))
    assert isinstance(report, Report)
    fault = report_fault(report, fleet())
    assert fault is not None
    assert fault.outcome == entry["outcome"]


def test_reports_that_fit_the_campaign() -> None:
    manifest = fleet()
    assert digest8(manifest) == DIGEST8
    for attribute, body in enumerate(
        (b"\x02", b"\xf0", b"\x01\x2b", b"\xff\xc0", b"\x07", b"\xff")
    ):
        assert report_fault(Report(DIGEST8, 0, attribute, body), manifest) is None


def test_no_detail_shows_a_body() -> None:
    """R23: what a report says is nobody's business, least of all a log's."""
    body = b"\xde\xad\xbe\xef"
    manifest = fleet()
    for attribute in range(9):
        fault = report_fault(Report(DIGEST8, 0, attribute, body), manifest)
        assert fault is not None
        assert not any(text in fault.detail.lower() for text in ("dead", "\\xde", "3735928559"))
