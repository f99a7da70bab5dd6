"""What is in a backup, and whether it is whole.

    DIRECTORY/backup.json   the list, written last: without it a backup is not one
    DIRECTORY/collector.db  the database
    DIRECTORY/device.key, operator.key, session, page.token, broker/…   secrets, or in a directory
                            of their own: who has only the database cannot tell devices apart

The broker's own queue is not in it: devices send again what has no receipt.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from collector.backups.files import digest_of
from collector.brokers.directory import BrokerDirectory
from collector.data_dir import DATABASE, KEY, check_store, read_store
from collector.errors import NotABackup, StorageFailure

FORMAT: Final = 1
LIST: Final = "backup.json"
BROKER: Final = "broker"
KEY_BYTES: Final = 32
APART: Final = "; if it was backed up apart, name its directory with --secrets"
SECRETS: Final = (KEY, "operator.key", "session", "page.token")


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

    def to_json(self) -> str:
        """As it is written."""
        return json.dumps(asdict(self), indent=1) + "\n"


def read_list(directory: Path) -> Contents:
    """The list in a directory."""
    file = directory / LIST
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        if stored["format"] > FORMAT:
            raise NotABackup(
                f"{file} was written by a newer version of this program ({stored['version']}); "
                "nothing was restored. Install that version, or a later one"
            )
        return _well_formed(Contents(**stored))
    except (FileNotFoundError, NotADirectoryError):
        raise NotABackup(
            f"{directory} is not a backup: it has no {LIST}, which is written last. Nothing was "
            "restored. Give the directory that `allomfree-collector backup` wrote"
        ) from None
    except OSError as error:
        raise NotABackup(f"{file} cannot be read: {error.strerror}; nothing was restored") from None
    except (ValueError, KeyError, TypeError):
        raise NotABackup(
            f"{file} is not the list of a backup; nothing was restored. Take another backup"
        ) from None


def _well_formed(found: Contents) -> Contents:
    for files in (found.files, found.secrets):
        if not all(isinstance(digest, str) for digest in dict(files).values()):
            raise ValueError("a digest is text")
    return found


def checked(directory: Path, secrets: Path | None = None) -> Contents:
    """The list of a backup of which every part was looked at, or an error that names the part."""
    found = read_list(directory)
    apart = secrets or directory
    _same_bytes(directory, found.files)
    _same_bytes(apart, found.secrets, "" if secrets else APART)
    if DATABASE not in found.files:
        raise NotABackup(f"{directory / LIST} names no {DATABASE}; nothing was restored")
    try:
        _sound(directory, apart, found)
    except StorageFailure as error:
        raise NotABackup(f"the backup cannot be used; nothing was restored: {error}") from None
    return found


def _sound(directory: Path, apart: Path, found: Contents) -> None:
    check_store(directory)
    with closing(read_store(directory)) as store:
        received, counted = store.received(), sum(store.outcomes().values())
        names = [campaign.name for campaign in store.campaigns()]
    if received != counted or received != found.received or names != found.campaigns:
        raise StorageFailure(f"{directory / DATABASE} does not hold what {LIST} says")
    if received and KEY not in found.secrets:
        raise StorageFailure(f"{KEY} is not in it, without which the database is worth nothing")
    if KEY in found.secrets and (apart / KEY).stat().st_size != KEY_BYTES:
        raise StorageFailure(f"{apart / KEY} is damaged")
    if found.broker:
        BrokerDirectory.load(apart / BROKER)


def _same_bytes(directory: Path, files: Mapping[str, str], hint: str = "") -> None:
    for name, digest in files.items():
        path = inside(directory, name)
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
                f"{path} is not as it was backed up; nothing was restored. Take another backup"
            )


def inside(directory: Path, name: str) -> Path:
    """A file of a backup; a list that somebody changed leads nowhere else."""
    parts = Path(name).parts
    if not parts or Path(name).is_absolute() or ".." in parts:
        raise NotABackup(f"{LIST} names {name!r}, which is no file of a backup")
    return directory / name


def secret_files(data: Path, broker: Path) -> Iterator[tuple[str, Path]]:
    """Every secret there is, by its name in a backup. A broker's are those that `broker-config`
    and `enrol` wrote; its queue and its log are its own."""
    for name in SECRETS:
        if (data / name).is_file():
            yield name, data / name
    if BrokerDirectory.exists(broker):
        kept = [broker / "broker.json", *(broker / "tls").rglob("*")]
        kept += (broker / "credentials").rglob("*")
        for file in sorted(kept):
            if file.is_file() and not file.is_symlink():
                yield f"{BROKER}/{file.relative_to(broker)}", file
