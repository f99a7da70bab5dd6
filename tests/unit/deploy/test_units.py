"""The units start commands that exist, and mosquitto's drop-in finds what broker-config writes."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from collector.brokers.config import BrokerPlan
from collector.brokers.directory import BrokerDirectory
from collector.settings import resolve
from tests.support.deploy_files import DEPLOY, can_be_typed, unit
from tests.support.needs import path_of

UNITS = sorted(DEPLOY.glob("*.service"))
COLLECTOR = unit(DEPLOY / "allomfree-collector.service")
DROP_IN = DEPLOY / "mosquitto-allomfree.conf"
DATA = Path("/var/lib") / COLLECTOR["StateDirectory"][0]

# What Debian 12 ships, as far as it matters to a drop-in.
PACKAGED = """[Service]
Type=notify
ExecStart=/bin/true -c /etc/mosquitto/mosquitto.conf
ExecReload=/bin/kill -HUP $MAINPID
ExecStartPre=/bin/mkdir -m 740 -p /var/log/mosquitto
"""


@pytest.mark.parametrize("file", UNITS, ids=lambda file: file.name)
def test_what_a_unit_starts_can_be_typed(file: Path) -> None:
    (start,) = unit(file)["ExecStart"]
    can_be_typed(start.split())


def configured(directory: Path) -> BrokerDirectory:
    plan = BrokerPlan("mosquitto", "allomfree", ("localhost",), directory)
    return BrokerDirectory.configure(directory, plan)


def in_broker_directory(path: str) -> Path:
    """A path of the drop-in, relative to where broker-config writes for the collector's unit."""
    settings = resolve({}, config=Path("/dev/null"), environ={"STATE_DIRECTORY": str(DATA)})
    return Path(path.lstrip("-")).relative_to(settings.broker_dir)


def test_mosquitto_is_started_with_the_file_that_broker_config_writes(tmp_path: Path) -> None:
    taken_back, start = unit(DROP_IN)["ExecStart"]
    assert taken_back == ""
    program, flag, file = start.split()
    assert (program, flag) == ("/usr/sbin/mosquitto", "-c")
    assert (configured(tmp_path / "b").path / in_broker_directory(file)).is_file()


def test_mosquitto_is_the_user_whose_files_they_are() -> None:
    drop_in = unit(DROP_IN)
    assert drop_in["User"] == COLLECTOR["User"]
    assert drop_in["ExecStartPre"] == [""], "the package's need root"


def test_mosquitto_sees_what_it_reads_and_no_more(tmp_path: Path) -> None:
    drop_in, broker = unit(DROP_IN), configured(tmp_path / "b")
    assert drop_in["TemporaryFileSystem"] == [str(DATA)]
    (bound,) = drop_in["BindPaths"]
    assert in_broker_directory(bound) == Path()
    hidden = [broker.path / in_broker_directory(path) for path in drop_in["InaccessiblePaths"]]
    assert hidden == [broker.path / "credentials", broker.path / "tls/ca.key"]
    assert all(path.exists() for path in hidden)
    read = (broker.path / "mosquitto.conf").read_text(encoding="utf-8")
    assert not any(str(path) in read for path in hidden)


def test_the_drop_in_is_as_strict_as_the_collector() -> None:
    drop_in = unit(DROP_IN)
    fences = re.compile(r"NoNew|Private|Protect|Restrict|Capability|MemoryDeny|System|Lock|LimitC")
    wanted = {key for key in COLLECTOR if fences.match(key)} - {"PrivateMounts"}
    assert len(wanted) > 20
    for key in wanted:
        assert set(drop_in[key]) <= set(COLLECTOR[key]), key


def test_the_page_may_give_way_under_the_collectors_unit() -> None:
    """It lowers its own priority; where that is refused it ends before it has answered once."""
    *_, without, back = COLLECTOR["SystemCallFilter"]
    assert without.startswith("~")
    assert back == "setpriority"


@pytest.mark.parametrize(
    "check", [["verify"], ["security", "--offline=true", "--threshold=15", "--no-pager"]]
)
def test_systemd_takes_the_drop_in(check: list[str], tmp_path: Path) -> None:
    """The threshold is of the exposure level, in tenths: lower is better."""
    analyze = path_of("systemd-analyze")
    text = DROP_IN.read_text(encoding="utf-8").replace("/usr/sbin/mosquitto", "/bin/true")
    (tmp_path / "mosquitto.service.d").mkdir()
    (tmp_path / "mosquitto.service.d/allomfree.conf").write_text(text, encoding="utf-8")
    (tmp_path / "mosquitto.service").write_text(PACKAGED, encoding="utf-8")
    done = subprocess.run(
        [analyze, *check, str(tmp_path / "mosquitto.service")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not [line for line in done.stderr.splitlines() if "mosquitto" in line]
