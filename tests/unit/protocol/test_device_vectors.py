"""Vectors of what a device does: from random bytes to reports, and what it refuses to join."""

from __future__ import annotations

from typing import Any

import pytest

from protocol_spec import (
    Manifest,
    ManifestError,
    Topics,
    make_report,
    random_below,
    receipt_page,
    receipt_tag,
    report_fault,
)
from protocol_spec.mechanisms import MECHANISMS
from tests.support.protocol import vectors
from tests.support.protocol.decoders import MANIFESTS
from tests.support.protocol.entropy import Tape

DEVICES = vectors.load("draws.json")["devices"]
REFUSED = vectors.load("manifests.json")["refused_fields"]


def named(entry: dict[str, Any]) -> str:
    return f"{entry['manifest']}-{entry['attribute']}-{entry['value']}"


@pytest.mark.parametrize("entry", DEVICES, ids=named)
def test_random_bytes_become_these_reports(entry: dict[str, Any]) -> None:
    manifest, tape = MANIFESTS[entry["manifest"]], Tape(bytes.fromhex(entry["entropy"]))
    index = random_below(len(manifest.attributes), tape)
    draws = manifest.mechanisms[index].randomiser(entry["device"], tape)
    rounds = draws.rounds(entry["open_round"])
    assert (index, rounds and list(rounds)) == (entry["attribute"], entry["rounds"])
    key = draws.key(entry["value"])
    memo = draws.memoize(key)
    assert (key, memo.hex()) == (entry["key"], entry["memo"])
    topic = Topics(manifest.campaign).report(entry["device"])
    for sent, wanted in enumerate(entry["reports"]):
        report = make_report(manifest, wanted["round"], index, draws.report(memo, sent))
        assert (topic, report.encode().hex()) == (wanted["topic"], wanted["hex"])
        assert report_fault(report, manifest) is None
    assert tape.left == 0
    first = entry["reports"][0]["round"]
    assert receipt_tag(manifest, first, entry["device"]).hex() == entry["tag"]
    assert receipt_page(manifest, entry["device"]) == entry["page"]


def test_every_mechanism_and_protocol_has_a_device() -> None:
    assert {MANIFESTS[e["manifest"]].reporting for e in DEVICES} == set(MECHANISMS)
    runs = {MANIFESTS[e["manifest"]].mechanisms[e["attribute"]].protocol for e in DEVICES}
    assert runs == {"L-GRR", "L-OUE", "L-SUE", "L-OSUE", "L-SOUE", "GRR", "OUE", "LOLOHA"}


def test_every_fault_of_a_field_is_refused_by_its_name() -> None:
    read = []
    for entry in REFUSED:
        try:
            Manifest.from_bytes(bytes.fromhex(entry["hex"]))
        except ManifestError as error:
            named = {problem.field for problem in error.problems}
            assert entry["field"] in named, (entry["why"], named)
        else:
            read.append(entry["why"])
    assert read == []
    assert len({entry["hex"] for entry in REFUSED}) == len(REFUSED) > 200
