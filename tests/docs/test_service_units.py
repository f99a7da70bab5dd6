"""The units of both services keep what matters, and run what is there."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import collector.settings
from edge_client import errors
from edge_client.settings import default_state_dir
from edge_client.sources import CommandSource
from protocol_spec.programs.mqtt import CONNECT_SECONDS
from protocol_spec.programs.settings import SettingsError
from tests.support.deploy_files import DEPLOY, can_be_typed, unit
from tests.support.docs import COLLECTOR_EXAMPLE, EDGE_EXAMPLE, read
from tests.support.needs import path_of

FILES = {name: DEPLOY / f"allomfree-{name}.service" for name in ("collector", "edge")}
UNITS = {name: unit(file) for name, file in FILES.items()}
BOTH = [
    ("Type", "notify"),
    ("Restart", "on-failure"),
    ("StateDirectoryMode", "0700"),
    ("UMask", "0077"),
    ("NoNewPrivileges", "yes"),
    ("CapabilityBoundingSet", ""),
    ("ProtectSystem", "strict"),
    ("ProtectHome", "yes"),
    ("PrivateTmp", "yes"),
    ("PrivateDevices", "yes"),
    ("MemoryDenyWriteExecute", "yes"),
    ("RestrictAddressFamilies", "AF_INET AF_INET6 AF_UNIX"),
    ("SystemCallArchitectures", "native"),
    ("LimitCORE", "0"),
    ("WantedBy", "multi-user.target"),
]


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_keeps_what_matters(name: str) -> None:
    kept = {key: UNITS[name].get(key) for key, _ in BOTH}
    assert kept == {key: [value] for key, value in BOTH}
    assert UNITS[name]["User"] == UNITS[name]["StateDirectory"] == [f"allomfree-{name}"]


def test_the_agents_unit_filters_system_calls_and_memory() -> None:
    edge = UNITS["edge"]
    assert edge["ProcSubset"] == ["all"]
    assert edge["SystemCallFilter"][0] == "@system-service"
    assert edge["MemoryMax"] == ["128M"]
    assert int(edge["RestartSec"][0]) >= 10


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_runs_its_program(name: str) -> None:
    (start,) = UNITS[name]["ExecStart"]
    assert Path(start.split()[0]).name == f"allomfree-{name}"
    can_be_typed(start.split())


def test_the_watchdog_is_slower_than_a_broker_that_hangs() -> None:
    hanging = 2 * 3 * CONNECT_SECONDS
    assert int(UNITS["collector"]["WatchdogSec"][0]) > 2 * hanging
    slowest = hanging + CommandSource(["true"]).timeout
    assert int(UNITS["edge"]["WatchdogSec"][0]) > 2 * slowest


def test_no_restart_where_only_a_person_can_help() -> None:
    codes = {name: UNITS[name]["RestartPreventExitStatus"][0].split() for name in UNITS}
    assert codes["collector"] == [str(SettingsError.exit_code)]
    assert set(map(int, codes["edge"])) == {
        errors.SettingsError.exit_code,
        errors.PolicyRefusal.exit_code,
    }


def test_service_and_commands_agree_on_the_data(tmp_path: Path) -> None:
    directory = f"/var/lib/{UNITS['collector']['StateDirectory'][0]}"
    config = tmp_path / "collector.toml"
    config.write_text("", encoding="utf-8")
    resolve = collector.settings.resolve
    service = resolve({}, config=config, environ={"STATE_DIRECTORY": directory})
    assert resolve({}, config=COLLECTOR_EXAMPLE, environ={}).data_dir == service.data_dir


def test_service_and_commands_agree_on_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    directory = f"/var/lib/{UNITS['edge']['StateDirectory'][0]}"
    monkeypatch.setenv("STATE_DIRECTORY", directory)
    assert str(default_state_dir()) == tomllib.loads(read(EDGE_EXAMPLE))["state_dir"]


@pytest.mark.parametrize(
    "check", [["verify"], ["security", "--offline=true", "--threshold=15", "--no-pager"]]
)
@pytest.mark.parametrize("name", UNITS)
def test_systemd_takes_the_unit(name: str, check: list[str], tmp_path: Path) -> None:
    """The threshold is of the exposure level, in tenths: lower is better."""
    analyze = path_of("systemd-analyze")
    copy = tmp_path / FILES[name].name
    text = re.sub(r"(?m)^ExecStart=.*$", "ExecStart=/bin/true", read(FILES[name]))
    copy.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [analyze, *check, str(copy)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not [line for line in done.stderr.splitlines() if copy.name in line]
