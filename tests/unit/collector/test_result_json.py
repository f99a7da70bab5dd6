"""The latest word in JSON: the documented keys, never without its msgpack, never lost."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import protocol_spec
from collector.device_key import DeviceKey
from collector.records import Campaign, Tally
from collector.rounds.results import pooled_result, result_json, summary
from collector.store import Store
from protocol_spec import Manifest, Outcome, Topics
from protocol_spec.limits import MAX_JSON_BYTES
from tests.support.collector import (
    FIRST,
    FUEL,
    ServiceInMemory,
    candidate,
    seal,
    service_in_memory,
    three_questions,
)
from tests.support.protocol.asyncapi import SCHEMAS, fits

README = (Path(protocol_spec.__file__).parent / "README.md").read_text(encoding="utf-8")
OUTCOMES = {Outcome.ACCEPTED: 6, Outcome.DUPLICATE: 1}


def pooled(manifest: Manifest, devices: int = 3) -> tuple[Campaign, Any]:
    campaign = Campaign(1, manifest, FIRST, None)
    counts = np.zeros(manifest.calibrations[0].k, dtype=np.int64)
    counts[:3] = [devices, devices - 1, 1]
    total = Tally(2 * devices, counts)
    return campaign, pooled_result(campaign, 0, 2, total, ([2], [devices]), OUTCOMES)


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


def test_it_says_what_the_summary_says() -> None:
    campaign, result = pooled(named(["grün", "木", "<b>"]))
    assert json.loads(result_json(campaign, result)) == summary(campaign, result)
    assert "木" in result_json(campaign, result).decode()
    assert result.device_bound > 0
    assert result.device_bound == summary(campaign, result)["device_bound"]


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
