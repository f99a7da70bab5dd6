"""Put a backup into an empty data directory; nothing that is there is ever overwritten."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from collector.backups.contents import BROKER, Contents, checked, inside
from collector.backups.files import all_or_nothing, copy_private, entries, refuse_shared
from collector.brokers.directory import BrokerDirectory
from collector.data_dir import DATABASE, make_private, only_service
from collector.errors import CollectorError, StorageFailure
from collector.settings import Settings
from protocol_spec.programs.system import sync_directory


def restore(settings: Settings, source: Path, secrets: Path | None = None) -> Contents:
    """Check a backup, and copy it to where the settings say that data and broker are."""
    refuse_shared(settings)
    found = checked(source, secrets)
    data, broker = settings.data_dir, settings.broker_dir.absolute()
    places = {data: "--data-dir", **({broker: "--broker-dir"} if found.broker else {})}
    for place, flag in places.items():
        _check_empty(place, flag)
    make_private(data)
    with only_service(data), _told(data), all_or_nothing(list(places)):
        for name in found.secrets:
            copy_private(inside(secrets or source, name), _place(data, broker, name))
        copy_private(source / DATABASE, data / f".{DATABASE}.new")
        if found.broker:
            _settle(broker, Path(found.broker))
        (data / f".{DATABASE}.new").replace(data / DATABASE)  # last: without it there is no data
        sync_directory(data)
    return found


def _place(data: Path, broker: Path, name: str) -> Path:
    first, *rest = Path(name).parts
    return broker.joinpath(*rest) if first == BROKER else data / name


def _settle(broker: Path, before: Path) -> None:
    """Write the broker's own files, which name the directory that they are in."""
    plan = BrokerDirectory.load(broker).plan
    root = broker if plan.root == before else plan.root
    BrokerDirectory.configure(broker, replace(plan, root=root))


def _check_empty(place: Path, flag: str) -> None:
    try:
        there = entries(place)
        owner = place.stat().st_uid if place.exists() else os.geteuid()
    except OSError as error:
        raise StorageFailure(
            f"{place} cannot be used: {error.strerror}; nothing was restored"
        ) from None
    if there:
        raise CollectorError(
            f"{place} holds {', '.join(there[:3])} already; nothing was restored, and nothing is "
            f"ever overwritten. Stop the collector and move it away, or name another with {flag}"
        )
    if owner != os.geteuid():
        raise CollectorError(
            f"{place} belongs to {_user(owner)}, who could not read what you restore; nothing was "
            f"restored. Type the same as that user, after: sudo -u {_user(owner)}"
        )


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


@contextmanager
def _told(data: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageFailure(
            f"the backup was not restored to {data}: {error.strerror or error}. What had been "
            "written was removed; the backup is as it was. Free some space, or name another "
            "directory with --data-dir"
        ) from None
