"""The published vectors are what the reference generates, and cover what they promise."""

from __future__ import annotations

import pytest

from tests.support.protocol import vectors
from tests.support.protocol.reference import LONGITUDINAL


@pytest.mark.parametrize("name", sorted(vectors.DOCUMENTS))
def test_the_file_is_what_the_reference_generates(name: str) -> None:
    written = (vectors.FOLDER / name).read_text(encoding="utf-8")
    # As one bool: nobody could read the difference of two such files.
    same = written == vectors.text(vectors.DOCUMENTS[name]())
    assert same, f"{name} differs: run python -m tests.support.protocol.vectors --write"


def test_there_are_no_other_files() -> None:
    known = {*vectors.DOCUMENTS, *vectors.FROZEN}
    assert {path.name for path in vectors.FOLDER.iterdir()} == known


def test_every_protocol_has_calibrations() -> None:
    entries = vectors.load("calibration.json")["longitudinal"]
    assert {entry["protocol"] for entry in entries} == set(LONGITUDINAL)
    assert {entry["method"] for entry in entries} == {"exact", "paper"}


def test_every_kind_of_message_has_good_and_bad_examples() -> None:
    messages = vectors.load("messages.json")
    kinds = {"report", "signature", "state", "receipts", "request", "response", "result"}
    kinds |= {"thresholds"}
    assert {entry["kind"] for entry in messages["good"]} == kinds
    assert {entry["kind"] for entry in messages["bad"]} == kinds
    assert len({(e["manifest"], e["hex"]) for e in messages["unfit"]}) == len(messages["unfit"])


def test_every_refusal_visible_in_the_bytes_has_an_example() -> None:
    messages = vectors.load("messages.json")
    outcomes = {entry["outcome"] for entry in (*messages["bad"], *messages["unfit"])}
    visible = {"malformed", "oversize", "wrong_manifest", "bad_attribute", "bad_length"}
    assert outcomes == visible | {"bad_padding", "bad_value", "early"}
