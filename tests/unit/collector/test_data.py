"""The data directory: its owner's alone (R22), one service at a time, and a heartbeat in it."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from collector.data_dir import only_service, open_store, read_store
from collector.errors import DataBusy, StorageFailure, UnknownCampaign
from collector.health import STALE_SECONDS, Health, Heartbeat, Status, examine
from tests.support.collector import FIRST, three_questions


@pytest.mark.parametrize("umask", [0, 0o022, 0o277])
def test_a_new_directory_is_its_owners_alone_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        open_store(tmp_path / "data").close()
    finally:
        os.umask(before)
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o701])
def test_a_directory_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(mode)
    with pytest.raises(StorageFailure, match="chmod 700"):
        open_store(tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    for use in (open_store, lambda directory: only_service(directory).__enter__()):
        with pytest.raises(StorageFailure, match="choose another with --data-dir"):
            use(tmp_path / "data")
    with pytest.raises(UnknownCampaign, match="no collector's database"):
        read_store(tmp_path / "data")


def test_a_lock_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    with pytest.raises(StorageFailure, match="cannot be opened"), only_service(tmp_path):
        pass


def test_reading_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(UnknownCampaign):
        read_store(tmp_path / "data")
    assert list(tmp_path.iterdir()) == []


def test_a_second_service_is_refused(tmp_path: Path) -> None:
    second = only_service(tmp_path)
    with only_service(tmp_path), pytest.raises(DataBusy, match="another collector is running"):
        second.__enter__()
    with only_service(tmp_path):
        pass


def test_readers_and_the_service_do_not_wait_for_each_other(tmp_path: Path) -> None:
    with closing(open_store(tmp_path)) as writer, closing(read_store(tmp_path)) as reader:
        campaign = writer.open_campaign(three_questions(), FIRST)
        with writer.sealing(campaign, 0, FIRST):
            assert reader.last_sealed(campaign.id) is None
        tags = reader.receipt_tags(campaign.id, 0)
        with closing(sqlite3.connect(tmp_path / "collector.db", isolation_level=None)) as slow:
            slow.execute("BEGIN")
            slow.execute("SELECT * FROM campaign").fetchone()
            writer.revoke("stolen-1", 0)
        assert list(tags) == []
        assert reader.last_sealed(campaign.id) == 0


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from collector.data_dir import only_service
with only_service(Path({str(tmp_path)!r})):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", code], check=False)
    assert ended.returncode == -9
    with only_service(tmp_path):
        pass


# --- heartbeat ------------------------------------------------------------------------------------


def test_a_heartbeat_says_how_the_service_stands(tmp_path: Path) -> None:
    Heartbeat(tmp_path).beat(Status(connected=True, trouble="", received=7))
    found = examine(tmp_path)
    assert (found.well, found.finding) == (True, "connected and counting")
    assert found.beat is not None
    assert (found.beat.pid, found.beat.status.received) == (os.getpid(), 7)
    assert (tmp_path / "heartbeat").stat().st_mode & 0o777 == 0o600


def test_trouble_is_not_well(tmp_path: Path) -> None:
    Heartbeat(tmp_path).beat(Status(trouble="the disk is full"))
    found = examine(tmp_path)
    assert (found.well, found.finding) == (False, "the disk is full")


def test_a_shorter_heartbeat_overwrites_a_longer_one(tmp_path: Path) -> None:
    Heartbeat(tmp_path).beat(Status(trouble="x" * 9999))
    Heartbeat(tmp_path).beat(Status(connected=True, trouble=""))
    assert examine(tmp_path).well


def test_silence_is_being_stuck(tmp_path: Path) -> None:
    Heartbeat(tmp_path).beat(Status(connected=True, trouble=""))
    later = examine(tmp_path, clock=lambda: time.time() + STALE_SECONDS + 1)
    assert not later.well
    assert "is stuck" in later.finding
    assert later.beat is not None
    assert not later.beat.status.connected, "what it said before it fell silent is not known now"


@pytest.mark.parametrize("content", [b"", b"{}", b"rubbish", b'{"pid": 4194305, "at": 1}'])
def test_no_sound_heartbeat_is_no_service(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "heartbeat").write_bytes(content)
    assert examine(tmp_path) == Health(False, f"no collector is running on {tmp_path}")


def test_a_disk_that_refuses_a_heartbeat_does_not_end_the_service(tmp_path: Path) -> None:
    (tmp_path / "heartbeat").mkdir()
    Heartbeat(tmp_path).beat(Status())
    assert examine(tmp_path).well is False
