"""The running agent's status, for other processes; nothing is decided by it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from edge_client.status import HEARTBEAT_BYTES, HEARTBEAT_FILE, Heartbeat, last_heartbeat
from protocol_spec.programs.system import notify_systemd


def test_what_was_written_is_read(tmp_path: Path) -> None:
    Heartbeat(tmp_path).write("waiting for this round's moment", 3)
    beat = last_heartbeat(tmp_path)
    assert beat is not None
    assert (beat["pid"], beat["queued"]) == (os.getpid(), 3)
    assert beat["state"] == "waiting for this round's moment"


@pytest.mark.parametrize("letter", ["x", '"', "\\", "ß", "😀", "\udcff"])
def test_the_size_never_changes_and_any_text_can_be_read(tmp_path: Path, letter: str) -> None:
    heartbeat = Heartbeat(tmp_path)
    for text in ("short", letter * 5000, ""):
        heartbeat.write(text, 10**9)
        assert (tmp_path / HEARTBEAT_FILE).stat().st_size == HEARTBEAT_BYTES
        beat = last_heartbeat(tmp_path)
        assert beat is not None
        assert len(beat["state"]) >= min(len(text), 100)


def test_it_is_written_only_when_something_changed(tmp_path: Path) -> None:
    heartbeat = Heartbeat(tmp_path)
    heartbeat.write("fine", 0)
    (tmp_path / HEARTBEAT_FILE).write_bytes(b"")
    heartbeat.write("fine", 0)
    assert (tmp_path / HEARTBEAT_FILE).read_bytes() == b""
    heartbeat.write("fine", 1)
    assert last_heartbeat(tmp_path)


def test_an_agent_that_has_ended_is_not_running(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    record = {"pid": ended.pid, "state": "fine", "queued": 0, "at": 0}
    (tmp_path / HEARTBEAT_FILE).write_text(json.dumps(record))
    assert last_heartbeat(tmp_path) is None


@pytest.mark.parametrize(
    "content",
    ["", "{", "null", "[]", "3", "{}", '{"pid": "x"}', '{"pid": null}', '{"pid": 1e99}', "\0" * 99],
)
def test_damage_is_no_heartbeat(tmp_path: Path, content: str) -> None:
    (tmp_path / HEARTBEAT_FILE).write_text(content)
    assert last_heartbeat(tmp_path) is None


def test_a_directory_that_cannot_be_written_is_no_reason_to_stop(tmp_path: Path) -> None:
    heartbeat = Heartbeat(tmp_path / "gone")
    heartbeat.write("fine", 0)
    assert heartbeat.text == "fine"
    assert last_heartbeat(tmp_path / "gone") is None


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_told_when_it_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, abstract: bool
) -> None:
    name = f"allomfree-test-{os.getpid()}"
    address = f"\0{name}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(address)
        listener.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}" if abstract else address)
        notify_systemd("READY=1")
        assert listener.recv(100) == b"READY=1"


def test_without_systemd_nothing_happens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify_systemd("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    notify_systemd("READY=1")
