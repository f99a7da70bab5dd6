"""R01: the agent is small and draws from the operating system only; its imports show it."""

from __future__ import annotations

import ast
import importlib.util
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import edge_client

PACKAGE = Path(edge_client.__file__).parent
ROOT = PACKAGE.parent
NEVER = {
    "numpy",
    "random",
    "secrets",
    "sqlite_utils",
    "collector",
    "cryptography",
    "pandas",
    "scipy",
}

RUN = """
import sys
from edge_client.__main__ import main
try:
    main(["run", "--state-dir", sys.argv[1]])
finally:
    print("\\n".join(sorted(sys.modules)))
"""


def imported(path: Path) -> set[str]:
    """Every module that a file names in an import, also inside of functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_no_module_imports_what_the_agent_must_not_have(path: Path) -> None:
    names = imported(path)
    assert not {name for name in names if name.split(".")[0] in NEVER}
    assert not {name for name in names if name.startswith("protocol_spec.estimation")}
    outside = {name.split(".")[0] for name in names} - sys.stdlib_module_names
    assert outside <= {"edge_client", "protocol_spec", "paho", "click"}


def test_each_dependency_has_one_place() -> None:
    """paho in one file; click in one room; SQLite in another."""
    users = {
        package: {
            str(path.relative_to(PACKAGE))
            for path in FILES
            if any(name.split(".")[0] == package for name in imported(path))
        }
        for package in ("paho", "click", "sqlite3")
    }
    assert users["paho"] == {"mqtt/link.py"}
    assert {name.split("/")[0] for name in users["click"]} == {"commands"}
    assert {name.split("/")[0] for name in users["sqlite3"]} == {"store"}


def test_the_only_randomness_is_the_systems() -> None:
    """`os.urandom` is the default everywhere, and nothing else is called."""
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        for word in ("random.", "getrandbits", "randint", "uuid", "token_", "SystemRandom"):
            assert word not in text.replace("os.urandom", ""), (path.name, word)


def modules_of_a_running_agent(state: Path, notifications: Path) -> set[str]:
    """Start `run`, wait until it has turned once, stop it, and see what it had loaded."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(notifications))
        systemd.settimeout(60)
        environment = os.environ | {"NOTIFY_SOCKET": str(notifications), "PYTHONPATH": str(ROOT)}
        agent = subprocess.Popen(
            [sys.executable, "-c", RUN, str(state)],
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        while b"WATCHDOG=1" not in systemd.recv(1000):
            pass
        agent.send_signal(signal.SIGTERM)
        output, _ = agent.communicate(timeout=60)
    assert agent.returncode == 0
    return set(output.split())


def test_a_running_agent_loads_no_numpy(state: Path, tmp_path: Path, home: Path) -> None:
    assert importlib.util.find_spec("numpy"), "it must be there for the test to mean anything"
    assert importlib.util.find_spec("sqlite_utils")
    loaded = modules_of_a_running_agent(state, tmp_path / "notify")
    assert {"edge_client.daemon", "edge_client.store", "paho.mqtt.client"} <= loaded
    unwanted = {
        "numpy",
        "sqlite_utils",
        "collector",
        "cryptography",
        "rich",
        "hypothesis",
        "http",
        "email",
    }
    assert {name.split(".")[0] for name in loaded}.isdisjoint(unwanted)
    assert "protocol_spec.estimation" not in loaded
    assert not {name for name in loaded if name.startswith("edge_client.show")}


def test_no_module_of_the_package_loads_numpy() -> None:
    """Also the parts that only some commands need."""
    names = [
        "edge_client." + str(path.relative_to(PACKAGE).with_suffix("")).replace("/", ".")
        for path in FILES
        if path.name != "__init__.py"
    ]
    code = f"import sys, {', '.join(names)}; print(*sys.modules)"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert "edge_client" in loaded
    assert loaded.isdisjoint({"numpy", "sqlite_utils", "collector", "cryptography"})
