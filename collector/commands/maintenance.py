"""Looking after a collector's data: `backup`, `restore`, `migrate` and `operator-key`."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal

import click

from collector import backup as backups
from collector.backup import Contents
from collector.brokers.directory import BrokerDirectory
from collector.commands.options import FILE, YES, Facts, command, confirm, show
from collector.data_dir import make_private
from collector.data_dir import migrate as move
from collector.opening import OperatorKey
from collector.results.tables import instant
from collector.settings import Settings, StoreAddress
from protocol_spec.programs.cli import AS_JSON
from protocol_spec.programs.settings import SettingsError

# --- backup and restore ----------------------------------------------------------------------

DIRECTORY: Final = click.argument("directory", type=FILE)
SECRETS: Final = click.option(
    "--secrets", type=FILE, help="Directory of keys and broker's files, apart from the database."
)


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
    facts = _facts(settings, directory, secrets, backups.make(settings, directory, secrets))
    apart = f" --secrets {shlex.quote(str(secrets))}" if secrets else ""
    text = (
        f"Backed up to {directory} and checked: {_contents(facts)}.\n"
        "It holds noisy reports of rounds that are not sealed, and keys: keep it as secret as the "
        "original, and delete old copies.\n"
        f"To restore it: allomfree-collector restore {shlex.quote(str(directory))}{apart}"
    )
    show(facts, as_json, lambda _: text)


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
        facts = _facts(settings, directory, secrets, backups.checked(directory, secrets))
        text = (
            f"{directory}, made at {instant(facts['made'])}, is complete: {_contents(facts)}. "
            "Nothing was restored."
        )
    else:
        found = backups.restore(settings, directory, secrets)
        facts = _facts(settings, directory, secrets, found)
        text = (
            f"Restored to {settings.data_dir}: {_contents(facts)}.\n"
            f"What was counted since {instant(found.made)} is lost: devices have their receipts "
            "and do not send it again.\n"
            f"{_start_broker(settings)}"
            "Next: allomfree-collector doctor\n"
            "Then: allomfree-collector run"
        )
    show(facts, as_json, lambda _: text)


def _start_broker(settings: Settings) -> str:
    """mosquitto has to run before it can be checked; `run` starts NATS."""
    path = settings.broker_dir.absolute()
    if not BrokerDirectory.exists(path) or BrokerDirectory.load(path).plan.kind == "nats":
        return ""
    return f"Start the broker: mosquitto -c {shlex.quote(str(path / 'mosquitto.conf'))}\n"


def _facts(settings: Settings, directory: Path, secrets: Path | None, found: Contents) -> Facts:
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


def _contents(facts: Facts) -> str:
    names = ", ".join(facts["campaigns"]) or "no campaign"
    enrolled = facts["enrolled"]
    broker = "" if enrolled is None else f", a broker with {enrolled:,} enrolled devices"
    return f"{names}; {facts['received']:,} messages received{broker}; {facts['files']} files"


# --- migrate ---------------------------------------------------------------------------------


@command
@click.option("--to", required=True, metavar="URL", help="An empty PostgreSQL database.")
@AS_JSON
def migrate(settings: Settings, to: str, as_json: bool) -> None:
    """Move the data directory's database to PostgreSQL, which several workers can share.

    Open rounds go with their reports. It is one transaction: if anything fails, nothing is changed.
    Stop the service first.

    \b
    allomfree-collector migrate --to postgresql://allomfree@db.example/allomfree
    """
    try:
        address = replace(StoreAddress(to), password_file=settings.store_password_file)
    except ValueError as error:
        raise SettingsError(f"--to: {error}. Nothing was changed") from None
    rows = move(settings.data_dir, address)
    facts = {"store": address.url, "directory": str(settings.data_dir), "rows": rows}
    text = (
        f"Moved to {address.url}. Campaigns: {rows['campaign']:,}, sealed rounds: "
        f"{rows['round']:,}, results: {rows['result']:,}, reports of open rounds: "
        f"{rows['report']:,}.\n"
        f"The old file stays in {settings.data_dir} and is no longer used.\n"
        f"Next: allomfree-collector run --store {address.url}\n"
        "Other workers need a copy of device.key from that directory; it is not in the database."
    )
    show(facts, as_json, lambda _: text)


# --- operator-key ----------------------------------------------------------------------------


@command
@click.argument("action", type=click.Choice(("show", "create", "rotate")), default="show")
@YES
@AS_JSON
def operator_key(
    settings: Settings, action: Literal["show", "create", "rotate"], yes: bool, as_json: bool
) -> None:
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
        question = (
            f"Replace {before.hex()} for ever? Owners who list it refuse what the new key signs, "
            "until they list the new one."
        )
        confirm(question, yes)
        key.rotate()
    operator, previous = key.public.hex(), before.hex() if action == "rotate" else None
    replaced = f"Replaced {previous}\n" if previous else ""
    text = (
        f"{replaced}Operator {operator}\n"
        f"Its secret is in {key.path}: back it up, and show it to nobody.\n"
        "In each manifest, before [rounds]:\n"
        f'    operator = "{operator}"\n'
        "Publish the key where owners trust you. They add to their edge.toml:\n"
        "    [policy]\n"
        f'    operators = {{ YOU = "{operator}" }}'
    )
    facts = {"operator": operator, "file": str(key.path), "previous": previous}
    show(facts, as_json, lambda _: text)
