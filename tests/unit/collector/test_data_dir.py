"""The data directory: its owner's alone (R22), one service at a time; and moving to PostgreSQL."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from hashlib import blake2b
from pathlib import Path

import pytest

from collector.data_dir import DeviceKey, migrate, only_service, open_store, read_store
from collector.errors import DataBusy, StorageFailure, UnknownCampaign
from collector.health import STALE_SECONDS, Health, Heartbeat, Status, examine
from collector.records import Campaign
from collector.settings import PAGE, resolve
from collector.store import Store
from collector.store.sqlite import SqliteStore
from collector.web.metrics import exposition, registry
from collector.web.process import page_command
from protocol_spec import Outcome
from tests.support.collector import FIRST, candidate, seal, three_questions
from tests.support.command_line import Cli, facts_of, mistaken
from tests.support.databases import new_schema, snapshot
from tests.support.harness import need


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
    (tmp_path / "other" / "collector.db").mkdir(parents=True)
    (tmp_path / "other").chmod(0o700)
    for use in (open_store, read_store):
        with pytest.raises(StorageFailure, match="is a directory, and must be a file"):
            use(tmp_path / "other")
    with pytest.raises(UnknownCampaign, match="no collector's database"):
        read_store(tmp_path / "data")


def test_a_second_service_is_refused(tmp_path: Path) -> None:
    second = only_service(tmp_path)
    with only_service(tmp_path), pytest.raises(DataBusy, match="another collector is running"):
        second.__enter__()
    (tmp_path / "lock").unlink()
    (tmp_path / "lock").mkdir()
    with pytest.raises(StorageFailure, match="cannot be opened"), only_service(tmp_path):
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
def test_a_heartbeat_holds_the_status_of_the_service(tmp_path: Path) -> None:
    heartbeat = Heartbeat(tmp_path)
    heartbeat.beat(Status())
    assert examine(tmp_path).finding == "starting"
    heartbeat.beat(Status(trouble="the disk is full" + "x" * 9999))
    assert not examine(tmp_path).well
    assert examine(tmp_path).finding.startswith("the disk is full")
    heartbeat.beat(Status(connected=True, trouble="", received=7))
    found = examine(tmp_path)
    assert (found.well, found.finding) == (True, "connected and counting")
    assert found.beat is not None
    assert (found.beat.pid, found.beat.status.received) == (os.getpid(), 7)
    assert (tmp_path / "heartbeat").stat().st_mode & 0o777 == 0o600


def test_a_silent_collector_is_reported_as_stuck(tmp_path: Path) -> None:
    Heartbeat(tmp_path).beat(Status(connected=True, trouble=""))
    later = examine(tmp_path, clock=lambda: time.time() + STALE_SECONDS + 1)
    assert not later.well
    assert "is stuck" in later.finding
    assert later.beat is not None
    assert not later.beat.status.connected, "what it wrote before it fell silent is not known now"
    (tmp_path / "heartbeat").unlink()
    (tmp_path / "heartbeat").mkdir()
    Heartbeat(tmp_path).beat(Status())  # a disk that refuses it does not end the service
    assert examine(tmp_path).well is False


@pytest.mark.parametrize("content", [b"", b"{}", b"rubbish", b'{"pid": 4194305, "at": 1}'])
def test_no_sound_heartbeat_is_no_service(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "heartbeat").write_bytes(content)
    assert examine(tmp_path) == Health(False, f"no collector is running on {tmp_path}")


# --- `migrate` moves a file to PostgreSQL, whole and compared, or changes nothing.
@pytest.fixture
def full(data: Path, used: Campaign) -> Path:
    """A used directory with something in every table."""
    DeviceKey(data / "device.key")
    with closing(open_store(data)) as store:
        store.revoke("zeta-1", 5)
        store.revoke("alpha-2", 6)
        store.commit([candidate(used, 900, 3), candidate(used, 901, 3)], [])
        store.withdraw([(used.id, 1), (used.id, 901)], repeated=2, invalid=1)
        for result in store.unpublished()[:1]:
            store.mark_published(result)
    return data


@pytest.fixture
def moved(full: Path) -> Iterator[tuple[Store, Store]]:
    """The file, and what became of it."""
    need("postgres")
    address = new_schema()
    migrate(full, address)
    with (
        closing(SqliteStore(full / "collector.db")) as old,
        closing(open_store(full, address)) as new,
    ):
        yield old, new


def test_everything_arrives(moved: tuple[Store, Store], used: Campaign) -> None:
    old, new = moved
    assert snapshot(new) == snapshot(old)
    for attribute in range(3):
        assert repr(old.released(used.id, attribute)) == repr(new.released(used.id, attribute))
        assert repr(old.unreleased(used.id, attribute)) == repr(new.unreleased(used.id, attribute))


def test_both_go_on_alike(moved: tuple[Store, Store], used: Campaign) -> None:
    """A device is known by its sealed rounds, its open ones, or as forgotten."""
    batch = [
        candidate(used, 0, 3),  # of a sealed round
        candidate(used, 900, 3),  # counted already
        candidate(used, 900, 4, attribute=2),  # with another attribute than before
        candidate(used, 901, 3),  # forgotten
        candidate(used, 902, 0),  # sealed
        candidate(used, 903, 3),
    ]
    shown = [list(store.commit(batch, [])) for store in moved]
    assert shown[0] == shown[1]
    assert {Outcome.ACCEPTED, Outcome.DUPLICATE, Outcome.FORGOTTEN, Outcome.LATE} <= set(shown[0])
    for number in (1, 2, 3):
        for store in moved:
            assert seal(store, used, number)
    assert snapshot(moved[0]) == snapshot(moved[1])


def test_the_command_prints_what_was_moved(cli: Cli, full: Path) -> None:
    need("postgres")
    address = new_schema()
    moved = facts_of(cli("migrate", "--to", address.url, "--data-dir", full, "--json"))
    assert moved["rows"]["campaign"] == 1
    assert moved["rows"]["report"] > 0
    with closing(read_store(full, address)) as store:
        assert store.received() == 182
    refused = mistaken(cli, 1, "status", "--data-dir", full)
    assert "was moved to postgresql://" in refused
    assert "--store" in refused
    shown = exposition(registry(full, partial(read_store, address=address))).decode()
    assert "allomfree_received_total 182.0" in shown
    command = page_command(resolve({"store": address.url, "data_dir": full}, environ={}), PAGE, 3)
    assert command[-2:] == ["--store", address.url], "the page reads the same store"


def test_nothing_moves_while_a_service_runs(cli: Cli, full: Path) -> None:
    need("postgres")
    where = new_schema()
    with only_service(full):
        shown = mistaken(cli, 1, "migrate", "--to", where.url, "--data-dir", full)
    assert "another collector is running" in shown
    assert not (full / "moved-to").exists()


def test_a_database_in_use_is_left_alone(cli: Cli, full: Path, used: Campaign) -> None:
    need("postgres")
    where = new_schema()
    with closing(open_store(full, where)) as store:
        store.open_campaign(used.manifest, 0)
        before = snapshot(store)
        shown = mistaken(cli, 1, "migrate", "--to", where.url, "--data-dir", full)
        assert snapshot(store) == before
    assert "holds campaigns already; nothing was changed" in shown
    assert not (full / "moved-to").exists()


def test_a_wrong_address_and_an_empty_directory(cli: Cli, data: Path, tmp_path: Path) -> None:
    shown = mistaken(cli, 2, "migrate", "--to", "mysql://x/y", "--data-dir", data)
    assert "--to: use postgresql://USER@HOST/DATABASE" in shown
    shown = mistaken(cli, 1, "migrate", "--to", "postgresql://localhost/x", "--data-dir", tmp_path)
    assert "there is no collector's database" in shown


# --- the device key: from names to numbers, stable under one key, unlinkable under another --------
MANIFEST, OTHER = three_questions(), three_questions(slug="other")


def test_another_key_or_campaign_or_name_gives_another_number(tmp_path: Path) -> None:
    keys = [DeviceKey(tmp_path / name) for name in ("one", "two")]
    numbers = [k.number(m, d) for k in keys for m in (MANIFEST, OTHER) for d in ("a", "b")]
    assert len(set(numbers)) == 8


def test_the_number_is_the_one_that_was_stored_by_earlier_versions(tmp_path: Path) -> None:
    """Another formula would make every device look new."""
    (tmp_path / "key").write_bytes(bytes(range(32)))
    (tmp_path / "key").chmod(0o600)
    number = DeviceKey(tmp_path / "key").number(MANIFEST, "kitchen-7")
    hashed = blake2b(b"kitchen-7", key=bytes(range(32)), person=MANIFEST.digest[:16], digest_size=8)
    assert number == int(hashed.hexdigest(), 16) // 2


def test_a_new_key_is_its_owners_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        DeviceKey(tmp_path / "key")
    finally:
        os.umask(before)
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert len((tmp_path / "key").read_bytes()) == 32
    assert [p.name for p in tmp_path.iterdir()] == ["key"]


@pytest.mark.parametrize("content", [b"", b"x" * 31, b"x" * 33])
def test_a_damaged_key_is_refused_and_kept(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    with pytest.raises(StorageFailure, match="Restore it from a backup"):
        DeviceKey(path)
    assert path.read_bytes() == content


def test_a_missing_key_is_not_replaced_once_reports_came(tmp_path: Path) -> None:
    with pytest.raises(StorageFailure, match=r"is missing; nothing was changed\. Restore"):
        DeviceKey(tmp_path / "key", make=False)
    assert not (tmp_path / "key").exists()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
def test_a_key_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    DeviceKey(tmp_path / "key")
    (tmp_path / "key").chmod(mode)
    with pytest.raises(StorageFailure, match="chmod 600"):
        DeviceKey(tmp_path / "key")


def test_a_key_that_cannot_be_read_or_made_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageFailure, match="directory"):
        DeviceKey(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(StorageFailure, match="cannot be used"):
        DeviceKey(tmp_path / "file" / "key")
