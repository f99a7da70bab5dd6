"""Vectors of whole devices: random bytes in, attribute, rounds, memo and final reports out.

Made from the reference alone. `ways.json` has draws of single answers; here every way goes from
joining to the bytes on the wire.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.support.protocol import manifest_cases, way_vectors
from tests.support.protocol import reference_ways as ways
from tests.support.protocol import reference_wire as wire

Entry = dict[str, Any]

DOCUMENTS: dict[str, Entry] = {case.name: dict(case.document) for case in manifest_cases.GOOD}


def document() -> Entry:
    return {
        "note": (
            "A device from joining to its reports, in campaigns of manifests.json. entropy: all "
            "random bytes in the order of use: for the attribute, for the rounds (once; drawn "
            "while open_round is open), for the memo of the value with that index, then for each "
            "report (once: for the answer of its first round alone). reports: the round, the topic "
            "in the namespace allomfree, and the bytes. tag and page: where the receipt of the "
            "first of them is looked for."
        ),
        "devices": [_device(*case) for case in _cases()],
    }


def _cases() -> Iterator[tuple[str, int, int, int]]:
    """Every attribute of every campaign, with its first and last value, early and late."""
    for name, found in DOCUMENTS.items():
        for index, attribute in enumerate(found["attributes"]):
            k = ways.domain_size(attribute)
            for value, open_round in ((0, 0), (k - 1, 20)):
                yield name, index, value, open_round


def _device(name: str, index: int, value: int, open_round: int) -> Entry:
    found = DOCUMENTS[name]
    device = f"{name}-{index}"
    stream = _joined(found, f"{name}/{index}/{value}", index)
    rounds = None
    if found["reporting"] == "once":
        count, each = found["rounds"]["count"], found["rounds"]["each"]
        rounds = ways.draw_rounds(open_round, count, each, stream)
    drawn = way_vectors.drawn(found, index, value, stream, device)
    first = rounds[0] if rounds else open_round
    numbers = [first + i for i in range(len(drawn["answers"]))]
    assert max(numbers) < found["rounds"]["count"]
    payload = wire.packed(found)
    digest, campaign = wire.digest_of(payload), wire.campaign_of(found["slug"], payload)
    return {
        "manifest": name,
        "device": device,
        "value": value,
        "open_round": open_round,
        "entropy": stream.taken.hex(),
        "attribute": index,
        "rounds": rounds,
        "key": drawn["key"],
        "memo": drawn["memo"],
        "reports": [
            {
                "round": number,
                "topic": f"allomfree/v1/{campaign}/up/{device}/report",
                "hex": _report(found, digest, number, index, bytes.fromhex(answer)).hex(),
            }
            for number, answer in zip(numbers, drawn["answers"])
        ],
        "tag": wire.tag_of(digest, numbers[0], device).hex(),
        "page": wire.page_of(digest, device, found["receipt_pages"]),
    }


def _joined(found: Entry, label: str, index: int) -> ways.Stream:
    """Random bytes by which the device draws that attribute first."""
    for attempt in range(10_000):
        stream = ways.Stream(f"device/{label}/{attempt}")
        if stream.below(len(found["attributes"])) == index:
            return stream
    raise AssertionError(label)


def _report(found: Entry, digest: bytes, number: int, index: int, answer: bytes) -> bytes:
    longest = max(_answer_bytes(found, i) for i in range(len(found["attributes"])))
    return wire.report(digest, number, index, answer.ljust(longest, b"\0"))


def _answer_bytes(found: Entry, index: int) -> int:
    attribute = found["attributes"][index]
    reporting = found["reporting"]
    k = ways.domain_size(attribute)
    return wire.answer_bytes(reporting, way_vectors.runs(found, attribute), k)
