"""What each program really loads, by Python's own account (`-X importtime`) of a fresh process."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from testbed.processes import free_port
from tests.support.campaigns import manifest_text
from tests.support.places import ROOT
from tests.support.source import sources

IMPORTED = re.compile(r"^import time:\s+\d+ \|\s+\d+ \|\s+(\S+)$", re.M)
PATIENCE = 120.0


def packages(account: str) -> set[str]:
    """The top-level packages that an account names."""
    return {name.partition(".")[0] for name in IMPORTED.findall(account)}


@contextmanager
def accounted(home: Path, *words: str, **variables: str) -> Iterator[tuple[Path, int]]:
    """Run Python; yields where its account grows, and its process id. Ends it politely."""
    variables = {"HOME": str(home), "PYTHONPATH": str(ROOT)} | variables
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("ALLOMFREE_", "XDG_"))}
    account = home / "account"
    with account.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-X", "importtime", *words],
            env=inherited | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=file,
        )
    try:
        yield account, process.pid
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)
    finally:
        process.kill()
        process.wait()


def program(name: str) -> tuple[str, ...]:
    """The installed program's own start, which may move from module to module."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    module, _, function = project["project"]["scripts"][name].partition(":")
    return "-c", f"import sys; from {module} import {function}; sys.exit({function}())"


def imported_by(code: str, home: Path) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code],
        env=os.environ | {"HOME": str(home), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return packages(done.stderr)


def test_the_account_sees_what_is_loaded(tmp_path: Path) -> None:
    assert {"numpy", "click", "paho"} <= imported_by(
        "import numpy, click, paho.mqtt.client", tmp_path
    )


def test_the_contract_loads_no_command_line_no_network_and_no_numpy(tmp_path: Path) -> None:
    seen = imported_by("import protocol_spec", tmp_path)
    assert "protocol_spec" in seen
    assert seen.isdisjoint({"click", "paho", "numpy"})


def test_no_part_of_the_contract_loads_a_command_line_or_the_network(tmp_path: Path) -> None:
    modules = {source.module for source in sources("protocol_spec")}
    contract = {name for name in modules if not name.startswith("protocol_spec.programs")}
    seen = imported_by(f"import {', '.join(sorted(contract))}", tmp_path)
    assert seen.isdisjoint({"click", "paho"})
    without_numpy = sorted(n for n in contract if not n.startswith("protocol_spec.estimation"))
    assert "numpy" not in imported_by(f"import {', '.join(without_numpy)}", tmp_path)


def test_a_running_agent_loads_neither_numpy_nor_the_collector(tmp_path: Path) -> None:
    """Nor the library of signatures: they are checked when a campaign is joined (P4)."""
    notifications = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(notifications))
        systemd.settimeout(PATIENCE)
        run = (*program("allomfree-edge"), "run", "--state-dir", str(tmp_path / "state"))
        with accounted(tmp_path, *run, NOTIFY_SOCKET=str(notifications)) as (account, _):
            while b"WATCHDOG=1" not in systemd.recv(1000):  # it has turned once
                pass
    seen = packages(account.read_text())
    assert {"edge_client", "protocol_spec", "paho", "sqlite3"} <= seen
    assert seen.isdisjoint({"numpy", "collector", "sqlite_utils", "starlette", "cryptography"})


@pytest.mark.parametrize("name", ["allomfree-collector", "allomfree-edge"])
@pytest.mark.parametrize("word", ["--help", "--version"])
def test_what_only_tells_of_itself_loads_no_library(tmp_path: Path, name: str, word: str) -> None:
    with accounted(tmp_path, *program(name), word) as (account, pid):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    seen = packages(account.read_text())
    assert "click" in seen
    assert seen.isdisjoint({"numpy", "paho", "msgpack", "sqlite_utils", "decimal"})


def test_a_check_of_health_loads_no_numbers_no_network_and_no_store(tmp_path: Path) -> None:
    """A container asks every few seconds."""
    words = ("health", "--config", os.devnull, "--data-dir", str(tmp_path))
    with accounted(tmp_path, *program("allomfree-collector"), *words) as (account, pid):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    seen = packages(account.read_text())
    assert "json" in seen
    assert seen.isdisjoint({"numpy", "paho", "msgpack", "sqlite_utils", "decimal"})


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with a campaign that nobody was told about: there is no broker."""
    file, directory = tmp_path / "campaign.toml", tmp_path / "data"
    file.write_text(manifest_text())
    nowhere = f"mqtt://127.0.0.1:{free_port()}"
    words = ["open", str(file), "--data-dir", str(directory), "--broker", nowhere]
    subprocess.run(
        [sys.executable, "-m", "collector", *words, "--config", os.devnull],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
    )
    assert (directory / "collector.db").exists()
    return directory


def test_the_page_process_loads_no_network_client(tmp_path: Path, data: Path) -> None:
    """It is started as `run` starts it, and serves one of each kind of page."""
    port = free_port()
    settings = ("--config", os.devnull, "--data-dir", str(data), "--listen", f"127.0.0.1:{port}")
    with accounted(tmp_path, "-m", "collector", "page", *settings) as (account, _):
        first = fetched(port, "/")
        [campaign] = set(re.findall(r'href="(/campaigns/[\w-]+)"', first))
        assert "fuel" in fetched(port, campaign)
        fetched(port, f"{campaign}/attributes/fuel")
        fetched(port, "/metrics")
        fetched(port, "/healthz")
    seen = packages(account.read_text())
    assert {"collector", "uvicorn", "starlette", "sqlite3"} <= seen
    assert seen.isdisjoint({"paho", "edge_client"})


def fetched(port: int, path: str) -> str:
    limit = time.monotonic() + PATIENCE
    while True:
        try:
            with urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE) as reply:
                text: bytes = reply.read()
                return text.decode()
        except HTTPError as refusal:
            return refusal.read().decode()
        except OSError:
            assert time.monotonic() < limit, "the page does not answer"
            time.sleep(0.05)
