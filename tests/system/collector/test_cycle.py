"""A campaign from its beginning to its end, by the commands of the operator and the owners."""

from __future__ import annotations

import csv
import json
import time
from pathlib import Path

import pytest

from collector.health import examine
from protocol_spec import Manifest, Presence, State, decode_state
from testbed.brokers import Broker
from tests.support.campaigns import manifest_text
from tests.support.collector_processes.campaign import (
    ATTRIBUTE,
    Collection,
    own_namespace,
    wait_until_open,
)
from tests.support.collector_processes.driver import Launcher
from tests.support.collector_processes.processes import CollectorProcess, collector
from tests.support.collector_processes.wire import Publisher, Watcher, retained
from tests.support.command_line import Operator, operator
from tests.support.edge_processes import AgentProcess, edge, wait_until
from tests.support.harness import all_at_once

HOUR = 3600
PAST, NOW = 0, 1


def write_manifest(file: Path) -> Manifest:
    """Round 0 has ended and is within its grace; round 1 is open."""
    table = f'[[attributes]]\nname = "{ATTRIBUTE}"\nquestion = "?"\nprotocol = "L-OSUE"\n'
    text = manifest_text(
        first=int(time.time()) - HOUR - 5,
        count=3,
        attributes=f'{table}values = ["v0", "v1", "v2"]\n',
    )
    file.write_text(text)
    return Manifest.from_toml(text)


class Owner:
    """A device and what its owner types."""

    def __init__(self, place: Path, name: str) -> None:
        self.config = place / f"{name}.toml"
        self.config.write_text(
            f'state_dir = "{place / name}"\n[sources.{ATTRIBUTE}]\nvalue = "v1"\n'
        )

    def joins_and_reports(self, address: str) -> None:
        self.says("join", address, "--yes")
        assert "counted" in self.says("report")

    def says(self, *words: str) -> str:
        done = edge(*words, "--config", self.config)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.mark.slow
def test_from_open_to_close(broker: Broker, launcher: Launcher, tmp_path: Path) -> None:
    written = write_manifest(tmp_path / "campaign.toml")
    collection = Collection(tmp_path / "data", written, 3, own_namespace())
    at = collection.flags(broker)
    owners = [Owner(tmp_path, name) for name in ("one", "two")]
    with operator("--data-dir", collection.data, *at) as typing:
        opened = typing.asks("open", tmp_path / "campaign.toml")
        assert opened["campaign"] == collection.manifest.campaign
        address = opened["join"].removeprefix("allomfree-edge join ")
        with CollectorProcess(collection.data, *at) as running:
            wait_until_open(collection, broker.port)
            with Publisher(broker.port) as publisher:
                publisher.send(collection.reports(PAST))
            all_at_once(lambda owner: owner.joins_and_reports(address), owners)
            collection.wait_for(3, PAST)
            all_is_well(collection, typing)
            seal_and_read(typing, tmp_path)
            with AgentProcess(owners[0].config) as agent:
                agent.wait_for("connected to")
                close(collection, broker, running, typing)
                agent.wait_for("the collector has closed the campaign")
            assert "left" in owners[0].says("status")
    nothing_stays_retained(collection, broker, launcher)


def all_is_well(collection: Collection, typing: Operator) -> None:
    wait_until(lambda: examine(collection.data).well)
    assert collector("health", "--data-dir", collection.data).returncode == 0
    assert typing.asks("health")["finding"] == "connected and counting"
    findings = typing.asks("doctor")
    assert all(finding["ok"] for finding in findings), findings
    told = typing.asks("status")
    (campaign,) = told["campaigns"]
    assert told["received"] == sum(campaign["outcomes"].values()) == 5
    assert [row["reports"] for row in campaign["filling"]] == [{ATTRIBUTE: 3}, {ATTRIBUTE: 2}]
    assert campaign["sealed"] == 0


def seal_and_read(typing: Operator, place: Path) -> None:
    assert typing.asks("seal", "--early")["sealed"] == [PAST]
    (estimate,) = typing.asks("estimate")
    assert (estimate["n"], estimate["rounds"], estimate["final"]) == (3, 1, True)
    assert [row["count"] for row in estimate["histogram"]] == [1, 1, 1]
    (latest,) = typing.asks("estimate", "--round", "latest")
    assert latest["round"] == PAST
    typing.runs("export", "--output", place / "heat.csv")
    rows = list(csv.DictReader((place / "heat.csv").read_text().splitlines()))
    assert {row["value"] for row in rows} == {"v0", "v1", "v2"}
    lines = typing.runs("export", "--format", "ndjson").stdout.splitlines()
    assert len([json.loads(line) for line in lines]) == len(rows)


def close(
    collection: Collection, broker: Broker, running: CollectorProcess, typing: Operator
) -> None:
    """Devices hear of it, the invitation is taken back, and what had begun is sealed."""
    with Watcher(broker.port, collection.topics.state, collection.topics.manifest) as watcher:
        watcher.wait_for_topic(collection.topics.manifest, collection.manifest.to_bytes())
        typing.runs("close", "--yes")
        watcher.wait_for_topic(collection.topics.manifest, b"")
        state = collection.topics.state  # NATS may hand on another topic first
        watcher.wait_for(lambda: presence(watcher.latest[state]) is Presence.CLOSED)
    wait_until(lambda: collection.look(NOW).sealed)
    wait_until(lambda: collection.look(NOW).unpublished == 0)
    kept = retained(broker.port, f"{collection.topics.manifest.removesuffix('/manifest')}/#")
    assert collection.topics.manifest not in kept
    assert presence(kept[collection.topics.state]) is Presence.CLOSED
    for number in (None, PAST, NOW):
        assert kept[collection.topics.result(ATTRIBUTE, number)] in collection.look().results
    assert running.terminate() == 0


def presence(payload: bytes) -> Presence:
    state = decode_state(payload)
    assert isinstance(state, State)
    return state.presence


def nothing_stays_retained(collection: Collection, broker: Broker, launcher: Launcher) -> None:
    """Receipts stand one period beyond the deadline, then they are cleared."""
    receipts = f"{collection.topics.receipt_root}#"
    assert retained(broker.port, receipts)
    collection.set_clock(collection.manifest.rounds.deadline(NOW) + HOUR + 1)
    run = launcher.start(collection.options(broker, clock=str(collection.clock)))
    wait_until(lambda: not retained(broker.port, receipts))
    assert run.terminate() == 0
    kept = retained(broker.port, f"{collection.topics.manifest.removesuffix('/manifest')}/#")
    assert presence(kept[collection.topics.state]) is Presence.CLOSED


@pytest.mark.slow
def test_a_campaign_opened_while_the_service_runs(broker: Broker, tmp_path: Path) -> None:
    """And a second service on the same data is refused."""
    first = Collection.shared(tmp_path / "data", 3)
    at = first.flags(broker)
    with CollectorProcess(first.data, *at), operator("--data-dir", first.data, *at) as typing:
        wait_until_open(first, broker.port)
        busy = typing.tries("run")
        assert busy.exit_code == 1
        assert "another collector is running" in busy.stderr
        written = write_manifest(tmp_path / "second.toml")
        second = Collection(first.data, written, 3, first.namespace)
        typing.asks("open", tmp_path / "second.toml")
        wait_until_open(second, broker.port)
        with Publisher(broker.port) as publisher:
            publisher.send([*first.reports(), *second.reports(NOW)])
        wait_until(lambda: first.store.received() == 6)
        told = typing.asks("status")
        counted = {c["campaign"]: c["outcomes"] for c in told["campaigns"]}
    names = [collection.manifest.campaign for collection in (first, second)]
    assert counted == {name: {"accepted": 3} for name in names}
