"""Topics: built as published, parsed strictly, and nothing can be smuggled into a level."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol_spec import DEFAULT_NAMESPACE, Manifest, ParameterError, Topics, parse_from_device
from protocol_spec.topics import FromDevice, check_namespace, is_campaign, is_device
from tests.support.protocol import vectors
from tests.support.protocol.manifest_cases import GOOD

VECTORS = vectors.load("topics.json")
TOPICS = Topics(VECTORS["campaign"], VECTORS["namespace"])
DEVICE = st.from_regex(r"[a-z0-9-]{1,32}", fullmatch=True)


def test_topics_are_built_as_published() -> None:
    device, number, page = VECTORS["device"], VECTORS["round"], VECTORS["page"]
    attribute = VECTORS["attribute"]
    assert VECTORS["built"] == {
        "manifest": TOPICS.manifest,
        "signature": TOPICS.signature,
        "thresholds": TOPICS.thresholds,
        "state": TOPICS.state,
        "receipt": TOPICS.receipt(number, page),
        "result": TOPICS.result(attribute),
        "result_of_round": TOPICS.result(attribute, number),
        "result_json": TOPICS.result_json(attribute),
        "report": TOPICS.report(device),
        "request": TOPICS.request(device),
        "response": TOPICS.response(device),
        "all_reports": TOPICS.all_reports,
        "all_requests": TOPICS.all_requests,
    }


@pytest.mark.parametrize("entry", VECTORS["parsed"], ids=lambda e: repr(e["topic"]))
def test_topics_are_parsed_as_published(entry: dict[str, Any]) -> None:
    expected = FromDevice(**entry["parsed"]) if entry["parsed"] else None
    assert parse_from_device(entry["topic"], VECTORS["namespace"]) == expected


@given(DEVICE)
def test_what_is_built_is_parsed(device: str) -> None:
    campaign, namespace = VECTORS["campaign"], VECTORS["namespace"]
    for kind, topic in (("report", TOPICS.report(device)), ("request", TOPICS.request(device))):
        assert parse_from_device(topic, namespace) == FromDevice(campaign, device, kind)


@given(st.text())
def test_any_text_is_a_device_or_refused(text: str) -> None:
    if is_device(text):
        assert text.isascii()
        assert not set(text) & set("/+#$ \x00")
        assert TOPICS.report(text).count("/") == 5
    else:
        for build in (TOPICS.report, TOPICS.request, TOPICS.response):
            with pytest.raises(ParameterError, match="device"):
                build(text)


@given(st.lists(st.sampled_from(["acme", "v1", "doors-0123abcd", "up", "a", "report"])))
def test_only_the_one_order_of_levels_is_a_devices(levels: list[str]) -> None:
    right = ["acme", "v1", "doors-0123abcd", "up"]
    expected = levels[:4] == right and levels[5:] == ["report"] and is_device(levels[4])
    assert (parse_from_device("/".join(levels), "acme") is not None) == expected


@pytest.mark.parametrize("manifest", GOOD, ids=lambda m: m.name)
def test_a_manifests_campaign_is_a_campaign(manifest: Any) -> None:
    campaign = Manifest.from_toml(manifest.toml).campaign
    assert is_campaign(campaign)
    assert Topics(campaign).manifest == f"{DEFAULT_NAMESPACE}/v1/{campaign}/pub/manifest"


@pytest.mark.parametrize("campaign", ["", "doors", "doors-0123abcg", "a/b-0123abcd", "+", "d\n"])
def test_other_campaigns_are_refused(campaign: str) -> None:
    with pytest.raises(ParameterError, match="campaign"):
        Topics(campaign)


@pytest.mark.parametrize("namespace", ["a", "allomfree", "a-b_c", "0", "x" * 64])
def test_namespaces(namespace: str) -> None:
    assert check_namespace(namespace) == namespace
    topic = Topics("doors-0123abcd", namespace).report("a")
    assert parse_from_device(topic, namespace) is not None
    assert parse_from_device(topic, "other") is None


@pytest.mark.parametrize("namespace", ["", "A", "a/b", "+", "#", "$sys", "-a", "a-", "x" * 65, "é"])
def test_other_namespaces_are_refused(namespace: str) -> None:
    with pytest.raises(ParameterError, match="namespace"):
        Topics("doors-0123abcd", namespace)
