"""The commands of `allomfree-collector`; all are listed here.

Only the module of the command that is typed is loaded.

Exit codes: 0 done, 1 something at run time, 2 settings or manifest.
"""

from __future__ import annotations

from typing import Final

import click

from protocol_spec.programs.cli import STYLE, Program, Verbs, version_option

# What is typed, the module here that does it, and the first line of its docstring.
COMMANDS: Final = Verbs(
    __name__,
    "collector",
    ("plan", "campaigns", "Predict how precise a campaign's results will be."),
    (
        "open",
        "campaigns",
        "Check a manifest, sign it if it names you as its operator, open it and publish it.",
    ),
    ("invite", "campaigns", "Print the link by which owners join a campaign, with its QR code."),
    ("run", "collecting", "Collect for every open campaign until stopped."),
    ("status", "reading", "Show how rounds fill, and what became of every message."),
    ("estimate", "reading", "Print results: a sentence, and the histogram with its intervals."),
    ("export", "reading", "Write results as rows with fixed columns, or as a figure."),
    ("page", "reading", "Serve the analyst's page without collecting."),
    ("seal", "collecting", "Seal rounds whose deadline has passed."),
    ("close", "campaigns", "End a campaign."),
    (
        "migrate",
        "maintenance",
        "Move the data directory's database to PostgreSQL, which several workers can share.",
    ),
    ("health", "checks", "Exit 0 if the collector is connected and counting."),
    ("doctor", "checks", "Check data, key, broker and campaigns, and say what to do."),
    ("backup", "maintenance", "Copy database, keys and broker's files, and check the copy."),
    ("restore", "maintenance", "Put a backup into an empty data directory."),
    ("broker-config", "broker", "Write a broker's configuration, with access control."),
    (
        "enrol",
        "broker",
        "Create an invitation file for each device, or credentials for readers.",
    ),
    (
        "revoke",
        "broker",
        "Refuse a device's reports and revoke its credential; or a reader's.",
    ),
    ("operator-key", "maintenance", "Make, show or replace the key that signs your manifests."),
)


@click.group("allomfree-collector", cls=Program, context_settings=STYLE, commands=COMMANDS)
@version_option("allomfree-collector")
def main() -> None:
    """Collect statistics from fleets of devices under local differential privacy.

    \b
    allomfree-collector plan heat.toml --devices 10000
    allomfree-collector open heat.toml
    allomfree-collector run
    allomfree-collector estimate
    """
