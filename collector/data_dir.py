"""The data directory: private, and written by one service at a time. It also chooses the store.

It holds the database, unless that is in PostgreSQL, and what belongs to this machine: the lock, the
name of the broker session, and the device key. The key is a file of its own, so that a copy of the
database alone links no row to a device.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from collector.errors import CollectorError, DataBusy, StorageFailure, UnknownCampaign
from collector.settings import Settings, StoreAddress
from collector.store import Store
from collector.store.sqlite import SqliteStore
from protocol_spec import Manifest
from protocol_spec.programs.cli import install_command
from protocol_spec.programs.output import shown
from protocol_spec.programs.system import (
    exposed_mode,
    make_private_directory,
    random_client_id,
    try_lock,
    write_durably,
)

if TYPE_CHECKING:
    from collector.store.postgres import PostgresStore


DATABASE: Final = "collector.db"
KEY: Final = "device.key"
LOCK: Final = "lock"
MOVED: Final = "moved-to"


def make_private(directory: Path) -> None:
    """Create the directory if needed, and require that only its owner can enter (R22)."""
    try:
        make_private_directory(directory)
        if not directory.is_dir():
            raise NotADirectoryError(0, "it is a file")
        mode = exposed_mode(directory)
    except OSError as error:
        raise StorageFailure(
            f"the data directory {directory} cannot be used: {error.strerror}. Nothing was "
            "changed; choose another with --data-dir"
        ) from None
    if mode is not None:
        raise StorageFailure(
            f"other users can read the data directory {directory} (mode {mode:o}); nothing was "
            f"changed. Run: chmod 700 {directory}"
        )


def open_store(directory: Path, address: StoreAddress | None = None) -> Store:
    """The directory's own database, or the one at an address; made if needed."""
    make_private(directory)
    if address is not None:
        return open_shared(address)
    _check_not_moved(directory)
    return SqliteStore(directory / DATABASE)


def open_shared(address: StoreAddress) -> Store:
    """A database that several workers may share."""
    return _postgres()(address)


def existing_store(directory: Path, address: StoreAddress | None = None) -> Store:
    """The database for changing what is in it; it is not made if it is missing."""
    if address is None:
        return _existing(directory)
    read_store(directory, address).close()  # an error where there are no tables
    return open_store(directory, address)


def read_store(directory: Path, address: StoreAddress | None = None) -> Store:
    """The database for reading only; it never waits for the service, nor the service for it."""
    if address is not None:
        return _postgres()(address, read_only=True)
    return _existing(directory, read_only=True)


def _existing(directory: Path, *, read_only: bool = False) -> SqliteStore:
    _check_not_moved(directory)
    if not (directory / DATABASE).exists():
        raise UnknownCampaign(
            f"there is no collector's database in {directory}; open a campaign first, or name the "
            "right directory with --data-dir"
        )
    if not read_only:
        make_private(directory)
    return SqliteStore(directory / DATABASE, read_only=read_only)


def migrate(directory: Path, address: StoreAddress) -> dict[str, int]:
    """Move the directory's database to PostgreSQL while no service runs; rows moved, by table.

    The file stays as it is. A note next to it keeps anybody from counting into it by mistake.
    """
    with only_service(directory), closing(_existing(directory)) as old:
        received = old.received()
        key = DeviceKey(directory / KEY, make=False) if received else None
        with closing(_postgres()(address)) as new:
            moved = new.take_over(old.contents())
            if key is not None:
                new.agree_on_key(key.fingerprint)
        write_durably(directory / MOVED, address.url)
    return moved


def _check_not_moved(directory: Path) -> None:
    """A command without --store must not count into the file that was left behind."""
    note = directory / MOVED
    if note.exists():
        where = note.read_text(encoding="utf-8")
        raise CollectorError(
            f"the data of {directory} was moved to {shown(where)}; nothing was changed. Give "
            f"--store {shown(where)}, or set it in the configuration. To go back to what was left "
            f"here, delete {note}"
        )


def _postgres() -> type[PostgresStore]:
    try:
        from collector.store.postgres import PostgresStore  # noqa: PLC0415
    except ImportError:
        raise CollectorError(
            "a store in PostgreSQL needs a package that is not installed; nothing was changed. "
            f"Run: {install_command('postgres')}"
        ) from None
    return PostgresStore


# --- the device key ------------------------------------------------------------------------------


class DeviceKey:
    """The secret that turns a device's name into a number, read or made once.

    `make` is for a collector that has received nothing yet: later, a missing key is a lost one.
    63 bits make two devices of a million share a number with probability 5e-8.
    """

    def __init__(self, path: Path, *, make: bool = True) -> None:
        try:
            if make and not path.exists():
                write_durably(path, secrets.token_bytes(32))
            self._key = path.read_bytes()
            mode = exposed_mode(path)
        except FileNotFoundError:
            raise _not_the_key(path, "is missing") from None
        except OSError as error:
            raise StorageFailure(
                f"the device key {path} cannot be used: {error.strerror}. Nothing was changed; "
                "check the disk and the file's permissions"
            ) from None
        if len(self._key) != 32:
            raise _not_the_key(path, "is damaged")
        if mode is not None:
            raise StorageFailure(
                f"other users can read the device key {path} (mode {mode:o}); nothing was "
                f"changed. Run: chmod 600 {path}"
            )

    @property
    def fingerprint(self) -> bytes:
        """Identifies the key and reveals nothing about it."""
        return hashlib.blake2b(key=self._key, person=b"fingerprint", digest_size=16).digest()

    def number(self, manifest: Manifest, device: str) -> int:
        """The device's number, which differs from campaign to campaign."""
        return int.from_bytes(self.hashed(manifest)(device.encode("ascii"))) >> 1

    def hashed(self, manifest: Manifest) -> Callable[[bytes], bytes]:
        """From a device's name, in ASCII, to eight bytes: its number and one bit more."""
        begun = hashlib.blake2b(key=self._key, person=manifest.digest[:16], digest_size=8)

        def hashed(device: bytes) -> bytes:
            keyed = begun.copy()
            keyed.update(device)
            return keyed.digest()

        return hashed


def _not_the_key(path: Path, fault: str) -> StorageFailure:
    return StorageFailure(
        f"the device key {path} {fault}; nothing was changed. Restore it from a backup, or "
        "copy it from the data directory of another worker: with another key every device would "
        "look new and could be counted twice"
    )


def device_key(settings: Settings, store: Store) -> DeviceKey:
    """The key of this data: made before the first report, and never again.

    The store knows only its fingerprint, so that a copy of the database alone links no row to a
    device. All workers of a store must have the same key.
    """
    file = settings.data_dir / KEY
    key = DeviceKey(file, make=store.received() == 0 and not store.agree_on_key(b""))
    if store.agree_on_key(key.fingerprint) != key.fingerprint:
        raise CollectorError(
            f"{file} is not the device key that this data was collected with; nothing was changed. "
            "With another key every device would look new and could be counted twice. Restore the "
            "key from a backup, or copy it from the data directory of another worker"
        )
    return key


@contextmanager
def only_service(directory: Path) -> Iterator[None]:
    """Be the one service on this data; the lock ends with the process, however it ends."""
    make_private(directory)
    try:
        lock = try_lock(directory / LOCK)
    except OSError as error:
        raise StorageFailure(
            f"{directory / LOCK} cannot be opened: {error.strerror}; nothing was changed. "
            "Correct its permissions, or choose another directory with --data-dir"
        ) from None
    if lock is None:
        raise DataBusy(
            f"another collector is running on {directory}; nothing was changed. Stop it first, or "
            "choose another directory with --data-dir"
        )
    try:
        yield
    finally:
        os.close(lock)


def client_id(settings: Settings) -> str:
    """The name of our session at the broker: the one set, or one made up once."""
    return settings.client_id or session_name(settings.data_dir)


def session_name(directory: Path) -> str:
    """The name of our session at the broker: made once, and nobody else can guess it.

    Whoever connects to a broker under a session's name takes the session over, and where the
    broker does not tie names to users, not knowing the name is all that keeps others out.
    """
    file = directory / "session"
    try:
        return file.read_text(encoding="ascii")
    except FileNotFoundError:
        name = random_client_id("coll")
    try:
        write_durably(file, name)
    except OSError as error:
        raise StorageFailure(
            f"{file} cannot be written: {error.strerror}. Nothing was changed; check the disk"
        ) from None
    return name
