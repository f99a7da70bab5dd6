"""The examples of the specification: bytes that decode, and numbers that follow from them."""

from __future__ import annotations

import hashlib
import json
import math
import re
from itertools import pairwise

import pytest

from protocol_spec import (
    Manifest,
    Randomiser,
    Rejected,
    Report,
    Result,
    as_drawn,
    decode_receipts,
    decode_report,
    decode_request,
    decode_response,
    decode_result,
    decode_signature,
    decode_state,
    decode_thresholds,
    digest8,
    receipt_page,
    receipt_tag,
    report_fault,
)
from protocol_spec.estimation import effective_devices, estimate_pooled, half_widths
from tests.support.protocol.asyncapi import COMPONENTS, SCHEMAS, fits
from tests.support.protocol.specification import DEVICE, MANIFEST, TEXT, fence, hex_of, rows

DECODERS = {
    "report": decode_report,
    "signature": decode_signature,
    "thresholds": decode_thresholds,
    "state": decode_state,
    "receipt": decode_receipts,
    "request": decode_request,
    "response": decode_response,
    "result": decode_result,
}


def test_the_manifests_bytes_digest_and_name_are_as_shown() -> None:
    shown = hex_of("manifest")
    assert Manifest.from_bytes(shown) == MANIFEST
    assert rows("of the example", "is") == [
        ["digest", f"`{hashlib.sha256(shown).hexdigest()}`"],
        ["campaign", f"`{MANIFEST.campaign}`"],
    ]


def test_every_message_has_an_example() -> None:
    shown = re.findall(r"^```hex (\w+)$", TEXT, re.M)
    assert sorted(shown) == sorted(["manifest", *DECODERS])
    assert sorted([*shown, "resultJson"]) == sorted(COMPONENTS["messages"])
    assert list(json.loads(fence("json"))) == SCHEMAS["resultJson"]["required"]


@pytest.mark.parametrize("name", DECODERS)
def test_an_example_decodes_and_belongs_to_the_example_campaign(name: str) -> None:
    message = DECODERS[name](hex_of(name))
    assert not isinstance(message, Rejected)
    assert message.encode() == hex_of(name)
    if isinstance(message, Result):
        assert message.digest == MANIFEST.digest
    else:
        assert message.digest8 == digest8(MANIFEST)


def test_the_report_shown_fits_the_manifest_shown() -> None:
    report = decode_report(hex_of("report"))
    assert isinstance(report, Report)
    assert report_fault(report, MANIFEST) is None
    counted = MANIFEST.mechanisms[report.attribute].supported(report.body, DEVICE)
    assert MANIFEST.body_formats[report.attribute].supported(counted.body) == [3]
    assert "body: value 3 of 4, and a zero behind it" in TEXT


def test_page_and_tag_are_as_shown() -> None:
    page, tag = receipt_page(MANIFEST, DEVICE), receipt_tag(MANIFEST, 3, DEVICE)
    assert f"the device `{DEVICE}`" in TEXT
    assert f"in round 3: page {page}, tag `{tag.hex()}`" in TEXT


def test_the_draw_shown_gives_the_memo_shown() -> None:
    [(drawn, memo)] = re.findall(
        r"`([0-9a-f]+)` makes, of the value 1 of colour, the memo `(\w+)`", TEXT
    )
    left = bytearray.fromhex(drawn)

    def entropy(size: int) -> bytes:
        taken = bytes(left[:size])
        del left[:size]
        return taken

    assert Randomiser(MANIFEST.calibrations[0], entropy).memoize(1).hex() == memo
    assert not left


def test_the_result_in_json_is_what_the_counts_make() -> None:
    """Two rounds of three devices: 3, 2, 1 and 0 of the six reports support the four values."""
    shown = json.loads(fence("json"))
    assert fits(shown, SCHEMAS["resultJson"])
    counts = [row["count"] for row in shown["histogram"]]
    drawn = as_drawn(MANIFEST.calibrations[0])
    estimated = estimate_pooled(counts, [2], [3], drawn, weights="reports")
    low, high = estimated.interval(shown["confidence"])
    low_all, high_all = estimated.interval(shown["confidence"], simultaneous=True)
    series = {"raw": estimated.raw, "projected": estimated.projected, "low": low, "high": high}
    for name, found in {**series, "low_all": low_all, "high_all": high_all}.items():
        assert [row[name] for row in shown["histogram"]] == pytest.approx(found.tolist()), name
    assert [row["value"] for row in shown["histogram"]] == list(MANIFEST.attributes[0].values)
    assert shown["n_eff"] == effective_devices([2], [3]) == 3.0
    assert shown["difference"] == pytest.approx(half_widths(estimated)._asdict())
    assert (shown["campaign"], shown["digest"]) == (MANIFEST.campaign, MANIFEST.digest.hex())
    assert shown["device_bound"] == pytest.approx(2 / (6 * drawn.gap))


def test_bins_are_as_said() -> None:
    """M9: a bin includes its lower edge, the last one a finite last edge as well."""
    heat = MANIFEST.attributes[1]
    assert heat.edges is not None
    for i, (low, high) in enumerate(pairwise(heat.edges)):
        assert heat.index_of(low) == i
        assert heat.index_of(math.nextafter(high, -math.inf)) == i
