"""Moving the database: `migrate` from the file to PostgreSQL."""

from __future__ import annotations

from dataclasses import replace
from typing import TypedDict

import click

from collector.commands.options import command, show
from collector.data_dir import migrate as move
from collector.settings import Settings
from collector.store_address import StoreAddress
from protocol_spec.programs.commands import AS_JSON
from protocol_spec.programs.errors import SettingsError


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
