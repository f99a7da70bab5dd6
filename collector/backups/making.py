"""Make a backup, also while the service runs; what was begun and failed is taken away again."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from collector.backups.contents import LIST, Contents, checked, secret_files
from collector.backups.files import (
    all_or_nothing,
    copy_private,
    digest_of,
    entries,
    refuse_shared,
)
from collector.brokers.directory import BrokerDirectory
from collector.data_dir import DATABASE, copy_store, read_store
from collector.errors import CollectorError, NotABackup, StorageFailure
from collector.settings import Settings
from protocol_spec.programs.system import exposed_mode, make_private_directory, write_durably

Free = Callable[[Path], int]


def free_bytes(directory: Path) -> int:
    """What a user may still write there."""
    return shutil.disk_usage(directory).free


def make(
    settings: Settings, target: Path, secrets: Path | None = None, free: Free = free_bytes
) -> Contents:
    """Copy database, keys and broker's directory into empty directories, and check the copy."""
    refuse_shared(settings)
    read_store(settings.data_dir).close()  # an error where there is none
    places = [target] if secrets is None else [target, secrets]
    if len({place.absolute() for place in places}) != len(places):
        raise CollectorError("--secrets names the same directory; nothing was written")
    for place in places:
        _check_empty(place)
    with _told(target), all_or_nothing(places):
        for place in places:
            _make_private(place)
        _enough_space(settings.data_dir / DATABASE, target, free)
        _write(settings, target, secrets or target)
        try:
            return checked(target, secrets)
        except NotABackup as error:
            raise StorageFailure(f"the copy is not right: {error}") from None


def _write(settings: Settings, target: Path, apart: Path) -> None:
    copy_store(settings.data_dir, target)
    broker = settings.broker_dir.absolute()
    configured = BrokerDirectory.exists(broker)
    secrets = {}
    with BrokerDirectory.changing(broker) if configured else nullcontext():
        for name, file in secret_files(settings.data_dir, broker):
            copy_private(file, apart / name)
            secrets[name] = digest_of(apart / name)
        enrolled = len(BrokerDirectory.load(broker).enrolled) if configured else 0
    with closing(read_store(target)) as store:
        listed = Contents(
            made=int(time.time()),
            version=_version(),
            campaigns=[campaign.name for campaign in store.campaigns()],
            received=store.received(),
            enrolled=enrolled,
            broker=str(broker) if configured else "",
            files={DATABASE: digest_of(target / DATABASE)},
            secrets=secrets,
        )
    write_durably(target / LIST, listed.to_json())


def _check_empty(place: Path) -> None:
    try:
        if place.exists() and (not place.is_dir() or entries(place)):
            raise CollectorError(
                f"there is something in {place} already; nothing was written. Name a new "
                f"directory, such as {place}-{time.strftime('%Y-%m-%d')}"
            )
    except OSError as error:
        raise StorageFailure(
            f"{place} cannot be used: {error.strerror}; nothing was written"
        ) from None


def _make_private(place: Path) -> None:
    make_private_directory(place)
    mode = exposed_mode(place)
    if mode is not None:
        raise StorageFailure(f"other users can read it (mode {mode:o}); run: chmod 700 {place}")


def _enough_space(database: Path, target: Path, free: Free) -> None:
    needed, there = database.stat().st_size, free(target)
    if there < needed:
        raise StorageFailure(
            f"{needed / 1e6:,.1f} MB are needed and {there / 1e6:,.1f} MB are free"
        )


@contextmanager
def _told(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageFailure(
            f"no backup was made in {target}: {error.strerror or error}. What had been written of "
            "it was removed; the collector and its data are as they were. Choose another "
            "directory, or free some space"
        ) from None


def _version() -> str:
    try:
        return version("allomfree")
    except PackageNotFoundError:
        return "unknown"
