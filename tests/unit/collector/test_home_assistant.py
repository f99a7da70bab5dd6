"""What Home Assistant is told: where to read, and templates that read it."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import pytest

from collector.data_dir import DeviceKey
from collector.records import Campaign
from collector.rounds.publishing import discovery, discovery_topic
from collector.store.sqlite import SqliteStore
from protocol_spec import Presence, State, Topics, digest8
from protocol_spec.programs.memory_broker import MemoryBroker
from tests.support.collector import FIRST, service_in_memory, three_questions
from tests.support.documents import rendered

CAMPAIGN = Campaign(1, three_questions(), FIRST, None)
TOPICS = Topics(CAMPAIGN.name)


def told(campaign: Campaign = CAMPAIGN) -> Any:
    return json.loads(discovery(campaign, Topics(campaign.name)))


def test_one_device_with_sensors_for_every_attribute_and_one_for_the_collector() -> None:
    facts = told()
    names = [attribute.name for attribute in CAMPAIGN.manifest.attributes]
    kinds = ("value", "share", "reports")
    assert list(facts["components"]) == ["collector", *(f"{n}_{k}" for n in names for k in kinds)]
    assert facts["device"]["name"] == CAMPAIGN.manifest.title
    assert facts["origin"]["name"] == "allomfree-collector"
    identities = [c["unique_id"] for c in facts["components"].values()]
    assert len(set(identities)) == len(identities)
    assert all(identity.startswith(f"allomfree_{CAMPAIGN.name}_") for identity in identities)


def test_every_topic_is_one_of_the_campaigns() -> None:
    components = told()["components"].values()
    read = {c[name] for c in components for name in c if name.endswith("_topic")}
    names = [attribute.name for attribute in CAMPAIGN.manifest.attributes]
    assert read == {TOPICS.state, *(TOPICS.result_json(name) for name in names)}


def test_the_topic_is_where_home_assistant_looks() -> None:
    topic = discovery_topic("homeassistant", CAMPAIGN)
    assert topic == f"homeassistant/device/allomfree_{CAMPAIGN.name}/config"


@pytest.mark.parametrize("last", [None, 0, 65_535])
@pytest.mark.parametrize("presence", list(Presence))
def test_the_collectors_state_is_read_from_its_bytes(presence: Presence, last: int | None) -> None:
    sensor = told()["components"]["collector"]
    assert sensor["encoding"] == "", "bytes must not be taken for text"
    state = State(digest8(CAMPAIGN.manifest), presence, last).encode()
    expected = "ON" if presence is Presence.ONLINE else "OFF"
    assert rendered(sensor["value_template"], state) == expected


def test_a_histogram_is_read() -> None:
    rows = [{"value": "gas", "raw": 0.25}, {"value": "<wood>", "raw": 0.61234}]
    payload = json.dumps({"histogram": rows, "n": 1234}).encode()
    sensors = told()["components"]
    shown = [
        rendered(sensors[f"fuel_{kind}"]["value_template"], payload)
        for kind in ("value", "share", "reports")
    ]
    assert shown == ["<wood>", "61.2", "1234"]
    row = rendered(sensors["fuel_share"]["json_attributes_template"], payload)
    assert json.loads(row) == rows[1]


def test_a_withheld_histogram_is_unknown() -> None:
    payload = json.dumps({"histogram": [], "n": 12}).encode()
    sensors = told()["components"]
    shown = [rendered(sensors[f"fuel_{k}"]["value_template"], payload) for k in ("value", "share")]
    assert shown == ["None", "None"], "the word by which Home Assistant knows it"
    row = rendered(sensors["fuel_share"]["json_attributes_template"], payload)
    assert json.loads(row) == {}


@pytest.mark.parametrize("prefix", [None, "homeassistant"])
def test_the_service_tells_it_only_when_asked_to(
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
    assert topic not in work.broker.retained, "closed: taken away"


def test_a_broker_that_refuses_it_is_told_of_with_topic_and_remedy(
    key: DeviceKey, caplog: pytest.LogCaptureFixture, store: SqliteStore, campaign: Campaign
) -> None:
    broker = MemoryBroker(refuse=lambda topic: "Not authorized" if topic[:4] == "home" else None)
    work = service_in_memory(store, key, home_assistant="homeassistant", broker=broker)
    work.turns(4)
    (said,) = [message for message in caplog.messages if "refused" in message]
    assert f"refused {discovery_topic('homeassistant', campaign)}: Not authorized" in said
    assert "allomfree-collector enrol --reader home --home-assistant homeassistant" in said
