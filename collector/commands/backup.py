"""`backup` and `restore`: everything that cannot be made again, in a directory of its own."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final, TypedDict

import click

from collector import backups
from collector.backups import Contents
from collector.commands.options import FILE, command, show
from collector.settings import Settings
from collector.show.tables import instant
from protocol_spec.programs.commands import AS_JSON

DIRECTORY: Final = click.argument("directory", type=FILE)
SECRETS: Final = click.option(
    "--secrets", type=FILE, help="Directory of keys and broker's files, apart from the database."
)


class BackupFacts(TypedDict):
    """What `backup --json` and `restore --json` print."""

    directory: str
    secrets: str | None
    data_dir: str
    made: int
    version: str
    campaigns: list[str]
    received: int
    enrolled: int | None
    files: int


@command
@DIRECTORY
@SECRETS
@AS_JSON
def backup(settings: Settings, directory: Path, secrets: Path | None, as_json: bool) -> None:
    """Copy database, keys and broker's files, and check the copy.

    The service may run meanwhile. DIRECTORY must be new or empty; it will be for you alone. With
    --secrets, whoever finds only one of the two directories cannot tell which device reported.

    \b
    allomfree-collector backup /backup/monday
    allomfree-collector backup /backup/monday --secrets /elsewhere/monday
    """
    made = backups.make(settings, directory, secrets)
    show(_facts(settings, directory, secrets, made), as_json, backup_text)


@command
@DIRECTORY
@SECRETS
@click.option("--check", is_flag=True, help="Check the backup and restore nothing.")
@AS_JSON
def restore(
    settings: Settings, directory: Path, secrets: Path | None, check: bool, as_json: bool
) -> None:
    """Put a backup into an empty data directory.

    Nothing is ever overwritten. What was counted since the backup is lost for good.

    \b
    allomfree-collector restore /backup/monday --check
    allomfree-collector restore /backup/monday
    """
    if check:
        found = backups.checked(directory, secrets)
        text = checked_text
    else:
        found = backups.restore(settings, directory, secrets)
        text = restored_text
    show(_facts(settings, directory, secrets, found), as_json, text)


def _facts(
    settings: Settings, directory: Path, secrets: Path | None, found: Contents
) -> BackupFacts:
    return {
        "directory": str(directory),
        "secrets": None if secrets is None else str(secrets),
        "data_dir": str(settings.data_dir),
        "made": found.made,
        "version": found.version,
        "campaigns": found.campaigns,
        "received": found.received,
        "enrolled": found.enrolled if found.broker else None,
        "files": len(found.files) + len(found.secrets),
    }


def backup_text(facts: BackupFacts) -> str:
    """What is in it, that it was checked, and how to keep it."""
    apart = f" --secrets {shlex.quote(facts['secrets'])}" if facts["secrets"] else ""
    return (
        f"Backed up to {facts['directory']} and checked: {_what(facts)}.\n"
        "It holds noisy reports of rounds that are not sealed, and keys: keep it as secret as the "
        "original, and delete old copies.\n"
        f"To restore it: allomfree-collector restore {shlex.quote(facts['directory'])}{apart}"
    )


def checked_text(facts: BackupFacts) -> str:
    """That it could be restored."""
    made = instant(facts["made"])
    return f"{facts['directory']}, made at {made}, is whole: {_what(facts)}. Nothing was restored."


def restored_text(facts: BackupFacts) -> str:
    """What is there again, and what is not."""
    return (
        f"Restored to {facts['data_dir']}: {_what(facts)}.\n"
        f"What was counted since {instant(facts['made'])} is lost: devices have their receipts and "
        "do not send it again.\n"
        "Next: allomfree-collector doctor\n"
        "Then: allomfree-collector run"
    )


def _what(facts: BackupFacts) -> str:
    names = ", ".join(facts["campaigns"]) or "no campaign"
    enrolled = facts["enrolled"]
    broker = "" if enrolled is None else f", a broker with {enrolled:,} enrolled devices"
    return f"{names}; {facts['received']:,} messages received{broker}; {facts['files']} files"
