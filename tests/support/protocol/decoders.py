"""The decoder of each kind of message, and the campaigns that the vectors are about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from protocol_spec import (
    Manifest,
    decode_receipts,
    decode_report,
    decode_request,
    decode_response,
    decode_result,
    decode_signature,
    decode_state,
    decode_thresholds,
)
from tests.support.protocol import vectors

DECODERS: dict[str, Callable[[bytes], Any]] = {
    "report": decode_report,
    "signature": decode_signature,
    "thresholds": decode_thresholds,
    "state": decode_state,
    "receipts": decode_receipts,
    "request": decode_request,
    "response": decode_response,
    "result": decode_result,
}
MANIFESTS = {
    entry["name"]: Manifest.from_bytes(bytes.fromhex(entry["hex"]))
    for entry in vectors.load("manifests.json")["good"]
}


def fleet() -> Manifest:
    """With every longitudinal protocol."""
    return MANIFESTS["fleet"]
