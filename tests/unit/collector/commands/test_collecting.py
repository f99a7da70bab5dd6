"""`run` and `seal`: what they do, and why they refuse to start."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path

import pytest

from collector.data_dir import only_service, read_store
from collector.records import Campaign
from tests.support.command_line import NOBODY, Cli, facts_of, mistaken


def test_seal(cli: Cli, data: Path, used: Campaign) -> None:
    told = facts_of(cli("seal", "--data-dir", data, "--json"))
    assert told == {"campaign": used.name, "sealed": []}
    assert "nothing was due" in cli("seal", "--data-dir", data).stdout
    assert facts_of(cli("seal", "--early", "--data-dir", data, "--json"))["sealed"] == [1]
    with closing(read_store(data)) as store:
        assert store.last_sealed(used.id) == 1


@pytest.mark.parametrize("url", ["http://broker.example", "broker.example", "mqtt:/broker", ""])
def test_an_address_that_names_no_broker(cli: Cli, data: Path, url: str) -> None:
    told = mistaken(cli, 2, "run", "--data-dir", data, "--broker", url)
    assert "--broker" in told
    assert "mqtts://" in told


def test_plain_text_to_another_machine(cli: Cli, data: Path) -> None:
    told = mistaken(cli, 2, "run", "--data-dir", data, "--broker", "mqtt://broker.example")
    assert "nothing was sent. Use mqtts://" in told


def test_a_second_collector_on_the_same_data(cli: Cli, data: Path) -> None:
    with only_service(data):
        told = mistaken(cli, 1, "run", "--data-dir", data, "--broker", NOBODY)
    assert "another collector is running" in told
    assert "nothing was changed" in told


def test_a_lost_device_key(cli: Cli, data: Path, used: Campaign) -> None:
    told = mistaken(cli, 1, "run", "--data-dir", data, "--broker", NOBODY)
    assert "device.key is missing; nothing was changed. Restore it" in told


def test_a_port_that_is_taken(cli: Cli, data: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        told = mistaken(cli, 1, "run", "--data-dir", data, "--broker", NOBODY, "--listen", address)
    assert f"{address} cannot be listened on: Address already in use" in told
