"""`asyncapi.yaml` is whole: references lead somewhere, and topics are what the code parses."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from protocol_spec import ParameterError, topics
from protocol_spec.topics import ATTRIBUTE
from tests.support.protocol.asyncapi import (
    CHANNELS,
    COMPONENTS,
    DOCUMENT,
    OPERATIONS,
    matches,
    nodes,
    resolved,
)
from tests.support.protocol.oddities import LEVELS

SAMPLE = {
    "namespace": "acme",
    "campaign": "fleet-0123abcd",
    "device": "d-1",
    "attribute": "model",
    "round": "12",
    "page": "5",
}


def test_every_reference_leads_somewhere() -> None:
    references = [node for node in nodes(DOCUMENT) if isinstance(node, dict) and "$ref" in node]
    assert references
    for reference in references:
        assert isinstance(resolved(reference), dict)


def test_every_component_is_used() -> None:
    used = {node["$ref"] for node in nodes(DOCUMENT) if isinstance(node, dict) and "$ref" in node}
    for kind, members in COMPONENTS.items():
        for name in members:
            assert f"#/components/{kind}/{name}" in used


def test_every_payload_is_msgpack_but_the_one_for_dashboards() -> None:
    assert DOCUMENT["asyncapi"] == "3.0.0"
    assert DOCUMENT["defaultContentType"] == "application/msgpack"
    kinds = {name: message["contentType"] for name, message in COMPONENTS["messages"].items()}
    assert kinds.pop("resultJson") == "application/json"
    assert set(kinds.values()) == {"application/msgpack"}


def test_a_channel_is_read_with_a_filter_that_matches_it() -> None:
    channels = [channel for channel in CHANNELS.values() if "x-subscription" in channel]
    assert channels
    for channel in channels:
        levels = zip(channel["x-subscription"].split("/"), channel["address"].split("/"))
        assert all(
            level == part or (level == "+" and part.startswith("{")) for level, part in levels
        )


def _is_namespace(text: str) -> bool:
    try:
        topics.check_namespace(text)
    except ParameterError:
        return False
    return True


def _is_page_or_round(text: str) -> bool:
    return re.fullmatch(r"0|[1-9][0-9]{0,8}", text) is not None and int(text) < 100_000


@pytest.mark.parametrize(
    ("parameter", "accepts"),
    [
        ("namespace", _is_namespace),
        ("campaign", topics.is_campaign),
        ("device", topics.is_device),
        ("attribute", lambda text: ATTRIBUTE.fullmatch(text) is not None),
        ("round", _is_page_or_round),
        ("page", _is_page_or_round),
    ],
)
def test_a_parameter_matches_what_the_code_takes(
    parameter: str, accepts: Callable[[str], bool]
) -> None:
    described = COMPONENTS["parameters"][parameter]
    for text in (*LEVELS, *described.get("examples", [described.get("default")])):
        assert matches(text, described["x-pattern"], {}) == accepts(text), text


@pytest.mark.parametrize("name", CHANNELS)
def test_a_channel_has_one_operation_with_its_flags(name: str) -> None:
    """The subtree decides: what the collector tells all is retained, what passes is not."""
    reference = {"$ref": f"#/channels/{name}"}
    [operation] = [each for each in OPERATIONS.values() if each["channel"] == reference]
    subtree = CHANNELS[name]["address"].split("/")[3]
    assert operation["action"] == {"pub": "send", "down": "send", "up": "receive"}[subtree]
    flags = resolved(operation["bindings"])["mqtt"]
    assert flags == {"qos": 1, "retain": subtree == "pub", "bindingVersion": "0.2.0"}


def test_a_device_publishes_where_the_code_listens() -> None:
    upward = {name for name, channel in CHANNELS.items() if "/up/" in channel["address"]}
    for name in upward:
        parsed = topics.parse_from_device(filled(CHANNELS[name]["address"]), SAMPLE["namespace"])
        assert parsed == topics.FromDevice(SAMPLE["campaign"], SAMPLE["device"], name)
    assert upward == {"report", "request"}


def filled(address: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: SAMPLE[match[1]], address)
