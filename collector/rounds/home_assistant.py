"""Home Assistant finds a campaign by itself: one retained message that says where to read what.

It names topics and templates only. The numbers come from the results in JSON, and whether the
collector is there from the campaign's state, whose presence is always its thirteenth byte.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from collector.records import Campaign
from protocol_spec import Presence, Topics

ORIGIN: Final = {"name": "allomfree-collector"}
PRESENCE_AT: Final = 12

_TALLEST: Final = "(value_json.histogram | max(attribute='raw'))"
_VALUE: Final = f"{{{{ {_TALLEST}.value if value_json.histogram else none }}}}"
_SHARE: Final = f"{{{{ (100 * {_TALLEST}.raw) | round(1) if value_json.histogram else none }}}}"
_DETAILS: Final = f"{{{{ ({_TALLEST} if value_json.histogram else {{}}) | tojson }}}}"
_PRESENT: Final = (
    f"{{{{ 'ON' if value | unpack('B', {PRESENCE_AT}) == {int(Presence.ONLINE)} else 'OFF' }}}}"
)

Component = dict[str, Any]


def discovery_topic(prefix: str, campaign: Campaign) -> str:
    """Where Home Assistant looks for the message; empty and retained takes the campaign away."""
    return f"{prefix}/device/{_identity(campaign)}/config"


def discovery(campaign: Campaign, topics: Topics) -> bytes:
    """One device with three sensors for each attribute and one for the collector itself."""
    identity = _identity(campaign)
    components = {"collector": _collector(topics)}
    for attribute in campaign.manifest.attributes:
        components |= dict(_sensors(attribute.name, topics.result_json(attribute.name)))
    for name, component in components.items():
        component["unique_id"] = f"{identity}_{name}"
    facts = {
        "device": {
            "identifiers": [identity],
            "name": campaign.manifest.title,
            "manufacturer": campaign.manifest.owner,
            "model": campaign.name,
        },
        "origin": ORIGIN,
        "components": components,
    }
    return json.dumps(facts, ensure_ascii=False, separators=(",", ":")).encode()


def _identity(campaign: Campaign) -> str:
    return f"allomfree_{campaign.name}"


def _collector(topics: Topics) -> Component:
    return {
        "platform": "binary_sensor",
        "name": "collector",
        "device_class": "connectivity",
        "entity_category": "diagnostic",
        "state_topic": topics.state,
        "encoding": "",  # bytes, not text
        "value_template": _PRESENT,
    }


def _sensors(attribute: str, topic: str) -> Iterator[tuple[str, Component]]:
    """The most frequent value, its share with its whole row beside it, and the reports behind."""
    sensor = {"platform": "sensor", "state_topic": topic}
    share = {"unit_of_measurement": "%", "state_class": "measurement", "value_template": _SHARE}
    row = {"json_attributes_topic": topic, "json_attributes_template": _DETAILS}
    count = {"state_class": "measurement", "value_template": "{{ value_json.n }}"}
    yield f"{attribute}_value", {**sensor, "name": attribute, "value_template": _VALUE}
    yield f"{attribute}_share", {**sensor, "name": f"{attribute}, its share", **share, **row}
    yield f"{attribute}_reports", {**sensor, "name": f"{attribute}, reports", **count}
