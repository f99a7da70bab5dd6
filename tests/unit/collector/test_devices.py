"""From names to numbers: stable under one key, unlinkable under another."""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import Path

import pytest

from collector.data_dir import DeviceKey
from collector.errors import StorageFailure
from tests.support.collector import three_questions

MANIFEST, OTHER = three_questions(), three_questions(slug="other")


def test_another_key_or_campaign_or_name_gives_another_number(tmp_path: Path) -> None:
    keys = [DeviceKey(tmp_path / name) for name in ("one", "two")]
    numbers = [k.number(m, d) for k in keys for m in (MANIFEST, OTHER) for d in ("a", "b")]
    assert len(set(numbers)) == 8


def test_numbers_fit_the_database_and_do_not_repeat(tmp_path: Path) -> None:
    key = DeviceKey(tmp_path / "key")
    numbers = {key.number(MANIFEST, f"d{i}") for i in range(10_000)}
    assert len(numbers) == 10_000
    assert min(numbers) >= 0
    assert 2**62 < max(numbers) < 2**63


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
