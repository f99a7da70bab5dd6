"""`migrate` moves a file to PostgreSQL, whole and compared, or changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from collector.data_dir import migrate, only_service, open_store, read_store
from collector.device_key import DeviceKey
from collector.errors import CollectorError
from collector.metrics import exposition, registry
from collector.records import Campaign
from collector.settings import PAGE, resolve
from collector.store import Store
from collector.store.common import Portion
from collector.store.postgres import PostgresStore
from collector.store.sqlite import SqliteStore
from collector.web.process import page_command
from protocol_spec import Outcome
from tests.support.collector import candidate, seal
from tests.support.command_line import NOBODY, Cli, facts_of, mistaken
from tests.support.databases import new_schema, snapshot
from tests.support.harness import need


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
    told = [list(store.commit(batch, [])) for store in moved]
    assert told[0] == told[1]
    assert {Outcome.ACCEPTED, Outcome.DUPLICATE, Outcome.FORGOTTEN, Outcome.LATE} <= set(told[0])
    for number in (1, 2, 3):
        for store in moved:
            assert seal(store, used, number)
    assert snapshot(moved[0]) == snapshot(moved[1])


def test_the_command_says_what_was_moved(cli: Cli, full: Path) -> None:
    need("postgres")
    address = new_schema()
    where = address.url
    told = facts_of(cli("migrate", "--to", where, "--data-dir", full, "--json"))
    assert told["rows"]["campaign"] == 1
    assert told["rows"]["report"] > 0
    with closing(read_store(full, address)) as store:
        assert store.received() == 182
    refused = mistaken(cli, 1, "status", "--data-dir", full)
    assert "was moved to postgresql://" in refused
    assert "--store" in refused
    assert (
        facts_of(cli("status", "--data-dir", full, "--store", where, "--json"))["received"] == 182
    )


READING = (
    ("status",),
    ("estimate", "--round", "all"),
    ("export", "--format", "json"),
)


def test_every_command_works_on_what_was_moved(cli: Cli, full: Path) -> None:
    """What is read is the same, byte for byte; what changes is changed."""
    need("postgres")
    address = new_schema()
    words = ("--data-dir", full, "--store", address.url)
    before = [cli(*command, "--data-dir", full).stdout for command in READING]
    migrate(full, address)
    assert [cli(*command, *words).stdout for command in READING] == before
    assert cli("revoke", "kitchen-7", *words).exit_code == 0
    assert cli("close", "--yes", *words).exit_code == 0
    assert facts_of(cli("seal", *words, "--json"))["sealed"]
    with closing(read_store(full, address)) as store:
        assert "kitchen-7" in store.revoked()
        assert store.campaign(None).closed is not None
    findings = cli("doctor", "--broker", NOBODY, *words).stdout
    assert "every message received has one outcome" in findings


def test_the_page_reads_the_same_store(full: Path) -> None:
    file = full / "secret"
    url = "postgresql://allomfree@db.example/allomfree"
    found = resolve({"store": url, "store_password_file": file, "data_dir": full}, environ={})
    command = page_command(found, PAGE, 3)
    assert command[-4:] == ["--store", url, "--store-password-file", str(file)]


def test_metrics_are_of_the_store_that_was_named(full: Path) -> None:
    need("postgres")
    address = new_schema()
    migrate(full, address)
    shown = exposition(registry(full, partial(read_store, address=address))).decode()
    assert "allomfree_received_total 182.0" in shown


def test_nothing_moves_while_a_service_runs(cli: Cli, full: Path) -> None:
    need("postgres")
    where = new_schema()
    with only_service(full):
        told = mistaken(cli, 1, "migrate", "--to", where.url, "--data-dir", full)
    assert "another collector is running" in told
    assert not (full / "moved-to").exists()


def test_a_database_in_use_is_left_alone(cli: Cli, full: Path, used: Campaign) -> None:
    need("postgres")
    where = new_schema()
    with closing(open_store(full, where)) as store:
        store.open_campaign(used.manifest, 0)
        before = snapshot(store)
        told = mistaken(cli, 1, "migrate", "--to", where.url, "--data-dir", full)
        assert snapshot(store) == before
    assert "holds campaigns already; nothing was changed" in told
    assert not (full / "moved-to").exists()


def test_a_copy_that_differs_is_taken_back(full: Path) -> None:
    need("postgres")
    where, asked = new_schema(), []
    with closing(SqliteStore(full / "collector.db")) as old, closing(PostgresStore(where)) as new:

        def changing() -> Iterator[Portion]:
            asked.append(1)
            for table, rows in old.contents():
                kept = list(rows)
                yield Portion(table, kept[:-1] if table == "report" and len(asked) > 1 else kept)

        with pytest.raises(
            CollectorError, match=r"differs from the original in row .* of .*report"
        ):
            new.take_over(changing)
        assert new.campaigns() == []


def test_a_wrong_address_and_an_empty_directory(cli: Cli, data: Path, tmp_path: Path) -> None:
    told = mistaken(cli, 2, "migrate", "--to", "mysql://x/y", "--data-dir", data)
    assert "--to: use postgresql://USER@HOST/DATABASE" in told
    told = mistaken(cli, 1, "migrate", "--to", "postgresql://localhost/x", "--data-dir", tmp_path)
    assert "there is no collector's database" in told
