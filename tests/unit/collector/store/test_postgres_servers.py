"""Wrong addresses and servers that refuse: one clear message each, and nothing is changed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from collector.data_dir import read_store
from collector.errors import StorageFailure
from collector.settings import StoreAddress, resolve
from collector.store.postgres import PostgresStore
from collector.store.postgres_connection import VERSION
from protocol_spec import Outcome
from protocol_spec.programs.settings import SettingsError
from testbed.processes import free_port
from tests.support.collector import FIRST, candidate, three_questions
from tests.support.databases import admin, as_user, new_schema, server

ACCEPTED, DUPLICATE = Outcome.ACCEPTED, Outcome.DUPLICATE


@pytest.fixture
def address() -> StoreAddress:
    return new_schema()


@pytest.fixture
def store(address: StoreAddress) -> Iterator[PostgresStore]:
    with closing(PostgresStore(address)) as opened:
        yield opened


def refusal(address: StoreAddress, *, read_only: bool = False) -> str:
    """The one message with which a store cannot be opened; never a password."""
    with pytest.raises(StorageFailure) as caught:
        PostgresStore(address, read_only=read_only)
    told = str(caught.value)
    assert "\n" not in told
    assert "open-sesame" not in told
    return told


# --- addresses ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("mysql://db/x", "use postgresql://USER@HOST/DATABASE"),
        ("postgresql://db", "name the database"),
        ("postgresql://[::1/x", "use postgresql://USER@HOST/DATABASE"),
        ("postgresql://me:open-sesame@db/x", "a password must not be in the address"),
        ("postgresql://db/x?password=open-sesame", "a password must not be in the address"),
    ],
)
def test_a_wrong_address_is_a_wrong_setting(url: str, reason: str) -> None:
    with pytest.raises(SettingsError) as caught:
        resolve({"store": url}, environ={})
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("url", "mode"),
    [
        ("postgresql://db.example/x", "verify-full"),
        ("postgresql://localhost,db.example/x", "verify-full"),
        ("postgresql:///x?host=db.example", "verify-full"),
        ("postgresql://me@127.0.0.1:5433/x", None),
        ("postgresql://[::1]:5433/x", None),
        ("postgresql:///x", None),
        ("postgresql:///x?host=/run/postgresql", None),
        ("postgresql://db.example/x?sslmode=disable", None),
    ],
)
def test_the_server_is_verified_off_this_machine(url: str, mode: str | None) -> None:
    """Plain text to another machine only by name."""
    assert StoreAddress(url).options().get("sslmode") == mode


def test_a_password_comes_from_a_private_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("open-sesame\n")
    file.chmod(0o600)
    found = resolve({"store": "postgresql://db/x", "store_password_file": file}, environ={})
    assert found.store is not None
    assert found.store.options()["password"] == "open-sesame"  # noqa: S105
    assert "sesame" not in f"{found.store} {found}"
    file.chmod(0o640)
    with pytest.raises(SettingsError, match="chmod 600"):
        found.store.options()
    file.unlink()
    with pytest.raises(SettingsError, match="cannot be read"):
        found.store.options()


# --- servers that refuse ------------------------------------------------------------------------


def test_nobody_listens() -> None:
    told = refusal(StoreAddress(f"postgresql://me@127.0.0.1:{free_port()}/x"))
    assert "Nothing was changed; check that PostgreSQL runs there" in told


def test_no_such_database_or_user() -> None:
    for url in (server().address("nowhere").url, as_user("nobody-here").url):
        assert "the server has no such database or user" in refusal(StoreAddress(url))


def test_a_wrong_password(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("open-sesame")
    file.chmod(0o600)
    told = refusal(StoreAddress(as_user("locked").url, file))
    assert "the server refuses the user or its password" in told
    assert "--store-password-file" in told


def test_missing_rights() -> None:
    assert "GRANT the user CREATE and USAGE" in refusal(as_user("guest", new_schema()))
    told = refusal(as_user("guest"))
    assert "the database user may not do this (permission denied for schema public)" in told
    assert "GRANT it CREATE and USAGE on the schema" in told


def test_out_of_connections() -> None:
    address = as_user("lonely", new_schema())
    with closing(psycopg.connect(address.url)):
        told = refusal(address)
    assert "the server has no connection left" in told
    assert "max_connections" in told


def test_a_schema_from_the_future(address: StoreAddress) -> None:
    PostgresStore(address).close()
    admin("UPDATE allomfree_store SET version = version + 1", address)
    for read_only in (True, False):
        assert "update allomfree on this machine" in refusal(address, read_only=read_only)


def test_tables_of_an_earlier_version(address: StoreAddress) -> None:
    admin("CREATE TABLE allomfree_schema (version integer)", address)
    for read_only in (True, False):
        assert "made by an earlier version" in refusal(address, read_only=read_only)
    assert admin("SELECT to_regclass('allomfree_store')", address) == [(None,)]


def test_a_reader_of_an_empty_database(address: StoreAddress) -> None:
    assert "open a campaign first" in refusal(address, read_only=True)
    assert admin("SELECT to_regclass('allomfree_store')", address) == [(None,)]


def test_a_server_that_only_reads(address: StoreAddress, store: PostgresStore) -> None:
    campaign = store.open_campaign(three_questions(), FIRST)
    only = StoreAddress(f"{address.url}%20-cdefault_transaction_read_only%3Don")
    with closing(PostgresStore(only)) as other:
        with pytest.raises(StorageFailure, match="the server only reads"):
            other.commit([candidate(campaign, 1)], [])
        assert other.received() == 0
    assert list(store.commit([candidate(campaign, 1)], [])) == [ACCEPTED]


def test_a_reader_changes_nothing(address: StoreAddress, store: PostgresStore) -> None:
    campaign = store.open_campaign(three_questions(), FIRST)
    with closing(read_store(Path("unused"), address)) as reader:
        assert [c.name for c in reader.campaigns()] == [campaign.name]
        with pytest.raises(StorageFailure, match="only reads"):
            reader.revoke("kitchen-7", 0)


def test_two_that_begin_at_once_make_the_tables_once(address: StoreAddress) -> None:
    failed: list[BaseException] = []
    start = threading.Barrier(4)

    def begin() -> None:
        start.wait()
        try:
            PostgresStore(address).close()
        except BaseException as error:  # noqa: BLE001 - shown below
            failed.append(error)

    threads = [threading.Thread(target=begin) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert admin("SELECT version FROM allomfree_store", address) == [(VERSION,)]
