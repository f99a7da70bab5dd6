"""Histograms: what they carry, when they are withheld, and that the numbers are estimation's."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import protocol_spec
from collector.data_dir import DeviceKey
from collector.records import Campaign, Tally
from collector.rounds.results import (
    CONFIDENCE,
    pooled_result,
    result_json,
    round_result,
    round_results,
    summary,
)
from collector.store import Store
from collector.store.common import count_bodies
from collector.store.sqlite import SqliteStore
from protocol_spec import (
    RESULT_QUANTILES,
    RESULT_SERIES,
    Manifest,
    Numbers,
    Outcome,
    Result,
    Topics,
    as_drawn,
    decode_result,
)
from protocol_spec.estimation import (
    Estimate,
    cdf,
    estimate,
    estimate_pooled,
    mean,
    midpoints,
    quantile,
)
from protocol_spec.limits import MAX_JSON_BYTES
from tests.support.collector import (
    COLOUR,
    FIRST,
    FUEL,
    TOWN,
    ServiceInMemory,
    asked,
    candidate,
    random_counts,
    seal,
    service_in_memory,
    three_questions,
)
from tests.support.protocol.asyncapi import SCHEMAS, fits

OUTCOMES = {Outcome.ACCEPTED: 300, Outcome.DUPLICATE: 7, Outcome.MALFORMED: 1}
CAMPAIGN = Campaign(1, three_questions(min_reports=200), FIRST, None)
ATTRIBUTES = [FUEL, TOWN, COLOUR]


def tally(attribute: int, n: int = 300) -> Tally:
    _, counts = random_counts(CAMPAIGN.manifest.body_formats[attribute], n, seed=attribute)
    return Tally(n, counts)


def series_of(estimated: Estimate) -> dict[str, list[float]]:
    low, high = estimated.interval(0.95)
    low_all, high_all = estimated.interval(0.95, simultaneous=True)
    arrays = {
        "raw": estimated.raw,
        "projected": estimated.projected,
        "privacy_error": estimated.privacy_error,
        "sampling_error": estimated.sampling_error,
        "low": low,
        "high": high,
        "low_all": low_all,
        "high_all": high_all,
    }
    return {name: array.tolist() for name, array in arrays.items()}


@pytest.mark.parametrize("attribute", ATTRIBUTES)
def test_a_round_is_estimated_with_the_chances_devices_really_draw(attribute: int) -> None:
    counted = tally(attribute)
    result = round_result(CAMPAIGN, 3, attribute, counted, OUTCOMES)
    drawn = as_drawn(CAMPAIGN.manifest.calibrations[attribute])
    expected = series_of(estimate(counted.counts, counted.n, drawn))
    assert {name: list(getattr(result, name)) for name in RESULT_SERIES} == expected
    assert result.counts == tuple(counted.counts)
    assert CONFIDENCE == result.confidence == 0.95


@pytest.mark.parametrize("attribute", ATTRIBUTES)
def test_pooled_rounds_are_estimated_with_who_reported_how_often(attribute: int) -> None:
    counted, participation = tally(attribute, 900), ([1, 2, 4], [100, 200, 100])
    result = pooled_result(CAMPAIGN, attribute, 4, counted, participation, OUTCOMES)
    drawn = as_drawn(CAMPAIGN.manifest.calibrations[attribute])
    pooled = estimate_pooled(counted.counts, *participation, drawn, weights="reports")
    assert {name: list(getattr(result, name)) for name in RESULT_SERIES} == series_of(pooled)
    assert (result.round, result.rounds, result.n, result.devices) == (None, 4, 900, 400)


def test_pooling_is_not_counting_rounds_as_independent() -> None:
    """The memo's noise is shared by a device's rounds: the error is wider than one of 900."""
    counted = tally(COLOUR, 900)
    many = pooled_result(CAMPAIGN, COLOUR, 9, counted, ([9], [100]), OUTCOMES)
    assert many.withheld
    many = pooled_result(CAMPAIGN, COLOUR, 3, counted, ([3], [300]), OUTCOMES)
    single = round_result(CAMPAIGN, 0, COLOUR, counted, OUTCOMES)
    assert all(np.array(many.privacy_error) > 1.05 * np.array(single.privacy_error))


def test_a_histogram_says_what_is_needed_to_judge_it() -> None:
    """R27."""
    result = round_result(CAMPAIGN, 3, FUEL, tally(FUEL), OUTCOMES)
    assert result.digest == CAMPAIGN.manifest.digest
    assert (result.attribute, result.round, result.rounds) == ("fuel", 3, 1)
    assert (result.n, result.devices, result.min_reports) == (300, 300, 200)
    assert (result.protocol, result.outcomes) == ("L-GRR", OUTCOMES)


@pytest.mark.parametrize(("n", "withheld"), [(0, True), (199, True), (200, False)])
def test_too_few_reports_are_withheld(n: int, withheld: bool) -> None:
    result = round_result(CAMPAIGN, 0, FUEL, tally(FUEL, n), OUTCOMES)
    assert (result.withheld, result.n) == (withheld, n)
    lists = [result.counts, *(getattr(result, name) for name in RESULT_SERIES)]
    assert [len(numbers) for numbers in lists] == [0 if withheld else 4] * 9


@pytest.mark.parametrize(("devices", "withheld"), [(199, True), (200, False)])
def test_pooling_counts_devices_not_reports(devices: int, withheld: bool) -> None:
    """Ten rounds of a few devices are still a few devices."""
    n = 10 * devices
    result = pooled_result(CAMPAIGN, FUEL, 10, tally(FUEL, n), ([10], [devices]), OUTCOMES)
    assert (result.withheld, result.n, result.devices) == (withheld, n, devices)


def test_attributes_nobody_answered_are_there_and_withheld() -> None:
    results = round_results(CAMPAIGN, 0, {TOWN: tally(TOWN)}, OUTCOMES)
    assert [(r.attribute, r.n, r.withheld) for r in results] == [
        ("fuel", 0, True),
        ("town", 300, False),
        ("colour", 0, True),
    ]


def test_round_counters_are_of_the_round_and_pooled_ones_of_the_campaign(
    store: SqliteStore, campaign: Campaign
) -> None:
    for number in range(2):
        store.commit([candidate(campaign, 1, number)] * 2, [])
        seal(store, campaign, number)
    pooled, first, second = store.results(campaign.id, FUEL)
    one_round = {Outcome.ACCEPTED: 1, Outcome.DUPLICATE: 1}
    assert {k: n for k, n in first.outcomes.items() if n} == one_round
    assert {k: n for k, n in second.outcomes.items() if n} == one_round
    assert pooled.outcomes[Outcome.ACCEPTED] == pooled.outcomes[Outcome.DUPLICATE] == 2


def test_the_pooled_result_is_always_the_latest(store: SqliteStore, campaign: Campaign) -> None:
    for number in range(3):
        store.commit([candidate(campaign, d, number, body=d) for d in range(4)], [])
        seal(store, campaign, number)
        pooled, *single = store.results(campaign.id, FUEL)
        assert (pooled.rounds, pooled.n, pooled.devices) == (number + 1, 4 * number + 4, 4)
        assert [r.round for r in single] == list(range(number + 1))


def test_a_newer_pooled_result_is_published_although_the_older_was_taken(
    store: SqliteStore, campaign: Campaign
) -> None:
    store.commit([candidate(campaign, 1, n) for n in range(2)], [])
    seal(store, campaign, 0)
    older = store.unpublished()
    seal(store, campaign, 1)
    for row in older:
        store.mark_published(row)
    left = [(result.attribute, result.round) for result in store.unpublished()]
    assert left == [(FUEL, -1), (FUEL, 1), (TOWN, 1), (COLOUR, 1)]
    store.publish_again()
    assert len(store.unpublished()) == 7


# --- The latest word in JSON: the documented keys, never without its msgpack, never lost.


README = (Path(protocol_spec.__file__).parent / "README.md").read_text(encoding="utf-8")
EXAMPLE_OUTCOMES = {Outcome.ACCEPTED: 6, Outcome.DUPLICATE: 1}


def pooled(manifest: Manifest, devices: int = 3) -> tuple[Campaign, Any]:
    campaign = Campaign(1, manifest, FIRST, None)
    counts = np.zeros(manifest.calibrations[0].k, dtype=np.int64)
    counts[:3] = [devices, devices - 1, 1]
    total = Tally(2 * devices, counts)
    return campaign, pooled_result(campaign, 0, 2, total, ([2], [devices]), EXAMPLE_OUTCOMES)


def named(values: list[str]) -> Manifest:
    listed = ", ".join(json.dumps(value) for value in values)
    table = f'[[attributes]]\nname = "a"\nquestion = "?"\nvalues = [{listed}]\n'
    return three_questions(attributes=table)


def test_the_example_of_the_protocol_is_what_is_published() -> None:
    (toml,), (shown,) = (re.findall(rf"```{x}\n(.*?)```", README, re.S) for x in ("toml", "json"))
    told = json.loads(result_json(*pooled(Manifest.from_toml(toml))))
    assert told == json.loads(shown)
    assert list(told) == SCHEMAS["resultJson"]["required"]
    assert fits(told, SCHEMAS["resultJson"])


def test_withheld_it_tells_how_many_and_nothing_more() -> None:
    campaign, result = pooled(three_questions(min_reports=200))
    told = json.loads(result_json(campaign, result))
    assert (told["withheld"], told["histogram"], told["device_bound"]) == (True, [], None)
    assert (told["n"], told["devices"], told["min_reports"]) == (6, 3, 200)
    assert (told["n_eff"], told["difference"], told["numbers"]) == (3.0, None, None)
    assert fits(told, SCHEMAS["resultJson"])


@pytest.mark.parametrize(("k", "length", "shown"), [(100, 55, True), (4096, 55, False)])
def test_one_too_long_for_a_broker_has_no_histogram(k: int, length: int, shown: bool) -> None:
    campaign, result = pooled(named([f"{i:0{length}}" for i in range(k)]))
    payload = result_json(campaign, result)
    told = json.loads(payload)
    assert len(payload) <= MAX_JSON_BYTES < len(json.dumps(summary(campaign, result))) or shown
    assert (told["withheld"], len(told["histogram"])) == (False, k if shown else 0)
    assert fits(told, SCHEMAS["resultJson"])


def test_a_numeric_attribute_is_told_in_numbers() -> None:
    question = '[[attributes]]\nname = "a"\nquestion = "?"\nedges = [0, 1, 2, 4]\n'
    campaign, result = pooled(three_questions(attributes=question), devices=500)
    told = json.loads(result_json(campaign, result))
    numbers = told["numbers"]
    assert result.numbers is not None
    assert numbers["mean"] == result.numbers.mean
    assert numbers["cdf"] == list(result.numbers.cdf)
    assert [q[0] for q in numbers["quantiles"]] == [0.1, 0.25, 0.5, 0.75, 0.9]
    assert numbers["quantiles"][2] == list(result.numbers.quantiles[2])


# --- publishing ----------------------------------------------------------------------------------


@pytest.fixture
def work(store: Store, campaign: Campaign, key: DeviceKey) -> ServiceInMemory:
    """A service that is connected, and one sealed round that it knows nothing of yet."""
    made = service_in_memory(store, key)
    made.turns(2)
    store.commit([candidate(campaign, 1)], [])
    seal(store, campaign, 0)
    return made


def waiting(work: ServiceInMemory) -> set[tuple[int, int]]:
    return {(result.attribute, result.round) for result in work.store.unpublished()}


def test_both_forms_of_the_pooled_result_are_published(
    work: ServiceInMemory, campaign: Campaign
) -> None:
    topics = Topics(campaign.name)
    work.turns(6)
    latest = next(r for r in work.store.results(campaign.id, FUEL) if r.round is None)
    kept = work.broker.retained
    assert kept[topics.result("fuel")] == latest.encode()
    assert kept[topics.result_json("fuel")] == result_json(campaign, latest)
    assert not waiting(work)
    in_json = [topic for topic, _ in work.published if topic.endswith("/json")]
    assert in_json == [topics.result_json("fuel")], "once, and not for single rounds"


def test_it_is_published_only_when_the_broker_took_both(work: ServiceInMemory) -> None:
    """A broker may refuse one of the topics: then the result stays to be published."""
    work.broker.refuse = lambda topic: "Not authorized" if topic.endswith("/json") else None
    work.turns(6)
    assert waiting(work) == {(FUEL, -1)}
    work.broker.refuse = lambda _topic: None
    work.turns(4, apart=31.0)
    assert not waiting(work)


def test_it_stays_unpublished_until_the_second_answer_is_there(
    work: ServiceInMemory, campaign: Campaign
) -> None:
    """Whatever moment a crash chooses, the next life publishes both again."""
    sent_json = Topics(campaign.name).result_json("fuel")
    for _ in range(8):
        work.turns(1)
        if sent_json in work.broker.retained:
            break
        assert (FUEL, -1) in waiting(work)
    assert (FUEL, -1) in waiting(work), "sent, but not answered"
    del work.broker.retained[sent_json]
    work.broker.cut()
    work.turns(6, apart=10.0)
    assert sent_json in work.broker.retained, "sent again"
    assert not waiting(work)


# --- Numeric attributes in numbers, with and without devices whose answer is no number.


N = 4000


def numeric(edges: str, more: str = "", reporting: str = "memoized") -> Campaign:
    question = f'[[attributes]]\nname = "power"\nquestion = "?"\nedges = {edges}\n{more}\n'
    return Campaign(1, asked(reporting, attributes=question), FIRST, None)


def answered(campaign: Campaign, shares: list[float]) -> Result:
    """A round whose counts are just as expected."""
    way = campaign.manifest.mechanisms[0]
    p1, q1, p2, q2 = (float(x) for x in way.channels[0].exact)
    ps, qs = p1 * p2 + (1 - p1) * q2, q1 * p2 + (1 - q1) * q2
    counts = np.rint(N * (qs + np.array(shares) * (ps - qs))).astype(np.int64)
    if not way.channels[0].unary:
        counts[0] += N - counts.sum()
    result = round_result(campaign, 0, 0, Tally(N, counts), {})
    assert isinstance(decode_result(result.encode()), Result)
    return result


def told(result: Result) -> Numbers:
    assert result.numbers is not None
    return result.numbers


@pytest.mark.parametrize("reporting", ["memoized", "once", "hashed"])
def test_without_open_questions_they_are_those_of_estimation(reporting: str) -> None:
    campaign = numeric("[-inf, 1.0, 2.0, 5.0, inf]", "low = 0.0\nhigh = 9.0", reporting)
    result = answered(campaign, [0.1, 0.4, 0.3, 0.2])
    made, numbers = (
        estimate(result.counts, N, campaign.manifest.mechanisms[0].channels[0]),
        told(result),
    )
    low, high = cdf(made).band()
    assert (numbers.cdf_low, numbers.cdf_high) == (tuple(low), tuple(high))
    assert numbers.cdf == tuple(np.clip(cdf(made).values, 0, 1))
    expected = mean(made, midpoints([0.0, 1.0, 2.0, 5.0, 9.0]))
    assert (numbers.mean, numbers.mean_low) == (expected.value, expected.interval()[0])
    assert numbers.mean_bias == 2.0
    edges = [-math.inf, 1.0, 2.0, 5.0, math.inf]
    for row, tau in zip(numbers.quantiles, RESULT_QUANTILES, strict=True):
        same = quantile(made, edges, tau)
        ends = [end if math.isfinite(end) else None for end in (same.low, same.high)]
        assert row == (tau, same.value, *ends)


def test_a_mean_needs_ends() -> None:
    result = answered(numeric("[-inf, 1.0, 2.0, inf]"), [0.2, 0.5, 0.3])
    numbers = told(result)
    assert (numbers.mean, numbers.mean_low, numbers.mean_high, numbers.mean_bias) == (None,) * 4
    assert len(numbers.cdf) == 2
    assert [row.value is None for row in numbers.quantiles] == [True, False, False, True, True]


SHARES = [0.1, 0.3, 0.2, 0.2, 0.2]  # the last: not known
EDGES = [0.0, 1.0, 2.0, 4.0, 8.0]


@pytest.mark.parametrize("reporting", ["memoized", "once", "hashed"])
def test_devices_without_a_number_are_left_out(reporting: str) -> None:
    campaign = numeric("[0.0, 1.0, 2.0, 4.0, 8.0]", reporting=reporting)
    result = answered(campaign, SHARES)
    numbers, share = told(result), np.array(SHARES[:4]) / 0.8
    assert numbers.cdf == pytest.approx(np.cumsum(share)[:3].tolist(), abs=0.01)
    assert numbers.mean == pytest.approx(float(share @ [0.5, 1.5, 3.0, 6.0]), abs=0.05)
    median = numbers.quantiles[2]
    assert median.value == pytest.approx(2.0, abs=0.1)
    assert median.low is not None
    assert median.high is not None
    assert median.low < 2.0 <= median.high


def test_nothing_is_said_where_nobody_may_have_a_number() -> None:
    result = answered(numeric("[0.0, 1.0, 2.0, 4.0, 8.0]"), [0.0, 0.0, 0.0, 0.0, 1.0])
    assert not result.withheld
    assert result.numbers is None


def test_named_values_have_no_numbers() -> None:
    campaign = Campaign(1, asked("memoized"), FIRST, None)
    form = campaign.manifest.body_formats[0]
    result = round_result(campaign, 0, 0, Tally(300, random_counts(form, 300, 1)[1]), {})
    assert result.numbers is None
    assert result.difference is not None


# --- What one dishonest device can shift: the bound that results carry is attained, never exceeded.


BOUND_CAMPAIGN = Campaign(1, three_questions(min_reports=4), FIRST, None)
SENT = (1, 3, 2, 4, 1, 4)  # reports of each device over four rounds
TRIALS = 200


def of_one_round(attribute: int, bodies: Sequence[bytes]) -> Result:
    form = BOUND_CAMPAIGN.manifest.body_formats[attribute]
    return round_result(
        BOUND_CAMPAIGN,
        0,
        attribute,
        Tally(len(bodies), count_bodies(bodies, form)),
        {},
    )


def of_all_rounds(attribute: int, bodies: Sequence[bytes]) -> Result:
    form = BOUND_CAMPAIGN.manifest.body_formats[attribute]
    total = Tally(len(bodies), count_bodies(bodies, form))
    groups = sorted(set(SENT))
    who = (groups, [SENT.count(m) for m in groups])
    return pooled_result(BOUND_CAMPAIGN, attribute, 4, total, who, {})


def shift(one: Result, other: Result) -> float:
    assert one.device_bound == other.device_bound, "it does not depend on what was said"
    return float(np.abs(np.subtract(one.raw, other.raw)).max())


def extremes(attribute: int) -> tuple[bytes, bytes]:
    """A body that supports value 0 and one that does not."""
    form = BOUND_CAMPAIGN.manifest.body_formats[attribute]
    return form.encode(0), form.encode(1)


@pytest.mark.parametrize("attribute", [FUEL, TOWN, COLOUR])
def test_one_round(attribute: int) -> None:
    form = BOUND_CAMPAIGN.manifest.body_formats[attribute]
    honest, _ = random_counts(form, 20, seed=1)
    lies, _ = random_counts(form, TRIALS, seed=2)
    before = of_one_round(attribute, honest)
    for lie in lies:
        assert shift(before, of_one_round(attribute, [lie, *honest[1:]])) <= (
            before.device_bound * (1 + 1e-12)
        )
    yes, no = extremes(attribute)
    attained = shift(
        *(of_one_round(attribute, [body, *honest[1:]]) for body in (yes, no)),
    )
    assert attained == pytest.approx(before.device_bound, rel=1e-12)


@pytest.mark.parametrize("attribute", [FUEL, TOWN, COLOUR])
def test_pooled_rounds_are_bound_by_whoever_reported_most(attribute: int) -> None:
    form = BOUND_CAMPAIGN.manifest.body_formats[attribute]
    honest, _ = random_counts(form, sum(SENT), seed=3)
    lies, _ = random_counts(form, 4 * TRIALS, seed=4)
    before = of_all_rounds(attribute, honest)
    ends = np.cumsum(SENT)
    for trial in range(TRIALS):
        device = trial % len(SENT)
        mine = lies[4 * trial : 4 * trial + SENT[device]]
        start, end = ends[device] - SENT[device], ends[device]
        after = of_all_rounds(attribute, [*honest[:start], *mine, *honest[end:]])
        assert shift(before, after) <= before.device_bound * (1 + 1e-12)
    yes, no = extremes(attribute)
    start, end = ends[3] - 4, ends[3]
    attained = shift(
        *(
            of_all_rounds(attribute, [*honest[:start], *([b] * 4), *honest[end:]])
            for b in (yes, no)
        ),
    )
    assert attained == pytest.approx(before.device_bound, rel=1e-12)


def test_a_withheld_result_tells_no_bound() -> None:
    form = BOUND_CAMPAIGN.manifest.body_formats[FUEL]
    few, _ = random_counts(form, 3, seed=5)
    assert of_one_round(FUEL, few).device_bound == 0.0
    alone = pooled_result(
        BOUND_CAMPAIGN, FUEL, 4, Tally(3, count_bodies(few, form)), ([3], [1]), {}
    )
    assert (alone.withheld, alone.device_bound) == (True, 0.0)
