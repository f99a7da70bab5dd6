"""Histograms: their content, when they are withheld, how they are published and announced."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import protocol_spec
from collector.data_dir import DeviceKey
from collector.records import Campaign, Tally
from collector.results.facts import result_facts
from collector.results.words import response_text
from collector.rounds.publishing import discovery, discovery_topic
from collector.rounds.results import (
    CONFIDENCE,
    pooled_result,
    result_json,
    round_result,
    summary,
)
from collector.store import Store
from collector.store.common import count_bodies
from collector.store.sqlite import SqliteStore
from protocol_spec import (
    RESULT_QUANTILES,
    RESULT_SERIES,
    Manifest,
    Outcome,
    Presence,
    Result,
    State,
    Topics,
    as_drawn,
    decode_result,
    digest8,
)
from protocol_spec.estimation import (
    Channel,
    Estimate,
    cdf,
    estimate,
    estimate_pooled,
    mean,
    midpoints,
    quantile,
    true_mean,
)
from protocol_spec.limits import MAX_JSON_BYTES
from protocol_spec.programs.memory_broker import MemoryBroker
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
from tests.support.documents import rendered
from tests.support.pages import expected_tally
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
def test_results_are_estimated_with_the_probabilities_devices_draw_with(attribute: int) -> None:
    drawn = as_drawn(CAMPAIGN.manifest.calibrations[attribute])
    counted = tally(attribute)
    result = round_result(CAMPAIGN, 3, attribute, counted, OUTCOMES)
    expected = series_of(estimate(counted.counts, counted.n, drawn))
    assert {name: list(getattr(result, name)) for name in RESULT_SERIES} == expected
    assert result.counts == tuple(counted.counts)
    assert CONFIDENCE == result.confidence == 0.95
    counted, participation = tally(attribute, 900), ([1, 2, 4], [100, 200, 100])
    result = pooled_result(CAMPAIGN, attribute, 4, counted, participation, OUTCOMES)
    pooled = estimate_pooled(counted.counts, *participation, drawn, weights="reports")
    assert {name: list(getattr(result, name)) for name in RESULT_SERIES} == series_of(pooled)
    assert (result.round, result.rounds, result.n, result.devices) == (None, 4, 900, 400)


@pytest.mark.parametrize(("n", "withheld"), [(0, True), (199, True), (200, False)])
def test_a_histogram_has_its_context_and_is_withheld_below_min_reports(
    n: int, withheld: bool
) -> None:
    """R27. Of several rounds devices count, not reports: ten rounds of a few are still a few."""
    result = round_result(CAMPAIGN, 3, FUEL, tally(FUEL, n), OUTCOMES)
    assert (result.digest, result.attribute) == (CAMPAIGN.manifest.digest, "fuel")
    assert (result.n, result.devices, result.min_reports) == (n, n, 200)
    assert (result.protocol, result.outcomes) == ("L-GRR", OUTCOMES)
    assert result.withheld == withheld
    lists = [result.counts, *(getattr(result, name) for name in RESULT_SERIES)]
    assert [len(numbers) for numbers in lists] == [0 if withheld else 4] * 9
    assert (result.device_bound == 0.0) == withheld
    many = pooled_result(CAMPAIGN, FUEL, 10, tally(FUEL, 10 * n), ([10], [n]), OUTCOMES)
    assert (many.withheld, many.n, many.devices) == (withheld, 10 * n, n)
    assert (many.device_bound == 0.0) == withheld


def test_a_round_has_its_own_outcomes_and_the_pooled_result_is_of_all_so_far(
    store: SqliteStore, campaign: Campaign
) -> None:
    for number in range(3):
        found = [candidate(campaign, d, number, body=d) for d in range(4)]
        store.commit([*found, found[0]], [])
        seal(store, campaign, number)
        pooled, *single = store.results(campaign.id, FUEL)
        assert (pooled.rounds, pooled.n, pooled.devices) == (number + 1, 4 * number + 4, 4)
        assert [r.round for r in single] == list(range(number + 1))
        one_round = {Outcome.ACCEPTED: 4, Outcome.DUPLICATE: 1}
        assert {k: n for k, n in single[-1].outcomes.items() if n} == one_round
        assert pooled.outcomes[Outcome.DUPLICATE] == number + 1
        nobody = store.results(campaign.id, TOWN)[0]
        assert (nobody.n, nobody.withheld) == (0, True)


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


# --- The latest result in JSON: the documented keys, never without its msgpack, never lost --------

README = (Path(protocol_spec.__file__).parent / "README.md").read_text(encoding="utf-8")


def as_json(manifest: Manifest, devices: int = 3) -> tuple[Campaign, Result, Any]:
    """A pooled result, and its JSON."""
    campaign = Campaign(1, manifest, FIRST, None)
    counts = np.zeros(manifest.calibrations[0].k, dtype=np.int64)
    counts[:3] = [devices, devices - 1, 1]
    outcomes = {Outcome.ACCEPTED: 6, Outcome.DUPLICATE: 1}
    tally = Tally(2 * devices, counts)
    result = pooled_result(campaign, 0, 2, tally, ([2], [devices]), outcomes)
    payload = result_json(campaign, result)
    assert len(payload) <= MAX_JSON_BYTES
    assert fits(json.loads(payload), SCHEMAS["resultJson"])
    return campaign, result, json.loads(payload)


def test_the_example_of_the_protocol_is_what_is_published() -> None:
    (toml,), (shown,) = (re.findall(rf"```{x}\n(.*?)```", README, re.S) for x in ("toml", "json"))
    facts = as_json(Manifest.from_toml(toml))[2]
    assert facts == json.loads(shown)
    assert list(facts) == SCHEMAS["resultJson"]["required"]


def test_a_withheld_result_has_the_number_of_reports_and_no_other_number() -> None:
    facts = as_json(three_questions(min_reports=200))[2]
    assert (facts["withheld"], facts["histogram"], facts["device_bound"]) == (True, [], None)
    assert (facts["n"], facts["devices"], facts["min_reports"]) == (6, 3, 200)
    assert (facts["n_eff"], facts["difference"], facts["numbers"]) == (3.0, None, None)


@pytest.mark.parametrize(("k", "shown"), [(100, True), (4096, False)])
def test_one_too_long_for_a_broker_has_no_histogram(k: int, shown: bool) -> None:
    listed = ", ".join(f'"{i:055}"' for i in range(k))
    table = f'[[attributes]]\nname = "a"\nquestion = "?"\nvalues = [{listed}]\n'
    campaign, result, facts = as_json(three_questions(attributes=table))
    assert (len(json.dumps(summary(campaign, result))) > MAX_JSON_BYTES) != shown
    assert (facts["withheld"], len(facts["histogram"])) == (False, k if shown else 0)


def test_a_numeric_attribute_is_published_with_numbers() -> None:
    question = '[[attributes]]\nname = "a"\nquestion = "?"\nedges = [0, 1, 2, 4]\n'
    _, result, facts = as_json(three_questions(attributes=question), devices=500)
    assert result.numbers is not None
    assert facts["numbers"]["mean"] == result.numbers.mean
    assert facts["numbers"]["cdf"] == list(result.numbers.cdf)
    assert facts["numbers"]["quantiles"] == [list(row) for row in result.numbers.quantiles]


# --- publishing -----------------------------------------------------------------------------------


@pytest.fixture
def work(store: Store, campaign: Campaign, key: DeviceKey) -> ServiceInMemory:
    """A service that is connected, and one sealed round that it has not seen yet."""
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
    """A broker may refuse one of the topics: then the result stays to be published."""
    topics = Topics(campaign.name)
    work.broker.refuse = lambda topic: "Not authorized" if topic.endswith("/json") else None
    work.turns(6)
    assert waiting(work) == {(FUEL, -1)}
    work.broker.refuse = lambda _topic: None
    work.turns(4, apart=31.0)
    assert not waiting(work)
    latest = next(r for r in work.store.results(campaign.id, FUEL) if r.round is None)
    kept = work.broker.retained
    assert kept[topics.result("fuel")] == latest.encode()
    assert kept[topics.result_json("fuel")] == result_json(campaign, latest)
    in_json = {topic for topic, _ in work.published if topic.endswith("/json")}
    assert in_json == {topics.result_json("fuel")}, "not for single rounds"


def test_it_stays_unpublished_until_the_second_answer_is_there(
    work: ServiceInMemory, campaign: Campaign
) -> None:
    """After a crash at any moment, the next start publishes both again."""
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


# --- Numeric attributes in numbers, with and without devices whose answer is no number ------------

N = 4000


def numeric(
    edges: str, shares: list[float], more: str = "", reporting: str = "memoized"
) -> tuple[Result, Channel]:
    """A round whose counts are just as expected."""
    question = f'[[attributes]]\nname = "power"\nquestion = "?"\nedges = {edges}\n{more}\n'
    campaign = Campaign(1, asked(reporting, attributes=question), FIRST, None)
    channel = campaign.manifest.mechanisms[0].channels[0]
    counts = expected_tally(campaign.manifest.mechanisms[0], N, tuple(shares)).counts
    if not channel.unary:
        counts[0] += N - counts.sum()
    result = round_result(campaign, 0, 0, Tally(N, counts), {})
    assert isinstance(decode_result(result.encode()), Result)
    return result, channel


@pytest.mark.parametrize("reporting", ["memoized", "once", "hashed"])
def test_numbers_are_those_of_estimation(reporting: str) -> None:
    more = "low = 0.0\nhigh = 9.0"
    shares = [0.1, 0.4, 0.3, 0.2]
    result, channel = numeric("[-inf, 1.0, 2.0, 5.0, inf]", shares, more, reporting)
    made, numbers = estimate(result.counts, N, channel), result.numbers
    assert numbers is not None
    low, high = cdf(made).band()
    assert (numbers.cdf_low, numbers.cdf_high) == (tuple(low), tuple(high))
    assert numbers.cdf == tuple(np.clip(cdf(made).values, 0, 1))
    expected = mean(made, midpoints([0.0, 1.0, 2.0, 5.0, 9.0]))
    assert (numbers.mean, numbers.mean_low) == (expected.value, expected.interval()[0])
    lowest, _ = true_mean(made, [0.0, 1.0, 2.0, 5.0, 9.0])
    assert numbers.mean_bias is not None
    assert 0.0 < expected.interval()[0] - lowest <= numbers.mean_bias < 2.0
    edges = [-math.inf, 1.0, 2.0, 5.0, math.inf]
    for row, tau in zip(numbers.quantiles, RESULT_QUANTILES, strict=True):
        assert row == quantile(made, edges, tau)


def test_a_mean_needs_finite_ends() -> None:
    numbers = numeric("[-inf, 1.0, 2.0, inf]", [0.2, 0.5, 0.3])[0].numbers
    assert numbers is not None
    assert (numbers.mean, numbers.mean_low, numbers.mean_high, numbers.mean_bias) == (None,) * 4
    assert len(numbers.cdf) == 2
    assert [row.value is None for row in numbers.quantiles] == [True, False, False, True, True]


@pytest.mark.parametrize("reporting", ["memoized", "once", "hashed"])
def test_devices_without_a_number_are_left_out(reporting: str) -> None:
    edges, shares = "[0.0, 1.0, 2.0, 4.0, 8.0]", [0.1, 0.3, 0.2, 0.2, 0.2]  # the last: not known
    numbers = numeric(edges, shares, reporting=reporting)[0].numbers
    known = np.array(shares[:4]) / 0.8
    assert numbers is not None
    assert numbers.cdf == pytest.approx(np.cumsum(known)[:3].tolist(), abs=0.01)
    assert numbers.mean == pytest.approx(float(known @ [0.5, 1.5, 3.0, 6.0]), abs=0.05)
    _, value, low, high = numbers.quantiles[2]
    assert value == pytest.approx(2.0, abs=0.1)
    assert low is not None
    assert high is not None
    assert low < 2.0 <= high
    nobody = numeric(edges, [0.0, 0.0, 0.0, 0.0, 1.0], reporting=reporting)[0]
    assert (nobody.withheld, nobody.numbers) == (False, None)


# --- How far one dishonest device can shift a result: the bound is attained, never exceeded -------

BOUND_CAMPAIGN = Campaign(1, three_questions(min_reports=4), FIRST, None)
SENT = (1, 3, 2, 4, 1, 4)  # reports of each device over four rounds
TRIALS = 200


@pytest.mark.parametrize("pooled", [False, True], ids=["one-round", "pooled"])
@pytest.mark.parametrize("attribute", ATTRIBUTES)
def test_the_bound_on_one_device_is_attained_and_never_exceeded(
    attribute: int, pooled: bool
) -> None:
    """Of pooled rounds it is that of the devices that reported most."""
    form = BOUND_CAMPAIGN.manifest.body_formats[attribute]
    sent = SENT if pooled else (1,) * 20
    honest, _ = random_counts(form, sum(sent), seed=3)
    lies, _ = random_counts(form, 4 * TRIALS, seed=4)

    def result_with(device: int, bodies: Sequence[bytes]) -> Result:
        start = sum(sent[:device])
        changed = [*honest[:start], *bodies, *honest[start + len(bodies) :]]
        tally = Tally(len(changed), count_bodies(changed, form))
        if not pooled:
            return round_result(BOUND_CAMPAIGN, 0, attribute, tally, {})
        groups = sorted(set(sent))
        who = (groups, [sent.count(m) for m in groups])
        return pooled_result(BOUND_CAMPAIGN, attribute, 4, tally, who, {})

    def shift(one: Result, other: Result) -> float:
        assert one.device_bound == other.device_bound, "it does not depend on what was sent"
        return float(np.abs(np.subtract(one.raw, other.raw)).max())

    before = result_with(0, [])
    for trial in range(TRIALS):
        device = trial % len(sent)
        after = result_with(device, lies[4 * trial : 4 * trial + sent[device]])
        assert shift(before, after) <= before.device_bound * (1 + 1e-12)
    supports, does_not = ([form.encode(value)] * sent[3] for value in (0, 1))
    attained = shift(result_with(3, supports), result_with(3, does_not))
    assert attained == pytest.approx(before.device_bound, rel=1e-12)


# --- Discovery for Home Assistant: the topics it reads, and templates that decode them -----------


TOPICS = Topics(CAMPAIGN.name)
FACTS: Any = json.loads(discovery(CAMPAIGN, TOPICS))
SENSORS = FACTS["components"]


def test_one_device_has_sensors_for_every_attribute_and_one_for_the_collector() -> None:
    names = [attribute.name for attribute in CAMPAIGN.manifest.attributes]
    kinds = ("value", "share", "reports")
    assert list(SENSORS) == ["collector", *(f"{n}_{k}" for n in names for k in kinds)]
    assert FACTS["device"]["name"] == CAMPAIGN.manifest.title
    assert FACTS["origin"]["name"] == "allomfree-collector"
    identities = [sensor["unique_id"] for sensor in SENSORS.values()]
    assert len(set(identities)) == len(identities)
    assert all(identity.startswith(f"allomfree_{CAMPAIGN.name}_") for identity in identities)
    read = {sensor[key] for sensor in SENSORS.values() for key in sensor if key.endswith("_topic")}
    assert read == {TOPICS.state, *(TOPICS.result_json(name) for name in names)}
    topic = discovery_topic("homeassistant", CAMPAIGN)
    assert topic == f"homeassistant/device/allomfree_{CAMPAIGN.name}/config"


@pytest.mark.parametrize("last", [None, 65_535])
@pytest.mark.parametrize("presence", list(Presence))
def test_the_collectors_state_is_read_from_its_bytes(presence: Presence, last: int | None) -> None:
    assert SENSORS["collector"]["encoding"] == "", "bytes must not be taken for text"
    state = State(digest8(CAMPAIGN.manifest), presence, last).encode()
    expected = "ON" if presence is Presence.ONLINE else "OFF"
    assert rendered(SENSORS["collector"]["value_template"], state) == expected


ROWS = [{"value": "gas", "projected": 0.25}, {"value": "<wood>", "projected": 0.61234}]


@pytest.mark.parametrize(
    ("facts", "values", "row"),
    [
        ({"histogram": ROWS, "n": 1234}, ["<wood>", "61.2", "1234"], ROWS[1]),
        ({"histogram": [], "n": 12}, ["None", "None", "12"], {}),  # None: unknown
    ],
    ids=["released", "withheld"],
)
def test_a_histogram_is_read(facts: Any, values: list[str], row: Any) -> None:
    payload = json.dumps(facts).encode()
    templates = [SENSORS[f"fuel_{k}"]["value_template"] for k in ("value", "share", "reports")]
    assert [rendered(template, payload) for template in templates] == values
    attributes = rendered(SENSORS["fuel_share"]["json_attributes_template"], payload)
    assert json.loads(attributes) == row


@pytest.mark.parametrize("prefix", [None, "homeassistant"])
def test_the_service_publishes_it_only_when_configured_and_while_open(
    key: DeviceKey, prefix: str | None, store: SqliteStore, campaign: Campaign
) -> None:
    work = service_in_memory(store, key, home_assistant=prefix)
    work.turns(2)
    found = {t: p for t, p in work.broker.retained.items() if not t.startswith("allomfree/")}
    if prefix is None:
        assert found == {}
        return
    topic = discovery_topic(prefix, campaign)
    assert found == {topic: discovery(campaign, Topics(campaign.name))}
    with closing(SqliteStore(store.path)) as elsewhere:
        elsewhere.close_campaign(campaign, FIRST + 60)
    work.turns(1)
    assert topic not in work.broker.retained


def test_a_broker_that_refuses_it_is_logged_with_topic_and_remedy(
    key: DeviceKey, caplog: pytest.LogCaptureFixture, store: SqliteStore, campaign: Campaign
) -> None:
    broker = MemoryBroker(refuse=lambda topic: "Not authorized" if topic[:4] == "home" else None)
    work = service_in_memory(store, key, home_assistant="homeassistant", broker=broker)
    work.turns(4)
    (line,) = [message for message in caplog.messages if "refused" in message]
    assert f"refused {discovery_topic('homeassistant', campaign)}: Not authorized" in line
    assert "allomfree-collector enrol --reader home --home-assistant homeassistant" in line


# --- what silence can hide -----------------------------------------------------------------------


def test_silence_is_stated_where_it_can_hide_something(campaign: Campaign) -> None:
    """A round by who did not report again, several by uneven reports, in points of a bar."""
    form = campaign.manifest.body_formats[FUEL]
    tally = Tally(5000, random_counts(form, 5000, seed=3)[1])
    made = round_result(campaign, 0, FUEL, tally, {}, (5000, 5000))
    facts = result_facts(campaign, made, 0)
    whole = {"share": 1.0, "shift": 0.0, "low": [*made.low], "high": [*made.high]}
    assert facts["silence"] == whole
    assert not any("report again" in warning for warning in facts["warnings"])
    missed = replace(made, heard=8000, returned=3000, n=3000, devices=3000)
    facts = result_facts(campaign, missed, 0)
    assert facts["silence"]["shift"] == 0.625
    assert facts["silence"]["low"] == pytest.approx([0.375 * low for low in made.low])
    assert facts["silence"]["high"] == pytest.approx([0.375 * high + 0.625 for high in made.high])
    assert [w for w in facts["warnings"] if "5,000 of 8,000 devices did not report again" in w]
    assert response_text(facts) == (
        "3,000 of 8,000 devices heard before reported again; the others could move a bar by 62.5 "
        "points at most"
    )
    pooled = replace(made, round=None, uneven=0.25)
    facts = result_facts(campaign, pooled, 0)
    assert facts["silence"]["low"] == pytest.approx([max(0.0, low - 0.25) for low in made.low])
    assert [w for w in facts["warnings"] if "reported more often than others" in w]
