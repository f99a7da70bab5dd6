"""Discovery for Home Assistant: the topics it reads, and templates that decode them."""

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


ROWS = [{"value": "gas", "raw": 0.25}, {"value": "<wood>", "raw": 0.61234}]


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
