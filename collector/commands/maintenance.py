"""`backup` and `restore`: everything that cannot be made again, in a directory of its own."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal, TypedDict

import click

from collector import backups
from collector.backups import Contents
from collector.commands.options import FILE, command, show
from collector.data_dir import make_private
from collector.data_dir import migrate as move
from collector.opening import OperatorKey
from collector.results.tables import instant
from collector.settings import Settings
from collector.store_address import StoreAddress
from protocol_spec.programs.cli import AS_JSON
from protocol_spec.programs.settings import SettingsError

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


# --- Moving the database: `migrate` from the file to PostgreSQL.


class MovedFacts(TypedDict):
    """What `migrate --json` prints."""

    store: str
    directory: str
    rows: dict[str, int]


@command
@click.option("--to", required=True, metavar="URL", help="An empty PostgreSQL database.")
@AS_JSON
def migrate(settings: Settings, to: str, as_json: bool) -> None:
    """Move the data directory's database to PostgreSQL, which several workers can share.

    Open rounds go with their reports. Every row is compared before the move counts; if anything
    fails, nothing is changed. Stop the service first.

    \b
    allomfree-collector migrate --to postgresql://allomfree@db.example/allomfree
    """
    try:
        address = replace(StoreAddress(to), password_file=settings.store_password_file)
    except ValueError as error:
        raise SettingsError(f"--to: {error}. Nothing was changed") from None
    rows = move(settings.data_dir, address)
    facts: MovedFacts = {"store": address.url, "directory": str(settings.data_dir), "rows": rows}
    show(facts, as_json, moved_text)


def moved_text(facts: MovedFacts) -> str:
    """What was moved, and what to do next."""
    rows = facts["rows"]
    return "\n".join(
        [
            (
                f"Moved to {facts['store']}. Campaigns: {rows['campaign']:,}, sealed rounds: "
                f"{rows['round']:,}, results: {rows['result']:,}, reports of open rounds: "
                f"{rows['report']:,}."
            ),
            f"All {sum(rows.values()):,} rows were compared, byte by byte.",
            f"The old file stays in {facts['directory']} and is no longer used.",
            f"Next: allomfree-collector run --store {facts['store']}",
            (
                "Other workers need a copy of device.key from that directory; it is not in the "
                "database."
            ),
        ]
    )


# --- `operator-key`: the key that an operator signs manifests with.


Action = Literal["show", "create", "rotate"]


class OperatorFacts(TypedDict):
    """What `operator-key --json` prints; the previous key only after `rotate`."""

    operator: str
    file: str
    previous: str | None


@command
@click.argument("action", type=click.Choice(("show", "create", "rotate")), default="show")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@AS_JSON
def operator_key(settings: Settings, action: Action, yes: bool, as_json: bool) -> None:
    """Make, show or replace the key that signs your manifests.

    Owners who list the public key accept your campaigns and no one else's.

    \b
    allomfree-collector operator-key create
    allomfree-collector operator-key
    """
    key = OperatorKey(settings.data_dir)
    before = key.public
    if action == "create":
        make_private(settings.data_dir)
        key.create()
    elif not before:
        raise key.no_key()
    elif action == "rotate":
        _confirm(before, yes)
        key.rotate()
    previous = before.hex() if action == "rotate" else None
    facts: OperatorFacts = {
        "operator": key.public.hex(),
        "file": str(key.path),
        "previous": previous,
    }
    show(facts, as_json, operator_text)


def _confirm(before: bytes, yes: bool) -> None:
    question = (
        f"Replace {before.hex()} for ever? Owners who list it refuse what the new key signs, until "
        "they list the new one."
    )
    if not yes and not click.confirm(question, default=False, err=True):
        click.echo("Nothing was changed.", err=True)
        sys.exit(1)


def operator_text(facts: OperatorFacts) -> str:
    """The public key, and what it is for."""
    replaced = [f"Replaced {facts['previous']}"] if facts["previous"] else []
    return "\n".join(
        [
            *replaced,
            f"Operator {facts['operator']}",
            f"Its secret is in {facts['file']}: back it up, and show it to nobody.",
            "In each manifest, before [rounds]:",
            f'    operator = "{facts["operator"]}"',
            "Publish the key where owners trust you. They add to their edge.toml:",
            "    [policy]",
            f'    operators = {{ YOU = "{facts["operator"]}" }}',
        ]
    )
