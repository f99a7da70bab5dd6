"""The ways of reporting behind one interface: what devices draw and collectors count."""

from __future__ import annotations

from typing import Any

import pytest

from protocol_spec import (
    Spending,
    UnknownValue,
    calibrate,
    choose_for,
    decode_report,
    make_report,
    report_fault,
    thresholds,
)
from protocol_spec.mechanisms import (
    Hashed,
    Memoized,
    Nested,
    Once,
    code,
    default_levels,
    nested_thresholds,
)
from tests.support.protocol import vectors
from tests.support.protocol.budgets import near
from tests.support.protocol.decoders import MANIFESTS
from tests.support.protocol.entropy import Tape

VECTORS = vectors.load("ways.json")


def named(entry: dict[str, Any]) -> str:
    return f"{entry['manifest']}-{entry['attribute']}-{entry['value']}"


# --- published numbers ---------------------------------------------------------------------------


@pytest.mark.parametrize("entry", VECTORS["once"], ids=lambda e: f"{e['k']}-{e['eps_1']:g}")
def test_once(entry: dict[str, Any]) -> None:
    assert entry["eps_inf"] / entry["each"] == entry["eps_1"]
    once = Once.calibrate(k=entry["k"], epsilon=entry["eps_1"], rounds=9, each=entry["each"])
    assert once.calibration.protocol == entry["protocol"]
    assert near(once.calibration.p1, entry["p"])
    assert near(once.calibration.q1, entry["q"])
    assert list(map(str, thresholds(once.calibration)[:2])) == entry["thresholds"]


@pytest.mark.parametrize("entry", VECTORS["hashed"], ids=lambda e: str(e["eps_inf"]))
def test_hashed(entry: dict[str, Any]) -> None:
    hashed = Hashed.calibrate(k=9, eps_inf=entry["eps_inf"], eps_1=entry["eps_1"])
    assert list(map(str, thresholds(hashed.cell))) == entry["thresholds"]
    p1, q1, p2, q2 = hashed.as_drawn().exact
    assert near(float(p1 * p2 + (1 - p1) * q2), entry["ps"])
    assert near(float(q1 * p2 + (1 - q1) * q2), entry["qs"])


@pytest.mark.parametrize(
    "entry", VECTORS["nested"], ids=lambda e: f"{e['protocol']}-{e['k']}-{e['levels']}"
)
def test_nested(entry: dict[str, Any]) -> None:
    nested = Nested.calibrate(entry["protocol"], k=entry["k"], schedule=entry["levels"])
    steps = [list(map(str, step)) for step in nested_thresholds(nested)]
    assert steps == entry["thresholds"]
    for level, (p, q) in zip(nested.as_drawn().levels, entry["chances"], strict=True):
        assert near(level.p1, p)
        assert near(level.q1, q)


@pytest.mark.parametrize("entry", VECTORS["levels"], ids=lambda e: f"{e['k']}-{e['eps_inf']}")
def test_levels_that_the_author_leaves_out(entry: dict[str, Any]) -> None:
    levels = default_levels(entry["k"], entry["eps_inf"], entry["eps_1"])
    assert list(levels) == entry["levels"]
    assert 2 <= len(levels) <= 16


@pytest.mark.parametrize(
    "entry", VECTORS["choice"], ids=lambda e: f"{e['k']}-{e['eps_inf']}-{e['rounds']}"
)
def test_the_choice_by_pooled_rounds(entry: dict[str, Any]) -> None:
    budget = {name: entry[name] for name in ("k", "eps_inf", "eps_1", "rounds")}
    assert choose_for("pooled", **budget).chosen.protocol == entry["chosen"]


@pytest.mark.parametrize("entry", VECTORS["codes"], ids=lambda e: f"{e['device']}-{e['k']}")
def test_codes(entry: dict[str, Any]) -> None:
    found = code(bytes.fromhex(entry["digest"]), entry["device"], entry["k"])
    assert found.hex() == entry["code"]


@pytest.mark.parametrize("entry", VECTORS["draws"], ids=named)
def test_random_bytes_become_the_published_reports(entry: dict[str, Any]) -> None:
    manifest, attribute = MANIFESTS[entry["manifest"]], entry["attribute"]
    way, tape = manifest.mechanisms[attribute], Tape(bytes.fromhex(entry["entropy"]))
    device = way.randomiser(entry["device"], tape)
    rounds = device.rounds(entry["open_round"])
    assert (None if rounds is None else list(rounds)) == entry["rounds"]
    assert device.key(entry["value"]) == entry["key"]
    memo = device.memoize(entry["key"])
    assert memo.hex() == entry["memo"]
    for sent, (answer, support) in enumerate(zip(entry["answers"], entry["supports"])):
        body = device.report(memo, sent)
        assert body.hex() == answer
        report = make_report(manifest, 3, attribute, body)
        assert decode_report(report.encode()) == report
        assert report_fault(report, manifest) is None
        assert len(report.body) == manifest.body_bytes
        counted = way.supported(report.body, entry["device"])
        assert way.counted.fault(counted.body) is None
        assert [counted.channel, way.counted.supported(counted.body)] == support
    assert not tape.left


@pytest.mark.parametrize(
    "entry", VECTORS["domains"], ids=lambda e: f"{e['manifest']}-{e['attribute']}"
)
def test_every_value_has_its_published_place(entry: dict[str, Any]) -> None:
    attribute = MANIFESTS[entry["manifest"]].attributes[entry["attribute"]]
    for value, place in entry["places"]:
        if place is None:
            with pytest.raises(UnknownValue, match="not a number"):
                attribute.index_of(value)
        else:
            assert attribute.index_of(value) == place, value


def test_each_way_is_in_the_draws() -> None:
    drawn = {MANIFESTS[entry["manifest"]].reporting for entry in VECTORS["draws"]}
    assert drawn == {"memoized", "once", "hashed", "nested"}


# --- what a way offers ---------------------------------------------------------------------------


def test_the_price_of_a_life() -> None:
    told = {name: manifest.lifetime_epsilon for name, manifest in MANIFESTS.items()}
    assert told == {
        "fleet": 3 * 2.0,
        "plain": 1.0,
        "tour": 2 * 1.0,
        "trend": 3.0,
        "rare": 0.1,
        "cells": 2 * 2.0,
        "steps": 2.0,
    }


def test_the_number_of_memos_a_device_may_hold() -> None:
    told = {
        name: {way.memos for way in manifest.mechanisms} for name, manifest in MANIFESTS.items()
    }
    assert told["fleet"] == {3}
    assert told["tour"] == {2}
    assert told["trend"] == told["rare"] == {0}
    assert told["cells"] == {2}
    assert told["steps"] == {1}


@pytest.mark.parametrize("name", sorted(MANIFESTS))
def test_what_is_charged_is_never_below_what_was_told(name: str) -> None:
    for way in MANIFESTS[name].mechanisms:
        for memos in range(way.memos + 1) if way.memos else (1,):
            for reports in (0, 1, 2):
                found = way.spending([reports] * memos)
                assert found.reports == reports * memos
                assert 0.0 <= found.exact <= found.charged <= way.lifetime_epsilon
                once = way.epsilon_after(reports) * memos
                assert found.exact == pytest.approx(min(once, found.charged))


def test_before_anything_is_drawn() -> None:
    """Rounds are drawn at joining, so `once` is charged from then on."""
    charged = {
        name: manifest.mechanisms[0].spending([]).charged for name, manifest in MANIFESTS.items()
    }
    assert {name for name, spent in charged.items() if spent} == {"trend", "rare"}
    assert MANIFESTS["steps"].mechanisms[0].spending([]) == Spending(0, 0, 0.0, 0.0)


def test_nothing_more_than_the_lifes_price_however_often_a_device_answers() -> None:
    way = MANIFESTS["trend"].mechanisms[0]
    assert way.epsilon_after(1) == 1.5
    assert way.epsilon_after(2) == way.epsilon_after(30) == 3.0


@pytest.mark.parametrize("name", sorted(MANIFESTS))
def test_a_channel_for_each_kind_of_answer(name: str) -> None:
    for way, attribute in zip(MANIFESTS[name].mechanisms, MANIFESTS[name].attributes):
        assert len(way.channels) == max(len(attribute.levels), 1)
        assert {channel.k for channel in way.channels} == {attribute.k} == {way.k}
        assert way.counted.k == attribute.k
        assert way.counted.unary == way.channels[0].unary


def test_the_classes_of_the_ways() -> None:
    kinds = {name: type(manifest.mechanisms[0]) for name, manifest in MANIFESTS.items()}
    assert kinds["fleet"] is kinds["tour"] is Memoized
    assert kinds["trend"] is Once
    assert kinds["cells"] is Hashed
    assert kinds["steps"] is Nested
    for manifest in MANIFESTS.values():
        assert {way.reporting for way in manifest.mechanisms} == {manifest.reporting}


def test_a_memo_that_does_not_fit_is_refused() -> None:
    for name in ("tour", "cells", "steps"):
        device = MANIFESTS[name].mechanisms[0].randomiser("a")
        with pytest.raises(ValueError, match="does not fit"):
            device.report(b"", 0)


def test_a_level_is_sent_once_and_the_last_one_for_ever() -> None:
    way = MANIFESTS["steps"].mechanisms[1]
    device = way.randomiser("a")
    memo = device.memoize(3)
    answers = [device.report(memo, sent) for sent in range(6)]
    assert [answer[0] for answer in answers] == [1, 2, 3, 4, 4, 4]
    assert answers[3] == answers[4] == answers[5]
    assert [way.epsilon_after(t) for t in range(6)] == [0.0, 0.6, 1.0, 1.7, 2.0, 2.0]


def test_the_pooled_choice_is_the_manifests() -> None:
    """Nine values, 30 rounds: pooled it is L-GRR, by the round it would be L-OSUE."""
    tour = MANIFESTS["tour"]
    by_round = calibrate("ALLOMFREE", k=9, eps_inf=tour.eps_inf, eps_1=tour.eps_1)
    assert (by_round.protocol, tour.mechanisms[1].protocol) == ("L-OSUE", "L-GRR")
