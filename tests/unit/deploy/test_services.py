"""systemd units, the drop-in for mosquitto, and alert rules, as the tools verify them."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import collector.settings
from collector.brokers.config import BrokerPlan
from collector.brokers.directory import BrokerDirectory
from collector.web.metrics import METRICS
from edge_client import errors
from edge_client.settings import default_state_dir
from edge_client.sources import CommandSource
from protocol_spec.programs.mqtt import CONNECT_SECONDS
from protocol_spec.programs.settings import SettingsError
from tests.support.documents import DEPLOY, PROGRAMS, can_be_typed, unit
from tests.support.harness import ROOT, path_of

# --- units ---------------------------------------------------------------------------------------

FILES = {name: DEPLOY / f"allomfree-{name}.service" for name in ("collector", "edge")}
UNITS = {name: unit(file) for name, file in FILES.items()}
DROP_IN = DEPLOY / "mosquitto-allomfree.conf"
DATA = Path("/var/lib") / UNITS["collector"]["StateDirectory"][0]
BOTH = {
    "Type": "notify",
    "Restart": "on-failure",
    "StateDirectoryMode": "0700",
    "UMask": "0077",
    "NoNewPrivileges": "yes",
    "CapabilityBoundingSet": "",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "PrivateDevices": "yes",
    "MemoryDenyWriteExecute": "yes",
    "RestrictAddressFamilies": "AF_INET AF_INET6 AF_UNIX",
    "SystemCallArchitectures": "native",
    "LimitCORE": "0",
    "WantedBy": "multi-user.target",
}
# What Debian 12 ships, as far as it matters to a drop-in.
PACKAGED = """[Service]
Type=notify
ExecStart=/bin/true -c /etc/mosquitto/mosquitto.conf
ExecReload=/bin/kill -HUP $MAINPID
ExecStartPre=/bin/mkdir -m 740 -p /var/log/mosquitto
"""


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_is_confined_and_runs_its_program(name: str) -> None:
    assert {key: UNITS[name].get(key) for key in BOTH} == {k: [v] for k, v in BOTH.items()}
    assert UNITS[name]["User"] == UNITS[name]["StateDirectory"] == [f"allomfree-{name}"]
    (start,) = UNITS[name]["ExecStart"]
    assert Path(start.split()[0]).name == f"allomfree-{name}"
    can_be_typed(start.split())


def test_limits_of_system_calls_memory_watchdogs_and_restarts() -> None:
    """The page lowers its own priority; where that is refused it ends before its first answer.
    A watchdog is slower than a broker that hangs; only a person can help after some exit codes."""
    edge, own = UNITS["edge"], UNITS["collector"]
    assert edge["ProcSubset"] == ["all"]
    assert edge["SystemCallFilter"][0] == "@system-service"
    assert edge["MemoryMax"] == ["128M"]
    assert int(edge["RestartSec"][0]) >= 10
    *_, without, back = own["SystemCallFilter"]
    assert without.startswith("~")
    assert back == "setpriority"
    hanging = 2 * 3 * CONNECT_SECONDS
    assert int(own["WatchdogSec"][0]) > 2 * hanging
    assert int(edge["WatchdogSec"][0]) > 2 * (hanging + CommandSource(["true"]).timeout)
    codes = {n: set(map(int, UNITS[n]["RestartPreventExitStatus"][0].split())) for n in UNITS}
    settings, policy = SettingsError.exit_code, errors.PolicyRefusal.exit_code
    assert codes == {"collector": {settings}, "edge": {settings, policy}}


def test_service_and_commands_agree_on_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty.toml").touch()
    resolve, environ = collector.settings.resolve, {"STATE_DIRECTORY": str(DATA)}
    service = resolve({}, config=tmp_path / "empty.toml", environ=environ)
    commands = resolve({}, config=DEPLOY / "collector.toml.example", environ={})
    assert service.data_dir == commands.data_dir
    monkeypatch.setenv("STATE_DIRECTORY", f"/var/lib/{UNITS['edge']['StateDirectory'][0]}")
    example = tomllib.loads((DEPLOY / "edge.toml.example").read_text(encoding="utf-8"))
    assert str(default_state_dir()) == example["state_dir"]


@pytest.mark.parametrize(
    "check", [["verify"], ["security", "--offline=true", "--threshold=15", "--no-pager"]]
)
@pytest.mark.parametrize("name", ["allomfree-collector", "allomfree-edge", "mosquitto"])
def test_systemd_takes_the_unit(name: str, check: list[str], tmp_path: Path) -> None:
    """The threshold is of the exposure level, in tenths: lower is better."""
    analyze, file = path_of("systemd-analyze"), tmp_path / f"{name}.service"
    if name == "mosquitto":
        file.write_text(PACKAGED, encoding="utf-8")
        (tmp_path / "mosquitto.service.d").mkdir()
        text = DROP_IN.read_text(encoding="utf-8").replace("/usr/sbin/mosquitto", "/bin/true")
        (tmp_path / "mosquitto.service.d/allomfree.conf").write_text(text, encoding="utf-8")
    else:
        text = (DEPLOY / file.name).read_text(encoding="utf-8")
        file.write_text(re.sub(r"(?m)^ExecStart=.*$", "ExecStart=/bin/true", text))
    done = subprocess.run(
        [analyze, *check, str(file)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not [line for line in done.stderr.splitlines() if name in line]


def test_mosquitto_reads_what_broker_config_writes_and_is_as_confined(tmp_path: Path) -> None:
    settings = collector.settings.resolve(
        {}, config=Path("/dev/null"), environ={"STATE_DIRECTORY": str(DATA)}
    )
    plan = BrokerPlan("mosquitto", "allomfree", ("localhost",), tmp_path / "b")
    written, drop_in = BrokerDirectory.configure(tmp_path / "b", plan).path, unit(DROP_IN)

    def inside(path: str) -> Path:
        return written / Path(path.lstrip("-")).relative_to(settings.broker_dir)

    taken_back, start = drop_in["ExecStart"]
    assert taken_back == ""
    program, flag, file = start.split()
    assert (program, flag) == ("/usr/sbin/mosquitto", "-c")
    assert inside(file).is_file()
    assert drop_in["User"] == UNITS["collector"]["User"]
    assert drop_in["ExecStartPre"] == [""], "the package's need root"
    assert drop_in["TemporaryFileSystem"] == [str(DATA)]
    assert [inside(path) for path in drop_in["BindPaths"]] == [written]
    hidden = [inside(path) for path in drop_in["InaccessiblePaths"]]
    assert hidden == [written / name for name in ("credentials", "invitations", "tls/ca.key")]
    assert all(path.exists() for path in hidden)
    configuration = (written / "mosquitto.conf").read_text(encoding="utf-8")
    assert not any(str(path) in configuration for path in hidden)
    own = UNITS["collector"]
    fences = re.compile(r"NoNew|Private|Protect|Restrict|Capability|MemoryDeny|System|Lock|LimitC")
    wanted = {key for key in own if fences.match(key)} - {"PrivateMounts"}
    assert len(wanted) > 20
    assert [key for key in wanted if not set(drop_in[key]) <= set(own[key])] == []


# --- alerts --------------------------------------------------------------------------------------

ALERTS = DEPLOY / "prometheus-alerts.yaml"
ALERT_TESTS = Path(__file__).with_name("alerts.yaml")
RULES: list[dict[str, Any]] = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"][0][
    "rules"
]
DASHBOARDS = (ROOT / "docs/dashboards.md").read_text(encoding="utf-8")


def promtool(*words: str | Path) -> str:
    done = subprocess.run(
        [path_of("promtool"), *map(str, words)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_takes_the_rules_and_each_fires_when_it_should() -> None:
    assert f"{len(RULES)} rules found" in promtool("check", "rules", ALERTS)
    promtool("test", "rules", ALERT_TESTS)
    tests = yaml.safe_load(ALERT_TESTS.read_text(encoding="utf-8"))["tests"]
    rows = [row for test in tests for row in test["alert_rule_test"]]
    names = {rule["alert"] for rule in RULES}
    assert {row["alertname"] for row in rows if row.get("exp_alerts")} == names
    assert {row["alertname"] for row in rows if not row.get("exp_alerts")} == names


def test_a_rule_queries_what_is_measured_and_describes_what_to_do() -> None:
    for rule in RULES:
        asked = set(re.findall(r"\b(?:allomfree_\w+|up\b)", rule["expr"]))
        assert asked
        assert asked <= {*METRICS, "up"}
        assert rule["expr"].count('job="allomfree"') == rule["expr"].count("{")
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"].keys() == {"summary", "description"}
        described = rule["annotations"]["description"]
        for program, verb in re.findall(r"(allomfree-collector) ([a-z-]+)", described):
            assert verb in PROGRAMS[program].commands


def test_the_page_lists_every_rule_and_a_configuration_that_prometheus_takes(
    tmp_path: Path,
) -> None:
    listed = re.findall(r"(?m)^\| `(Allomfree\w+)`", DASHBOARDS.split("### Alerts")[1])
    assert listed == [rule["alert"] for rule in RULES]
    (block,) = re.findall(r"```yaml\n(.*?)```", DASHBOARDS, re.DOTALL)
    assert "job_name: allomfree" in block
    assert ALERTS.name in block
    (tmp_path / "prometheus.yml").write_text(block)
    (tmp_path / ALERTS.name).write_text(ALERTS.read_text())
    promtool("check", "config", tmp_path / "prometheus.yml")
