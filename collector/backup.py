"""Backups of a collector: made while it runs, checked, and restored into an empty directory.

    DIRECTORY/backup.json   the list, written last: without it a backup is not one
    DIRECTORY/collector.db  the database
    DIRECTORY/device.key, operator.key, session, page.token, broker/…   secrets, or in a directory
                            of their own: the database alone does not identify any device

The broker's own queue is not included: devices send again what has no receipt.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from io import BufferedReader
from pathlib import Path
from typing import Final

from collector.brokers.directory import BrokerDirectory
from collector.data_dir import (
    DATABASE,
    KEY,
    LOCK,
    make_private,
    only_service,
    read_store,
)
from collector.errors import CollectorError, NotABackup, StorageFailure
from collector.settings import Settings
from collector.store.sqlite_database import check_database, copy_database
from protocol_spec.programs.system import (
    exposed_mode,
    make_private_directory,
    sync_directory,
    write_durably,
)

FORMAT: Final = 1
LIST: Final = "backup.json"
BROKER: Final = "broker"
DEVICE_KEY_BYTES: Final = 32
SECRETS: Final = (KEY, "operator.key", "session", "page.token")
LONGEST_LIST: Final = 1 << 28  # bytes; a line for each credential that is not carried away
_BROKERS: Final = re.compile(
    r"broker/(broker\.json|(tls|credentials|invitations)(/\w[\w.-]*){1,3})", re.ASCII
)
_ELSEWHERE: Final = "; if it was backed up separately, name its directory with --secrets"
_CHUNK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Contents:
    """The list of a backup. `files` and `secrets` are names and SHA-256 in hex.

    `broker` is where the broker's directory was, or empty if none was configured.
    """

    made: int
    version: str
    campaigns: list[str]
    received: int
    enrolled: int
    broker: str
    files: dict[str, str]
    secrets: dict[str, str]
    format: int = FORMAT


# --- making a backup -----------------------------------------------------------------------------


def make(
    settings: Settings,
    target: Path,
    secrets: Path | None = None,
    free: Callable[[Path], int] = lambda directory: shutil.disk_usage(directory).free,
) -> Contents:
    """Copy database, keys and the broker's directory into empty directories; check the copy."""
    _refuse_shared(settings)
    read_store(settings.data_dir).close()  # raises where there is none
    places = [target] if secrets is None else [target, secrets]
    if len({place.absolute() for place in places}) != len(places):
        raise CollectorError("--secrets names the same directory; nothing was written")
    for place in places:
        with _explained(f"{place} cannot be used", "; nothing was written"):
            if place.exists() and (not place.is_dir() or _entries(place)):
                raise CollectorError(
                    f"{place} is not empty; nothing was written. Name a new directory, such as "
                    f"{place}-{time.strftime('%Y-%m-%d')}"
                )
    unchanged = (
        ". Files written so far were removed; the collector and its data are as they were. Choose "
        "another directory, or free some space"
    )
    with _explained(f"no backup was made in {target}", unchanged), _all_or_nothing(places):
        for place in places:
            make_private_directory(place)
            mode = exposed_mode(place)
            if mode is not None:
                raise StorageFailure(
                    f"other users can read it (mode {mode:o}); run: chmod 700 {place}"
                )
        needed, available = (settings.data_dir / DATABASE).stat().st_size, free(target)
        if available < needed:
            raise StorageFailure(
                f"{needed / 1e6:,.1f} MB are needed and {available / 1e6:,.1f} MB are free"
            )
        _write(settings, target, secrets or target)
        try:
            return checked(target, secrets)
        except NotABackup as error:
            raise StorageFailure(f"the copy is not right: {error}") from None


def _write(settings: Settings, target: Path, secrets_dir: Path) -> None:
    copy_database(settings.data_dir / DATABASE, target / DATABASE)
    broker = settings.broker_dir.absolute()
    configured = BrokerDirectory.exists(broker)
    secrets = {}
    with BrokerDirectory.changing(broker) if configured else nullcontext():
        for name, file in _secret_files(settings.data_dir, broker):
            _copy_private(file, secrets_dir / name)
            secrets[name] = digest_of(secrets_dir / name)
        enrolled = len(BrokerDirectory.load(broker).enrolled) if configured else 0
    try:
        program = version("allomfree")
    except PackageNotFoundError:
        program = "unknown"
    with closing(read_store(target)) as store:
        listed = Contents(
            made=int(time.time()),
            version=program,
            campaigns=[campaign.name for campaign in store.campaigns()],
            received=store.received(),
            enrolled=enrolled,
            broker=str(broker) if configured else "",
            files={DATABASE: digest_of(target / DATABASE)},
            secrets=secrets,
        )
    write_durably(target / LIST, json.dumps(asdict(listed), indent=1) + "\n")


def _secret_files(data: Path, broker: Path) -> Iterator[tuple[str, Path]]:
    """Every secret, by its name in a backup. The broker's are those that `broker-config` and
    `enrol` wrote; its queue and its log are not copied."""
    yield from ((name, data / name) for name in SECRETS if (data / name).is_file())
    if BrokerDirectory.exists(broker):
        kept = [broker / "broker.json"]
        for name in ("tls", "credentials", "invitations"):
            kept += (broker / name).rglob("*")
        for file in sorted(kept):
            if file.is_file() and not file.is_symlink():
                yield f"{BROKER}/{file.relative_to(broker)}", file


# --- checking a backup ---------------------------------------------------------------------------


def checked(directory: Path, secrets: Path | None = None) -> Contents:
    """The list of a backup whose every part was checked, or an error that names the part."""
    found, secrets_dir = _read_list(directory), secrets or directory
    _check_digests(directory, found.files)
    _check_digests(secrets_dir, found.secrets, "" if secrets else _ELSEWHERE)
    if DATABASE not in found.files:
        raise NotABackup(f"{directory / LIST} names no {DATABASE}; nothing was restored")
    try:
        _check_contents(directory, secrets_dir, found)
    except StorageFailure as error:
        raise NotABackup(f"the backup cannot be used; nothing was restored: {error}") from None
    return found


def _read_list(directory: Path) -> Contents:
    file = directory / LIST
    try:
        with _open_regular(file) as content:
            stored = json.loads(content.read(LONGEST_LIST))
        if stored["format"] > FORMAT:
            raise NotABackup(
                f"{file} was written by a newer version of this program ({stored['version']}); "
                "nothing was restored. Install that version, or a later one"
            )
        found = Contents(**stored)
        digests = [*dict(found.files).values(), *dict(found.secrets).values()]
        if not all(isinstance(digest, str) for digest in digests):
            raise ValueError("a digest is text")
    except (FileNotFoundError, NotADirectoryError):
        raise NotABackup(
            f"{directory} is not a backup: it has no {LIST}, which is written last. Nothing was "
            "restored. Give the directory that `allomfree-collector backup` wrote"
        ) from None
    except OSError as error:
        raise NotABackup(f"{file} cannot be read: {error.strerror}; nothing was restored") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise NotABackup(
            f"{file} is not the list of a backup; nothing was restored. Use another backup"
        ) from None
    return found


def _check_contents(directory: Path, secrets_dir: Path, found: Contents) -> None:
    check_database(directory / DATABASE)
    with closing(read_store(directory)) as store:
        received = store.received()
        names = [campaign.name for campaign in store.campaigns()]
    if received != found.received or names != found.campaigns:
        raise StorageFailure(f"{directory / DATABASE} does not hold what {LIST} says")
    if received and KEY not in found.secrets:
        raise StorageFailure(f"it lacks {KEY}, without which the database is useless")
    if KEY in found.secrets and (secrets_dir / KEY).stat().st_size != DEVICE_KEY_BYTES:
        raise StorageFailure(f"{secrets_dir / KEY} is damaged")
    if found.broker:
        BrokerDirectory.load(secrets_dir / BROKER)


def _check_digests(directory: Path, files: Mapping[str, str], hint: str = "") -> None:
    for name, digest in files.items():
        path = _inside(directory, name)
        try:
            same = digest_of(path) == digest
        except FileNotFoundError:
            raise NotABackup(f"{path} is missing; nothing was restored{hint}") from None
        except OSError as error:
            raise NotABackup(
                f"{path} cannot be read: {error.strerror}; nothing was restored"
            ) from None
        if not same:
            raise NotABackup(
                f"{path} is not as it was backed up; nothing was restored. Use another backup"
            )


def _inside(directory: Path, name: str) -> Path:
    """A file of a backup; a list that somebody changed cannot lead outside of it, nor to a file
    that no backup has."""
    if name not in (DATABASE, *SECRETS) and not _BROKERS.fullmatch(name):
        raise NotABackup(f"{LIST} names {name!r}, which is not a file of a backup")
    path = directory / name
    links = [place for place in (path, *path.parents[: name.count("/")]) if place.is_symlink()]
    if links:
        raise NotABackup(f"{links[0]} is a link, which no backup has; nothing was restored")
    return path


# --- restoring a backup --------------------------------------------------------------------------


def restore(settings: Settings, source: Path, secrets: Path | None = None) -> Contents:
    """Check a backup, and copy it to the data and broker directories of the settings. Nothing is
    ever overwritten."""
    _refuse_shared(settings)
    found = checked(source, secrets)
    data, broker = settings.data_dir, settings.broker_dir.absolute()
    places = {data: "--data-dir", **({broker: "--broker-dir"} if found.broker else {})}
    for place, flag in places.items():
        _check_empty(place, flag)
    make_private(data)
    failed = f"the backup was not restored to {data}"
    unchanged = (
        ". Files written so far were removed; the backup is as it was. Free some space, or name "
        "another directory with --data-dir"
    )
    with only_service(data), _explained(failed, unchanged), _all_or_nothing(list(places)):
        for name in found.secrets:
            first, *rest = Path(name).parts
            target = broker.joinpath(*rest) if first == BROKER else data / name
            _copy_private(_inside(secrets or source, name), target)
        _copy_private(source / DATABASE, data / f".{DATABASE}.new")
        if found.broker:  # its own files are written again: they name the directory they are in
            plan = BrokerDirectory.load(broker).plan
            root = broker if plan.root == Path(found.broker) else plan.root
            BrokerDirectory.configure(broker, replace(plan, root=root))
        (data / f".{DATABASE}.new").replace(data / DATABASE)  # last: without it there is no data
        sync_directory(data)
    return found


def _check_empty(place: Path, flag: str) -> None:
    with _explained(f"{place} cannot be used", "; nothing was restored"):
        there = _entries(place)
    if there:
        raise CollectorError(
            f"{place} holds {', '.join(there[:3])} already; nothing was restored, and nothing is "
            f"ever overwritten. Stop the collector and move it away, or name another with {flag}"
        )


# --- files ---------------------------------------------------------------------------------------


def _refuse_shared(settings: Settings) -> None:
    if settings.store is not None:
        raise CollectorError(
            "the data is in PostgreSQL; nothing was changed. Use pg_dump and pg_restore for it; "
            f"keep copies of {settings.data_dir / KEY} and {settings.broker_dir}"
        )


def _copy_private(source: Path, target: Path) -> None:
    """Copy a file for its owner alone, synced, with its directories; never onto another file."""
    for parent in reversed([parent for parent in target.parents if not parent.exists()]):
        make_private_directory(parent)
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as out, _open_regular(source) as file:
        os.fchmod(descriptor, 0o600)  # the umask may have removed too much
        shutil.copyfileobj(file, out, _CHUNK)
        out.flush()
        os.fsync(descriptor)
    sync_directory(target.parent)


def digest_of(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with _open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _open_regular(path: Path) -> BufferedReader:
    """Nothing that never ends, and nothing that waits for a writer, may be in a backup's place."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return file


def _entries(place: Path) -> list[str]:
    """What is in a directory, without the lock; nothing if there is no directory."""
    if not place.exists():
        return []
    return sorted(entry.name for entry in place.iterdir() if entry.name != LOCK)


@contextmanager
def _all_or_nothing(places: Sequence[Path]) -> Iterator[None]:
    """After a failure, directories that were empty or missing are so again."""
    before = [place.exists() for place in places]
    try:
        yield
    except BaseException:
        for place, existed in zip(places, before):
            if not existed:
                shutil.rmtree(place, ignore_errors=True)
                continue
            with suppress(OSError):
                for name in _entries(place):
                    if (place / name).is_dir():
                        shutil.rmtree(place / name, ignore_errors=True)
                    else:
                        (place / name).unlink()
        raise


@contextmanager
def _explained(what: str, consequence: str) -> Iterator[None]:
    """Say what failed, why, and what that means."""
    try:
        yield
    except OSError as error:
        raise StorageFailure(f"{what}: {error.strerror or error}{consequence}") from None
