"""`backup` and `restore`: what they say, and that a mistake is one line."""

from __future__ import annotations

from pathlib import Path

from collector.device_key import DeviceKey
from collector.records import Campaign
from tests.support.command_line import Cli, facts_of, mistaken


def test_there_and_back(cli: Cli, home: Path, data: Path, used: Campaign) -> None:
    DeviceKey(data / "device.key")
    told = cli("backup", home / "b", "--secrets", home / "s", "--data-dir", data).stdout
    assert f"Backed up to {home / 'b'} and checked: {used.name}; 180 messages received" in told
    again = f"restore --data-dir {data} {home / 'b'} --secrets {home / 's'}"
    assert told.endswith(f"\nTo restore it: allomfree-collector {again}\n")
    told = cli("restore", home / "b", "--secrets", home / "s", "--check").stdout
    assert "is complete" in told
    assert told.endswith("Nothing was restored.\n")
    words = ("restore", home / "b", "--secrets", home / "s", "--data-dir", home / "again")
    told = cli(*words).stdout
    assert f"Restored to {home / 'again'}: {used.name}; 180 messages received; 2 files" in told
    assert "is lost: devices have their receipts" in told
    status = facts_of(cli("status", "--json", "--data-dir", home / "again"))
    assert status["received"] == 180
    assert "nothing is ever overwritten" in mistaken(cli, 1, *words)


def test_json(cli: Cli, home: Path, data: Path, used: Campaign) -> None:
    DeviceKey(data / "device.key")
    made = facts_of(cli("backup", home / "b", "--json", "--data-dir", data))
    assert made.pop("made") > 1_700_000_000
    assert made.pop("version")
    assert made == {
        "directory": str(home / "b"),
        "secrets": None,
        "data_dir": str(data),
        "campaigns": [used.name],
        "received": 180,
        "enrolled": None,
        "files": 2,
    }
    assert facts_of(cli("restore", home / "b", "--check", "--json"))["received"] == 180


def test_mistakes_are_one_line(cli: Cli, home: Path, data: Path, used: Campaign) -> None:
    assert "open a campaign first" in mistaken(
        cli, 1, "backup", home / "b", "--data-dir", home / "nothing"
    )
    assert "is not a backup: it has no backup.json" in mistaken(cli, 1, "restore", home)
    assert "no backup was made" in mistaken(cli, 1, "backup", home / "b", "--data-dir", data)
    assert not (home / "b").exists(), "there is no device key, and 180 messages"
