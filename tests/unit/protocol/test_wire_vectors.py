"""Every published message decodes to its fields, or is rejected with its published outcome."""

from __future__ import annotations

from typing import Any

import pytest

from protocol_spec import (
    RESULT_SERIES,
    HalfWidths,
    Numbers,
    Outcome,
    Presence,
    PublishedThresholds,
    ReceiptPage,
    Rejected,
    Report,
    Request,
    RequestKind,
    Response,
    ResponseStatus,
    Result,
    ResultQuantile,
    Signature,
    State,
    decode_report,
    digest8,
    report_fault,
)
from tests.support.harness import every
from tests.support.protocol import vectors
from tests.support.protocol.decoders import DECODERS, MANIFESTS

VECTORS = vectors.load("messages.json")
DIGEST8 = bytes.fromhex(VECTORS["digest8"])


def message(kind: str, fields: dict[str, Any]) -> Any:
    """The message that the fields of a vector describe."""
    if kind == "report":
        digest = digest8(MANIFESTS[fields["manifest"]])
        return Report(digest, fields["round"], fields["attribute"], bytes.fromhex(fields["body"]))
    if kind in ("signature", "thresholds", "state"):
        return _for_all(kind, fields)
    if kind == "receipts":
        tags = frozenset(map(bytes.fromhex, fields["tags"]))
        return ReceiptPage(DIGEST8, fields["round"], fields["page"], tags)
    if kind == "result":
        return result(fields)
    head = (DIGEST8, RequestKind(fields["kind"]), bytes.fromhex(fields["nonce"]))
    if kind == "request":
        return Request(*head)
    return Response(*head, ResponseStatus(fields["status"]), fields["rounds"])


def _for_all(kind: str, fields: dict[str, Any]) -> Signature | PublishedThresholds | State:
    if kind == "thresholds":
        parts = (bytes.fromhex(fields[name]) for name in ("protocols", "steps"))
        return PublishedThresholds(DIGEST8, *parts)
    if kind == "signature":
        return Signature(DIGEST8, bytes.fromhex(fields["signature"]))
    return State(DIGEST8, Presence(fields["presence"]), fields["last_sealed"])


def result(fields: dict[str, Any]) -> Result:
    said = dict(fields)
    said |= {name: tuple(fields[name]) for name in ("counts", *RESULT_SERIES)}
    said["outcomes"] = {outcome: fields["outcomes"].get(outcome, 0) for outcome in Outcome}
    said["digest"] = bytes.fromhex(fields["digest"])
    if said["difference"]:
        said["difference"] = HalfWidths(**said["difference"])
    if said["numbers"]:
        lists = {name: tuple(said["numbers"][name]) for name in ("cdf", "cdf_low", "cdf_high")}
        quantiles = tuple(ResultQuantile(*row) for row in said["numbers"]["quantiles"])
        said["numbers"] = Numbers(**{**said["numbers"], **lists, "quantiles": quantiles})
    return Result(**said)


@pytest.mark.parametrize("entry", VECTORS["good"], ids=lambda e: e["kind"])
def test_good_messages(entry: dict[str, Any]) -> None:
    expected, payload = message(entry["kind"], entry["fields"]), bytes.fromhex(entry["hex"])
    assert DECODERS[entry["kind"]](payload) == expected
    assert expected.encode() == payload


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


@pytest.mark.parametrize("entry", [e for e in VECTORS["good"] if "manifest" in e["fields"]])
def test_reports_that_fit_their_campaign(entry: dict[str, Any]) -> None:
    report = decode_report(bytes.fromhex(entry["hex"]))
    assert isinstance(report, Report)
    manifest = MANIFESTS[entry["fields"]["manifest"]]
    fault = report_fault(report, manifest)
    if fault is None:
        assert len(report.body) == manifest.body_bytes
    else:  # at the limits of the format, and of no campaign
        assert fault.outcome in (Outcome.BAD_ATTRIBUTE, Outcome.BAD_LENGTH)


def test_no_detail_shows_a_body() -> None:
    """R23: what a report says is nobody's business, least of all a log's."""
    body = b"\xde\xad\xbe\xef"
    for manifest in MANIFESTS.values():
        for attribute in range(9):
            report = Report(digest8(manifest), 0, attribute, body)
            fault = report_fault(report, manifest)
            assert fault is not None
            assert not any(t in fault.detail.lower() for t in ("dead", "\\xde", "3735928559"))
