"""Every manifest and configuration that a page or deploy/ shows is taken by the programs."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import collector.settings
import edge_client.settings
from edge_client.policy import Policy
from edge_client.sources import KINDS, build_all
from protocol_spec import LONGITUDINAL, Manifest
from tests.support.docs import (
    COLLECTOR_EXAMPLE,
    EDGE_EXAMPLE,
    GUIDE,
    PAGES,
    blocks,
    name_of,
    read,
)
from tests.support.places import ROOT

UNCOMMENTED = "with every comment taken up"


def fenced(language: str) -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for i, block in enumerate(blocks(read(page), language)):
            yield f"{name_of(page)}[{i}]", block


def with_comments_taken_up(example: Path) -> str:
    return re.sub(r"(?m)^# (\[|\w+ = )", r"\1", read(example))


# Plain `toml` is a manifest, the agent's configuration, or a package's own file.
PLAIN = dict(fenced("toml"))
MANIFESTS = {where: text for where, text in PLAIN.items() if "attributes" in tomllib.loads(text)}
MANIFESTS |= {name_of(file): read(file) for file in sorted(ROOT.glob("docs/examples/*.toml"))}
OF_THE_AGENT = {
    where: text
    for where, text in PLAIN.items()
    if not tomllib.loads(text).keys() & {"attributes", "project"}
}
OF_THE_AGENT |= {
    name_of(EDGE_EXAMPLE): read(EDGE_EXAMPLE),
    UNCOMMENTED: with_comments_taken_up(EDGE_EXAMPLE),
}
OF_THE_COLLECTOR = {
    **dict(fenced("toml collector")),
    name_of(COLLECTOR_EXAMPLE): read(COLLECTOR_EXAMPLE),
    UNCOMMENTED: with_comments_taken_up(COLLECTOR_EXAMPLE),
}


def test_there_are_examples_of_each_kind() -> None:
    assert len(MANIFESTS) >= 2
    assert len(OF_THE_AGENT) >= 4
    assert len(OF_THE_COLLECTOR) >= 3


@pytest.mark.parametrize("where", MANIFESTS)
def test_manifests_are_valid(where: str) -> None:
    assert Manifest.from_toml(MANIFESTS[where]).calibrations


def test_the_annotated_manifest_shows_every_field() -> None:
    (text,) = (block for where, block in MANIFESTS.items() if name_of(GUIDE) in where)
    document = tomllib.loads(text)
    manifest = Manifest.from_toml(text)
    assert {field.name for field in dataclasses.fields(Manifest)} | {"format"} == document.keys()
    assert {field.name for field in dataclasses.fields(manifest.rounds)} == document[
        "rounds"
    ].keys()
    kinds = {key for attribute in document["attributes"] for key in attribute}
    assert kinds == {
        *("name", "question", "values", "otherwise", "edges", "low", "high", "unit"),
        *("changes", "protocol", "calibration"),
    }
    assert "`levels`" in read(GUIDE)
    assert all(protocol in text for protocol in LONGITUDINAL)


@pytest.mark.parametrize("where", OF_THE_COLLECTOR)
def test_configurations_of_the_collector_are_taken(where: str, tmp_path: Path) -> None:
    config = tmp_path / "collector.toml"
    config.write_text(OF_THE_COLLECTOR[where], encoding="utf-8")
    settings = collector.settings.resolve({}, config=config, environ={})
    assert settings.required_broker().tls


@pytest.mark.parametrize("where", OF_THE_AGENT)
def test_configurations_of_the_agent_are_taken(where: str, tmp_path: Path) -> None:
    config = tmp_path / "edge.toml"
    config.write_text(OF_THE_AGENT[where], encoding="utf-8")
    settings = edge_client.settings.resolve({}, config=config, environ={})
    build_all({n: t for n, t in settings.sources.items() if t.get("kind") != "plugin"})


def test_the_collectors_example_shows_every_setting() -> None:
    document = tomllib.loads(OF_THE_COLLECTOR[UNCOMMENTED])
    assert document.keys() == {setting.name for setting in collector.settings.SETTINGS}


def test_the_agents_example_shows_every_everyday_setting() -> None:
    document = tomllib.loads(OF_THE_AGENT[UNCOMMENTED])
    known = {setting.name for setting in edge_client.settings.SETTINGS}
    assert known - {"allow_plaintext", "keepalive", "log_level"} <= document.keys()
    assert Policy.from_table(document["policy"]) == Policy()
    shown = {table.get("kind", "static") for table in document["sources"].values()}
    assert shown == KINDS.keys() - {"plugin"}
