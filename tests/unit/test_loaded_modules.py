"""What a fresh process of each program loads, as `python -X importtime` reports it (R01, P4)."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from testbed.processes import free_port
from tests.support.campaigns import manifest_text
from tests.support.harness import ROOT

IMPORTED = re.compile(r"^import time:\s+\d+ \|\s+\d+ \|\s+(\S+)$", re.M)
PATIENCE_SECONDS = 120.0
EDGE, COLLECTOR = ("-m", "edge_client"), ("-m", "collector")


def modules(account: str) -> set[str]:
    """Modules that an account names, and the packages they are in."""
    names = IMPORTED.findall(account)
    return {*names, *(name.partition(".")[0] for name in names)}


@contextmanager
def accounted(home: Path, *words: str, **variables: str) -> Iterator[Path]:
    """Run Python; yields where its account grows. Stops it with SIGTERM."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("ALLOMFREE_", "XDG_"))}
    account = home / "account"
    with account.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-X", "importtime", *words],
            env=inherited | {"HOME": str(home), "PYTHONPATH": str(ROOT)} | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=file,
        )
    try:
        yield account
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_SECONDS)
    finally:
        process.kill()
        process.wait()


def loaded_by(*words: str, home: Path) -> set[str]:
    """What a command that ends by itself loads."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *words],
        env=os.environ | {"HOME": str(home), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    return modules(done.stderr)


def all_modules(package: str) -> list[str]:
    files = [p.relative_to(ROOT).with_suffix("") for p in (ROOT / package).rglob("*.py")]
    return sorted(".".join(f.parts).removesuffix(".__init__") for f in files)


def test_the_account_sees_what_is_loaded(tmp_path: Path) -> None:
    seen = loaded_by("-c", "import numpy, click, paho.mqtt.client", home=tmp_path)
    assert {"numpy", "click", "paho.mqtt.client"} <= seen


def test_the_contract_loads_no_command_line_no_network_and_no_numpy(tmp_path: Path) -> None:
    contract = [
        name
        for name in all_modules("protocol_spec")
        if not name.startswith(("protocol_spec.programs", "protocol_spec.estimation"))
    ]
    seen = loaded_by("-c", f"import {', '.join(contract)}", home=tmp_path)
    assert "protocol_spec" in seen
    assert seen.isdisjoint({"click", "paho", "numpy"})


def test_no_module_of_the_agent_loads_numpy(tmp_path: Path) -> None:
    """Also the parts that only some commands need."""
    names = [name for name in all_modules("edge_client") if not name.endswith("__main__")]
    seen = loaded_by("-c", f"import {', '.join(names)}", home=tmp_path)
    assert "edge_client" in seen
    assert seen.isdisjoint({"numpy", "sqlite_utils", "collector", "cryptography"})


def test_a_running_agent_loads_neither_numpy_nor_the_collector(tmp_path: Path) -> None:
    """Nor the library of signatures: they are checked when a campaign is joined (P4)."""
    notifications = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(notifications))
        systemd.settimeout(PATIENCE_SECONDS)
        words = (*EDGE, "run", "--state-dir", str(tmp_path / "state"))
        with accounted(tmp_path, *words, NOTIFY_SOCKET=str(notifications)) as account:
            while b"WATCHDOG=1" not in systemd.recv(1000):  # its loop has run once
                pass
    seen = modules(account.read_text())
    assert {"edge_client", "protocol_spec", "paho", "sqlite3"} <= seen
    assert seen.isdisjoint({"numpy", "collector", "sqlite_utils", "starlette", "cryptography"})
    assert seen.isdisjoint({"http", "email", "protocol_spec.estimation"})


@pytest.mark.parametrize(
    "words",
    [
        *((*program, word) for program in (EDGE, COLLECTOR) for word in ("--help", "--version")),
        (*COLLECTOR, "health", "--config", os.devnull, "--data-dir", "."),
    ],
    ids=lambda words: " ".join(words[1:3]),
)
def test_what_must_be_quick_loads_no_library(tmp_path: Path, words: tuple[str, ...]) -> None:
    """A container asks for its health every few seconds."""
    seen = loaded_by(*words, home=tmp_path)
    assert "click" in seen
    assert seen.isdisjoint({"numpy", "paho", "msgpack", "sqlite_utils", "decimal"})


@pytest.mark.parametrize(
    ("module", "never"),
    [
        ("collector.commands", {"uvicorn", "starlette", "prometheus_client", "psycopg"}),
        ("collector.ingest", {"paho", "collector.service"}),
    ],
)
def test_a_part_of_the_collector_loads_only_what_it_needs(
    tmp_path: Path, module: str, never: set[str]
) -> None:
    seen = loaded_by("-c", f"import {module}", home=tmp_path)
    assert module in seen
    assert seen.isdisjoint(never)


def test_the_page_process_loads_no_network_client(tmp_path: Path) -> None:
    """It is started as `run` starts it, and serves one of each kind of page."""
    file, data, port = tmp_path / "campaign.toml", tmp_path / "data", free_port()
    file.write_text(manifest_text())
    settings = ("--config", os.devnull, "--data-dir", str(data))
    nowhere = f"mqtt://127.0.0.1:{free_port()}"
    loaded_by(*COLLECTOR, "open", str(file), *settings, "--broker", nowhere, home=tmp_path)
    assert (data / "collector.db").exists()
    words = (*COLLECTOR, "page", *settings, "--listen", f"127.0.0.1:{port}")
    with accounted(tmp_path, *words) as account:
        [campaign] = set(re.findall(r'href="(/campaigns/[\w-]+)"', fetched(port, "/")))
        assert "fuel" in fetched(port, campaign)
        for path in (f"{campaign}/attributes/fuel", "/metrics", "/healthz"):
            fetched(port, path)
    seen = modules(account.read_text())
    assert {"collector", "uvicorn", "starlette", "sqlite3"} <= seen
    assert seen.isdisjoint({"paho", "edge_client"})


def fetched(port: int, path: str) -> str:
    limit = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            with urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_SECONDS) as reply:
                text: bytes = reply.read()
                return text.decode()
        except HTTPError as refusal:
            return refusal.read().decode()
        except OSError:
            assert time.monotonic() < limit, "the page does not answer"
            time.sleep(0.05)
