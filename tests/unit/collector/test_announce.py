"""`open` publishes the invitation, so that a device can join before any collector runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from collector.commands import main
from edge_client import EdgeClient
from testbed.brokers import BROKERS, Broker
from tests.support.campaigns import manifest_text
from tests.support.harness import need


@pytest.fixture(params=BROKERS)
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Broker:
    program = {"nats": "nats-server"}.get(request.param, request.param)
    need(program)
    return BROKERS[request.param](tmp_path / "broker")


def opened(manifest: Path, data: Path, broker: str) -> dict[str, object]:
    command = ["open", str(manifest), "--data-dir", str(data), "--broker", broker, "--json"]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    told: dict[str, object] = json.loads(done.stdout)
    return told


def test_a_device_joins_what_was_opened(broker: Broker, tmp_path: Path) -> None:
    manifest = tmp_path / "m.toml"
    manifest.write_text(manifest_text())
    with broker:
        told = opened(manifest, tmp_path / "data", broker.url)
        assert (told["published"], told["running"], told["trouble"]) == (True, False, None)
        address = str(told["join"]).removeprefix("allomfree-edge join ")
        with EdgeClient(tmp_path / "device") as client:
            assert client.join(address).name == told["campaign"]


def test_a_broker_that_is_away_is_said_and_the_campaign_is_open(
    broker: Broker, tmp_path: Path
) -> None:
    manifest = tmp_path / "m.toml"
    manifest.write_text(manifest_text())
    told = opened(manifest, tmp_path / "data", broker.url)
    assert told["published"] is False
    assert "cannot be used" in str(told["trouble"])
