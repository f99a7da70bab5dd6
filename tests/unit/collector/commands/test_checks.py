"""`health`, `doctor` and `revoke`."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

from collector.data_dir import read_store
from collector.health import Heartbeat, Status
from collector.records import Campaign
from tests.support.command_line import NOBODY, Cli, facts_of, mistaken


def test_health(cli: Cli, data: Path, used: Campaign) -> None:
    silent = cli("health", "--data-dir", data, "--json")
    assert silent.exit_code == 1
    assert json.loads(silent.stdout)["finding"].startswith("no collector is running")
    Heartbeat(data).beat(Status(connected=True, trouble=""))
    assert facts_of(cli("health", "--data-dir", data, "--json"))["healthy"] is True
    assert cli("health", "--data-dir", data).stdout == "connected and counting\n"


def test_doctor(cli: Cli, data: Path, used: Campaign) -> None:
    shown = cli("doctor", "--data-dir", data, "--broker", NOBODY, "--json")
    assert shown.exit_code == 1
    found = {f["check"]: (f["ok"], f["finding"]) for f in json.loads(shown.stdout)}
    assert found["database"] == (True, "every message received has one outcome")
    assert found["campaigns"] == (True, used.name)
    assert found["device key"][0] is False, "reports came, so a missing key is a lost one"
    assert found["broker"][0] is False
    text = cli("doctor", "--data-dir", data, "--broker", NOBODY)
    assert "FAIL  broker: the broker mqtt://127.0.0.1:1 cannot be used" in text.stdout


def test_revoke_and_undo(cli: Cli, data: Path, used: Campaign) -> None:
    assert cli("revoke", "kitchen-7", "--data-dir", data).exit_code == 0
    with closing(read_store(data)) as store:
        assert store.revoked() == {"kitchen-7"}
    assert "is no longer revoked" in cli("revoke", "kitchen-7", "--undo", "--data-dir", data).stdout
    with closing(read_store(data)) as store:
        assert store.revoked() == frozenset()


def test_a_device_that_nobody_enrolled_without_a_broker_here(
    cli: Cli, data: Path, used: Campaign
) -> None:
    told = cli("revoke", "nobody", "--data-dir", data).stdout.splitlines()
    assert told[0] == "nobody is revoked: its reports are refused."
    assert told[1].startswith("No device nobody was enrolled here: whoever runs the broker manages")
    assert told[1].endswith("If the name is wrong, undo it:")
    undone = cli(*told[2].split()[1:]).stdout
    assert undone.startswith("nobody is no longer revoked"), "it can be pasted"
    assert "undo it" not in undone


def test_a_readers_name_without_its_prefix(cli: Cli, data: Path, used: Campaign) -> None:
    cli("broker-config", "nats", "--host", "localhost", "--data-dir", data)
    cli("enrol", "home-1", "--reader", "home", "--data-dir", data)
    told = cli("revoke", "home", "--data-dir", data).stdout
    assert "NO DEVICE home was enrolled here. Did you mean Reader-home or home-1?" in told
    assert (
        "credential for the broker is no longer"
        in cli("revoke", "Reader-home", "--data-dir", data).stdout
    )


def test_a_name_that_no_device_can_have(cli: Cli, data: Path) -> None:
    assert "invalid device name 'Kitchen 7': use 1 to 32 of a-z" in mistaken(
        cli, 2, "revoke", "Kitchen 7", "--data-dir", data
    )
