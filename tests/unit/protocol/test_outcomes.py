"""Outcomes: a closed list of stable names, each explained, each a name for a counter."""

from __future__ import annotations

import re

from protocol_spec import OUTCOME_HELP, Outcome, Rejected
from tests.support.protocol.reference_wire import OUTCOMES


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


def test_a_rejection_is_data() -> None:
    rejected = Rejected(Outcome.OVERSIZE, "more than 532 bytes")
    assert not isinstance(rejected, Exception)
    assert rejected == Rejected(Outcome.OVERSIZE, "more than 532 bytes")
