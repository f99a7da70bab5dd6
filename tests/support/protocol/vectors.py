"""The conformance vectors, made from the reference alone. Rewrite the files with

python -m tests.support.protocol.vectors --write
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from tests.support.harness import ROOT
from tests.support.protocol import (
    address_vectors,
    draw_vectors,
    manifest_cases,
    message_cases,
    reference,
    refused_fields,
    threshold_vectors,
    way_vectors,
)
from tests.support.protocol import reference_wire as wire
from tests.support.protocol.reference_ways import domain_size

FOLDER = ROOT / "protocol_spec" / "vectors"

Entry = dict[str, Any]
Document = dict[str, Any]

PAIRS = (
    (0.001, 0.00001),
    (0.001, 0.0006),
    (0.1, 0.00001),
    (0.1, 0.03),
    (0.5, 0.3),
    (1.0, 0.3),
    (1.0, 0.6),
    (2.0, 0.6),
    (2.0, 1.2),
    (4.0, 0.00001),
    (4.0, 2.4),
    (10.0, 3.0),
    (20.0, 6.0),
    (20.0, 19.9),
)
DOMAINS = (2, 3, 16, 257, 4096)
REPORTS = (1, 2, 3, 10, 50)
ROUNDS = (1, 2, 10)


def calibration_document() -> Document:
    return {
        "note": (
            "Epsilons are float64, read exactly. Other numbers have 17 significant digits. "
            "thresholds: p1, q1, p2, q2 over 2^64, for the next float64 below each epsilon, "
            "p rounded down and q up. epsilon_after: exact loss of so many reports of one memo. "
            "variance: of one round with n = 1 at f = 0 and f = 0.25 (superpopulation). "
            "pooled_variance: of so many rounds with n = 1 at f = 0.25, about the devices' own "
            "frequency."
        ),
        "longitudinal": list(_longitudinal()),
        "one_time": list(_one_time()),
        "largest_eps_1": list(_limits()),
        "choice": list(_choices()),
    }


def _longitudinal() -> Iterator[Entry]:
    for eps_inf, eps_1 in PAIRS:
        for k in DOMAINS:
            for method in ("exact", "paper"):
                yield _calibrated("L-GRR", k, eps_inf, eps_1, method)
        for protocol in ("L-OUE", "L-SUE", "L-OSUE", "L-SOUE"):
            if eps_1 <= reference.largest_eps_1(protocol, eps_inf):
                yield _calibrated(protocol, 8, eps_inf, eps_1, "exact")


def _calibrated(protocol: str, k: int, eps_inf: float, eps_1: float, method: str) -> Entry:
    mechanism = reference.calibrate(protocol, k, eps_inf, eps_1, method)
    thresholds = reference.thresholds(protocol, k, eps_inf, eps_1, method)
    return {
        "protocol": protocol,
        "method": method,
        "k": k,
        "eps_inf": eps_inf,
        "eps_1": eps_1,
        **_described(mechanism),
        "epsilon_after": {str(t): reference.digits(mechanism.epsilon(t)) for t in REPORTS},
        "pooled_variance": {
            str(t): reference.digits(mechanism.pooled_variance(1, t, 0.25)) for t in ROUNDS
        },
        "thresholds": [str(threshold) for threshold in thresholds],
    }


def _described(mechanism: reference.Mechanism) -> Entry:
    digits = reference.digits
    return {
        **{name: digits(getattr(mechanism, name)) for name in ("p1", "q1", "p2", "q2")},
        "ps": digits(mechanism.support(True)),
        "qs": digits(mechanism.support(False)),
        "variance": [digits(mechanism.variance(1, f)) for f in (0.0, 0.25)],
    }


def _one_time() -> Iterator[Entry]:
    for protocol in reference.ONE_TIME:
        for k in (2, 5, 4096):
            for epsilon in (0.001, 0.5, 1.0, 4.0, 20.0):
                described = _described(reference.calibrate_once(protocol, k, epsilon))
                chances = {name: described[name] for name in ("p1", "q1", "variance")}
                yield {"protocol": protocol, "k": k, "epsilon": epsilon, **chances}


def _limits() -> Iterator[Entry]:
    for protocol in ("L-OUE", "L-SOUE"):
        for eps_inf in (0.001, 0.1, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 20.0):
            largest = reference.digits(reference.largest_eps_1(protocol, eps_inf))
            yield {"protocol": protocol, "eps_inf": eps_inf, "largest_eps_1": largest}


def _choices() -> Iterator[Entry]:
    ties = (math.log(2), math.nextafter(math.log(2), 1.0))  # 3 e^eps_1 + 2 is just below, above 8
    for eps_inf, eps_1 in ((1.0, 0.3), (2.0, 1.2), (4.0, 2.4), *((2.0, tie) for tie in ties)):
        for k in (2, 3, 5, 6, 7, 8, 9, 11, 12, 35, 36, 4096):
            for method in ("exact", "paper"):
                chosen = reference.adaptive(k, eps_inf, eps_1, method)
                yield {
                    "k": k,
                    "eps_inf": eps_inf,
                    "eps_1": eps_1,
                    "method": method,
                    "chosen": chosen,
                }


def manifests_document() -> Document:
    refused = manifest_cases.refused()
    return {
        "note": (
            "good: the TOML an analyst writes and the canonical bytes it becomes. "
            "refused: TOML that must not become a manifest, and a field the refusal must name. "
            "refused_bytes: bytes that are no manifest. refused_fields: the same, with the field "
            "that the reference names, for each fault that a field can have."
        ),
        "good": [_good_manifest(c) for c in manifest_cases.GOOD],
        "refused": [{"field": field, "toml": toml} for toml, field in refused],
        "refused_bytes": [
            {"why": why, "hex": payload.hex()} for why, payload in manifest_cases.refused_bytes()
        ],
        "refused_fields": [
            {"why": why, "field": field, "hex": payload.hex()}
            for why, field, payload in refused_fields.refused()
        ],
    }


def _good_manifest(case: manifest_cases.GoodManifest) -> Entry:
    payload = wire.packed(case.document)
    digest, pages = wire.digest_of(payload), case.document["receipt_pages"]
    return {
        "name": case.name,
        "toml": case.toml,
        "hex": payload.hex(),
        "digest": digest.hex(),
        "campaign": wire.campaign_of(case.document["slug"], payload),
        "attributes": list(_attributes(case.document)),
        "receipts": [
            {
                "device": device,
                "round": number,
                "tag": wire.tag_of(digest, number, device).hex(),
                "page": wire.page_of(digest, device, pages),
            }
            for device in ("a", "7f3a-0c", "device-" + "0" * 25)
            for number in (0, 29)
        ],
    }


def _attributes(document: Mapping[str, Any]) -> Iterator[Entry]:
    reporting = document["reporting"]
    found = [
        (attribute["name"], domain_size(attribute), runs)
        for attribute in document["attributes"]
        for runs in [way_vectors.runs(dict(document), attribute)]
    ]
    longest = max(wire.answer_bytes(reporting, runs, k) for _, k, runs in found)
    for name, k, runs in found:
        answer = wire.answer_bytes(reporting, runs, k)
        yield {
            "name": name,
            "k": k,
            "runs": runs,
            "answer_bytes": answer,
            "body_bytes": longest,
        }


def messages_document() -> Document:
    return {
        "note": (
            "Bytes are hex. good: fields and their one encoding. bad: bytes that no decoder of "
            "that kind accepts, with the outcome. unfit: well-formed reports that a manifest of "
            "manifests.json does not allow. digest8 is that of 'fleet', and of every message "
            "whose fields do not name another manifest."
        ),
        "digest8": message_cases.DIGEST[:8].hex(),
        "good": [
            {"kind": kind, "fields": _as_json(fields), "hex": payload.hex()}
            for kind, fields, payload in message_cases.good()
        ],
        "bad": [
            {"kind": kind, "why": why, "outcome": outcome, "hex": payload.hex()}
            for kind, why, payload, outcome in message_cases.bad()
        ],
        "unfit": [
            {"manifest": name, "why": why, "outcome": outcome, "hex": payload.hex()}
            for name, why, payload, outcome in message_cases.unfit()
        ],
    }


def _as_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list):
        return [_as_json(item) for item in value]
    if isinstance(value, dict):
        return {key: _as_json(item) for key, item in value.items()}
    return value


def topics_document() -> Document:
    root = "acme/v1/doors-0123abcd"
    built = {
        "manifest": f"{root}/pub/manifest",
        "signature": f"{root}/pub/signature",
        "thresholds": f"{root}/pub/thresholds",
        "state": f"{root}/pub/state",
        "receipt": f"{root}/pub/receipt/12/5",
        "receipts_for": f"{root}/pub/receipt/+/5",
        "result": f"{root}/pub/result/door",
        "result_of_round": f"{root}/pub/result/door/12",
        "result_json": f"{root}/pub/result/door/json",
        "report": f"{root}/up/7f3a-0c/report",
        "request": f"{root}/up/7f3a-0c/request",
        "response": f"{root}/down/7f3a-0c/response",
        "all_reports": f"{root}/up/+/report",
        "all_requests": f"{root}/up/+/request",
    }
    return {
        "note": (
            "built: the topics of one campaign. parsed: topics as a collector of namespace 'acme' "
            "meets them; null where no device may publish. addresses: invitations and what they "
            "name; null where they must be refused (mqtt to another machine, too)."
        ),
        "namespace": "acme",
        "campaign": "doors-0123abcd",
        "device": "7f3a-0c",
        "round": 12,
        "page": 5,
        "attribute": "door",
        "built": built,
        "parsed": [
            *({"topic": topic, "parsed": parsed} for topic, parsed in _from_devices()),
            *({"topic": topic, "parsed": None} for topic in _from_nobody(root)),
        ],
        "addresses": address_vectors.addresses(),
    }


def _from_devices() -> Iterator[tuple[str, Entry]]:
    for campaign in ("doors-0123abcd", "a-ffffffff", "x" * 32 + "-00000000"):
        for device in ("7f3a-0c", "a", "-", "0" * 32):
            for kind in ("report", "request"):
                parsed = {"campaign": campaign, "device": device, "kind": kind}
                yield f"acme/v1/{campaign}/up/{device}/{kind}", parsed


def _from_nobody(root: str) -> Iterator[str]:
    for device in ("", "A", "a b", "a_b", "0" * 33, "+", "#", "a\x00", "é", "a.b", "a\n"):
        yield f"{root}/up/{device}/report"
    for campaign in ("", "doors", "doors-0123ABCD", "doors-0123abc", "-0123abcd", "-a-0123abcd"):
        yield f"acme/v1/{campaign}/up/a/report"
    yield f"acme/v1/{'x' * 33}-0123abcd/up/a/report"
    yield from ("", "/", "acme", "report", f"{root}/up/a", f"{root}/up/a/report/")
    yield from (f"{root}/up/a/report/extra", f"/{root}/up/a/report", f"{root}/up//a/report")
    yield from (f"{root}/up/a/Report", f"{root}/up/a/response", f"{root}/up/a/result")
    yield from (f"{root}/down/a/report", f"{root}/pub/a/report", f"{root}/UP/a/report")
    yield from ("acme/v2/doors-0123abcd/up/a/report", "other/v1/doors-0123abcd/up/a/report")
    yield from ("acme/v1/doors-0123abcd/up/+/report", "acme/v1/+/up/a/report", "#")


DOCUMENTS = {
    "calibration.json": calibration_document,
    "draws.json": draw_vectors.document,
    "manifests.json": manifests_document,
    "messages.json": messages_document,
    "thresholds.json": threshold_vectors.document,
    "topics.json": topics_document,
    "ways.json": way_vectors.document,
}
# Worked out elsewhere, by other means, in 50 digits; not made here. `scripts/check_vectors.py`
# compares the code with it.
FROZEN = ("statistics.json",)


def text(document: Document) -> str:
    """JSON with one entry of a list to a line, so that a change shows as a changed line."""
    return "{\n" + ",\n".join(_member(name, value) for name, value in document.items()) + "\n}\n"


def _member(name: str, value: Any) -> str:
    if not isinstance(value, list):
        return f" {_line(name)}: {_line(value)}"
    return f" {_line(name)}: [\n" + ",\n".join(f"  {_line(item)}" for item in value) + "\n ]"


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def load(name: str) -> Document:
    """A vector file as implementers find it."""
    document: Document = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    return document


def write() -> None:
    for name, build in DOCUMENTS.items():
        (FOLDER / name).write_text(text(build()), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    write()
