"""A campaign from its beginning to its end, by the commands of the operator and the owners."""

from __future__ import annotations

import csv
import json
import time
from pathlib import Path

import pytest

from protocol_spec import Manifest, Presence, State, decode_state
from tests.support.brokers import Broker
from tests.support.campaigns import manifest_text
from tests.support.collector_processes.campaign import ATTRIBUTE, Desk, wait_until_open
from tests.support.collector_processes.driver import Nursery, Order
from tests.support.collector_processes.processes import CollectorProcess, collector, facts
from tests.support.collector_processes.wire import Publisher, Watcher, retained
from tests.support.edge_processes.processes import AgentProcess, edge, wait_until

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

    def says(self, *words: str) -> str:
        done = edge(*words, "--config", self.config)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.mark.slow
def test_from_open_to_close(broker: Broker, nursery: Nursery, tmp_path: Path) -> None:
    desk = Desk(tmp_path / "data", write_manifest(tmp_path / "campaign.toml"), 3)
    data = ("--data-dir", desk.data)
    opened = facts("open", tmp_path / "campaign.toml", *data, "--broker", broker.url)
    assert opened["campaign"] == desk.manifest.campaign
    address = opened["join"].removeprefix("allomfree-edge join ")
    owners = [Owner(tmp_path, name) for name in ("one", "two")]
    with CollectorProcess(desk.data, "--broker", broker.url) as running:
        wait_until_open(desk, broker.port)
        for owner in owners:
            owner.says("join", address, "--yes")
            assert "counted" in owner.says("report")
        with Publisher(broker.port) as publisher:
            publisher.send(desk.reports(PAST))
        wait_until(lambda: desk.look(PAST).n == 3)
        all_is_well(desk, broker)
        seal_and_read(desk, tmp_path)
        with AgentProcess(owners[0].config) as agent:
            agent.wait_for("connected to")
            close(desk, broker, running)
            agent.wait_for("the collector has closed the campaign")
        assert "left" in owners[0].says("status")
    nothing_stays_retained(desk, broker, nursery)


def all_is_well(desk: Desk, broker: Broker) -> None:
    data = ("--data-dir", desk.data)
    wait_until(lambda: collector("health", *data).returncode == 0)
    assert facts("health", *data)["finding"] == "connected and counting"
    findings = facts("doctor", *data, "--broker", broker.url)
    assert all(finding["ok"] for finding in findings), findings
    told = facts("status", *data)
    (campaign,) = told["campaigns"]
    assert told["received"] == sum(campaign["outcomes"].values()) == 5
    assert [row["reports"] for row in campaign["filling"]] == [{ATTRIBUTE: 3}, {ATTRIBUTE: 2}]
    assert campaign["sealed"] == 0


def seal_and_read(desk: Desk, place: Path) -> None:
    data = ("--data-dir", desk.data)
    assert facts("seal", *data, "--early")["sealed"] == [PAST]
    (estimate,) = facts("estimate", *data)
    assert (estimate["n"], estimate["rounds"], estimate["final"]) == (3, 1, True)
    assert [row["count"] for row in estimate["histogram"]] == [1, 1, 1]
    (latest,) = facts("estimate", *data, "--round", "latest")
    assert latest["round"] == PAST
    assert collector("export", *data, "--output", place / "heat.csv").returncode == 0
    rows = list(csv.DictReader((place / "heat.csv").read_text().splitlines()))
    assert {row["value"] for row in rows} == {"v0", "v1", "v2"}
    lines = collector("export", *data, "--format", "ndjson").stdout.splitlines()
    assert len([json.loads(line) for line in lines]) == len(rows)


def close(desk: Desk, broker: Broker, running: CollectorProcess) -> None:
    """Devices hear of it, the invitation is taken back, and what had begun is sealed."""
    with Watcher(broker.port, desk.topics.state, desk.topics.manifest) as watcher:
        watcher.wait_for_topic(desk.topics.manifest, desk.manifest.to_bytes())
        assert collector("close", "--yes", "--data-dir", desk.data).returncode == 0
        watcher.wait_for_topic(desk.topics.manifest, b"")
        assert presence(watcher.latest[desk.topics.state]) is Presence.CLOSED
    wait_until(lambda: desk.look(NOW).sealed)
    wait_until(lambda: desk.look(NOW).unpublished == 0)
    kept = retained(broker.port, f"{desk.topics.manifest.removesuffix('/manifest')}/#")
    assert desk.topics.manifest not in kept
    assert presence(kept[desk.topics.state]) is Presence.CLOSED
    for number in (None, PAST, NOW):
        assert kept[desk.topics.result(ATTRIBUTE, number)] in desk.look().results
    assert running.terminate() == 0


def presence(payload: bytes) -> Presence:
    state = decode_state(payload)
    assert isinstance(state, State)
    return state.presence


def nothing_stays_retained(desk: Desk, broker: Broker, nursery: Nursery) -> None:
    """Receipts stand one period beyond the deadline, then they are cleared."""
    receipts = f"{desk.topics.receipt_root}#"
    assert retained(broker.port, receipts)
    desk.set_clock(desk.manifest.rounds.deadline(NOW) + HOUR + 1)
    life = nursery.start(Order(str(desk.data), broker.url, clock=str(desk.clock)))
    wait_until(lambda: not retained(broker.port, receipts))
    life.terminate()
    kept = retained(broker.port, f"{desk.topics.manifest.removesuffix('/manifest')}/#")
    assert presence(kept[desk.topics.state]) is Presence.CLOSED


@pytest.mark.slow
def test_a_campaign_opened_while_the_service_runs(broker: Broker, tmp_path: Path) -> None:
    """And a second service on the same data is refused."""
    first = Desk.opened(tmp_path / "data", 3)
    with CollectorProcess(first.data, "--broker", broker.url):
        wait_until_open(first, broker.port)
        busy = collector("run", "--data-dir", first.data, "--broker", broker.url)
        assert busy.returncode == 1
        assert "another collector is running" in busy.stderr
        second = Desk(first.data, write_manifest(tmp_path / "second.toml"), 3)
        facts("open", tmp_path / "second.toml", "--data-dir", first.data, "--broker", broker.url)
        wait_until_open(second, broker.port)
        with Publisher(broker.port) as publisher:
            publisher.send([*first.reports(), *second.reports(NOW)])
        wait_until(lambda: facts("status", "--data-dir", first.data)["received"] == 6)
        told = facts("status", "--data-dir", first.data)
        counted = {c["campaign"]: c["outcomes"] for c in told["campaigns"]}
    names = [desk.manifest.campaign for desk in (first, second)]
    assert counted == {name: {"accepted": 3} for name in names}
